//! The links between nodes: the order of measurements, the measurement, and the outliers.
//!
//! The nodes exchange these types; the checks and the report show them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::protocol::sanitize;

pub(super) mod endpoint;
pub(super) mod judge;

/// Up to this many nodes every pair is measured: 240 directions in 30 steps.
pub(super) const ALL_PAIRS: u32 = 16;
/// An end that had a CPU for less than 1/`MOST_HINDERED` of the time counts as having had a CPU for that part. Beyond
/// that limit the measurement tells nothing about the link.
const MOST_HINDERED: u64 = 50;

/// One direction of one pair, as the sender saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub from: u32,
    pub to: u32,
    pub measured: Measured,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    Speed(Speed),
    /// No connection was made, or the connection broke; with the error.
    Failed(String),
}

/// Round trips in microseconds, and the number of bytes that arrived in `micros` microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speed {
    /// The fastest round trip, which shows the link's own delay even on a busy node.
    pub floor: u64,
    pub median: u64,
    pub p99: u64,
    pub bytes: u64,
    pub micros: u64,
    /// Microseconds of `micros` for which the busier end waited for a CPU.
    #[serde(default)]
    pub waited: u64,
}

impl Speed {
    /// Gb/s
    pub fn gigabits(&self) -> f64 {
        self.bytes as f64 * 8.0 / (self.micros.max(1) as f64 * 1e3)
    }

    /// Mb/s, rounded down.
    pub fn megabits(&self) -> u64 {
        in_megabits(self.gigabits())
    }

    /// Gb/s of the time in which both ends had a CPU, since a busy node is no fault of the link. An end that sleeps
    /// because no data arrives does not count as waiting.
    pub(crate) fn unhindered(&self) -> f64 {
        let least = self.micros / MOST_HINDERED;
        let micros = self.micros.saturating_sub(self.waited).max(least);
        Speed { micros, ..*self }.gigabits()
    }

    /// The better values of two measurements, so that a busy moment does not count.
    fn better(self, other: Speed) -> Speed {
        let quick = if self.floor <= other.floor { self } else { other };
        let wide = if self.unhindered() >= other.unhindered() { self } else { other };
        Speed { bytes: wide.bytes, micros: wide.micros, waited: wide.waited, ..quick }
    }
}

impl Link {
    pub fn speed(&self) -> Option<&Speed> {
        match &self.measured {
            Measured::Speed(speed) => Some(speed),
            Measured::Failed(_) => None,
        }
    }

    /// Adds a second measurement of the same direction.
    pub fn add(&mut self, second: Link) {
        self.measured = match (&self.measured, second.measured) {
            (Measured::Speed(first), Measured::Speed(second)) => {
                Measured::Speed(first.better(second))
            }
            (Measured::Speed(first), Measured::Failed(_)) => Measured::Speed(*first),
            (Measured::Failed(_), second) => second,
        };
    }

    pub(crate) fn sanitize(&mut self) {
        if let Measured::Failed(why) = &mut self.measured {
            sanitize(why);
        }
    }
}

/// The fault of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    Unreachable,
    Slow,
    Narrow,
}

/// The place of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AffectedLinks {
    /// Every link that was measured.
    All,
    /// All links to and from this node, or all in one direction.
    Node(u32),
    /// Both directions between two nodes.
    Pair(u32, u32),
    /// From the first to the second only.
    OneWay(u32, u32),
}

impl AffectedLinks {
    /// Whether this place contains the direction.
    pub(super) fn has(self, from: u32, to: u32) -> bool {
        match self {
            AffectedLinks::All => true,
            AffectedLinks::Node(node) => from == node || to == node,
            AffectedLinks::Pair(one, other) => {
                (from, to) == (one, other) || (from, to) == (other, one)
            }
            AffectedLinks::OneWay(one, other) => (from, to) == (one, other),
        }
    }
}

/// A finding about links.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outlier {
    pub trouble: Trouble,
    pub place: AffectedLinks,
    /// The worst link of the place.
    pub worst: Link,
    /// The value of a good link: microseconds for [`Trouble::Slow`], Mb/s for
    /// [`Trouble::Narrow`]; None if no link is better.
    pub others: Option<u64>,
}

pub(super) fn in_megabits(gigabits: f64) -> u64 {
    // `as` saturates; rates are small positive numbers.
    #[expect(clippy::cast_sign_loss, reason = "a rate is never negative")]
    let megabits = (gigabits * 1e3) as u64;
    megabits
}

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
pub(super) mod tests {

    use std::collections::BTreeSet;

    use super::*;

    pub(crate) fn link(from: u32, to: u32, floor: u64, gigabits: u64) -> Link {
        let speed =
            Speed { floor, median: floor, p99: floor, bytes: gigabits * 125, micros: 1, waited: 0 };
        Link { from, to, measured: Measured::Speed(speed) }
    }

    #[test]
    fn second_measurement_keeps_the_better_values() {
        let mut first = link(0, 1, 9_000, 9);
        first.add(link(0, 1, 90, 1));
        let speed = first.speed().expect("a speed");
        assert_eq!((speed.floor, speed.gigabits()), (90, 9.0));
        let failed = Link { from: 0, to: 1, measured: Measured::Failed("late".to_owned()) };
        first.add(failed.clone());
        assert!(first.speed().is_some());
        let mut failed = failed;
        failed.add(link(0, 1, 90, 1));
        assert!(failed.speed().is_some());
    }

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
