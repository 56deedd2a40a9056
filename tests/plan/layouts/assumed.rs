//! Assumed and replayed nodes.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::node::{Node, PYTHON};
use harness::{Launcher, write_program};

use super::{line, of};

/// A machine without Python, or with a Python without torch, would not start the job, and its
/// processes may be in the job's way. Neither says anything about an assumed node.
#[test]
fn assumed_node_ignores_local_software_and_processes() {
    let folder = tempfile::tempdir().expect("a folder");
    let python = folder.path().join("python3");
    let answer =
        "#!/bin/sh\necho ranklaunch-module torch no\necho ranklaunch-module accelerate no\n";
    write_program(&python, answer);
    let without_torch = folder.path().to_str().expect("text");
    let script = folder.path().join("train.py");
    std::fs::write(&script, "read line\n").expect("a script");
    // The process looks like a Python that runs the script, and ends with its input.
    let mut beside = Command::new("/bin/sh")
        .arg0("python3")
        .arg(&script)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a process");
    for (path, engine, refused) in [
        ("/nowhere", "torchrun", "python.interpreter"),
        (without_torch, "torchrun", "python.torch"),
        (without_torch, "accelerate", "python.torch"),
    ] {
        let plan = |assume: &[&str]| {
            let launcher = Launcher::new(["plan", "--lang", "en", "--engine", engine]).args(assume);
            let launcher =
                launcher.args([Path::new("--"), &script]).env("PATH", path).env("CONDA_PREFIX", "");
            launcher.env("VIRTUAL_ENV", "").run()
        };
        let assumed = plan(&["--assume", "gpus=8"]).expect_code(0);
        assert!(assumed.out.contains("1 node × 8 GPUs = 8 ranks"), "{}", assumed.out);
        assert!(
            assumed.out.contains("python, torch and limits of that node are unknown"),
            "{}",
            assumed.out
        );
        assert!(!assumed.out.contains("stale.beside"), "{}", assumed.out);
        let here = plan(&["--device", "cpu"]).expect_code(67);
        assert!(here.out.contains(refused), "{}", here.out);
        assert!(here.out.contains("stale.beside"), "{}", here.out);
    }
    drop(beside.stdin.take());
    assert!(beside.wait().expect("its end").code().is_some());
}

/// Copied facts may lack the interpreter of their node, which is only a warning. They cannot lack a
/// program.
#[test]
fn a_replayed_node_without_python_is_planned() {
    let node = || Node::with_gpus(8).env("PATH", "/nowhere");
    let planned = node().json(&["--", "a.py"]);
    assert_eq!((planned.code, planned.at("/world_size").as_str()), (0, "8"));
    assert!(planned.warning_ids().contains(&"python.interpreter".to_owned()));
    assert_eq!(node().json(&[]).refusal(), "64 program.missing");
}

/// A plan of the README on a machine that has no GPU, no torch and no script.
#[test]
fn plan_for_a_remote_node_is_marked_assumed() {
    let platform = "WORLD_SIZE=2 RANK=0 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500";
    let laptop = || Node::without_gpus().platform(platform).env("PATH", "/nowhere");
    let script = ["--", "generate.py", "--ulysses_size", "{ulysses_size}"];
    let words = |facts| {
        let args = ["--assume", facts, "--layout", "ulysses-world", "--heads", "40"];
        [&args[..], &script].concat()
    };
    let planned = laptop().json(&words("gpus=8,name=NVIDIA H100,memory=80GiB"));
    assert_eq!(planned.code, 0, "{:#}", planned.json);
    assert_eq!(line(&planned), "5 10 10 1 0,1,2,3,4");
    assert_eq!(planned.at("/assumed"), "gpus=8,name=NVIDIA H100,memory=80GiB");
    assert_eq!(planned.at("/gpus/7/name"), "NVIDIA H100");
    let decisions = planned.json["decisions"].as_array().expect("a list");
    let source = |what: &str| {
        let found = decisions.iter().find(|one| one["what"] == what);
        found.map(|one| one["source"].as_str().expect("text").to_owned())
    };
    assert_eq!(source("assumed").as_deref(), Some("--assume"));
    assert_eq!(source("device").as_deref(), Some("--assume"));
    assert_eq!(source("OMP_NUM_THREADS"), None, "this machine's CPUs are not the node's");
    let ids = planned.warning_ids();
    assert_eq!(ids, ["gpu.unused"], "what this machine lacks is not held against that node");
    // A layout that is impossible on the assumed node is refused as usual.
    assert_eq!(laptop().json(&words("gpus=1")).at("/world_size"), "2");
    let three = [
        &of("3")[..],
        &["--assume", "gpus=8", "--layout", "ulysses-world"],
        &["--heads", "40"],
        &script,
    ];
    assert_eq!(Node::without_gpus().json(&three.concat()).refusal(), "66 layout.unsolvable");
    let taehv = ["--profile", "taehv", "--assume", "gpus=4", "--python", PYTHON];
    assert_eq!(Node::without_gpus().json(&taehv).refusal(), "66 select.no-match");
    for (lang, mark) in [("en", "GPU, assumed"), ("zh", "GPU（假设）")] {
        let text = laptop().env("RANKLAUNCH_LANG", lang).plan(&words("gpus=8")).expect_code(0).out;
        assert!(text.contains(mark) && text.contains("gpus=8"), "{text}");
    }
    // The plan is marked as assumed, and nothing is started from it.
    assert_eq!(Node::with_gpus(8).json(&["--", "a.py"]).at("/assumed"), "null");
    assert_eq!(laptop().json(&words("gpus=many")).refusal(), "64 settings.assume");
    let run = Node::with_gpus(1).launcher("run", &["--assume", "gpus=8", "--", "a.py"]).run();
    let run = run.expect_code(64).expect_id("flags");
    assert!(run.err.contains("--assume"), "{}", run.err);
}
