//! Reads the facts of the node: GPUs, interfaces, HCAs, limits, python.
//!
//! Takes a [`Host`](linux::host::Host) and the few settings that select the facts to read; gives [`Facts`]. Only reads,
//! never decides: a missing or unusual fact is a value, not an error.

mod checkpoints;
mod facts;
pub mod gpu;
pub mod kernel_log;
pub mod limits;
pub mod network;
mod oom;
mod python;
mod rdma;
mod script;
mod sources;
mod state;

pub use checkpoint::RankFiles;
pub use checkpoints::checkpoints;
pub use facts::*;
pub use gpu::{Gpu, GpuFacts, GpuSource, OtherAccelerator, VisibleGpu};
pub use kernel_log::LoggedKills;
pub use oom::{OomAccount, OomKills, OomPlace, OomWatch, Suspect};
pub use rdma::{Counters, Growth};
pub use script::digest;
pub use sources::{CHECKPOINTS, Deadlines, contract, equipment, gpus, interfaces};

/// Reads data that only a replay needs, so that a capture contains it: files in place of system calls, and the sources
/// of GPU facts that were not needed here.
pub fn read_for_replay(host: &linux::host::Host) {
    for file in limits::REPLAYED {
        let _ = host.read(file);
    }
    gpu::read_fallbacks(host);
    host.note(linux::host::ENVIRONMENT, || {
        use std::os::unix::ffi::OsStrExt;
        let entry = |(name, value): (&std::ffi::OsString, &std::ffi::OsString)| {
            [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat()
        };
        host.environment().iter().flat_map(entry).collect()
    });
}

/// The container's variables as text, with invalid UTF-8 replaced. They may hold secrets: printed values are masked,
/// and they are never sent to another node.
pub fn environment(host: &linux::host::Host) -> std::collections::BTreeMap<String, String> {
    let text = |value: &std::ffi::OsString| value.to_string_lossy().into_owned();
    host.environment().iter().map(|(name, value)| (text(name), text(value))).collect()
}
