//! ranklaunch as PID 1 of real containers: what it sees of their limits, how it
//! ends in them, and how two of them meet. Skipped, and said, without Docker.

use harness::docker::{self, Container, Over, Owned, Setup, tell};
use harness::fake_nvml::FakeNvml;
use serde_json::Value;

/// `run` of two ranks without torch.
const RUN: &[&str] = &[
    "run",
    "--engine",
    "direct",
    "--device",
    "cpu",
    "--nproc-per-node",
    "2",
    "--stale",
    "off",
    "--",
];

fn run(script: &str) -> Vec<&str> {
    [RUN, &["sh", "-c", script]].concat()
}

/// Rank 1 does it, rank 0 waits to be ended.
fn rank_1(script: &str) -> String {
    format!("if [ $RANK = 1 ]; then {script}; else echo READY; exec sleep 300; fi")
}

fn json(out: &str) -> Value {
    serde_json::from_str(out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

fn verdict(over: &Over) -> Value {
    json(&over.file("/ranklaunch-logs/latest/node-0/run.json"))
}

/// The severity of one check, and its words.
fn found(report: &Value, id: &str) -> (String, String, String) {
    let checks = report["checks"].as_array().expect("a list");
    let check = checks.iter().find(|check| check["id"] == id).expect("it is looked at");
    let word = |name: &str| check[name].as_str().unwrap_or_default().to_owned();
    (word("severity"), word("text"), word("hint"))
}

#[test]
fn a_small_dev_shm_is_warned_of_and_refused_where_the_profile_needs_more() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    let with = |size: &str| Setup::of(&image).programs().options(&["--shm-size", size]);
    let look = ["check", "--device", "cpu", "--nproc-per-node", "2", "--format", "json"];
    // No python of the image has torch.
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
    let mut over = started.into_iter().map(Container::wait);
    let mut next = || over.next().expect("four");

    let (severity, text, hint) = found(&json(&next().code(0).out), "shm.size");
    assert!(severity == "warn" && text.contains("64 MiB"), "{severity} {text}");
    assert!(hint.contains("--shm-size") && hint.contains("--ipc host"), "{hint}");
    next().code(0).says(&["warning: /dev/shm has 64 MiB", "--shm-size 16g (or --ipc host)"]);
    let refused = next().code(84).says(&["refused: /dev/shm has 64 MiB", "(shm.size)"]);
    assert!(!refused.out.contains("started"), "{}", refused.out);

    let sound = next().code(0);
    assert!(sound.out.contains("started") && !sound.err.contains("/dev/shm"), "{}", sound.err);
}

#[test]
fn limits_are_those_that_the_container_has() {
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
        let (severity, text, _) = found(&report, id);
        assert!(severity == "warn" && text.contains(words), "{id} {severity} {text}");
    }
    // What is not limited is not found to be.
    let report = json(&large.wait().out);
    let limits = &report["facts"]["limits"];
    assert!(limits["memory_limit"].is_null() && limits["pids_max"].is_null(), "{limits}");
}

/// A rank that allocates until the kernel steps in, a rank whose child does, and
/// one that somebody kills with the same signal.
#[test]
fn only_a_rank_that_the_kernel_killed_for_memory_is_called_that() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    let with = |script: &str| {
        let script = rank_1(script);
        Setup::of(&image).programs().options(&["--memory", "64m"]).start(&run(&script))
    };
    // tail keeps a line until it ends, and /dev/zero has no end of line.
    let started = [
        with("echo eating; exec tail /dev/zero"),
        with("tail /dev/zero; exit 3"),
        with("kill -9 $$"),
    ];
    let [itself, its_child, plain] = started.map(Container::wait);

    let itself = itself.code(137).says(&[
        "rank 1 was killed by the kernel's out-of-memory killer",
        "limit is 64 MiB, and its use peaked at 64 MiB",
        "exit code 137 (memory.oom)",
    ]);
    let record = verdict(&itself);
    let (verdict_id, oom) = (&record["verdict"]["id"], &record["oom"]);
    assert_eq!((verdict_id, &record["exit_code"]), (&"memory.oom".into(), &137.into()));
    assert_eq!((&oom["processes"], &oom["limit_bytes"]), (&1.into(), &(64 << 20).into()), "{oom}");
    assert!(oom["peak_bytes"].as_u64().is_some_and(|peak| peak > 60 << 20), "{oom}");

    its_child.code(3).says(&["rank 1 exited with code 3", "killer ended 1 other process(es)"]);
    let plain = plain.code(137).says(&[
        "rank 1 was killed by SIGKILL",
        "counted no kill for memory",
        "(rank.signal)",
    ]);
    assert!(verdict(&plain)["oom"].is_null());
}

/// Of ranklaunch itself only the guard is left then, and has the last word.
#[test]
fn an_agent_that_is_killed_has_its_end_said() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    let log = tempfile::NamedTempFile::new().expect("a file");
    let to = format!("{}:/dev/termination-log", log.path().display());
    let setup = Setup::of(&image).programs().options(&["-v", &to]);
    let mut container = setup.start(&run("echo READY; exec sleep 300"));
    container.says("READY", 2);
    // The guard's only child.
    tell(&["exec", container.name(), "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)"]);
    container
        .wait()
        .code(137)
        .says(&["ranklaunch's agent was killed by SIGKILL", "(agent.killed)"]);
    let message = json(&std::fs::read_to_string(log.path()).expect("text"));
    assert_eq!((&message["cause"], &message["code"]), (&"agent.killed".into(), &137.into()));
}

/// Where ranklaunch can write its logs, or why it cannot.
struct Root {
    options: &'static [&'static str],
    says: &'static [&'static str],
}

#[test]
fn a_job_runs_in_every_kind_of_confinement() {
    if docker::missing().is_some() {
        return;
    }
    const HERE: &str = "logs: /ranklaunch-logs/";
    const TMP: &str = "logs: /tmp/ranklaunch-";
    const NOWHERE: &str = "no folder takes log files";
    let table = [
        Root { options: &[], says: &[HERE] },
        Root { options: &["--read-only"], says: &[NOWHERE, "Read-only file system"] },
        Root {
            options: &["--read-only", "--tmpfs", "/logs", "-e", "RANKLAUNCH_LOG_DIR=/logs"],
            says: &["logs: /logs/"],
        },
        // Nobody of that number is in /etc/passwd, which does not exist.
        Root { options: &["--user", "4711"], says: &[TMP] },
        Root {
            options: &["--cap-drop", "ALL", "--security-opt", "no-new-privileges"],
            says: &[HERE],
        },
        Root { options: &["--pids-limit", "64"], says: &[HERE, "allows 64 processes and threads"] },
        Root {
            options: &[
                "--read-only",
                "--user",
                "1000",
                "--cap-drop",
                "ALL",
                "--security-opt",
                "no-new-privileges",
                "--pids-limit",
                "64",
                "--tmpfs",
                "/tmp",
                "--network",
                "none",
            ],
            says: &[TMP],
        },
    ];
    let image = docker::host_like();
    let started: Vec<Container> = table
        .iter()
        .map(|root| {
            let setup = Setup::of(&image).programs().options(root.options);
            setup.start(&run("echo rank $RANK of $WORLD_SIZE"))
        })
        .collect();
    for (container, root) in started.into_iter().zip(&table) {
        let over = container.wait().code(0).says(root.says);
        for rank in 0..2 {
            let line = format!("[r{rank}] rank {rank} of 2");
            assert!(over.out.contains(&line), "{:?}: {}", root.options, over.out);
        }
    }
}

/// Nothing below /proc can be written (oom_score_adj, for one).
#[test]
fn a_proc_that_is_read_only_is_enough() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    let script = format!(
        "mount -o remount,ro /proc || exit 99; ! echo 0 2>/dev/null >/proc/self/oom_score_adj && exec {} {} \
         sh -c 'echo rank $RANK of $WORLD_SIZE'",
        docker::RANKLAUNCH,
        RUN.join(" ")
    );
    let may = ["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined"];
    let setup = Setup::of(&image).programs().options(&may).options(&["--entrypoint", "sh"]);
    let over = setup.run(&["-c", &script]);
    if over.code == 99 {
        harness::skipped(format_args!("this engine lets nobody mount: {}", over.err));
        return;
    }
    let over = over.code(0).says(&["logs: /ranklaunch-logs/"]);
    assert!(over.out.contains("[r1] rank 1 of 2"), "{}", over.out);
}

#[test]
fn a_root_with_nothing_in_it_runs_what_is_there() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::empty();
    let command = ["run", "--engine", "command", "--", docker::RANKLAUNCH, "--version"];
    let read_only = Setup::of(&image).options(&["--read-only"]).start(&command);
    let over = Setup::of(&image).run(&command).code(0).says(&["logs: /ranklaunch-logs/"]);
    assert!(over.out.contains("static"), "{}", over.out);
    // There is no /tmp to fall back on.
    read_only.wait().code(0).says(&["no folder takes log files", "/tmp/ranklaunch-0"]);
}

#[test]
fn gpus_that_are_asked_for_and_not_there_are_refused() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    let uuid = "GPU-5a2b5a2b-0000-4000-8000-000000000000";
    let table: [(&[&str], &[&str], &str); 3] = [
        (&[], &["--device", "gpu"], "device gpu (--device)"),
        (&["-e", "NVIDIA_VISIBLE_DEVICES=GPU-5a2b5a2b-0000-4000-8000-000000000000"], &[], uuid),
        (&["-e", "GPU_COUNT=8"], &[], "GPU_COUNT=8"),
    ];
    let started = table.map(|(options, args, words)| {
        let args =
            [&["run", "--engine", "direct"], args, &["--", "sh", "-c", "echo started"]].concat();
        (Setup::of(&image).programs().options(options).start(&args), words)
    });
    for (container, words) in started {
        let over = container.wait().code(80).says(&[words, "none can be used", "(gpu.count)"]);
        assert!(!over.out.contains("started"), "{}", over.out);
    }
}

/// A container that takes part in a job of two, under the name that the others know.
fn node(image: &Owned, network: &Owned, prefix: &str, rank: u32) -> Setup {
    Setup::of(image)
        .options(&["--network", &network.name, "--network-alias", &format!("{prefix}{rank}")])
        .env("WORLD_SIZE", "2")
        .env("RANK", &rank.to_string())
        .env("MASTER_ADDR", &format!("{prefix}0"))
        .env("MASTER_PORT", "29500")
}

#[test]
fn two_nodes_reduce_over_dockers_names() {
    if docker::missing().is_some() {
        return;
    }
    let (image, network) = (docker::host_like(), docker::network());
    let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/demo");
    let python = harness::python().display().to_string();
    let args = [
        "run",
        "--engine",
        "torchrun",
        "--device",
        "cpu",
        "--nproc-per-node",
        "1",
        "--python",
        &python,
        "--",
        "/demo/train.py",
    ];
    let start = |rank| {
        let setup = node(&image, &network, "node", rank).python().mount(&demo, "/demo");
        setup.options(&["--shm-size", "1g"]).start(&args)
    };
    let [zero, one] = [start(0), start(1)].map(Container::wait);
    let (zero, one) = (zero.code(0), one.code(0));
    assert!(zero.out.contains("[r0] step 2: all-reduce gives 5"), "{}\n{}", zero.out, zero.err);
    assert!(one.out.contains("[r1] rank 1 of 2 on node 1"), "{}", one.out);
}

/// Two nodes of one rank each that run `script` and say READY.
fn pair(image: &Owned, network: &Owned, options: &[&str], script: &str) -> [Container; 2] {
    let args = [
        "run",
        "--engine",
        "direct",
        "--device",
        "cpu",
        "--nproc-per-node",
        "1",
        "--stale",
        "off",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut nodes = [0, 1]
        .map(|rank| node(image, network, "node", rank).programs().options(options).start(&args));
    for node in &mut nodes {
        node.says("READY", 1);
    }
    nodes
}

#[test]
fn a_killed_rank_is_the_cause_on_both_nodes() {
    if docker::missing().is_some() {
        return;
    }
    let (image, network) = (docker::host_like(), docker::network());
    let [zero, one] = pair(&image, &network, &[], "echo $$ >/pid; echo READY; exec sleep 300");
    tell(&["exec", one.name(), "sh", "-c", "kill -9 $(cat /pid)"]);
    let [zero, one] = [zero, one].map(Container::wait);
    const CAUSE: [&str; 3] =
        ["rank 1 on node 1 (", ") was killed by SIGKILL after ", "(rank.signal)"];
    one.code(137).says(&CAUSE);
    // A retry can help, so operators are told to make one.
    zero.code(143).says(&CAUSE);
}

/// A rank that ends upon TERM is through long before its grace, and before `docker stop`
/// loses its patience (10 s unless it is told otherwise); one that wants its grace is not.
#[test]
fn docker_stop_ends_a_job_within_its_time_or_says_who_did_not() {
    if docker::missing().is_some() {
        return;
    }
    let (image, network) = (docker::host_like(), docker::network());
    let polite = "trap 'echo SAVED; exit 0' TERM; echo READY; while :; do sleep 0.1; done";
    let endless = ["-e", "RANKLAUNCH_GRACE=10m"];
    let [zero, one] = pair(&image, &network, &endless, polite);
    tell(&["stop", "-t", "60", one.name()]);
    let [zero, one] = [zero, one].map(Container::wait);
    let one = one.code(143).says(&["SIGTERM received", "(stopped.signal)"]);
    assert!(one.out.contains("SAVED"), "{}", one.out);
    let zero = zero.code(143).says(&["stopped from outside by SIGTERM on node 1"]);
    assert!(zero.out.contains("SAVED"), "{}", zero.out);

    // Neither ends by itself; the time that docker was told of covers the grace.
    let deaf = "trap '' TERM; echo READY; while :; do sleep 0.1; done";
    let alone = |grace: &str, timeout: &str| {
        let setup = Setup::of(&image).programs().options(&["--stop-timeout", timeout]);
        let mut container = setup.env("RANKLAUNCH_GRACE", grace).start(&run(deaf));
        container.says("READY", 2);
        container
    };
    let (enough, too_little) = (alone("2s", "30"), alone("5m", "1"));
    tell(&["stop", enough.name(), too_little.name()]);
    enough
        .wait()
        .code(143)
        .says(&["the grace period is over: sending SIGKILL", "(stopped.signal)"]);
    // Docker's KILL took all of it at once: there is no last word.
    let too_little = too_little.wait().code(137).says(&["the ranks have 300 s"]);
    assert!(!too_little.err.contains("exit code"), "{}", too_little.err);
}

/// The kernel takes the whole container (memory.oom.group, which Kubernetes sets
/// since 1.28), this program included: the other node says why it is gone.
#[test]
fn a_container_that_is_killed_whole_is_named_by_the_other_node() {
    if docker::missing().is_some() {
        return;
    }
    let (image, network) = (docker::host_like(), docker::network());
    // Node 1 fills its memory to 93 %, and all of it when it is told to.
    // What can be dropped at once does not count, so files in memory do it.
    let script = "g=/sys/fs/cgroup/memory; u=$g/memory.usage_in_bytes; l=$g/memory.limit_in_bytes
        [ -e $u ] || { g=/sys/fs/cgroup; u=$g/memory.current; l=$g/memory.max; }
        if [ $RANK = 1 ]; then
            l=$(cat $l)
            while
                f=$(sed -n 's/^.*inactive_file //p' $g/memory.stat | tail -1)
                [ $(($(cat $u) - f)) -lt $((l / 100 * 93)) ]
            do
                head -c 2097152 /dev/zero >>/dev/shm/x
            done
        fi
        echo READY
        until [ -e /go ]; do sleep 0.1; done
        tail /dev/zero; sleep 300";
    let [zero, mut one] = pair(&image, &network, &["--memory", "160m", "--shm-size", "1g"], script);
    // Until heartbeats have gone out since: nothing else is sent between the two.
    let sent = |one: &Container| -> u64 {
        tell(&["exec", one.name(), "cat", "/sys/class/net/eth0/statistics/tx_packets"])
            .parse()
            .expect("a number")
    };
    let before = sent(&one);
    one.waits("two heartbeats", |one| sent(one) >= before + 4);
    match unified_group(one.pid()) {
        Some(group) => {
            std::fs::write(group.join("memory.oom.group"), "1").expect("a group of its own");
            tell(&["exec", one.name(), "touch", "/go"]);
        }
        None => {
            harness::skipped(
                "cgroup v1 has no memory.oom.group: docker kill stands in, `make vm` has it",
            );
            tell(&["kill", "-s", "KILL", one.name()]);
        }
    }
    one.wait().code(137);
    let zero = zero.wait().says(&[
        "the agent of node 1 (",
        "% of its memory limit: probably OOM-killed",
        "raise that pod's memory limit",
    ]);
    assert!(zero.code == 143 || zero.code == 92, "{}\n{}", zero.code, zero.err);
}

/// The folder of a process's group, where version 2 limits memory.
fn unified_group(pid: i32) -> Option<std::path::PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = std::path::Path::new("/sys/fs/cgroup").join(path);
    group.join("memory.oom.group").exists().then_some(group)
}

/// What PID 1 is when ranklaunch is not, and whether the ranks would hear of a stop.
#[test]
fn a_shell_that_keeps_signals_to_itself_is_warned_of() {
    if docker::missing().is_some() {
        return;
    }
    const WARNING: &str = "which does not forward SIGTERM";
    let image = docker::host_like();
    let ranklaunch = format!("{} {}", docker::RANKLAUNCH, RUN.join(" "));
    let job = format!(
        "{ranklaunch} sh -c 'trap \"echo SAVED; exit 0\" TERM; echo READY; while :; do sleep 0.1; done'"
    );
    let table: [(&str, &[&str], String, bool); 6] = [
        ("bash", &[], format!("{job}; echo $?"), true),
        ("sh", &[], format!("{job} & wait"), true),
        ("bash", &[], format!("cd /; exec {job}"), false),
        // It catches the signal, and passes it on.
        ("bash", &[], format!("trap 'kill $!; wait $!' TERM; {job} & wait $!"), false),
        // An init stands before the shell.
        ("bash", &["init"], format!("{job}; true"), false),
        // Its first process is that of another container, as with a shared PID namespace.
        ("bash", &["--pid"], format!("{job}; true"), false),
    ];
    let mut pause =
        Setup::as_it_is(&image).programs().start(&["sh", "-c", "echo READY; exec sleep 300"]);
    pause.says("READY", 1);
    let beside = format!("container:{}", pause.name());
    let started: Vec<Container> = table
        .iter()
        .map(|(shell, options, script, _)| {
            let setup = Setup::of(&image).programs();
            match options {
                ["init"] => setup.start(&["init", "--", shell, "-c", script]),
                ["--pid"] => {
                    setup.options(&["--entrypoint", shell, "--pid", &beside]).start(&["-c", script])
                }
                _ => setup.options(&["--entrypoint", shell]).start(&["-c", script]),
            }
        })
        .collect();
    for (mut container, (shell, options, script, deaf)) in started.into_iter().zip(&table) {
        container.says("READY", 2);
        if *deaf {
            let look =
                ["exec", container.name(), docker::RANKLAUNCH, "check", "--device", "cpu", "--all"];
            let said = String::from_utf8_lossy(&docker::docker(&look).stdout).into_owned();
            // What is started beside the job is not below PID 1, and is told nothing.
            assert!(said.contains("signals.term") && !said.contains(WARNING), "{said}");
        }
        // Both streams are whole only at the end.
        tell(&["kill", container.name()]);
        let err = container.wait().err;
        assert_eq!(err.contains(WARNING), *deaf, "{shell} {options:?} {script}: {err}");
        assert!(!deaf || err.contains(&format!("PID 1 is {shell} (")), "{err}");
    }
}

#[test]
fn the_warning_about_a_deaf_shell_is_true() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    let job = format!(
        "{} {} sh -c 'trap \"echo SAVED; exit 0\" TERM; echo READY; while :; do sleep 0.1; done'",
        docker::RANKLAUNCH,
        RUN.join(" ")
    );
    let start = |script: &str| {
        let setup = Setup::of(&image).programs().options(&["--entrypoint", "bash"]);
        let mut container = setup.options(&["--stop-timeout", "1"]).start(&["-c", script]);
        container.says("READY", 2);
        container
    };
    let deaf = start(&format!("{job}; exit $?"));
    let exec = start(&format!("exec {job}"));
    tell(&["stop", "-t", "1", deaf.name()]);
    tell(&["stop", "-t", "30", exec.name()]);
    let deaf = deaf.wait().code(137);
    assert!(!deaf.out.contains("SAVED"), "{}", deaf.out);
    let exec = exec.wait().code(143);
    assert_eq!(exec.out.matches("SAVED").count(), 2, "{}", exec.out);
}
