//! Reports of driver and kernel about the job's end, with their GPUs.

use std::time::Instant;

use text::rank::GlobalRank;

/// One line of a witness that is not a process of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Source of the line, as people read it.
    pub place: &'static str,
    /// The rank that the line is about, if known.
    pub rank: Option<GlobalRank>,
    /// Arrival of the line.
    pub arrived: Instant,
    pub line: String,
}

/// A GPU that the ranks of this launcher use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedGpu {
    /// `0000:18:00.0`
    pub pci: String,
    /// NVML's number.
    pub index: u32,
    /// None if several ranks share the GPU, or its user is unknown.
    pub rank: Option<GlobalRank>,
}
