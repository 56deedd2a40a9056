//! Hung ranks of real torch, and the culprit that `ranklaunch explain` finds in the records of
//! their flight recorders.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Launcher, executable, root, run_args};
use serde_json::{Value, json};

/// Three ranks of tests/python/records.py, which leave their records in the returned folder.
fn records(kind: &str) -> (tempfile::TempDir, PathBuf) {
    let launcher = Launcher::new(run_args("direct", 3));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    let script = root().join("tests/python/records.py").into_os_string();
    let ended = launcher.args(["--".into(), script, kind.into(), path.clone().into()]).run();
    ended.expect_code(0).expect_nothing_left();
    (folder, path)
}

fn explain(words: &[&str], files: &[PathBuf]) -> String {
    let mut command = Command::new(executable());
    let output = command.arg("explain").args(words).args(files).env("LC_ALL", "C.UTF-8").output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn hang(files: &[PathBuf]) -> Value {
    let said: Value = serde_json::from_str(&explain(&["--format", "json"], files)).expect("JSON");
    said["hang"][0].clone()
}

fn pickles(folder: &Path, ranks: &[u32]) -> Vec<PathBuf> {
    ranks.iter().map(|rank| folder.join(format!("comm_lib_trace_rank_{rank}"))).collect()
}

#[test]
fn absent_rank_is_named_with_collective_and_waiters() {
    let (_folder, path) = records("never");
    let found = hang(&pickles(&path, &[0, 1, 2]));
    let culprits = found["culprits"].as_array().expect("a list");
    assert_eq!(culprits.len(), 1, "{found:#}");
    let culprit = &culprits[0];
    assert_eq!((&culprit["rank"], &culprit["kind"]), (&json!(1), &json!("never_entered")));
    let collective = json!({ "op": "all_reduce", "group": "default_pg", "seq": 7 });
    assert_eq!((&culprit["collective"], &culprit["frame"]), (&collective, &Value::Null));
    let line = culprit["waited_at"].as_str().expect("a line");
    assert!(line.starts_with("records.py:"), "{line}");
    assert_eq!(found["waiting"], json!([{ "node": null, "ranks": [0, 2] }]));
    assert_eq!(found["confidence"], "likely", "a file does not say when it was read");
    // The answers of the worker server give the same culprit, without the line.
    let answers: Vec<PathBuf> = (0..3).map(|rank| path.join(format!("rank_{rank}.json"))).collect();
    assert_eq!(hang(&answers)["culprits"][0]["collective"], collective);
    // A folder is searched for torch's own file names.
    assert_eq!(hang(std::slice::from_ref(&path))["culprits"], found["culprits"]);

    let said = explain(&[], &pickles(&path, &[0, 1, 2]));
    let first = said.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("hang ") && first.contains("rank 1 has not entered all_reduce 7"),
        "{said}"
    );
    assert!(said.contains("ranks 0, 2, since ") && said.contains("records.py:"), "{said}");
    let said = explain(&["--lang", "zh"], &pickles(&path, &[0, 1, 2]));
    assert!(said.starts_with("卡死") && said.contains("rank 1 没有进入"), "{said}");

    // Without the record of rank 1, nothing shows that it ran and did not enter the collective.
    let found = hang(&pickles(&path, &[0, 2]));
    assert_eq!(found["silent"], json!([1]), "{found:#}");
    assert_eq!(found["culprits"][0]["kind"], "unknown", "{found:#}");
    let found = hang(&pickles(&path, &[1]));
    assert_eq!(found["culprits"], json!([]), "rank 1 waits for nobody: {found:#}");
}

#[test]
fn running_job_has_no_culprit() {
    let (_folder, path) = records("running");
    let found = hang(&pickles(&path, &[0, 1, 2]));
    assert_eq!(found["culprits"], json!([]), "{found:#}");
}
