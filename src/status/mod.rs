//! What a node knows of its job at this moment, for whoever looks at it while it runs.
//!
//! Owns [`NodeStatus`] and the [`StatusBoard`] that collects it. Takes phases, notices, samples
//! and what the watches tell, as they come; gives a [`NodeStatus`] to whoever asks: the metrics,
//! `ranklaunch top`, the status line, other nodes. Does no I/O, and holds nobody: each entry is a
//! short lock.

use std::time::Duration;

mod board;
mod logs;
mod node;
mod phase;
#[cfg(test)]
mod tests;

pub use board::StatusBoard;
pub(crate) use logs::OwnerLog;
pub use node::{
    EndStatus, GpuStatus, HcaStatus, InterfaceStatus, LogStatus, MemoryStatus, NodeStatus,
    RankState, RankStatus, RunStatus, SlowStatus, Standstill,
};
pub(crate) use phase::PhaseTime;
pub use phase::{Ledger, Phase};

/// Nodes that answer a viewer in a second. Node 0 passes all answers on, and needs no more than 1 % of a core for so
/// many (`make bench-muster`).
const LOOKED_AT: usize = 200;

/// The time between two looks of a viewer at so many nodes.
pub fn look_pace(nodes: usize) -> Duration {
    Duration::from_secs(nodes.div_ceil(LOOKED_AT).max(1) as u64)
}
