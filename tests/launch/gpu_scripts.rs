//! The scripts of `make gpu`, tried over gloo because no GPU is needed here.

use std::process::Command;

use harness::{executable, python, root, without_platform};

/// Output of a script of tests/gpu, which must end with 0.
fn said(script: &str, more: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let script = root().join("tests/gpu").join(script);
    let mut command = match script.extension() {
        Some(extension) if extension == "py" => Command::new(python()),
        _ => Command::new("sh"),
    };
    command.arg(script).arg(executable()).arg(python()).args(more);
    without_platform(&mut command);
    let ended = command.current_dir(&folder).output().expect("it runs");
    let said = [ended.stdout, ended.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(ended.status.success(), "{said}");
    said
}

fn all_is_ok(script: &str, checks: usize) {
    let said = said(script, &["out", "gloo"]);
    assert_eq!(said.matches("ok: ").count(), checks, "{said}");
}

#[test]
fn a_hang_is_judged() {
    all_is_ok("hang.sh", 4);
}

#[test]
fn ranks_are_forked() {
    all_is_ok("warm.sh", 6);
}

#[test]
fn watched_job_ends_a_leftover_rank() {
    all_is_ok("watched.py", 14);
}

#[test]
fn starts_are_measured_beside_torchrun() {
    let said = said("start.py", &["gloo", "1"]);
    assert_eq!(said.matches(" MiB ").count(), 4, "{said}");
}
