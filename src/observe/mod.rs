//! What the node is: platform contract, GPUs, interfaces, HCAs, limits, python.
//!
//! Takes a [`Host`](crate::host::Host) and the few settings that say what to
//! look for; gives [`Facts`]. Only reads, never decides: a missing or odd fact
//! is a value, not an error.

mod contract;
pub mod counters;
pub mod cuda;
mod facts;
pub mod gpu;
mod init;
pub mod leftovers;
pub mod limits;
mod nested;
pub mod network;
mod oom;
mod pci;
mod python;
pub mod rdma;
mod script;
pub mod state;

#[cfg(test)]
pub(crate) use contract::ids as platform_ids;
pub use contract::{contract, known_variables, variables_of};
pub use facts::*;
pub use init::deaf_shell;
pub use nested::torchrun_above;
pub use oom::{OomKills, OomWatch};
pub use python::{checkpoint_heads, python};
pub use script::{digest, engine_files, script};

/// Reads what only a replay needs: files in place of what a live node says by
/// system calls, and the sources of GPU facts that were not needed here.
pub fn read_for_replay(host: &crate::host::Host) {
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

/// The container's variables as text, invalid UTF-8 replaced. They hold secrets:
/// what is printed of them is masked, and they never travel.
pub fn environment(host: &crate::host::Host) -> std::collections::BTreeMap<String, String> {
    let text = |value: &std::ffi::OsString| value.to_string_lossy().into_owned();
    host.environment().iter().map(|(name, value)| (text(name), text(value))).collect()
}
