//! The schedule of measurements: the pairs of nodes that measure in each step.

use std::time::Duration;

use super::ALL_PAIRS;

/// Time limit for one step: the limit of a measurement, and an allowance for a busy node 0.
pub(crate) const STEP: Duration = Duration::from_secs(12);
/// Time limit for all steps; the remaining directions stay unmeasured.
pub(crate) const ALL_STEPS: Duration = Duration::from_secs(90);

/// Steps in which every node has at most one task; each pair is measured in both directions. Up to `ALL_PAIRS` nodes
/// all pairs are measured, with more nodes only neighbours.
pub(crate) fn schedule(nnodes: u32) -> Vec<Vec<(u32, u32)>> {
    let rounds = if nnodes <= ALL_PAIRS { every_pair(nnodes) } else { neighbours(nnodes) };
    rounds
        .into_iter()
        .filter(|round| !round.is_empty())
        .flat_map(|round| {
            let back = round.iter().map(|(from, to)| (*to, *from)).collect();
            [round, back]
        })
        .collect()
}

/// The circle method: one node stays, the others move on by one place per round.
fn every_pair(nnodes: u32) -> Vec<Vec<(u32, u32)>> {
    let seats = nnodes + nnodes % 2;
    (0..seats.saturating_sub(1))
        .map(|round| {
            let at = |seat: u32| {
                if seat == 0 { 0 } else { (seat - 1 + round) % (seats - 1) + 1 }
            };
            (0..seats / 2)
                .map(|seat| (at(seat), at(seats - 1 - seat)))
                .filter(|(one, other)| *one < nnodes && *other < nnodes)
                .collect()
        })
        .collect()
}

/// Each node with the next node, and the last with the first.
fn neighbours(nnodes: u32) -> Vec<Vec<(u32, u32)>> {
    let pairs = |start: u32| -> Vec<(u32, u32)> {
        (start..nnodes - 1).step_by(2).map(|node| (node, node + 1)).collect()
    };
    vec![pairs(0), pairs(1), vec![(nnodes - 1, 0)]]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pair_meets_once_in_each_direction() {
        for nnodes in [2, 3, 4, 5, 8, 15, 16, 17, 18, 33, 1000] {
            let steps = schedule(nnodes);
            let mut seen = BTreeSet::new();
            for step in &steps {
                let mut busy = BTreeSet::new();
                for (from, to) in step {
                    assert!(busy.insert(*from) && busy.insert(*to), "{nnodes}: {step:?}");
                    assert!(from != to && *from < nnodes && *to < nnodes, "{nnodes}: {step:?}");
                    assert!(seen.insert((*from, *to)), "{nnodes}: twice {from} {to}");
                }
            }
            let expected = if nnodes <= ALL_PAIRS { nnodes * (nnodes - 1) } else { nnodes * 2 };
            assert_eq!(seen.len(), expected as usize, "{nnodes}");
            assert!(seen.iter().all(|(from, to)| seen.contains(&(*to, *from))), "{nnodes}");
            assert!(steps.len() <= 30, "{nnodes}: {}", steps.len());
        }
        assert!(schedule(1).is_empty());
    }
}
