//! What the node is: platform contract, GPUs, interfaces, HCAs, limits, python.
//!
//! Takes a [`Host`](crate::host::Host) and the few settings that say what to
//! look for; gives [`Facts`]. Only reads, never decides: a missing or odd fact
//! is a value, not an error.

mod contract;
mod facts;
pub mod gpu;
pub mod limits;
mod nested;
pub mod network;
mod pci;
mod python;
pub mod rdma;

pub use contract::{contract, known_variables};
pub use facts::*;
pub use python::{checkpoint_heads, python};

/// The container's variables as text, invalid UTF-8 replaced. They hold secrets:
/// what is printed of them is masked, and they never travel.
pub fn environment(host: &crate::host::Host) -> std::collections::BTreeMap<String, String> {
    let text = |value: &std::ffi::OsString| value.to_string_lossy().into_owned();
    host.environment().iter().map(|(name, value)| (text(name), text(value))).collect()
}
