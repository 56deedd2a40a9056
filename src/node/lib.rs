//! The equipment of the node: GPUs through NVML, network, memory, CPUs, storage, Python. Only reads and asks; changes
//! nothing.

#![deny(unsafe_code)]

pub mod observe;
pub mod probe;
