//! `ranklaunch stacks`: real interpreters, compared with their own faulthandler.

mod asked;
mod kinds;
mod moving;
mod nodes;
mod versions;

use harness::{Ended, Launcher, Running};
use serde_json::Value;

/// `ranklaunch stacks RUN ARGS…` for this job. Other jobs may run on the machine.
fn stacks(job: &Running, args: &[&str]) -> Ended {
    Launcher::new(["stacks", &job.run_id(), "--lang", "en"]).args(args).run()
}

/// The document of all ranks.
fn document(job: &Running) -> Value {
    let ended = stacks(job, &["--format", "json"]).expect_code(0);
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}", ended.out))
}

/// A frame: the function without its class, the file and the line.
type Line = (String, String, u64);

/// The Python stacks of a process, innermost frame first, without their order.
fn lines(process: &Value) -> Vec<Vec<Line>> {
    let mut stacks: Vec<Vec<Line>> = list(&process["threads"])
        .iter()
        .filter(|thread| thread["python"].is_object())
        .map(|thread| list(&thread["python"]["frames"]).iter().map(line).collect())
        .collect();
    stacks.sort();
    stacks
}

fn line(frame: &Value) -> Line {
    let function = text(&frame["function"]);
    let function = function.rsplit('.').next().unwrap_or(function).to_owned();
    (function, text(&frame["file"]).to_owned(), frame["line"].as_u64().unwrap_or(0))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A process needs a moment to reach the place where it waits.
fn eventually(what: &str, mut right: impl FnMut() -> Result<(), String>) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let Err(wrong) = right() else { return };
        assert!(std::time::Instant::now() < deadline, "{what}: {wrong}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// A job of the `direct` engine whose ranks run this Python text.
fn of_script(ranks: u32, script: &str) -> Running {
    let launcher = Launcher::new(harness::run_args("direct", ranks));
    let file = launcher.folder().join("script.py");
    std::fs::write(&file, script).expect("written");
    launcher.args(["--".into(), file.into_os_string()]).env("RANKLAUNCH_GRACE", "5s").start()
}

#[test]
fn folder_selects_its_job() {
    let script = "import threading\nprint('READY', flush=True)\nthreading.Event().wait()\n";
    let (mut one, mut other) = (of_script(1, script), of_script(1, script));
    one.says("READY", 1);
    other.says("READY", 1);
    let logs = one.folder().join("ranklaunch-logs");
    let logs = logs.to_str().expect("UTF-8");
    let run = format!("{logs}/latest");
    for how in [&["--log-dir", logs][..], &[logs], &[&run]] {
        let ended = Launcher::new(["stacks", "--lang", "en"]).args(how).run().expect_code(0);
        assert!(ended.out.contains(&one.run_id()), "{how:?}: {}", ended.out);
        assert!(!ended.out.contains(&other.run_id()), "{how:?}: {}", ended.out);
        let dump = Launcher::new(["dump", "--lang", "en", "--output", "evidence"]).args(how);
        let ended = dump.run().expect_code(0);
        assert!(ended.folder().join("evidence").is_dir(), "{how:?}: {}", ended.out);
    }
    let nothing = tempfile::tempdir().expect("a folder");
    let nothing = nothing.path().to_str().expect("UTF-8");
    let ended = Launcher::new(["stacks", "--log-dir", nothing]).run();
    assert!(ended.code != 0 && ended.err.contains("no run of ranklaunch"), "{}", ended.err);
}
