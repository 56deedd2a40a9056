//! Facts that a job keeps across its attempts: its first cause, and its number of restarts.

use harness::cluster::Cluster;
use harness::{Launcher, Role, free_port, kill, run_args};

/// Node 1 is gone for good: the others end because of its death, with a code that operators retry.
#[test]
fn unreplaced_node_stays_the_cause() {
    let Some(cluster) = Cluster::new(3) else { return };
    let mut nodes = cluster.waiting(&["--max-restarts", "3", "--wait-timeout", "5s"]);
    cluster.kill_all(1);
    drop(nodes.remove(1));
    let ended: Vec<_> = nodes.into_iter().map(|node| node.wait().expect_nothing_left()).collect();
    for (rank, ended) in [(0, &ended[0]), (2, &ended[1])] {
        assert_eq!(ended.code, 143, "{}", ended.err);
        let run = ended.run_json(rank);
        let verdict = &run["verdict"];
        assert_eq!((&run["exit_code"], &run["attempt"]), (&143.into(), &0.into()));
        assert_eq!((&verdict["id"], &verdict["node"]), (&"node.died".into(), &1.into()));
        let text = verdict["text"].as_str().expect("text");
        assert!(ended.err.contains(text), "{text}\n{}", ended.err);
        let words = "attempt 0 ended: the agent of node 1 (node-1) died; no replacement came: ";
        assert!(text.starts_with(words), "{text}");
    }
    cluster.expect_nothing_left();
}

/// The guard of node 0 is killed in each attempt, and a new node 0 joins each time.
#[test]
fn restarts_of_a_job_outlive_its_node_0() {
    let port = free_port();
    let mut args = run_args("direct", 1);
    let script = "echo READY; exec sleep 300";
    args.extend(["--max-restarts", "1", "--", "sh", "-c", script].map(Into::into));
    let start = |rank| Launcher::new(&args).node(rank, 2, port).start();
    let (mut zero, mut one) = (start(0), start(1));
    for attempt in [1, 2] {
        zero.says("READY", 1);
        one.says("READY", attempt);
        kill(zero.find(Role::Guard));
        zero.wait();
        zero = start(0);
    }
    let one = one.wait().expect_code(143).expect_nothing_left();
    assert_eq!(one.out.matches("READY").count(), 2, "{}", one.out);
    assert_eq!(one.run_json(1)["verdict"]["id"], "guard.killed", "{}", one.err);
    kill(zero.find(Role::Agent));
    zero.wait();
}
