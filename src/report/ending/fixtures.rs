//! Ends of ranks for the tests of the causes.

use std::time::SystemTime;

use text::rank::{GlobalRank, LocalRank, RankId};
use verdict::outcome::{End, RankEnd};

pub(super) fn rank(rank: u32, end: Option<End>) -> RankEnd {
    let id = RankId { global: GlobalRank(rank), local: LocalRank(rank) };
    RankEnd { id, pid: Some(1), end, at: SystemTime::now() }
}
