//! Simulated hosts on one machine: each has its own network namespace behind a bridge, its own host
//! name, and an /etc/hosts with all of them.
//!
//! A cable is cut by removing its port from the bridge: both ends see their link up, but every
//! packet is dropped, as behind a broken switch. The names of namespaces contain the pid of the
//! test, and the namespaces are removed with the [`Cluster`], even in a panic.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::{Ended, Launcher, Running, executable, kill, program, run_args, skipped, wait_until};

/// The master port of every cluster; each cluster has its own addresses.
pub const PORT: u16 = 29_517;

/// Maximum number of hosts in a cluster.
const HOSTS: u32 = 8;

#[derive(Debug)]
pub struct Cluster {
    name: String,
    /// Namespaces, by the number in their host name and address.
    hosts: BTreeSet<u32>,
    folder: tempfile::TempDir,
}

fn ip(words: &str) -> bool {
    let done = Command::new("ip").args(words.split_whitespace()).output();
    done.is_ok_and(|done| done.status.success())
}

impl Cluster {
    /// Hosts `node-0` to `node-N`. `None` if this user may not create namespaces.
    pub fn new(hosts: u32) -> Option<Cluster> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rl{}x{count}", std::process::id());
        if !ip(&format!("netns add {name}-sw")) {
            skipped("no right to make network namespaces, or no `ip`");
            return None;
        }
        let mut cluster =
            Cluster { name, hosts: BTreeSet::new(), folder: tempfile::tempdir().expect("folder") };
        cluster.switch("link add sw type bridge");
        cluster.switch("link set sw up");
        let names: String =
            (0..HOSTS).map(|host| format!("{} node-{host}\n", address_of(host))).collect();
        let hosts_file = format!("127.0.0.1 localhost\n{names}");
        std::fs::write(cluster.folder.path().join("hosts"), hosts_file).expect("hosts");
        (0..hosts).for_each(|host| cluster.add(host));
        Some(cluster)
    }

    /// One more host, `node-HOST`.
    pub fn add(&mut self, host: u32) {
        let name = self.namespace(host);
        assert!(ip(&format!("netns add {name}")), "{name}");
        self.hosts.insert(host);
        let mac = mac_of(host);
        self.switch(&format!(
            "link add p{host} type veth peer name eth0 address {mac} netns {name}"
        ));
        self.switch(&format!("link set p{host} master sw up"));
        let address = address_of(host);
        let mut lines = vec![
            format!("addr add {address}/24 dev eth0"),
            "link set eth0 up".to_owned(),
            "link set lo up".to_owned(),
        ];
        // Static neighbours make the hosts act as behind a router. Our own kernel reports a
        // neighbour that does not answer ARP, and TCP then retries sooner (RFC 6069) than it would
        // in a data centre.
        lines.extend((0..HOSTS).filter(|other| *other != host).map(|other| {
            let (address, mac) = (address_of(other), mac_of(other));
            format!("neigh add {address} lladdr {mac} dev eth0 nud permanent")
        }));
        let words = lines.join("\n") + "\n";
        let mut batch = Command::new("ip");
        batch.args(["-n", &name, "-batch", "-"]).stdin(Stdio::piped());
        let mut batch = batch.spawn().expect("ip runs");
        batch.stdin.take().expect("a pipe").write_all(words.as_bytes()).expect("written");
        assert!(batch.wait().expect("it ends").success(), "{words}");
    }

    /// Removes a host with its network; its processes must be dead.
    pub fn remove(&mut self, host: u32) {
        assert!(ip(&format!("netns del {}", self.namespace(host))));
        self.hosts.remove(&host);
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn namespace(&self, host: u32) -> String {
        format!("{}-{host}", self.name)
    }

    pub fn switch_namespace(&self) -> String {
        format!("{}-sw", self.name)
    }

    fn switch(&self, words: &str) {
        assert!(ip(&format!("-n {} {words}", self.switch_namespace())), "{words}");
    }

    /// From now on every packet to and from the host is dropped.
    pub fn cut(&self, host: u32) {
        self.switch(&format!("link set p{host} nomaster"));
    }

    pub fn mend(&self, host: u32) {
        self.switch(&format!("link set p{host} master sw"));
    }

    /// All processes of the host, even with a changed environment.
    pub fn processes(&self, host: u32) -> Vec<i32> {
        let pids = Command::new("ip").args(["netns", "pids", &self.namespace(host)]).output();
        let text = String::from_utf8(pids.expect("ip runs").stdout).expect("numbers");
        text.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect()
    }

    /// The host loses its power: no packet leaves it any more, and all its processes are killed.
    pub fn power_off(&self, host: u32) {
        self.cut(host);
        self.kill_all(host);
    }

    /// Kills guard, agent, engine and ranks at once; the kernel of the host still runs and
    /// closes their connections.
    pub fn kill_all(&self, host: u32) {
        let killed = self.processes(host);
        assert!(!killed.is_empty(), "something ran on node-{host}");
        for pid in killed {
            // The process may have ended with its parent.
            let pid = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        wait_until("the host's last process", || self.processes(host).is_empty().then_some(()));
    }

    /// Expects no process in any namespace, directly after the launchers' ends.
    #[track_caller]
    pub fn expect_nothing_left(&self) {
        for host in &self.hosts {
            let left = self.processes(*host);
            let alive = |pid: &&i32| {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                // A zombie counts as gone.
                stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
            };
            let left: Vec<&i32> = left.iter().filter(alive).collect();
            let commands: Vec<String> = left
                .iter()
                .map(|pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")))
                .map(|text| text.unwrap_or_default().replace('\0', " "))
                .collect();
            assert!(left.is_empty(), "left on node-{host}: {commands:?}");
        }
    }

    /// `ranklaunch ARGS…` as rank RANK of NODES on a host; the master is a name.
    pub fn launcher(&self, host: u32, rank: u32, nodes: u32, args: &[OsString]) -> Launcher {
        // Each `exec` keeps the pid: the launcher is the test's own child.
        let script = "echo node-$1 > /proc/sys/kernel/hostname && mount --bind \"$2\" /etc/hosts \
            && shift 2 && exec \"$@\"";
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(host), "unshare", "--uts", "sh", "-c"]);
        command.args([script, "sh", &host.to_string()]).arg(self.folder.path().join("hosts"));
        command.arg(executable());
        Launcher::of(command, args).node(rank, nodes, PORT).env("MASTER_ADDR", "node-0")
    }

    /// One rank per node of `tests/programs/rank.sh WHAT`, by the engine `direct`.
    pub fn direct(&self, rank: u32, nodes: u32, more: &[&str], what: &str) -> Launcher {
        let mut args = run_args("direct", 1);
        args.extend(more.iter().map(Into::into));
        args.extend(["--".into(), program("rank.sh").into_os_string(), what.into()]);
        self.launcher(rank, rank, nodes, &args)
    }

    /// Starts one rank on each host, and waits until all are ready.
    pub fn waiting(&self, more: &[&str]) -> Vec<Running> {
        let nodes = u32::try_from(self.hosts.len()).expect("few");
        let start = |rank: &u32| self.direct(*rank, nodes, more, "wait").start();
        let mut running: Vec<Running> = self.hosts.iter().map(start).collect();
        for node in &mut running {
            node.says("READY", 1);
        }
        running
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for host in &self.hosts {
            // In a panic, processes may still run.
            for pid in self.processes(*host) {
                let pid = nix::unistd::Pid::from_raw(pid);
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
            ip(&format!("netns del {}", self.namespace(*host)));
        }
        ip(&format!("netns del {}-sw", self.name));
    }
}

fn address_of(host: u32) -> String {
    format!("10.99.0.{}", host + 1)
}

fn mac_of(host: u32) -> String {
    format!("02:00:00:00:00:{:02x}", host + 1)
}

/// SIGKILLs the rank of a launch whose command line begins with `command`.
pub fn kill_rank(node: &Running, command: &str) {
    let victim = wait_until("the rank", || {
        node.processes().into_iter().find(|process| process.command().starts_with(command))
    });
    kill(victim.pid);
}

/// The part of an end that is the same on all nodes sharing a verdict: the closing block without
/// this node's own part, and `run.json`'s verdict without this node's own code and class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    pub block: String,
    pub hint: String,
    pub id: Value,
    pub node: Value,
    pub rank: Value,
    pub text: Value,
    pub run_id: Value,
    pub attempt: Value,
}

/// The shared part of a node's end.
#[track_caller]
pub fn shared(ended: &Ended, node: u32) -> Shared {
    // Every attempt has a closing block; the last one counts.
    let last = ended.err.rfind("── ranklaunch: ").map_or("", |at| &ended.err[at..]);
    let mut lines = last.lines();
    let block = lines.next().unwrap_or_else(|| panic!("no closing block:\n{}", ended.err));
    let hint = lines.next().unwrap_or_default();
    let timed =
        [" (after ", " (likely; after ", " after "].iter().find_map(|by| block.rsplit_once(by));
    let block = timed.map_or(block, |(cause, _)| cause);
    let run = ended.run_json(node);
    let verdict = &run["verdict"];
    assert_eq!(verdict["code"], ended.code, "{verdict}");
    assert_eq!(run["exit_code"], ended.code, "{verdict}");
    // The cause replaces the verdict if the output of the ranks shows one.
    let (text, hint_key) = match &run["cause"] {
        Value::Null => (&verdict["text"], &verdict["hint"]),
        cause => (&cause["text"], &cause["remedy"]),
    };
    let text = text.as_str().expect("text").trim_end_matches('.');
    assert!(block.ends_with(text), "{block}\n{verdict}");
    assert!(hint.ends_with(hint_key.as_str().expect("hint")), "{hint}\n{verdict}");
    Shared {
        block: block.to_owned(),
        hint: hint.to_owned(),
        id: verdict["id"].clone(),
        node: verdict["node"].clone(),
        rank: verdict["rank"].clone(),
        text: verdict["text"].clone(),
        run_id: run["run_id"].clone(),
        attempt: run["attempt"].clone(),
    }
}

/// Ends of nodes, each with its rank and exit code; all must name one cause.
#[track_caller]
pub fn one_cause(ended: &[(u32, &Ended, i32)]) -> Shared {
    let mut causes = Vec::new();
    for (node, ended, code) in ended {
        assert_eq!(ended.code, *code, "node {node}\n{}\n{}", ended.out, ended.err);
        causes.push(shared(ended, *node));
    }
    let first = causes.first().expect("a node").clone();
    for (cause, (node, ..)) in causes.iter().zip(ended) {
        assert_eq!(*cause, first, "node {node}");
    }
    first
}
