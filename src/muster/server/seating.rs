//! Which node gets which seat.
//!
//! A node and its seat are two things: the node keeps its number as long as its launcher lives, and the seat is the node
//! rank that its ranks see in one attempt. Pure functions, so that each attempt's seats follow from who is there.

use std::collections::BTreeSet;

use super::checkpoints;
use crate::protocol::NodeSummary;
use text::order::Ordered;

/// The node of each seat. `there`: at least as many as there are seats. The leader has seat 0, since the others
/// meet there.
///
/// Who has a seat is told by, in this order: it sees a checkpoint that enough others see; nobody wants to avoid it; it can
/// run as many processes as the best nodes can together; it did not fail in the last days; it had a seat; its number.
/// Whoever had a seat keeps the same one, and a node with the number of a free seat gets that one.
pub(crate) fn seats(
    nnodes: u32,
    leader: u32,
    there: &[NodeSummary],
    avoided: &BTreeSet<u32>,
) -> Vec<u32> {
    let count = usize::try_from(nnodes).unwrap_or(usize::MAX);
    let capacity = |one: &NodeSummary| one.exact.unwrap_or(one.most);
    let mut capacities: Vec<u32> = there.iter().map(capacity).collect();
    capacities.sort_unstable_by(|one, other| other.cmp(one));
    let enough = capacities.get(count.saturating_sub(1)).copied().unwrap_or(0);
    let had = |one: &NodeSummary| one.held.filter(|seat| *seat < nnodes);
    let unable = checkpoints::unable(nnodes, there);
    let mut order: Vec<&NodeSummary> = there.iter().collect();
    order.order_by_key(|one| {
        let is_small = capacity(one) < enough;
        let is_avoided = avoided.contains(&one.node);
        let failed = one.remembered.is_some();
        let is_unable = unable.contains(&one.node);
        (one.node != leader, is_unable, is_avoided, is_small, failed, had(one).is_none(), one.node)
    });
    order.truncate(count);
    let mut seats: Vec<Option<u32>> = vec![None; count];
    let mut take = |seat: Option<u32>, node: u32| -> bool {
        let place = seat.and_then(|seat| seats.get_mut(usize::try_from(seat).ok()?));
        match place {
            Some(place @ None) => place.insert(node) == &node,
            _ => false,
        }
    };
    let mut left = Vec::new();
    for one in order {
        let wished = if one.node == leader { Some(0) } else { had(one) };
        if !take(wished, one.node) {
            left.push(one.node);
        }
    }
    left.retain(|node| !take(Some(*node), *node));
    left.sort_unstable();
    let mut left = left.into_iter();
    seats.into_iter().filter_map(|seat| seat.or_else(|| left.next())).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::summary;

    fn node(node: u32, held: Option<u32>) -> NodeSummary {
        NodeSummary { held, ..summary(node, 3) }
    }

    fn of(there: &[NodeSummary], avoided: &[u32]) -> Vec<u32> {
        seats(3, 0, there, &avoided.iter().copied().collect())
    }

    /// What happens, who is there, who is avoided, and the node of each seat.
    type Row = (&'static str, Vec<NodeSummary>, &'static [u32], [u32; 3]);

    #[test]
    fn seats_follow_from_who_is_there() {
        let new = |number| node(number, None);
        let weak = |one: NodeSummary| NodeSummary { most: 7, ..one };
        let failed =
            |one: NodeSummary| NodeSummary { remembered: Some("xid.79".to_owned()), ..one };
        let sees = |one: NodeSummary| NodeSummary { checkpoints: Some(vec![9]), ..one };
        let table: [Row; 13] = [
            ("all come at once", (0..5).map(new).collect(), &[], [0, 1, 2]),
            ("node 1 does not come", vec![new(0), new(2), new(3)], &[], [0, 3, 2]),
            (
                "a spare takes the seat of a lost node",
                vec![node(0, Some(0)), node(2, Some(2)), new(3), new(4)],
                &[],
                [0, 3, 2],
            ),
            (
                "the node that returns finds its seat taken",
                vec![node(0, Some(0)), new(1), node(2, Some(2)), node(3, Some(1))],
                &[],
                [0, 3, 2],
            ),
            (
                "a spare that came before the returning node takes no seat of those that are there",
                vec![node(0, Some(0)), node(1, Some(1)), node(2, Some(2)), new(3)],
                &[],
                [0, 1, 2],
            ),
            (
                "a bad node gives its seat to a spare",
                vec![node(0, Some(0)), node(1, Some(1)), node(2, Some(2)), new(3)],
                &[1],
                [0, 3, 2],
            ),
            (
                "a bad node is better than none",
                vec![node(0, Some(0)), node(1, Some(1)), node(2, Some(2))],
                &[1],
                [0, 1, 2],
            ),
            (
                "a node that lost a GPU gives its seat to a whole spare",
                vec![node(0, Some(0)), weak(node(1, Some(1))), node(2, Some(2)), new(4)],
                &[],
                [0, 4, 2],
            ),
            (
                "a spare is preferred to a node that failed in an earlier run",
                vec![new(0), failed(new(1)), new(2), new(3)],
                &[],
                [0, 3, 2],
            ),
            (
                "one that failed earlier is better than one with fewer GPUs, and than one that failed now",
                vec![new(0), failed(new(1)), weak(new(2)), new(3), failed(new(4))],
                &[3],
                [0, 1, 4],
            ),
            (
                "of those that failed earlier the one that runs stays",
                vec![node(0, Some(0)), failed(new(1)), node(2, Some(2)), failed(node(3, Some(1)))],
                &[],
                [0, 3, 2],
            ),
            (
                "a spare whose disk has no checkpoint comes after one that failed",
                vec![sees(node(0, Some(0))), sees(node(2, Some(2))), new(3), sees(new(4))],
                &[4],
                [0, 4, 2],
            ),
            (
                "a stronger spare is no reason to move",
                vec![
                    weak(node(0, Some(0))),
                    weak(node(1, Some(1))),
                    weak(node(2, Some(2))),
                    new(4),
                ],
                &[],
                [0, 1, 2],
            ),
        ];
        for (what, there, avoided, expected) in table {
            assert_eq!(of(&there, avoided), expected, "{what}");
        }
    }

    proptest! {
        /// Every seat has one node, no node two; node 0 has seat 0; who may stay stays where it is.
        #[test]
        fn every_seat_is_taken_once(
            nnodes in 2_u32..6,
            others in prop::collection::btree_map(1_u32..12, (prop::option::of(0_u32..8), 6_u32..9), 1..11),
            avoided in prop::collection::btree_set(0_u32..12, 0..4),
        ) {
            prop_assume!(others.len() + 1 >= nnodes as usize);
            let of = |(number, (held, most)): (&u32, &(Option<u32>, u32))| {
                NodeSummary { most: *most, ..node(*number, *held) }
            };
            let there: Vec<NodeSummary> =
                std::iter::once(node(0, None)).chain(others.iter().map(of)).collect();
            let seated = seats(nnodes, 0, &there, &avoided);
            prop_assert_eq!(seated.len(), nnodes as usize);
            prop_assert_eq!(seated[0], 0);
            let distinct: BTreeSet<u32> = seated.iter().copied().collect();
            prop_assert_eq!(distinct.len(), seated.len());
            prop_assert!(distinct.iter().all(|node| *node == 0 || others.contains_key(node)));
            // Nobody sits that is avoided while somebody else parks.
            let parks = others.keys().filter(|node| !distinct.contains(node));
            let is_better_outside = parks.into_iter().any(|node| !avoided.contains(node));
            let is_avoided_inside = distinct.iter().any(|node| *node != 0 && avoided.contains(node));
            prop_assert!(!(is_better_outside && is_avoided_inside));
            // The same nodes with these seats keep them.
            let again: Vec<NodeSummary> = there
                .iter()
                .map(|one| {
                    let held = seated.iter().position(|node| *node == one.node);
                    NodeSummary { held: held.map(|seat| seat as u32), ..one.clone() }
                })
                .collect();
            prop_assert_eq!(seats(nnodes, 0, &again, &avoided), seated);
        }
    }
}
