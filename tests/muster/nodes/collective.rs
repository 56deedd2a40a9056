//! Real torchrun and gloo on three hosts with their own addresses and names: success, a killed
//! rank, a host that is cut off, and a host that loses its power.

use std::ffi::OsString;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use harness::cluster::{Cluster, kill_rank, one_cause};
use harness::{Running, program, python, run_args};

use super::silence::{a_node_that_is_cut_off_is_named, a_node_without_power_is_named, wait_all};

/// Three hosts whose ranks add up numbers, `steps` times.
fn start(cluster: &Cluster, steps: &str) -> Vec<Running> {
    let mut args: Vec<OsString> = run_args("torchrun", 1);
    args.extend(["--".into(), program("reduce.py").into(), steps.into()]);
    let mut nodes: Vec<Running> =
        (0..3).map(|rank| cluster.launcher(rank, rank, 3, &args).start()).collect();
    // The sum 0 + 1 + 2 shows that all three took part.
    nodes.iter_mut().for_each(|node| {
        node.says("READY: the sum of 3 ranks is 3", 1);
    });
    nodes
}

#[test]
fn three_hosts_share_one_verdict_under_torchrun() {
    let silent = [a_host_that_is_cut_off_is_named, a_node_0_without_power_ends_the_job];
    let (ready, begun) = channel();
    let silent = silent.map(|case: fn(Sender<()>)| {
        let ready = ready.clone();
        thread::spawn(move || case(ready))
    });
    drop(ready);
    // The silent cases wait for the peer timeout from now on; the others run meanwhile.
    begun.iter().for_each(drop);
    let quick = [a_job_succeeds, a_killed_rank_is_named_and_not_what_it_causes];
    let quick = thread::spawn(move || quick.iter().for_each(|case: &fn()| case()));
    // All threads are joined, so that every namespace is gone at the end.
    let ends = silent.into_iter().chain([quick]).map(thread::JoinHandle::join);
    assert_eq!(ends.filter(Result::is_err).count(), 0, "cases that failed");
}

fn a_job_succeeds() {
    let Some(cluster) = Cluster::new(3) else { return };
    for ended in wait_all(start(&cluster, "20")) {
        let ended = ended.expect_code(0);
        assert!(ended.err.contains("all 3 nodes agree"), "{}", ended.err);
    }
    cluster.expect_nothing_left();
}

/// gloo's peers fail within milliseconds of the kill, each with its own error.
fn a_killed_rank_is_named_and_not_what_it_causes() {
    let Some(cluster) = Cluster::new(3) else { return };
    let nodes = start(&cluster, "100000");
    let rank = format!("{} -u {}", python().display(), program("reduce.py").display());
    kill_rank(&nodes[2], &rank);
    let ended = wait_all(nodes);
    let cause = one_cause(&[(0, &ended[0], 143), (1, &ended[1], 143), (2, &ended[2], 137)]);
    assert_eq!((cause.id, cause.node, cause.rank), ("rank.signal".into(), 2.into(), 2.into()));
    let words = "rank 2 on node 2 (node-2) was killed by SIGKILL";
    assert!(cause.block.contains(words), "{}", cause.block);
    cluster.expect_nothing_left();
}

fn a_host_that_is_cut_off_is_named(ready: Sender<()>) {
    let Some(cluster) = Cluster::new(3) else { return };
    let nodes = start(&cluster, "100000");
    drop(ready);
    a_node_that_is_cut_off_is_named(&cluster, nodes);
}

fn a_node_0_without_power_ends_the_job(ready: Sender<()>) {
    let Some(cluster) = Cluster::new(3) else { return };
    let nodes = start(&cluster, "100000");
    drop(ready);
    a_node_without_power_is_named(&cluster, nodes, 0);
}
