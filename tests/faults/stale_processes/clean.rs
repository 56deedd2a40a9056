//! Processes that are older than the one that ends them, and the way in which they end.

use std::ffi::OsString;
use std::process::Command;

use harness::{Launcher, TIMEOUT, python};

use super::{Scene, in_a_namespace};

#[test]
fn clean_ends_older_processes_and_spares_younger_ones() {
    in_a_namespace(inside_younger);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_younger() {
    let mut scene = Scene::new();
    let mut rank = scene.python(&["train.py", "older"]);
    rank.env("TORCHELASTIC_RUN_ID", "x");
    scene.plant(rank, &["older"]);
    // The shell becomes ranklaunch once a younger orphan exists.
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(
        "(cd \"$1\"; TORCHELASTIC_RUN_ID=x \"$2\" train.py younger &)\n\
         while [ ! -e \"$1/ready/younger\" ]; do sleep 0.01; done\n\
         exec \"$3\" clean --device cpu --python \"$2\" -- \"$1/train.py\"",
    );
    shell.arg("sh").arg(scene.folder.path()).arg(python()).arg(harness::executable());
    let none: [&str; 0] = [];
    let ended = Launcher::of(shell, none).run().expect_code(0);
    scene.arrived(&["younger"]);
    assert_eq!(scene.gone(), ["older"], "{}{}", ended.out, ended.err);
    let line = scene.line(&ended.out, "older");
    assert!(line.contains("ended: pid") && line.contains("runs this job's script"), "{line}");
    // For a newer `clean`, the younger orphan is older. The output is in Chinese.
    let ended = scene.launcher(&["clean", "--lang", "zh"], &[]).run().expect_code(0);
    assert_eq!(scene.gone(), ["older", "younger"], "{}{}", ended.out, ended.err);
    assert!(ended.out.contains("已终止"), "{}", ended.out);
    let ended = scene.launcher(&["clean"], &[]).run().expect_code(0);
    assert_eq!(ended.out, "nothing found\n");
}

/// A user who repairs a node ends leftovers first.
#[test]
fn clean_works_on_a_node_unfit_for_jobs() {
    in_a_namespace(inside_broken);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_broken() {
    let mut scene = Scene::new();
    let mut rank = scene.python(&["train.py", "older"]);
    rank.env("TORCHELASTIC_RUN_ID", "x");
    scene.plant(rank, &["older"]);
    let without_python = |command: &str| {
        let words = [command, "--engine", "direct", "--device", "cpu", "--python", "/none", "--"];
        let mut words: Vec<OsString> = words.map(OsString::from).into();
        words.push(scene.path("train.py").into());
        Launcher::new(words).run()
    };
    let refused = without_python("run").expect_code(67);
    assert!(scene.gone().is_empty(), "{}", refused.err);
    let ended = without_python("clean").expect_code(0);
    assert_eq!(scene.gone(), ["older"], "{}{}", ended.out, ended.err);
}

#[test]
fn process_ignoring_term_is_killed_after_the_wait() {
    in_a_namespace(inside_deaf);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_deaf() {
    let mut scene = Scene::new();
    for name in ["a-deaf", "polite"] {
        let mut rank = scene.python(&["train.py", name]);
        rank.env("TORCHELASTIC_RUN_ID", "x");
        scene.plant(rank, &[name]);
    }
    let ended = scene.run("kill");
    assert_eq!(scene.gone(), ["a-deaf", "polite"], "{}", ended.err);
    let waited = ended.elapsed.as_secs();
    assert!((10..TIMEOUT.as_secs()).contains(&waited), "TERM is given 10 s: {waited} s");
    let signals: Vec<Option<i32>> = scene
        .children
        .iter_mut()
        .map(|child| {
            let status = child.wait().expect("it ended");
            std::os::unix::process::ExitStatusExt::signal(&status)
        })
        .collect();
    assert_eq!(signals, [Some(9), Some(15)]);
}
