//! The links between nodes: the order of measurements, the measurement, and the outliers.
//!
//! The nodes exchange these types; the checks and the report show them.

use serde::{Deserialize, Serialize};

use crate::protocol::sanitize;

pub(super) mod endpoint;
pub(super) mod judge;
pub(super) mod schedule;

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

#[cfg(test)]
pub(super) mod tests {
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
}
