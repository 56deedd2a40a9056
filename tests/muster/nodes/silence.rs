//! A node that falls silent while the job runs: the others report it after the peer timeout,
//! whatever their ranks do.

use std::time::{Duration, Instant};

use harness::cluster::{Cluster, one_cause};
use harness::{Ended, Running};

/// The peer timeout: a shorter silence must be survived, a longer one must be named.
pub(super) const TIMEOUT: Duration = Duration::from_secs(15);

pub(super) fn wait_all(nodes: Vec<Running>) -> Vec<Ended> {
    nodes.into_iter().map(|node| node.wait().expect_nothing_left()).collect()
}

pub(super) fn a_node_that_is_cut_off_is_named(cluster: &Cluster, nodes: Vec<Running>) {
    let cut = Instant::now();
    cluster.cut(2);
    let ended = wait_all(nodes);
    assert!(cut.elapsed() > TIMEOUT, "{:?}", cut.elapsed());
    let cause = one_cause(&[(0, &ended[0], 143), (1, &ended[1], 143)]);
    assert_eq!((cause.id, cause.node), ("node.silent".into(), 2.into()));
    let words = "nothing was heard from node 2 (node-2) for 15 s";
    assert!(cause.block.contains(words), "{}", cause.block);
    // A separated node 2 can only know that it receives nothing.
    let cause = one_cause(&[(2, &ended[2], 143)]);
    assert_eq!((cause.id, cause.node), ("node.silent".into(), 0.into()));
    cluster.expect_nothing_left();
}

/// `lost` loses its power; all other nodes report the same about it.
pub(super) fn a_node_without_power_is_named(
    cluster: &Cluster,
    mut nodes: Vec<Running>,
    lost: usize,
) {
    let off = Instant::now();
    cluster.power_off(lost.try_into().expect("a node"));
    drop(nodes.remove(lost));
    let ended = wait_all(nodes);
    assert!(off.elapsed() > TIMEOUT, "{:?}", off.elapsed());
    let [one, other] = ended.as_slice() else { panic!("two are left") };
    let rank = |survivor: usize| u32::try_from(survivor + usize::from(survivor >= lost));
    let [first, second] = [0, 1].map(|survivor| rank(survivor).expect("a rank"));
    let cause = one_cause(&[(first, one, 143), (second, other, 143)]);
    assert_eq!((cause.id, cause.node), ("node.silent".into(), lost.into()));
    cluster.expect_nothing_left();
}
