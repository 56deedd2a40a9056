//! The node's effects on its ranks: counters of pressure, limits, links and GPUs, read twice.
//!
//! Takes the [`Host`](linux::host::Host) and the pids of the ranks; gives a [`NodeReading`], and
//! from two of them a `NodeChange` with the `Reason`s for which a rank may be slow or stand still.
//! Names only abnormal findings. Never waits longer than its time limit, even if a file system or a
//! driver hangs.

mod change;
mod gpus;
mod groups;
mod kernel;
mod reading;
mod reason;
#[cfg(test)]
mod tests;

pub use gpus::GpuUse;
pub use reading::NodeSources;
pub(crate) use reading::{NodeReader, NodeReading, Parts};
pub use reason::{Reason, ReasonKind};
