//! Network faults of a running job: partitions below and above the peer timeout, hosts that vanish,
//! and hosts that return without their connections. Packets between namespaces are really dropped.
//!
//! Each case is a minute's wait without computation, so one test runs all of them side by side.

use std::thread;
use std::time::{Duration, Instant};

use harness::Running;
use harness::cluster::{Cluster, one_cause};
use nix::sys::signal::Signal;

use super::silence::{
    TIMEOUT, a_node_that_is_cut_off_is_named, a_node_without_power_is_named, wait_all,
};

/// Almost the timeout, with room for a busy machine.
const SHORT: Duration = Duration::from_millis(14_500);

/// Lets the time pass; no node may give up meanwhile.
fn pass(time: Duration, nodes: &[Running]) {
    let began = Instant::now();
    while began.elapsed() < time {
        thread::sleep(Duration::from_millis(100));
        for node in nodes {
            let (err, after) = (node.err(), began.elapsed());
            // The start prints one such line, a verdict the next.
            assert!(err.matches("── ranklaunch: ").count() < 2, "after {after:?}\n{err}");
        }
    }
}

#[test]
fn partitions_and_vanished_hosts() {
    let cases: [fn(); 5] = [
        a_partition_below_the_timeout_is_survived,
        a_partition_above_the_timeout_is_named_on_both_sides,
        a_vanished_node_is_named,
        a_vanished_node_0_ends_the_job,
        a_host_that_lost_its_connections_is_named_as_soon_as_it_answers,
    ];
    let running = cases.map(thread::spawn);
    // All threads are joined, so that every namespace is removed at the end.
    let ends = running.map(thread::JoinHandle::join);
    assert!(
        ends.iter().all(Result::is_ok),
        "{} failed",
        ends.iter().filter(|end| end.is_err()).count()
    );
}

fn a_partition_below_the_timeout_is_survived() {
    let Some(cluster) = Cluster::new(3) else { return };
    let nodes = cluster.waiting(&[]);
    // The next heartbeats leave within a second of the cut. The kernel then retransmits them
    // shortly before the cut ends, and the next time only long after it.
    pass(Duration::from_millis(2200), &nodes);
    cluster.cut(2);
    pass(SHORT, &nodes);
    cluster.mend(2);
    // The wait is longer than any node would wait for a missing frame.
    pass(Duration::from_secs(7), &nodes);
    nodes[2].signal(Signal::SIGTERM);
    // Node 2's message reaches all nodes over the connection that was cut.
    let ended = wait_all(nodes);
    let cause = one_cause(&[(0, &ended[0], 143), (1, &ended[1], 143), (2, &ended[2], 143)]);
    assert_eq!((cause.id, cause.node), ("stopped.signal".into(), 2.into()));
    cluster.expect_nothing_left();
}

/// The control of the case before: the same cut, which stays.
fn a_partition_above_the_timeout_is_named_on_both_sides() {
    let Some(cluster) = Cluster::new(3) else { return };
    a_node_that_is_cut_off_is_named(&cluster, cluster.waiting(&[]));
}

fn a_vanished_node_is_named() {
    let Some(cluster) = Cluster::new(3) else { return };
    a_node_without_power_is_named(&cluster, cluster.waiting(&[]), 2);
}

fn a_vanished_node_0_ends_the_job() {
    let Some(cluster) = Cluster::new(3) else { return };
    a_node_without_power_is_named(&cluster, cluster.waiting(&[]), 0);
}

/// Half-open connections: the host died silently and is back at its address without its
/// connections.
fn a_host_that_lost_its_connections_is_named_as_soon_as_it_answers() {
    let Some(cluster) = Cluster::new(3) else { return };
    let mut nodes = cluster.waiting(&[]);
    let off = Instant::now();
    cluster.power_off(2);
    drop(nodes.pop());
    cluster.mend(2);
    let ended = wait_all(nodes);
    // The detection was faster than the timeout, unlike that of the host that does not come back.
    assert!(off.elapsed() < TIMEOUT, "{:?}", off.elapsed());
    let cause = one_cause(&[(0, &ended[0], 143), (1, &ended[1], 143)]);
    assert_eq!((cause.id, cause.node), ("node.died".into(), 2.into()));
    assert!(cause.block.contains("the agent of node 2 (node-2) died"), "{}", cause.block);
    cluster.expect_nothing_left();
}
