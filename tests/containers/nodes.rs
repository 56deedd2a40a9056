//! Jobs of two containers on their own network.

use harness::Running;
use harness::docker::{self, Owned, Setup, tell};

use crate::{direct, run};

/// A container that takes part in a job of two, under the name that the other container knows.
fn node(image: &Owned, network: &Owned, prefix: &str, rank: u32) -> Setup {
    Setup::of(image)
        .options(&["--network", &network.name, "--network-alias", &format!("{prefix}{rank}")])
        .env("WORLD_SIZE", "2")
        .env("RANK", &rank.to_string())
        .env("MASTER_ADDR", &format!("{prefix}0"))
        .env("MASTER_PORT", "29500")
}

#[test]
fn two_nodes_reduce_over_docker_host_names() {
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
    let [zero, one] = [start(0), start(1)].map(Running::wait);
    let (zero, one) = (zero.expect_code(0), one.expect_code(0));
    assert!(zero.out.contains("[r0] step 2: all-reduce gives 5"), "{}\n{}", zero.out, zero.err);
    assert!(one.out.contains("[r1] rank 1 of 2 on node 1"), "{}", one.out);
}

/// Two nodes of one rank each that run `script` and say READY.
fn pair(image: &Owned, network: &Owned, options: &[&str], script: &str) -> [Running; 2] {
    let args = direct("1", &["--stale", "off", "--", "sh", "-c", script]);
    let mut nodes = [0, 1]
        .map(|rank| node(image, network, "node", rank).programs().options(options).start(&args));
    for node in &mut nodes {
        node.says("READY", 1);
    }
    nodes
}

#[test]
fn killed_rank_is_the_cause_on_both_nodes() {
    if docker::missing().is_some() {
        return;
    }
    let (image, network) = (docker::host_like(), docker::network());
    let [zero, one] = pair(&image, &network, &[], "echo $$ >/pid; echo READY; exec sleep 300");
    docker::shell(one.container(), "kill -9 $(cat /pid)");
    let [zero, one] = [zero, one].map(Running::wait);
    const CAUSE: [&str; 3] =
        ["rank 1 on node 1 (", ") was killed by SIGKILL after ", "(rank.signal)"];
    one.expect_code(137).expect_words(&CAUSE);
    // A retry can help, so operators are told to make one.
    zero.expect_code(143).expect_words(&CAUSE);
}

/// A rank that ends upon TERM is done long before its grace is over, and before `docker stop` kills
/// it (after 10 s by default). A rank that uses its whole grace is not.
#[test]
fn docker_stop_ends_in_time_or_names_survivors() {
    if docker::missing().is_some() {
        return;
    }
    let (image, network) = (docker::host_like(), docker::network());
    let polite = "trap 'echo SAVED; exit 0' TERM; echo READY; while :; do sleep 0.1; done";
    let endless = ["-e", "RANKLAUNCH_GRACE=10m"];
    let [zero, one] = pair(&image, &network, &endless, polite);
    tell(&["stop", "-t", "60", one.container()]);
    let [zero, one] = [zero, one].map(Running::wait);
    let one = one.expect_code(143).expect_words(&["SIGTERM received", "(stopped.signal)"]);
    assert!(one.out.contains("SAVED"), "{}", one.out);
    let zero = zero.expect_code(143).expect_words(&["stopped from outside by SIGTERM on node 1"]);
    assert!(zero.out.contains("SAVED"), "{}", zero.out);

    // Neither rank ends by itself; Docker's timeout covers the grace period.
    let deaf = "trap '' TERM; echo READY; while :; do sleep 0.1; done";
    let alone = |grace: &str, timeout: &str| {
        let setup = Setup::of(&image).programs().options(&["--stop-timeout", timeout]);
        let mut container = setup.env("RANKLAUNCH_GRACE", grace).start(&run(deaf));
        container.says("READY", 2);
        container
    };
    let (enough, too_little) = (alone("2s", "30"), alone("5m", "1"));
    tell(&["stop", enough.container(), too_little.container()]);
    enough
        .wait()
        .expect_code(143)
        .expect_words(&["the grace period is over: sending SIGKILL", "(stopped.signal)"]);
    // Docker's KILL ended everything at once, so there is no closing block.
    let too_little = too_little.wait().expect_code(137).expect_words(&["the ranks have 300 s"]);
    assert!(!too_little.err.contains("exit code"), "{}", too_little.err);
}

/// The kernel kills the whole container (memory.oom.group, which Kubernetes sets since 1.28), this
/// program included. The other node says why the container is gone.
#[test]
fn other_node_names_a_container_killed_whole() {
    if docker::missing().is_some() {
        return;
    }
    let (image, network) = (docker::host_like(), docker::network());
    // Node 1 fills its memory to 93 %, and completely when it is told to. Memory that can be
    // dropped at once does not count, so files in memory fill it.
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
    // Waits until heartbeats have gone out since then; nothing else is sent between the two.
    let sent = |one: &Running| -> u64 {
        tell(&["exec", one.container(), "cat", "/sys/class/net/eth0/statistics/tx_packets"])
            .parse()
            .expect("a number")
    };
    let before = sent(&one);
    one.waits("two heartbeats", |one| sent(one) >= before + 4);
    match unified_group(docker::first_pid(one.container())) {
        Some(group) => {
            std::fs::write(group.join("memory.oom.group"), "1").expect("a group of its own");
            tell(&["exec", one.container(), "touch", "/go"]);
        }
        None => {
            harness::skipped(
                "cgroup v1 has no memory.oom.group: docker kill stands in, `make test SUITE=vm` has it",
            );
            tell(&["kill", "-s", "KILL", one.container()]);
        }
    }
    one.wait().expect_code(137);
    let zero = zero.wait().expect_words(&[
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
