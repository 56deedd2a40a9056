//! Ends of ranks for the tests of the causes.

use std::time::SystemTime;

use crate::outcome::{End, RankEnd};
use crate::rank::{GlobalRank, LocalRank, RankId};

pub(super) fn rank(rank: u32, end: Option<End>) -> RankEnd {
    let id = RankId { global: GlobalRank(rank), local: LocalRank(rank) };
    RankEnd { id, pid: Some(1), end, at: SystemTime::now() }
}
