//! Reads the facts of the node: GPUs, interfaces, HCAs, limits, python.
//!
//! Takes a [`Host`](crate::host::Host) and the few settings that say what to read; gives
//! [`Facts`]. Only reads, never decides: a missing or unusual fact is a value, not an error.

pub(crate) mod counters;
pub(crate) mod cuda;
mod facts;
pub(crate) mod gpu;
pub(crate) mod kernel_log;
pub(crate) mod leftovers;
pub(crate) mod limits;
pub(crate) mod network;
mod oom;
mod pci;
mod pid_1;
mod python;
pub(crate) mod rdma;
mod script;
pub(crate) mod state;

pub use facts::*;
pub(crate) use oom::{LoggedKills, OomAccount, OomKills, OomPlace, OomWatch, Suspect};
pub(crate) use pid_1::non_forwarding_init;
pub(crate) use python::{checkpoint_heads, python};
pub(crate) use script::{digest, engine_files, script};

/// Reads what only a replay needs, so that a capture has it: files in place of system calls, and
/// the sources of GPU facts that were not needed here.
pub(crate) fn read_for_replay(host: &crate::host::Host) {
    for file in limits::REPLAYED {
        let _ = host.read(file);
    }
    gpu::read_fallbacks(host);
    host.note(crate::host::ENVIRONMENT, || {
        use std::os::unix::ffi::OsStrExt;
        let entry = |(name, value): (&std::ffi::OsString, &std::ffi::OsString)| {
            [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat()
        };
        host.environment().iter().flat_map(entry).collect()
    });
}

/// The container's variables as text, invalid UTF-8 replaced. They may hold secrets: printed
/// values are masked, and they are never sent to another node.
pub(crate) fn environment(host: &crate::host::Host) -> std::collections::BTreeMap<String, String> {
    let text = |value: &std::ffi::OsString| value.to_string_lossy().into_owned();
    host.environment().iter().map(|(name, value)| (text(name), text(value))).collect()
}
