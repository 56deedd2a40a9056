//! What the node is: platform contract, GPUs, interfaces, HCAs, limits, python.
//!
//! Takes a [`Host`](crate::host::Host) and the few settings that say what to
//! look for; gives [`Facts`]. Only reads, never decides: a missing or odd fact
//! is a value, not an error.

mod contract;
mod facts;
mod nested;
mod python;

pub use contract::{contract, known_variables};
pub use facts::*;
pub use python::{checkpoint_heads, python};
