//! The verdict of NCCL's RAS on the ranks of a job that stands still.

use std::collections::BTreeSet;

use super::evidence::NodeEvidence;
use crate::watch::RasVerdict;
use text::rank::GlobalRank;

/// The verdicts of all nodes, merged into one. Ranks that have ended do not count as missing.
pub(super) fn merged(nodes: &[NodeEvidence], ended: impl Fn(u32) -> bool) -> RasVerdict {
    let mut all = RasVerdict::default();
    for ras in nodes.iter().filter_map(|node| node.ras.as_ref()) {
        all.dead.extend(&ras.dead);
        all.unresponsive.extend(&ras.unresponsive);
        all.failed.extend(&ras.failed);
        all.behind.extend(ras.behind.iter().cloned());
    }
    all.dead.retain(|rank| !ended(rank.0));
    let dead = &all.dead;
    all.unresponsive.retain(|rank| !ended(rank.0) && !dead.contains(rank));
    // All nodes report the same communicators.
    all.behind.sort();
    all.behind.dedup();
    all
}

/// The ranks that NCCL blames, and whether it reaches each of them. A rank that is behind is blamed only if no
/// other rank is: each of several such ranks may wait in one communicator for another rank that is late in a
/// second one.
pub(super) fn culprits(of: &RasVerdict) -> Vec<(u32, bool)> {
    let missing: BTreeSet<u32> =
        of.dead.iter().chain(&of.unresponsive).map(|rank| rank.0).collect();
    if !missing.is_empty() {
        return missing.into_iter().map(|rank| (rank, false)).collect();
    }
    let behind: BTreeSet<GlobalRank> = of.behind.iter().map(|one| one.rank).collect();
    match behind.first() {
        // In a communicator of two ranks, the other rank may have called something of its own.
        Some(rank) if behind.len() == 1 && of.behind.iter().any(|one| one.of > 2) => {
            vec![(rank.0, true)]
        }
        _ => Vec::new(),
    }
}
