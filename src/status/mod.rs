//! What a node knows of its job at this moment, for whoever looks at it while it runs.
//!
//! Owns [`NodeStatus`] and the [`StatusBoard`] that collects it. Takes phases, notices, samples
//! and what the watches tell, as they come; gives a [`NodeStatus`] to whoever asks: the metrics,
//! `ranklaunch top`, the status line, other nodes. Does no I/O, and holds nobody: each entry is a
//! short lock.

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
