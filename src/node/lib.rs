//! What the node has: GPUs through NVML, network, memory, CPUs, storage, Python. Reads and asks, changes nothing.

#![deny(unsafe_code)]

pub mod observe;
pub mod probe;
