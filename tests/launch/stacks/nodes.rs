//! Jobs of several nodes: each node shows the ranks of all nodes.

use std::ffi::OsStr;

use harness::{Launcher, Running, free_port, run_args, send};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{document, eventually, list, stacks, text};

/// Rank 0 listens as torch's store does, because nodes without a muster wait for that.
const SCRIPT: &str = "import os, socket, time
def train(): time.sleep(600)
def evaluate(): time.sleep(600)
if os.environ['RANK'] == '0':
    store = socket.create_server(('', int(os.environ['MASTER_PORT'])))
print('READY', flush=True)
evaluate() if os.environ['RANK'] == '2' else train()
";

/// Two nodes of two ranks each, where rank 2 does something else. The folder holds their script.
fn two_nodes(options: &[&str]) -> ([Running; 2], tempfile::TempDir) {
    let (port, folder) = (free_port(), tempfile::tempdir().expect("a folder"));
    let file = folder.path().join("script.py");
    std::fs::write(&file, SCRIPT).expect("written");
    let mut nodes = [0, 1].map(|rank| {
        let launcher = Launcher::new(run_args("direct", 2)).node(rank, 2, port).args(options);
        launcher.args([OsStr::new("--"), file.as_os_str()]).start()
    });
    for node in &mut nodes {
        node.says("READY", 2);
    }
    (nodes, folder)
}

fn ended([zero, one]: [Running; 2]) {
    zero.signal(Signal::SIGTERM);
    one.signal(Signal::SIGTERM);
    zero.wait().expect_nothing_left();
    one.wait().expect_nothing_left();
}

fn numbers(value: &Value, key: &str) -> Vec<u64> {
    list(&value["ranks"]).iter().map(|rank| rank[key].as_u64().unwrap_or(99)).collect()
}

#[test]
fn any_node_shows_grouped_ranks_of_all_nodes() {
    let (nodes, _folder) = two_nodes(&[]);
    assert_eq!(nodes[0].run_id(), nodes[1].run_id());
    eventually("rank 2 is the odd one", || {
        let all = document(&nodes[0]);
        let right = all["groups"] == serde_json::json!([[2], [0, 1, 3]]);
        right.then_some(()).ok_or_else(|| all["groups"].to_string())
    });
    let all = document(&nodes[0]);
    assert_eq!(
        (numbers(&all, "rank"), numbers(&all, "node")),
        (vec![0, 1, 2, 3], vec![0, 0, 1, 1])
    );
    assert_eq!((&all["nodes"], &all["reaches_all"]), (&2.into(), &true.into()));
    assert_eq!(all["unanswered"], serde_json::json!([]));
    let shown = stacks(&nodes[0], &[]).expect_code(0).out;
    for line in [
        ", nodes 0-1: 4 ranks in 2 groups of equal stacks\n",
        "── rank 2 (1 of 4) on node 1\n",
        "── ranks 0-1, 3 (3 of 4) on nodes 0-1; this is rank 0\n",
        "evaluate (",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    // The options select one node, and one rank on any node.
    let one = stacks(&nodes[0], &["--node", "1"]).expect_code(0).out;
    assert!(one.contains(", node 1: 2 ranks in 2 groups"), "{one}");
    let three = stacks(&nodes[0], &["--rank", "3"]).expect_code(0).out;
    assert!(three.contains("── rank 3\n") && three.contains("train ("), "{three}");
    // An unknown rank or node is refused with the known ones.
    for (args, words) in [
        (["--rank", "4"], "rank 4 was not found: ranks 0-3 run"),
        (["--node", "2"], "node 2, but the job has nodes 0 to 1"),
    ] {
        let refused = stacks(&nodes[0], &args).expect_code(64).expect_id("stacks.place");
        assert!(refused.err.contains(words), "{}", refused.err);
    }
    ended(nodes);
}

/// The node's ranks run on, but its agent is silent: the others are shown within the time limit.
#[test]
fn silent_node_is_named_with_the_reason() {
    let (nodes, _folder) = two_nodes(&[]);
    let agent = nodes[1].agent();
    // Each silence is shorter than the one after which the job would end.
    let meanwhile = |args: &[&str]| {
        send(agent, Signal::SIGSTOP);
        let began = std::time::Instant::now();
        let asked = stacks(&nodes[0], args);
        let took = began.elapsed();
        send(agent, Signal::SIGCONT);
        assert!(took.as_secs() < 19, "{took:?}: {}", asked.err);
        asked
    };
    let shown = meanwhile(&[]).expect_code(0).out;
    assert!(shown.contains("no answer from node 1: no answer in time\n"), "{shown}");
    assert!(shown.contains(", node 0: 2 ranks in 1 group of"), "{shown}");
    // The agent answers again in between, which is the control.
    assert_eq!(numbers(&document(&nodes[0]), "rank"), [0, 1, 2, 3]);
    let all = meanwhile(&["--format", "json"]).expect_code(0).out;
    let all: Value = serde_json::from_str(&all).expect("JSON");
    assert_eq!(numbers(&all, "rank"), [0, 1]);
    assert_eq!(text(&all["unanswered"][0]["who"]), "node 1");
    assert_eq!(numbers(&document(&nodes[0]), "rank"), [0, 1, 2, 3]);
    let other = meanwhile(&["--rank", "2"]).expect_code(64);
    assert!(other.err.contains("ranks 0-1 run; node 1: no answer in time"), "{}", other.err);
    ended(nodes);
}

/// The nodes do not know each other: each agent of this machine is asked, and the output says so.
#[test]
fn job_without_muster_shows_only_local_agents() {
    let (nodes, _folder) = two_nodes(&["--muster", "off"]);
    let ids = [&nodes[0], &nodes[1]].map(|node| node.run_id());
    for (node, rank) in [(0, "ranks 0-1 (2 of 2)"), (1, "rank 2 (1 of 2)")] {
        let job = &nodes[usize::try_from(node).expect("small")];
        let shown = stacks(job, &["--node", &node.to_string()]).expect_code(0).out;
        assert!(shown.contains(&format!(", node {node}: 2 ranks in ")), "{shown}");
        assert!(shown.contains("this node only, since the nodes"), "{ids:?}: {shown}");
        assert!(shown.contains(rank), "{shown}");
    }
    ended(nodes);
}
