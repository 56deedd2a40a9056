//! A job that stands still: the rank that the others wait for, its position, and the reason.
//!
//! Takes the starts and ends of ranks ([`HangWatch`]), and gathers the evidence of each node about its ranks
//! ([`RankEvidence`]) once nothing moves: the records of torch's flight recorder, stacks, the kernel's state. Gives a
//! [`Judgement`]: a [`Hang`], or the reason why there is no hang. The judgement reads no file and no clock, and asks
//! nobody. A false alarm is worse than a missed hang: a rank that computes, that a person has stopped in a debugger or
//! that serves requests holds up the others without being hung.

use serde::{Deserialize, Serialize};

use crate::watch::{GpuUse, RasVerdict, Reason};
use diagnose::stacks::{ProcessStacks, RankStacks, Unread};
use text::rank::GlobalRank;

mod doing;
mod dump_pipe;
mod faulthandler;
mod gather;
mod judge;
mod shared;
mod suspects;
#[cfg(test)]
mod tests;
mod watching;
mod words;

pub use gather::{Surroundings, node_document, ras_report};
pub use judge::{Culprit, FirstCulprit, Hang, Judgement, judge};
pub use shared::{Ask, HangQuestion, Reporter, Standstill, Watched};
pub use watching::HangWatch;
pub use words::{Kind, Sign};

/// The complete evidence of one node. Travels to node 0 as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeEvidence {
    /// Rank of the node.
    pub node: u32,
    /// Ranks of the job.
    pub world: u32,
    pub ranks: Vec<RankEvidence>,
    /// Bytes went over the node's interfaces, or to its ranks, while nothing else moved.
    pub traffic: bool,
    /// A connection of a rank does not carry what is sent.
    #[serde(default)]
    pub is_cut: bool,
    /// The verdict of NCCL on its ranks, if NCCL is asked and answers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ras: Option<RasVerdict>,
    /// The abnormal findings about the node while nothing moved.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub reasons: Vec<Reason>,
    /// The use of its ranks' GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub gpus: Vec<GpuUse>,
    /// Milliseconds since a rank of this node last moved; None if no rank runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub moved_ms: Option<u64>,
    pub took_ms: u64,
}

/// The evidence about one rank that runs or has ended well.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEvidence {
    pub rank: GlobalRank,
    /// Milliseconds since the rank ended with code 0.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended_ms: Option<u64>,
    /// The rank computes, reads or writes.
    #[serde(default)]
    pub busy: bool,
    /// The rank is busy with computing.
    #[serde(default)]
    pub computes: bool,
    /// The rank sleeps in the kernel while the machine writes to its disks.
    #[serde(default)]
    pub drains: bool,
    /// The rank has been in the kernel for long, and cannot be interrupted.
    #[serde(default)]
    pub stuck: bool,
    /// The rank did something within the time and is not known to wait since, so it may just have come to where it is.
    #[serde(default)]
    pub may_have_come: bool,
    /// The rank waits for an answer of torch's store.
    #[serde(default)]
    pub asks_store: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stacks: Option<RankStacks>,
    /// Processes that the rank started, that have ended and that it has not waited for.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub dead_children: Vec<DeadChild>,
    /// The answers of the rank's flight recorder, in JSON.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub records: Vec<String>,
    /// Time at which the records were read, in ns since 1970.
    #[serde(default)]
    pub read_ns: i64,
    /// The last line that the rank wrote, with secrets masked, and its age in ms.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_line: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_line_ms: Option<u64>,
}

impl RankEvidence {
    /// The evidence about a rank that ended with code 0 so many ms ago.
    pub fn ended(rank: GlobalRank, ended_ms: u64) -> RankEvidence {
        RankEvidence { ended_ms: Some(ended_ms), ..RankEvidence::of(rank) }
    }

    /// Whether the rank's stacks, or those of a process that it started, could not be read within the time: another
    /// look may show them.
    pub(crate) fn is_late(&self) -> bool {
        let of_thread = |process: &ProcessStacks| {
            let first = process.threads.first().and_then(|thread| thread.python.as_ref());
            first.and_then(|python| python.unread.clone())
        };
        let is_late = |process: &ProcessStacks| {
            process.unread == Some(Unread::Late) || of_thread(process) == Some(Unread::Late)
        };
        let stacks = self.stacks.as_ref();
        stacks.is_some_and(|stacks| is_late(&stacks.process) || stacks.children.iter().any(is_late))
    }

    /// The evidence about a rank of which nothing is known.
    pub fn of(rank: GlobalRank) -> RankEvidence {
        RankEvidence { rank, ..RankEvidence::default() }
    }
}

/// A zombie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadChild {
    pub pid: i32,
    pub name: String,
}
