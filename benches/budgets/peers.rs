//! A rank of node 2 is killed: how long the ranks of node 0 live on, and whether
//! node 0 says why they ended. Three nodes with addresses of their own, real torchrun
//! on each; the ranks wait, as they do in a collective of NCCL whose peer is gone until its
//! watchdog ends them. Those of gloo see the closed connection themselves, in about two seconds.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::alive::{descendants, is_alive};
use harness::{executable, kill, program, python, wait_until};

use crate::measure::{self, Budget, Running, Table, median};

const NODES: u32 = 3;
/// Per node.
const RANKS: usize = 2;
const ROUNDS: usize = 3;
/// Budget of the design.
const MILLIS: f64 = 1000.0;
/// How long a launcher that may never notice is watched.
const WATCHED: Duration = Duration::from_secs(20);
/// Time limit for node 0 to print the cause.
const SAID: Duration = Duration::from_secs(3);
const PORT: &str = "29517";

/// One network namespace per node behind a bridge.
struct Network(String);

fn ip(words: &str) -> bool {
    let done = Command::new("ip").args(words.split_whitespace()).output();
    done.is_ok_and(|done| done.status.success())
}

impl Network {
    fn new() -> Option<Network> {
        let name = format!("rlb{}", std::process::id());
        if !ip(&format!("netns add {name}-sw")) {
            return None;
        }
        let network = Network(name.clone());
        let mut made = ip(&format!("-n {name}-sw link add sw type bridge"))
            && ip(&format!("-n {name}-sw link set sw up"));
        for node in 0..NODES {
            let (own, switch) = (format!("-n {name}-{node}"), format!("-n {name}-sw"));
            made = made
                && ip(&format!("netns add {name}-{node}"))
                && ip(&format!(
                    "{switch} link add p{node} type veth peer name eth0 netns {name}-{node}"
                ))
                && ip(&format!("{switch} link set p{node} master sw up"))
                && ip(&format!("{own} addr add {}/24 dev eth0", address(node)))
                && ip(&format!("{own} link set eth0 up"))
                && ip(&format!("{own} link set lo up"));
        }
        made.then_some(network)
    }

    /// `program` on a node, in a folder of its own that takes its output.
    fn command(&self, node: u32, program: &Path, folder: &Path) -> Command {
        let folder = folder.join(node.to_string());
        let _ = std::fs::create_dir(&folder);
        let mut command = measure::command("ip", &folder);
        command.args(["netns", "exec", &format!("{}-{node}", self.0)]).arg(program);
        let file = |name: &str| File::create(folder.join(name)).expect("a file");
        command.stdout(file("out")).stderr(file("err"));
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for node in (0..NODES).map(|node| node.to_string()).chain(["sw".to_owned()]) {
            ip(&format!("netns del {}-{node}", self.0));
        }
    }
}

fn address(node: u32) -> String {
    format!("10.98.0.{}", node + 1)
}

/// The starter of the ranks.
#[derive(Clone, Copy)]
enum Way {
    Ranklaunch,
    C10d,
    Static,
}

fn launch(network: &Network, way: Way, node: u32, folder: &Path) -> Running {
    let ranks = RANKS.to_string();
    let mut command = match way {
        Way::Ranklaunch => {
            let mut command = network.command(node, &executable(), folder);
            command.args(["run", "--engine", "torchrun", "--device", "cpu", "--stale", "off"]);
            command.args(["--nproc-per-node", &ranks]).arg("--python").arg(python()).arg("--");
            command.env("WORLD_SIZE", NODES.to_string()).env("RANK", node.to_string());
            command.env("MASTER_ADDR", address(0)).env("MASTER_PORT", PORT);
            command
        }
        Way::C10d | Way::Static => {
            let mut command = network.command(node, &python(), folder);
            command.args(["-m", "torch.distributed.run", "--nnodes", &NODES.to_string()]);
            command.args(["--nproc-per-node", &ranks]).env("OMP_NUM_THREADS", "1");
            if matches!(way, Way::C10d) {
                let is_host = u32::from(node == 0);
                command.args(["--rdzv-backend", "c10d", "--rdzv-id", "bench"]);
                command.args(["--rdzv-endpoint", &format!("{}:{PORT}", address(0))]);
                command.args(["--rdzv-conf", &format!("is_host={is_host}")]);
                command.args(["--local-addr", &address(node)]);
                // Without restarts it only notices the end of the node with the store.
                command.args(["--max-restarts", "1"]);
            } else {
                command.args(["--node-rank", &node.to_string(), "--master-addr", &address(0)]);
                command.args(["--master-port", PORT]);
            }
            command.arg("--no-python");
            command
        }
    };
    command.arg(program("rank.sh")).arg("wait");
    Running(command.spawn().expect("it starts"))
}

/// The waiting ranks of a launcher.
fn ranks(launcher: &Running) -> Vec<i32> {
    let all = descendants(launcher.pid()).into_iter();
    all.filter(|(_, name)| name == "sleep").map(|(pid, _)| pid).collect()
}

/// Milliseconds until the last rank of node 0 was gone, None when that took longer than
/// it was watched; and whether node 0 then named the killed rank.
fn once(network: &Network, way: Way) -> (Option<f64>, bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut nodes: Vec<Running> =
        (0..NODES).map(|node| launch(network, way, node, folder.path())).collect();
    let found = wait_until("all ranks", || {
        let found: Vec<Vec<i32>> = nodes.iter().map(ranks).collect();
        found.iter().all(|ranks| ranks.len() == RANKS).then_some(found)
    });
    let [zero, _, two] = found.as_slice() else { panic!("three nodes") };
    let victim = *two.first().expect("a rank");
    let began = Instant::now();
    kill(victim);
    while zero.iter().any(|pid| is_alive(*pid)) {
        if began.elapsed() > WATCHED {
            return (None, false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = began.elapsed().as_secs_f64() * 1000.0;
    // Everything that it prints about it, whether it ends or restarts.
    let first = nodes.first_mut().expect("node 0");
    let said_by = Instant::now() + SAID;
    while Instant::now() < said_by && matches!(first.0.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = ["out", "err"].map(|name| std::fs::read(folder.path().join("0").join(name)));
    let said = said.map(|bytes| String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned());
    (Some(took), said.iter().any(|text| text.contains("SIGKILL")))
}

pub(crate) fn measure(table: &mut Table) {
    let Some(network) = Network::new() else {
        table.left_out("a rank of node 2 killed", "network namespaces need root and ip");
        return;
    };
    let rounds = |way| (0..ROUNDS).map(|_| once(&network, way)).collect::<Vec<_>>();
    let took = |all: &[(Option<f64>, bool)]| {
        median(all.iter().map(|(took, _)| took.unwrap_or(f64::INFINITY)).collect())
    };
    let cause = |all: &[(Option<f64>, bool)]| {
        if all.iter().all(|(_, named)| *named) { "named" } else { "not named" }
    };
    let ours = rounds(Way::Ranklaunch);
    let c10d = rounds(Way::C10d);
    let fixed = once(&network, Way::Static);
    let words = format!("{:.0} ms, {}", took(&ours), cause(&ours));
    let kept = took(&ours) <= MILLIS && cause(&ours) == "named";
    let budget = || Budget::Within("<= 1 s, the cause named", kept);
    let what = "a rank of node 2 killed: node 0 is empty";
    for (name, theirs) in [("c10d, restarts", &c10d), ("static", &vec![fixed])] {
        let millis = took(theirs);
        let (rival, millis) = if millis.is_finite() {
            (format!("{name} {millis:.0} ms, {}", cause(theirs)), millis)
        } else {
            let least = WATCHED.as_secs();
            (format!("{name} not within {least} s"), WATCHED.as_secs_f64() * 1000.0)
        };
        table.row(what, &words, &rival, took(&ours) / millis, budget());
    }
}
