//! Restarts of a whole job: with a replaced node, and their end.

use std::ffi::OsString;

use harness::cluster::{Cluster, one_cause};
use harness::{Ended, Launcher, free_port, run_args};

fn args(restarts: &str, script: &str) -> Vec<OsString> {
    let mut args = run_args("direct", 1);
    args.extend(["--max-restarts", restarts, "--", "sh", "-c", script].map(Into::into));
    args
}

#[test]
fn a_replaced_node_joins_the_next_attempt() {
    let Some(mut cluster) = Cluster::new(3) else { return };
    let go = cluster.folder().join("go");
    let script = "test -e \"$GO\" && echo again $RANK || { echo READY; exec sleep 300; }";
    let args = args("2", script);
    let start = |cluster: &Cluster, host, rank| {
        cluster.launcher(host, rank, 3, &args).env("GO", &go).start()
    };
    let mut nodes: Vec<_> = (0..3).map(|rank| start(&cluster, rank, rank)).collect();
    nodes.iter_mut().for_each(|node| {
        node.says("READY", 1);
    });

    std::fs::write(&go, "").expect("a file");
    cluster.kill_all(2);
    drop(nodes.pop());
    cluster.remove(2);
    // Another host with another address takes its rank.
    cluster.add(3);
    nodes.push(start(&cluster, 3, 2));

    let mut runs = Vec::new();
    for (rank, node) in (0..3).zip(nodes) {
        let ended = node.wait().expect_code(0).expect_nothing_left();
        assert!(ended.out.contains(&format!("again {rank}")), "{}", ended.out);
        assert!(ended.node_folder(rank).join("attempt-1").is_dir());
        let replaced = rank == 2;
        assert_eq!(ended.node_folder(rank).join("attempt-0").is_dir(), !replaced);
        let words = "all nodes start again in 1 s: attempt 1";
        assert_eq!(ended.err.contains(words), !replaced, "{}", ended.err);
        let died = "the agent of node 2 (node-2) died";
        assert_eq!(ended.err.contains(died), !replaced, "{}", ended.err);
        let run = ended.run_json(rank);
        assert_eq!((&run["attempt"], &run["verdict"]["class"]), (&1.into(), &"done".into()));
        runs.push(run["run_id"].clone());
    }
    assert!(runs.iter().all(|run| *run == runs[0]), "{runs:?}");
    cluster.expect_nothing_left();
}

/// Two nodes of which rank 1 ends with `code`, at once and every time.
fn always(code: i32) -> [Ended; 2] {
    let port = free_port();
    let script = format!("test $RANK = 1 && exit {code}; exec sleep 300");
    let args = args("50", &script);
    let nodes = [0, 1].map(|rank| Launcher::new(&args).node(rank, 2, port).start());
    nodes.map(|node| node.wait().expect_nothing_left())
}

#[test]
fn restarts_end_without_progress_and_are_not_tried_where_they_cannot_help() {
    // What may help is tried after a pause that doubles, and not for ever.
    let [zero, one] = always(1);
    let cause = one_cause(&[(0, &zero, 92), (1, &one, 1)]);
    assert_eq!((cause.id, cause.rank, cause.attempt), ("rank.exit".into(), 1.into(), 2.into()));
    for ended in [&zero, &one] {
        let pauses: Vec<&str> =
            ended.err.lines().filter(|line| line.contains("start again in")).collect();
        assert_eq!(pauses.len(), 2, "{}", ended.err);
        assert!(pauses[0].ends_with("in 1 s: attempt 1"), "{pauses:?}");
        assert!(pauses[1].ends_with("in 2 s: attempt 2"), "{pauses:?}");
    }
    let words = "not started again: the last 3 attempts ended the same way";
    assert!(zero.err.contains(words), "{}", zero.err);

    // 2 is what programs say of their arguments.
    let [zero, one] = always(2);
    let cause = one_cause(&[(0, &zero, 92), (1, &one, 2)]);
    assert_eq!(cause.attempt, 0);
    assert!(zero.err.contains("not started again: it would end the same way"), "{}", zero.err);
    assert!(!one.err.contains("start again"), "{}", one.err);
}
