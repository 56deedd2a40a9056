//! Global and local rank as two types, so that they cannot be confused.
//!
//! Global ranks count all processes of the job, local ranks those of a node. They are equal only
//! on the first node, so a mix-up would pass every test with one node.

use std::fmt;

use serde::{Deserialize, Serialize};

/// 0 to world size − 1; torch's RANK.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct GlobalRank(pub u32);

/// 0 to processes of the node − 1; torch's LOCAL_RANK.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LocalRank(pub u32);

/// Both numbers of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RankId {
    pub global: GlobalRank,
    pub local: LocalRank,
}

impl GlobalRank {
    /// The first rank of a node if every node has `nproc` ranks.
    pub fn first_of(seat: u32, nproc: u32) -> GlobalRank {
        GlobalRank(seat.saturating_mul(nproc))
    }

    /// The rank with the number `local` on a node whose first rank this is.
    pub fn plus(self, local: LocalRank) -> GlobalRank {
        GlobalRank(self.0.saturating_add(local.0))
    }
}

impl fmt::Display for GlobalRank {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for LocalRank {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
