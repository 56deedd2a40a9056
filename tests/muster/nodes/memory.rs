//! A container that dies as a whole, as the kernel's out-of-memory killer ends it since
//! Kubernetes 1.28: what its heartbeats said of its memory decides what it died of.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use harness::cluster::one_cause;
use harness::{
    Launcher, Place, executable, free_port, image, misbehave, program, run_args, wait_until,
};

const LIMIT: u64 = 160 << 20;
/// MiB of a rank that fill it, beside the few of the launcher.
const HELD: u64 = 148;

/// Removed at the end, whatever that is.
struct Container(String);

impl Drop for Container {
    fn drop(&mut self) {
        let mut remove = Command::new("docker");
        remove.args(["rm", "-f", &self.0]).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = remove.status();
    }
}

impl Container {
    /// The folder of its memory controller, as the host sees it: version 2, else 1.
    fn cgroup(&self) -> PathBuf {
        let pid = wait_until("the container's first process", || {
            let mut inspect = Command::new("docker");
            let output =
                inspect.args(["inspect", "-f", "{{.State.Pid}}", &self.0]).output().ok()?;
            let pid: u32 = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
            (pid > 0).then_some(pid)
        });
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
}

/// Bytes that the kernel counts in it.
fn in_use(cgroup: &Path) -> u64 {
    let read = |name: &str| std::fs::read_to_string(cgroup.join(name)).ok()?.trim().parse().ok();
    read("memory.current").or_else(|| read("memory.usage_in_bytes")).expect("its use")
}

/// Two nodes of which the second is a container whose rank holds so much memory, and
/// which is killed as a whole: what both survivors of such a job would read.
fn killed_while_holding(mebibytes: u64) -> String {
    let port = free_port();
    let mut args = run_args("direct", 1);
    args.extend(["--".into(), program("rank.sh").into_os_string(), "wait".into()]);
    let mut zero = Launcher::new(args).node(0, 2, port).start();

    let name = format!("ranklaunch-memory-{}-{mebibytes}", std::process::id());
    let container = Container(name.clone());
    let limit = LIMIT.to_string();
    let mut docker = Command::new("docker");
    docker.args(["run", "--rm", "--name", &name, "--hostname", "small", "--network", "host"]);
    docker.args(["--memory", &limit, "--memory-swap", &limit]);
    for file in [executable(), misbehave().to_owned()] {
        docker.arg("-v").arg(format!("{0}:{0}:ro", file.display()));
    }
    docker.args(["WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"].map(|one| format!("-e{one}")));
    docker.arg(image().expect("an image")).arg(executable());
    docker.args(["run", "--engine", "direct", "--device", "cpu", "--stale", "off"]);
    docker.args(["--nproc-per-node", "1", "--log-dir", "/tmp", "--"]);
    docker.arg(misbehave()).args(["hold-memory", &mebibytes.to_string()]);
    let mut one = Launcher::of(docker, [""; 0]).node(1, 2, port).start();
    zero.says("READY", 1);
    one.says("READY", 1);

    let cgroup = container.cgroup();
    let used = in_use(&cgroup);
    assert_eq!(used * 100 / LIMIT >= 90, mebibytes == HELD, "{used} of {LIMIT} bytes");
    // A heartbeat must have left since: nothing on this side shows that it came.
    let said = Instant::now();
    while said.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(100));
        assert!(!zero.err().contains("── ranklaunch: "), "{}\n{}", zero.err(), one.err());
    }
    let killed = std::fs::read_to_string(cgroup.join("cgroup.procs")).expect("its processes");
    let killed: Vec<i32> = killed.lines().map(|pid| pid.parse().expect("a pid")).collect();
    assert!(killed.len() >= 4, "guard, agent, shim and rank: {killed:?}");
    // The rest goes with the first process of the container, wherever that one stands.
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
fn a_container_that_died_at_its_memory_limit_was_probably_killed_for_it() {
    if !Place::Docker.exists() {
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
    // The same end without the memory: nothing is said of it.
    assert!(control.ends_with("the agent of node 1 (small) died"), "{control}");
}
