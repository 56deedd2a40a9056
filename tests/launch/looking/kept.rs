//! `--log-keep`: the earlier runs that are kept.

use std::path::Path;

use harness::wait_until;
use nix::sys::signal::Signal;

use super::shell;

/// The runs of a log folder, without `latest`.
fn runs(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a log folder").flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn live_run_outlasts_the_limit_of_kept_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = folder.path().display().to_string();
    // The oldest run, which is alive.
    let mut living = shell(1, &["--log-dir", &logs], "echo READY; sleep 600").start();
    living.says("READY", 1);
    let run = |options: &[&str]| {
        let options: Vec<&str> = ["--log-dir", &logs].iter().chain(options).copied().collect();
        shell(1, &options, "echo done").run().expect_code(0)
    };
    for _ in 0..3 {
        run(&[]);
    }
    assert_eq!(runs(folder.path()).len(), 4, "without --log-keep all stay");
    let known = runs(folder.path());
    run(&["--log-keep", "2"]);
    wait_until("surplus runs are gone", || (runs(folder.path()).len() <= 3).then_some(()));
    let left = runs(folder.path());
    let living_run = {
        let of_agent = |run: &String| folder.path().join(run).join("node-0/running").exists();
        left.iter().find(|run| of_agent(run)).cloned().expect("the one that lives")
    };
    assert!(known.contains(&living_run), "{left:?}");
    living.signal(Signal::SIGTERM);
    living.wait().expect_code(143).expect_nothing_left();
    assert!(!folder.path().join(&living_run).join("node-0/running").exists());
    // The run has ended by now, and is the last one that ended.
    let last = run(&["--log-keep", "1"]);
    let said = wait_until("only the newest is left", || {
        (runs(folder.path()).len() == 1).then(|| last.err.clone())
    });
    assert!(said.is_empty() || !said.contains("cannot remove"), "{said}");
}

#[test]
fn invalid_limit_of_kept_runs_is_refused() {
    for wrong in ["0", "x", "3,4"] {
        let refused = shell(1, &["--log-keep", wrong], "true").run();
        refused.expect_code(64).expect_id("settings.log_keep");
    }
    let ended = shell(1, &["--log-keep", "20,14d,50GiB"], "true").run().expect_code(0);
    assert!(ended.node_folder(0).join("run.json").exists());
}
