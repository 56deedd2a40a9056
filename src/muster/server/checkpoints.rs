//! Chooses the checkpoint from which all nodes go on: the newest that each of them can use.
//!
//! Pure functions on the summaries of all nodes. On storage that the nodes share all see the same, so that a whole
//! checkpoint is whole on each of them. On storage of its own a node sees only the files of its own ranks, and those
//! suffice for it if the other nodes have the rest. A node whose place in the job has changed since has the files of
//! other ranks, with which its own would go on from foreign states.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::{NodeSummary, Share};
use text::text;
use verdict::{Id, Refusal};

/// The ranks of a place of the job, first and last; None: nobody knows them before the start.
pub(crate) type RanksOf<'a> = &'a dyn Fn(u32) -> Option<(u32, u32)>;

/// The newest checkpoint that every node can go on from, in the order of node 0.
///
/// # Errors
/// When only some nodes look for checkpoints.
pub(crate) fn agreed(
    summaries: &[NodeSummary],
    ranks_of: RanksOf<'_>,
) -> Result<Option<u64>, Refusal> {
    let named =
        |looks: bool| summaries.iter().filter(move |one| one.checkpoints.is_some() == looks);
    let (Some(with), Some(without)) = (named(true).next(), named(false).next()) else {
        let first = summaries.first().map(digests).unwrap_or_default();
        return Ok(first.into_iter().find(|of| is_usable(*of, summaries, ranks_of)));
    };
    let (node, host) = (with.node, &with.hostname);
    let (other, its_host) = (without.node, &without.hostname);
    Err(Refusal::new(
        Id::CheckpointDiffer,
        text!(
            "node {node} ({host}) goes on from a checkpoint (--checkpoint-dir), but node {other} ({its_host}) looks for none",
            "节点 {node}（{host}）会从检查点继续（--checkpoint-dir），而节点 {other}（{its_host}）不查找检查点"
        ),
        text!(
            "give all nodes the same --checkpoint-dir, or none",
            "为所有节点指定相同的 --checkpoint-dir，或都不指定"
        ),
    ))
}

/// Whether the nodes do not all see the same. A node may have looked before others saved and removed the last ones.
pub(crate) fn differ(summaries: &[NodeSummary]) -> bool {
    let first = summaries.first().map(digests);
    summaries.iter().skip(1).any(|one| Some(digests(one)) != first)
}

/// Whether there is a whole checkpoint: on one node, on the disks of all nodes together, or on those and the `lost` ones,
/// with the files of these ranks.
pub(crate) fn are_seen<'s>(
    summaries: impl Iterator<Item = &'s NodeSummary> + Clone,
    lost: &[(u32, u32)],
) -> bool {
    let sees_whole = |one: &NodeSummary| one.checkpoints.iter().any(|whole| !whole.is_empty());
    let is_whole = |of: u64| {
        let shares: Vec<Share> = summaries.clone().filter_map(|one| share(one, of)).collect();
        are_whole(&shares, lost)
    };
    summaries.clone().any(sees_whole)
        || summaries.clone().flat_map(digests).collect::<BTreeSet<u64>>().into_iter().any(is_whole)
}

/// The ranks of those seats whose nodes were not there in the last attempt, while others were.
pub(crate) fn of_lost_disks(summaries: &[NodeSummary], ranks_of: RanksOf<'_>) -> Vec<(u32, u32)> {
    let stays = |place: u32, one: &NodeSummary| one.held == Some(place);
    if !(0..).zip(summaries).any(|(place, one)| stays(place, one)) {
        return Vec::new();
    }
    let new = (0..).zip(summaries).filter(|(place, one)| !stays(*place, one));
    new.filter_map(|(place, _)| ranks_of(place)).collect()
}

/// Whether what some nodes lack is on the disks of others, or on the `lost` ones.
fn are_whole(shares: &[Share], lost: &[(u32, u32)]) -> bool {
    let all = merged(shares.iter().flat_map(|share| &share.here).chain(lost).copied());
    shares.iter().flat_map(|share| &share.missing).all(|range| covers(&all, *range))
}

/// The nodes that see none of the checkpoints that enough nodes for all seats see: the job cannot go on there.
pub(crate) fn unable(nnodes: u32, there: &[NodeSummary]) -> BTreeSet<u32> {
    let seen = |one: &NodeSummary| -> BTreeSet<u64> { digests(one).into_iter().collect() };
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    for of in there.iter().flat_map(seen) {
        *counts.entry(of).or_default() += 1;
    }
    counts.retain(|_, count| *count >= nnodes);
    let is_unable = |one: &&NodeSummary| {
        !counts.is_empty() && !digests(one).iter().any(|of| counts.contains_key(of))
    };
    there.iter().filter(is_unable).map(|one| one.node).collect()
}

/// The checkpoints that a node sees, newest first.
fn digests(summary: &NodeSummary) -> Vec<u64> {
    match summary.shares.is_empty() {
        true => summary.checkpoints.clone().unwrap_or_default(),
        false => summary.shares.iter().map(|share| share.of).collect(),
    }
}

/// What a node sees of one checkpoint; None: nothing, or something is missing that is no file of ranks.
fn share(summary: &NodeSummary, of: u64) -> Option<Share> {
    if let Some(share) = summary.shares.iter().find(|share| share.of == of) {
        return Some(share.clone());
    }
    let is_whole = summary.checkpoints.as_ref().is_some_and(|whole| whole.contains(&of));
    is_whole.then(|| Share { of, here: Vec::new(), missing: Vec::new() })
}

fn is_usable(of: u64, summaries: &[NodeSummary], ranks_of: RanksOf<'_>) -> bool {
    let shares: Option<Vec<Share>> = summaries.iter().map(|one| share(one, of)).collect();
    let Some(shares) = shares else { return false };
    if shares.iter().all(|share| share.missing.is_empty()) {
        return true;
    }
    let has_own =
        |(place, share): (u32, &Share)| ranks_of(place).is_some_and(|own| covers(&share.here, own));
    are_whole(&shares, &[]) && (0..).zip(&shares).all(has_own)
}

/// Ranges in ascending order, those that touch or overlap as one.
fn merged(ranges: impl Iterator<Item = (u32, u32)>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = ranges.collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// Whether one of the merged ranges holds all of `range`.
fn covers(merged: &[(u32, u32)], range: (u32, u32)) -> bool {
    merged.iter().any(|(first, last)| *first <= range.0 && range.1 <= *last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::summary;
    use proptest::prelude::*;

    /// Nodes of two ranks each.
    fn two(member: u32) -> Option<(u32, u32)> {
        Some((member * 2, member * 2 + 1))
    }

    fn ranges(ranks: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
        text::ranges::ranges(ranks.into_iter().collect::<BTreeSet<u32>>())
    }

    /// A checkpoint as a node sees it: its digest, the ranks whose files are there, and those whose are missing.
    type Seen<'s> = (u64, &'s [u32], &'s [u32]);

    /// A case by its name: what each node sees, and the digest of the choice.
    type Case = (&'static str, &'static [&'static [Seen<'static>]], Option<u64>);

    /// Nodes, each with what it sees.
    fn nodes(seen: &[&[Seen<'_>]]) -> Vec<NodeSummary> {
        let count = u32::try_from(seen.len()).expect("small");
        let of = |(node, seen): (u32, &&[Seen<'_>])| {
            let share = |(of, here, missing): &Seen<'_>| Share {
                of: *of,
                here: ranges(here.iter().copied()),
                missing: ranges(missing.iter().copied()),
            };
            let whole = seen.iter().filter(|(.., missing)| missing.is_empty());
            NodeSummary {
                checkpoints: Some(whole.map(|(of, ..)| *of).collect()),
                shares: seen.iter().map(share).collect(),
                ..summary(node, count)
            }
        };
        (0..count).zip(seen).map(of).collect()
    }

    #[test]
    fn newest_that_all_nodes_can_use_is_agreed() {
        let table: [Case; 13] = [
            ("shared, whole", &[&[(9, &[0, 1, 2, 3], &[])], &[(9, &[0, 1, 2, 3], &[])]], Some(9)),
            ("shared, cut off", &[&[(9, &[0, 1, 3], &[2])], &[(9, &[0, 1, 3], &[2])]], None),
            (
                "shared, cut off, and an older one",
                &[&[(9, &[0], &[1, 2]), (8, &[], &[])], &[(9, &[0], &[1, 2]), (8, &[], &[])]],
                Some(8),
            ),
            ("own disks", &[&[(9, &[0, 1], &[2, 3])], &[(9, &[2, 3], &[0, 1])]], Some(9)),
            (
                "own disks, numbers as bound",
                &[&[(9, &[0, 1], &[])], &[(9, &[2, 3], &[0, 1])]],
                Some(9),
            ),
            ("swapped", &[&[(9, &[2, 3], &[0, 1])], &[(9, &[0, 1], &[2, 3])]], None),
            (
                "swapped, the first one whole",
                &[&[(9, &[2, 3], &[0, 1])], &[(9, &[0, 1], &[])]],
                None,
            ),
            ("one rank died", &[&[(9, &[0, 1], &[2, 3])], &[(9, &[2], &[0, 1, 3])]], None),
            (
                "the last rank died, as far as numbers tell",
                &[&[(9, &[0, 1], &[])], &[(9, &[2], &[0, 1])]],
                None,
            ),
            ("a rank of node 0 died", &[&[(9, &[0], &[])], &[(9, &[2, 3], &[0, 1])]], None),
            ("stale extra parts", &[&[(9, &[0, 1, 2], &[3])], &[(9, &[0, 2, 3], &[1])]], Some(9)),
            ("only on one node", &[&[(9, &[0, 1], &[2, 3])], &[]], None),
            (
                "of a larger job",
                &[&[(9, &[0, 1], &[2, 3, 4, 5])], &[(9, &[2, 3], &[0, 1, 4, 5])]],
                None,
            ),
        ];
        for (what, seen, expected) in table {
            assert_eq!(agreed(&nodes(seen), &two), Ok(expected), "{what}");
        }
    }

    #[test]
    fn whole_checkpoint_is_seen_wherever_its_files_are() {
        let table: [(&str, &[&[Seen<'static>]], bool); 6] = [
            ("none", &[&[], &[]], false),
            ("on one node", &[&[(9, &[0, 1, 2, 3], &[])], &[]], true),
            ("swapped", &[&[(9, &[2, 3], &[0, 1])], &[(9, &[0, 1], &[2, 3])]], true),
            ("one rank died", &[&[(9, &[0, 1], &[2, 3])], &[(9, &[2], &[0, 1, 3])]], false),
            ("of two saves", &[&[(9, &[0, 1], &[2, 3])], &[(8, &[2, 3], &[0, 1])]], false),
            ("half of a larger job", &[&[(9, &[0], &[1, 2])], &[(9, &[1], &[0, 2])]], false),
        ];
        for (what, seen, expected) in table {
            assert_eq!(are_seen(nodes(seen).iter(), &[]), expected, "{what}");
        }
    }

    /// A spare has the seat of a node whose disk had the rest; control: all nodes are new, and a save was cut off.
    #[test]
    fn checkpoint_whose_rest_was_lost_with_a_node_is_seen() {
        let mut nodes = nodes(&[&[(9, &[0, 1], &[2, 3])], &[]]);
        let seen = |nodes: &[NodeSummary]| are_seen(nodes.iter(), &of_lost_disks(nodes, &two));
        assert!(!seen(&nodes));
        nodes[0].held = Some(0);
        assert!(seen(&nodes));
        nodes[1].held = Some(1);
        assert!(!seen(&nodes), "its disk is here");
    }

    #[test]
    fn nodes_without_what_enough_others_see_are_unable() {
        let (own, whole): (Seen<'_>, Seen<'_>) = ((9, &[0], &[1, 2]), (8, &[0, 1, 2], &[]));
        type Row<'s> = (&'static str, &'s [&'s [Seen<'s>]], &'static [u32]);
        let table: [Row<'_>; 4] = [
            ("nobody sees any", &[&[], &[], &[]], &[]),
            ("two see the same", &[&[own], &[], &[own, whole]], &[1]),
            ("two see an older one", &[&[own, whole], &[whole], &[]], &[2]),
            ("only one sees it", &[&[whole], &[], &[own]], &[]),
        ];
        for (what, seen, expected) in table {
            let expected: BTreeSet<u32> = expected.iter().copied().collect();
            assert_eq!(unable(2, &nodes(seen)), expected, "{what}");
        }
    }

    #[test]
    fn shares_count_only_where_ranks_are_known_before() {
        let apart: &[&[Seen<'_>]] = &[&[(9, &[0, 1], &[2, 3])], &[(9, &[2, 3], &[0, 1])]];
        assert_eq!(agreed(&nodes(apart), &|_| None), Ok(None));
        // A version without shares names whole ones only.
        let mut older = nodes(&[&[(9, &[0, 1, 2, 3], &[])], &[(9, &[2, 3], &[0, 1])]]);
        older[0].shares.clear();
        assert_eq!(agreed(&older, &two), Ok(None));
        older[1] = NodeSummary { checkpoints: Some(vec![9]), ..summary(1, 2) };
        assert_eq!(agreed(&older, &two), Ok(Some(9)));
    }

    /// The place of each node when it saved, the ranks whose files were lost there, nodes with files of ranks that are
    /// left over from an earlier place, and whether the checkpoint tells the number of ranks.
    type Story = (Vec<u32>, BTreeSet<u32>, Vec<(usize, u32)>, bool);

    /// Nodes of two ranks each.
    fn stories() -> impl Strategy<Value = Story> {
        (1u32..6).prop_flat_map(|count| {
            let places = Just((0..count).collect::<Vec<u32>>()).prop_shuffle();
            let kept = Just((0..count).collect::<Vec<u32>>());
            let lost = prop_oneof![
                2 => Just(BTreeSet::new()),
                1 => proptest::collection::btree_set(0..2 * count, 1..3),
            ];
            let node = 0..usize::try_from(count).expect("small");
            let stale = proptest::collection::vec((node, 0..2 * count), 0..4);
            (prop_oneof![places, kept], lost, stale, any::<bool>())
        })
    }

    proptest! {
        #[test]
        fn each_node_goes_on_with_its_own_ranks_or_none_does(
            (places, lost, stale, tells_world) in stories(),
        ) {
            let count = u32::try_from(places.len()).expect("small");
            let world: BTreeSet<u32> = (0..2 * count).collect();
            let disk = |(node, place): (usize, &u32)| -> BTreeSet<u32> {
                let (first, last) = two(*place).expect("known");
                let own = (first..=last).filter(|rank| !lost.contains(rank));
                own.chain(stale.iter().filter(|(at, _)| *at == node).map(|(_, rank)| *rank)).collect()
            };
            let disks: Vec<BTreeSet<u32>> = places.iter().enumerate().map(disk).collect();
            let mut summaries = Vec::new();
            for (node, disk) in (0..count).zip(&disks) {
                // Readers know the number of ranks from the files, or only that of the highest one.
                let end = if tells_world { 2 * count } else { disk.last().map_or(0, |last| last + 1) };
                let missing = ranges((0..end).filter(|rank| !disk.contains(rank)));
                let share = Share { of: 9, here: ranges(disk.iter().copied()), missing };
                let is_whole = share.missing.is_empty() && !disk.is_empty();
                let whole = if is_whole { vec![9] } else { Vec::new() };
                let shares = if disk.is_empty() { Vec::new() } else { vec![share] };
                summaries.push(NodeSummary { checkpoints: Some(whole), shares, ..summary(node, count) });
            }
            let chosen = agreed(&summaries, &two).expect("all look for checkpoints");
            let has_own = |(node, disk): (u32, &BTreeSet<u32>)| {
                let (first, last) = two(node).expect("known");
                (first..=last).all(|rank| disk.contains(&rank))
            };
            let all_have_own = (0..count).zip(&disks).all(has_own);
            let is_whole = summaries.iter().all(|one| one.checkpoints == Some(vec![9]));
            prop_assert_eq!(chosen, (all_have_own || is_whole).then_some(9));
            if chosen.is_some() && tells_world {
                let there: BTreeSet<u32> = disks.iter().flatten().copied().collect();
                prop_assert_eq!(there, world);
            }
        }
    }
}
