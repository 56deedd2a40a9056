//! Limits of a container as ranklaunch sees them, and a rank that the kernel kills for its memory.

use harness::docker::{self, Setup};
use harness::fake_nvml::FakeNvml;
use harness::report::{Checked, check_of};
use harness::{Ended, Running};
use serde_json::Value;

use crate::{json, run};

/// Rank 1 runs the script, rank 0 waits to be ended.
fn rank_1(script: &str) -> String {
    format!("if [ $RANK = 1 ]; then {script}; else echo READY; exec sleep 300; fi")
}
fn verdict(over: &Ended) -> Value {
    json(&docker::file(over.container(), "/ranklaunch-logs/latest/node-0/run.json"))
}

#[test]
fn small_dev_shm_is_warned_of_or_refused() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    let with = |size: &str| Setup::of(&image).programs().options(&["--shm-size", size]);
    let look = ["check", "--device", "cpu", "--nproc-per-node", "2", "--format", "json"];
    // No Python in the image has torch.
    let look = [&look[..], &["--severity", "python.torch=warn"]].concat();
    let wan22 = [
        "--profile",
        "wan22",
        "--engine",
        "direct",
        "--device",
        "cpu",
        "--stale",
        "off",
        "--nproc-per-node",
        "2",
        "--",
        "sh",
        "-c",
        "echo started",
    ];

    let started = [
        with("64m").start(&look),
        with("64m").start(&run("true")),
        with("64m").start(&wan22),
        with("8g").start(&wan22),
    ];
    let mut over = started.into_iter().map(Running::wait);
    let mut next = || over.next().expect("four");

    let Checked { severity, text, hint } = check_of(&json(&next().expect_code(0).out), "shm.size");
    assert!(severity == "warn" && text.contains("64 MiB"), "{severity} {text}");
    assert!(hint.contains("--shm-size") && hint.contains("--ipc host"), "{hint}");
    next()
        .expect_code(0)
        .expect_words(&["warning: /dev/shm has 64 MiB", "--shm-size 16g (or --ipc host)"]);
    let refused =
        next().expect_code(84).expect_words(&["refused: /dev/shm has 64 MiB", "(shm.size)"]);
    assert!(!refused.out.contains("started"), "{}", refused.out);

    let sound = next().expect_code(0);
    assert!(sound.out.contains("started") && !sound.err.contains("/dev/shm"), "{}", sound.err);
}

#[test]
fn limits_are_those_of_the_container() {
    if docker::missing().is_some() {
        return;
    }
    let nvml = FakeNvml::new(&[("GPUS", "2")]);
    let image = docker::host_like();
    let folder = nvml.library().parent().expect("a folder").to_owned();
    let with = |options: &[&str]| {
        Setup::of(&image)
            .programs()
            .shares(&folder)
            .env("RANKLAUNCH_NVML_LIBRARY", &nvml.library().display().to_string())
            .options(options)
            .start(&["check", "--device", "gpu", "--format", "json"])
    };
    let small = with(&["--memory", "512m", "--pids-limit", "64", "--cpus", "1"]);
    let large = with(&["--shm-size", "8g"]);
    let report = json(&small.wait().out);
    let limits = &report["facts"]["limits"];
    assert_eq!(limits["memory_limit"], 512 << 20, "{limits}");
    assert_eq!((&limits["pids_max"], &limits["cpus"]), (&64.into(), &1.into()), "{limits}");
    for (id, words) in
        [("memory.limit", "512 MiB of memory for 2 GPUs"), ("pids.limit", "allows 64")]
    {
        let Checked { severity, text, .. } = check_of(&report, id);
        assert!(severity == "warn" && text.contains(words), "{id} {severity} {text}");
    }
    // Unlimited resources are reported without a limit.
    let report = json(&large.wait().out);
    let limits = &report["facts"]["limits"];
    assert!(limits["memory_limit"].is_null() && limits["pids_max"].is_null(), "{limits}");
}

/// A rank that allocates until the kernel kills it, a rank whose child does, and a rank that is
/// killed by the same signal from outside.
#[test]
fn only_an_oom_killed_rank_is_called_oom() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    let with = |script: &str| {
        let script = rank_1(script);
        Setup::of(&image).programs().options(&["--memory", "96m"]).start(&run(&script))
    };
    // tail keeps a line until its end, and /dev/zero has no line end.
    let started = [
        with("echo eating; exec tail /dev/zero"),
        with("tail /dev/zero; exit 3"),
        with("kill -9 $$"),
    ];
    let [itself, its_child, plain] = started.map(Running::wait);

    let itself = itself.expect_code(137).expect_words(&[
        "rank 1 was killed by the kernel's out-of-memory killer",
        "limit is 96 MiB, and its use peaked at 96 MiB",
        "exit code 137 (memory.oom)",
    ]);
    let record = verdict(&itself);
    let (verdict_id, oom) = (&record["verdict"]["id"], &record["oom"]);
    assert_eq!((verdict_id, &record["exit_code"]), (&"memory.oom".into(), &137.into()));
    assert_eq!((&oom["processes"], &oom["limit_bytes"]), (&1.into(), &(96 << 20).into()), "{oom}");
    assert!(oom["peak_bytes"].as_u64().is_some_and(|peak| peak > 90 << 20), "{oom}");

    its_child
        .expect_code(3)
        .expect_words(&["rank 1 exited with code 3", "killer ended 1 process of this container"]);
    let plain = plain.expect_code(137).expect_words(&[
        "rank 1 was killed by SIGKILL",
        "recorded no out-of-memory kill",
        "(rank.signal)",
    ]);
    assert!(verdict(&plain)["oom"].is_null());
}
