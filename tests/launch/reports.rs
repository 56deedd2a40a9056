//! report.html of one node, and the results of `report` and `compare` for folders.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use harness::{Ended, Launcher, executable, run_args};
use nix::sys::signal::Signal;
use serde_json::Value;

fn ranklaunch(arguments: &[&Path]) -> Output {
    let mut command = Command::new(executable());
    let folder = arguments[1].parent().expect("a folder");
    command.args(arguments).env("LANG", "C").current_dir(folder);
    command.output().expect("it runs")
}

fn printed(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// The document in a page.
pub(crate) fn document(page: &Path) -> Value {
    let page = std::fs::read_to_string(page).expect("a page");
    let (_, rest) = page.split_once(r#"id="data">"#).expect("the document");
    serde_json::from_str(rest.split_once("</script>").expect("its end").0).expect("JSON")
}

fn run(ended: &Ended) -> PathBuf {
    ended.node_folder(0).parent().expect("a run").canonicalize().expect("it is there")
}

const COMPLAINT: &str = "cannot write report.html";

/// A job whose only rank is a shell that knows the folder of its run.
fn job(script: &str) -> Ended {
    let script = format!("cd ranklaunch-logs/latest; {script}");
    Launcher::new(run_args("direct", 1)).args(["--", "sh", "-c", &script]).run()
}

#[test]
fn unwritable_report_changes_nothing() {
    let whole = job("exit 3").expect_code(3);
    assert!(!whole.err.contains(COMPLAINT), "{}", whole.err);
    for page in ["report.html", "node-0/report.html"] {
        assert_eq!(document(&run(&whole).join(page))["end"]["exit_code"], 3, "{page}");
    }
    // A folder in the place of the report cannot be replaced by a file.
    for place in ["report.html", "node-0/report.html"] {
        let ended =
            job(&format!("mkdir -p {place}/x; exit 3")).expect_code(3).expect_nothing_left();
        assert_eq!(ended.err.matches(COMPLAINT).count(), 1, "{place}: {}", ended.err);
        assert_eq!(ended.run_json(0)["exit_code"], 3);
        // The complaint follows the closing block, which matters more.
        let closing = ended.err.find("── ranklaunch: ").expect("a closing block");
        assert!(ended.err.find(COMPLAINT) > Some(closing), "{}", ended.err);
    }
}

#[test]
fn a_killed_run_is_reported_afterwards() {
    let mut job = Launcher::ranks("direct", 2, &["wait"]).start();
    job.says("READY", 2);
    // Every process is killed, the guard first, because it would report.
    let mut pids: Vec<i32> = job.processes().iter().map(|process| process.pid).collect();
    pids.sort_by_key(|pid| *pid != job.pid());
    for pid in pids {
        // The process may have ended with its parent.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
    }
    let over = job.wait();
    let run = run(&over);
    assert!(!run.join("node-0/run.json").exists(), "it is cut off");
    let journal = run.join("node-0/agent.jsonl");
    let mut whole = std::fs::read(&journal).expect("the journal");
    whole.extend_from_slice(b"{\"timestamp\":\"2026-");
    std::fs::write(&journal, &whole).expect("cut");
    let page = printed(&ranklaunch(&[Path::new("report"), &run]));
    assert_eq!(Path::new(&page), run.join("report.html"));
    let document = document(Path::new(&page));
    assert_eq!((&document["end"], &document["nodes"][0]["cut_off"]), (&Value::Null, &true.into()));
    assert_eq!(document["nodes"][0]["ranks"].as_array().map(Vec::len), Some(2), "who had begun");
    let notes = document["nodes"][0]["notes"].to_string();
    assert!(notes.contains("run.json is missing") && notes.contains("agent.jsonl"), "{notes}");
}

#[test]
fn two_runs_are_compared() {
    let (first, second) = (job("exit 3"), job("exit 4"));
    let output = ranklaunch(&[Path::new("compare"), &run(&first), &run(&second)]);
    let text = printed(&output);
    assert!(text.contains("exit_code") && !text.contains("nproc_per_node"), "{text}");
    let same = printed(&ranklaunch(&[Path::new("compare"), &run(&first), &run(&first)]));
    assert!(same.contains("no difference"), "{same}");
    let json = Path::new("--format=json");
    let output = ranklaunch(&[Path::new("compare"), &run(&first), &run(&second), json]);
    let document: Value = serde_json::from_str(&printed(&output)).expect("JSON");
    let differ = document["differences"].as_array().expect("a list").iter();
    let code = differ.clone().find(|one| one["what"] == "exit_code").expect("the code");
    assert_eq!(
        (&code["part"], &code["first"], &code["second"]),
        (&"outcome".into(), &"3".into(), &"4".into())
    );
    // Folders of two runs give no report.
    let output = ranklaunch(&[Path::new("report"), &run(&first), &run(&second)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("different runs") && said.contains("report.run"), "{said}");
}
