//! What others than the processes of a job say of its end.

use std::time::Instant;

use crate::rank::GlobalRank;

/// One line of somebody who is no process of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statement {
    /// Where it comes from, as people read it.
    pub(super) place: &'static str,
    /// The rank that it is about, where that is known.
    pub(super) rank: Option<GlobalRank>,
    /// When it was said.
    pub(super) arrived: Instant,
    pub(super) line: String,
}
