//! Records that torch's `@record` writes of an exception are evidence, with every engine.

use std::path::Path;

use harness::{Ended, Launcher, root, run_args};
use serde_json::Value;

use super::explained::explain_all;
use super::{Expected, expect_cause, expect_no_cause, job};

const RECORDED: Expected = Expected {
    id: "user_exception",
    confidence: "likely",
    ranks: &[1],
    frame: Some(("recorded.py", "read")),
    words: "ValueError: sample 17 has no label",
    codes: &[1],
};

fn attempt_file(ended: &Ended, name: &str) -> std::path::PathBuf {
    ended.node_folder(0).join("attempt-0").join(name)
}

/// The cause of a job of two ranks, and how the job ended.
#[track_caller]
fn recorded(launcher: Launcher, log: &str) -> (Ended, Value) {
    let ended = launcher.run().expect_code(1).expect_nothing_left();
    let cause = expect_cause(&ended, 0, RECORDED);
    assert_eq!(cause["log"], log, "{cause:#}\n{}", ended.err);
    assert_eq!(cause["also"], Value::Array(Vec::new()), "{cause:#}");
    let said = explain_all(&[&ended.node_folder(0)]);
    let found = &said["cause"];
    for key in ["id", "rank", "line", "evidence"] {
        assert_eq!(found[key], cause[key], "{key}: {found:#}");
    }
    assert_eq!(said["also"], Value::Array(Vec::new()), "{said:#}");
    (ended, cause)
}

#[test]
fn exception_absent_from_stderr_is_read_from_record() {
    for engine in ["direct", "torchrun"] {
        let file = "rank-00001.error.json";
        let (ended, cause) = recorded(job(engine, 2, "recorded.py", &["1"]), file);
        assert_eq!(cause["line"], 1, "{cause:#}");
        let record = std::fs::read(attempt_file(&ended, file)).expect("a record");
        let record: Value = serde_json::from_slice(&record).expect("JSON");
        let stack = &record["message"]["extraInfo"]["py_callstack"];
        assert!(stack.as_str().is_some_and(|stack| stack.contains("in read")), "{record:#}");
        if engine == "torchrun" {
            // torchrun's own report is the same as without us.
            let log = std::fs::read_to_string(attempt_file(&ended, "engine.log")).expect("a log");
            assert!(log.contains("traceback : Traceback (most recent call last)"), "{log}");
            assert!(log.contains("ValueError: sample 17 has no label"), "{log}");
        }
    }
}

/// The controls: nothing else in such a job gives the reason.
#[test]
fn without_record_nothing_names_the_exception() {
    for engine in ["direct", "torchrun"] {
        let ended = job(engine, 2, "recorded.py", &["1", "plain"]).run();
        expect_no_cause(&ended.expect_code(1).expect_nothing_left());
    }
}

#[test]
fn exception_in_stderr_and_record_is_one_cause() {
    recorded(job("direct", 2, "recorded.py", &["1", "loud"]), "rank-00001.err");
}

#[test]
fn users_own_record_file_is_kept() {
    let launcher = |file: &str| {
        let named = format!("TORCHELASTIC_ERROR_FILE={file}");
        let options = ["--termination-log", "message", "--env", &named, "--"];
        let script = [root().join("tests/python/recorded.py"), "1".into()];
        Launcher::new(run_args("direct", 2)).args(options).args(script)
    };
    let (ended, _) = recorded(launcher("mine.json"), "rank-00001.error.json");
    let files = [ended.folder().join("mine.json"), attempt_file(&ended, "rank-00001.error.json")];
    let [own, kept] = files.map(|path| std::fs::read(path).expect("a record"));
    assert_eq!(own, kept);
    // An empty name counts as no name.
    expect_no_cause(&launcher("").run().expect_code(1).expect_nothing_left());
}

/// A rank that puts anything in the place of its record, and fails.
fn puts(what: &str) -> Ended {
    let launcher = Launcher::new(run_args("direct", 1)).args(["--termination-log", "message"]);
    let script = launcher.folder().join("train.py");
    let put = format!(
        "import os, sys\nfile = os.environ['TORCHELASTIC_ERROR_FILE']\n{what}\nsys.exit(3)\n"
    );
    std::fs::write(&script, put).expect("written");
    launcher.args([Path::new("--"), &script]).run().expect_code(3).expect_nothing_left()
}

#[test]
fn anything_in_place_of_a_record_is_harmless() {
    let whole = r#"{"message": {"message": "ValueError: sample 17"}}"#;
    for what in [
        "os.mkfifo(file)".to_owned(),
        "os.mkdir(file)".to_owned(),
        "os.symlink('/dev/zero', file)".to_owned(),
        "os.symlink(file, file)".to_owned(),
        "open(file, 'wb').write(bytes(range(256)) * 100)".to_owned(),
        "open(file, 'wb').truncate(1 << 40)".to_owned(),
        format!("open(file, 'w').write('''{}''')", &whole[..whole.len() - 1]),
        format!("open(file, 'w').write('''{}''')", "[".repeat(10_000)),
        // The record belongs to another job, long ago.
        format!("open(file, 'w').write('''{whole}''')\nos.utime(file, (1, 1))"),
    ] {
        let ended = puts(&what);
        expect_no_cause(&ended);
        let said = explain_all(&[&ended.node_folder(0)]);
        assert_eq!(said["cause"], Value::Null, "{what}: {said:#}");
    }
    // The control: the same place with a record in it, even if its time is in the future.
    for late in ["", "\nos.utime(file, (2**62, 2**62))"] {
        let ended = puts(&format!("open(file, 'w').write('''{whole}'''){late}"));
        assert_eq!(ended.run_json(0)["cause"]["id"], "user_exception", "{}", ended.err);
    }
}
