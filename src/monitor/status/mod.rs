//! The current knowledge of a node about its job, for anyone who looks at it while it runs.
//!
//! Owns [`NodeStatus`] and the [`StatusBoard`] that collects it. Takes phases, notices, samples and the reports of
//! the watches, as they come; gives a [`NodeStatus`] to whoever asks: the metrics, `ranklaunch top`, the status
//! line, other nodes. Does no I/O, and blocks nobody: each entry is a short lock.

use std::time::Duration;

mod board;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod logs;
mod node;
mod phase;
#[cfg(test)]
mod tests;

pub use board::StatusBoard;
pub use logs::OwnerLog;
pub use node::{
    EndStatus, GpuStatus, HcaStatus, InterfaceStatus, LogStatus, MemoryStatus, NodeStatus,
    RankState, RankStatus, RunStatus, SlowStatus, Standstill,
};
pub use phase::{Ledger, Phase};

/// Maximum number of nodes that node 0 hears per second while somebody looks there. 1000 per second cost 1.5 % of a
/// core above the heartbeats, 2 % with encryption (`make bench SUITE=muster`); at most 1 % may be spent on it.
const HEARD: usize = 400;
/// The same if somebody looks on another node, to which node 0 passes each answer on.
const PASSED_ON: usize = 200;

/// The time between two looks of a viewer at this many nodes.
pub fn look_pace(nodes: usize, at_node_0: bool) -> Duration {
    let in_a_second = if at_node_0 { HEARD } else { PASSED_ON };
    Duration::from_secs(nodes.div_ceil(in_a_second).max(1) as u64)
}
