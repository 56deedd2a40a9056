//! Turns single looks into news.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::watch::node::Reason;
use diagnose::recorder::Late;
use text::rank::GlobalRank;

/// Number of consecutive looks that must agree.
const AGREE: u32 = 2;

/// A rank that holds others back.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Slow {
    pub rank: GlobalRank,
    pub group: String,
    /// Number of collectives that were compared.
    pub of: usize,
    /// The share of these collectives in which the rank came last.
    pub share: f64,
    /// Median lateness in these collectives.
    pub median_ms: f64,
    /// The share of the time that the others lost by it.
    pub lost: f64,
    /// The abnormal findings of its node. Empty if nothing is abnormal; None if the node did not
    /// answer.
    pub reasons: Option<Vec<Reason>>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum SlowNews {
    Slow(Slow),
    /// The rank no longer holds the others back.
    Over(GlobalRank),
}

/// For each rank, the number of consecutive looks that contradict its reported state.
#[derive(Debug, Default)]
pub(super) struct Tracker(BTreeMap<GlobalRank, Seen>);

#[derive(Debug, Default)]
struct Seen {
    told: bool,
    /// Number of consecutive looks that contradict the reported state.
    other: u32,
}

impl Tracker {
    /// Adds one look. `late`: the ranks that were late in it.
    pub(super) fn look(&mut self, late: &[Late]) -> Vec<SlowNews> {
        let late: BTreeMap<GlobalRank, &Late> =
            late.iter().map(|one| (GlobalRank(one.rank), one)).collect();
        for rank in late.keys() {
            self.0.entry(*rank).or_default();
        }
        let mut news = Vec::new();
        for (rank, seen) in &mut self.0 {
            let now = late.get(rank);
            seen.other = if now.is_some() == seen.told { 0 } else { seen.other + 1 };
            if seen.other < AGREE {
                continue;
            }
            (seen.told, seen.other) = (now.is_some(), 0);
            news.push(match now {
                Some(late) => SlowNews::Slow(slow(late)),
                None => SlowNews::Over(*rank),
            });
        }
        self.0.retain(|_, seen| seen.told || seen.other > 0);
        news
    }
}

fn slow(late: &Late) -> Slow {
    Slow {
        rank: GlobalRank(late.rank),
        group: late.group.clone(),
        of: late.of,
        share: late.share,
        median_ms: late.median_ns as f64 / 1e6,
        lost: late.lost,
        reasons: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late(rank: u32) -> Late {
        Late { rank, group: "g".to_owned(), of: 100, share: 0.9, median_ns: 20_000_000, lost: 0.4 }
    }

    fn told(tracker: &mut Tracker, late: &[Late]) -> Vec<(bool, u32)> {
        let news = tracker.look(late);
        let one = |news: &SlowNews| match news {
            SlowNews::Slow(slow) => (true, slow.rank.0),
            SlowNews::Over(rank) => (false, rank.0),
        };
        news.iter().map(one).collect()
    }

    #[test]
    fn slow_rank_is_reported_once_and_cleared_once() {
        let mut tracker = Tracker::default();
        let slow = [late(3)];
        let looks: [&[Late]; 9] = [&slow, &slow, &slow, &slow, &[], &slow, &[], &[], &[]];
        let all: Vec<_> = looks.iter().map(|look| told(&mut tracker, look)).collect();
        let expected: [&[(bool, u32)]; 9] =
            [&[], &[(true, 3)], &[], &[], &[], &[], &[], &[(false, 3)], &[]];
        assert_eq!(all, expected);
        assert!(tracker.0.is_empty());
    }

    #[test]
    fn alternating_slow_ranks_are_not_reported() {
        let mut tracker = Tracker::default();
        for turn in 0..10 {
            assert_eq!(told(&mut tracker, &[late(turn % 2)]), []);
        }
    }
}
