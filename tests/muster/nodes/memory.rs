//! A container that is killed as a whole, as by the kernel's out-of-memory killer since Kubernetes
//! 1.28: the memory use in its heartbeats decides the reported cause.

use std::path::{Path, PathBuf};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use harness::cluster::one_cause;
use harness::docker::{self, Setup};
use harness::{Launcher, free_port, misbehave, program, run_args};

const LIMIT: u64 = 160 << 20;
/// MiB that a rank holds to fill nine tenths of the container, beside the ten MiB or so of the launcher.
const HELD: u64 = 145;

/// The folder of a process's memory controller, as seen from the host: version 2, else 1.
fn memory_group(pid: i32) -> PathBuf {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its groups");
    let path = |key: &str| {
        let line = groups.lines().find_map(|line| line.split_once(key));
        line.map(|(_, path)| path.trim_start_matches('/').to_owned())
    };
    match path(":memory:") {
        Some(path) => Path::new("/sys/fs/cgroup/memory").join(path),
        None => Path::new("/sys/fs/cgroup").join(path("0::").expect("one group")),
    }
}

/// Packets that the network namespace of a process has sent.
fn packets_sent(pid: i32) -> u64 {
    let devices = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).expect("its network");
    let own = devices.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
    let sent = own.expect("an interface").split_ascii_whitespace().nth(9).expect("ten counters");
    sent.parse().expect("a number")
}

/// Bytes that the kernel counts in the group.
fn in_use(cgroup: &Path) -> u64 {
    let read = |name: &str| std::fs::read_to_string(cgroup.join(name)).ok()?.trim().parse().ok();
    read("memory.current").or_else(|| read("memory.usage_in_bytes")).expect("its use")
}

/// Two nodes, the second of which is a container whose rank holds this much memory and which is
/// killed as a whole. Gives the message that the survivors of such a job would read.
fn killed_while_holding(mebibytes: u64) -> String {
    let port = free_port();
    let network = docker::network();
    // The gateway is this machine's address on the network.
    let gateway = "{{(index .IPAM.Config 0).Gateway}}";
    let master = docker::tell(&["network", "inspect", "-f", gateway, &network]);
    let mut args = run_args("direct", 1);
    args.extend(["--".into(), program("rank.sh").into_os_string(), "wait".into()]);
    let zero = Launcher::new(args).node(0, 2, port).env("MASTER_ADDR", &master);
    let mut zero = zero.start();

    let limit = LIMIT.to_string();
    let setup = Setup::of(docker::bare())
        .options(&["--hostname", "small", "--memory", &limit, "--memory-swap", &limit])
        .options(&["--network", &network])
        .mount(misbehave(), "/misbehave")
        .env("WORLD_SIZE", "2")
        .env("RANK", "1")
        .env("MASTER_ADDR", &master)
        .env("MASTER_PORT", &port.to_string());
    let run = ["run", "--engine", "direct", "--device", "cpu", "--stale", "off"];
    let rank = ["--", "/misbehave", "hold-memory", &mebibytes.to_string()];
    let more = ["--nproc-per-node", "1", "--log-dir", "/tmp"];
    let mut one = setup.start(&[&run[..], &more, &rank].concat());
    zero.says("READY", 1);
    one.says("READY", 1);

    let first = docker::first_pid(one.container());
    let cgroup = memory_group(first);
    let used = in_use(&cgroup);
    assert_eq!(used * 100 / LIMIT >= 90, mebibytes == HELD, "{used} of {LIMIT} bytes");
    // Two heartbeats must have been sent since: each is a packet, and an acknowledgement of its
    // answer.
    let before = packets_sent(first);
    zero.waits("two heartbeats", |zero| {
        let verdict = zero.err().matches("── ranklaunch: ").count() > 1;
        assert!(!verdict, "{}\n{}", zero.err(), one.err());
        packets_sent(first) >= before + 4
    });
    let killed = std::fs::read_to_string(cgroup.join("cgroup.procs")).expect("its processes");
    let killed: Vec<i32> = killed.lines().map(|pid| pid.parse().expect("a pid")).collect();
    assert!(killed.len() >= 4, "guard, agent, shim and rank: {killed:?}");
    // The other processes end with the container's first process, wherever that is in the list.
    for pid in killed {
        let _ = signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    assert_eq!(one.wait().code, 137);
    let zero = zero.wait().expect_nothing_left();
    let cause = one_cause(&[(0, &zero, 143)]);
    assert_eq!((cause.id, cause.node), ("node.died".into(), 1.into()));
    cause.block
}

#[test]
fn container_lost_at_memory_limit_is_probably_oom() {
    if docker::missing().is_some() {
        return;
    }
    let (full, control) = std::thread::scope(|scope| {
        let full = scope.spawn(|| killed_while_holding(HELD));
        let control = scope.spawn(|| killed_while_holding(8));
        (full.join().expect("it ran"), control.join().expect("it ran"))
    });
    let (before, after) = full.split_once("last seen at ").unwrap_or_else(|| panic!("{full}"));
    assert!(before.contains("the agent of node 1 (small) died"), "{full}");
    let percent = after.split(' ').next().and_then(|word| word.parse::<u64>().ok());
    assert!(percent.is_some_and(|percent| (90..=100).contains(&percent)), "{full}");
    assert!(after.ends_with(" % of its memory limit: probably OOM-killed"), "{full}");
    // The same end without memory shortage: the report does not mention memory.
    assert!(control.ends_with("the agent of node 1 (small) died"), "{control}");
}
