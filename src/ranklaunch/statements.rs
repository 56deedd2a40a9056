//! Reports of driver and kernel about the job's end, with their GPUs.

use std::time::Instant;

use plan::Plan;
use text::rank::{GlobalRank, LocalRank};
use verdict::outcome::{Planned, RankUnit};

/// One line of a witness that is no process of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statement {
    /// Source of the line, as people read it.
    pub(super) place: &'static str,
    /// The rank that it is about, where that is known.
    pub(super) rank: Option<GlobalRank>,
    /// When it was said.
    pub(super) arrived: Instant,
    pub(super) line: String,
}

/// A GPU that the ranks of this launcher use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WatchedGpu {
    /// `0000:18:00.0`
    pub(super) pci: String,
    /// NVML's number.
    pub(super) index: u32,
    /// None where several ranks share it, or where it is not known which one uses it.
    pub(super) rank: Option<GlobalRank>,
}

/// The GPUs of the plan that the ranks of this launcher use.
pub(super) fn watched_gpus(plan: &Plan, planned: Planned) -> Vec<WatchedGpu> {
    let mut gpus: Vec<WatchedGpu> = Vec::new();
    let own = plan.membership.task.as_ref().map(|task| task.local.0);
    let selected = plan.gpus.iter().filter(|gpu| gpu.selected);
    for gpu in selected.filter(|gpu| own.is_none() || gpu.local_rank == own) {
        let Some(pci) = gpu.pci.clone() else { continue };
        let is_rank = planned.what == RankUnit::Rank;
        let rank = match own {
            Some(_) => Some(planned.first),
            None => gpu.local_rank.map(|local| planned.rank(LocalRank(local)).global),
        };
        let rank = rank.filter(|_| is_rank);
        match gpus.iter_mut().find(|known| known.pci == pci) {
            // Instances of one GPU.
            Some(known) => known.rank = known.rank.filter(|known| Some(*known) == rank),
            None => gpus.push(WatchedGpu { pci, index: gpu.index, rank }),
        }
    }
    gpus
}
