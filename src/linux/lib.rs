//! The node as Linux shows it: system calls, files below a host's root, /proc, control groups, CPUs, signals, terminals,
//! clocks. The only crate with `unsafe`, all of it in [`sys`].

#![deny(unsafe_code)]

pub mod cgroups;
pub mod cpus;
pub mod deadline;
pub mod host;
pub mod own_executable;
pub mod pace;
pub mod procfs;
pub mod random;
pub mod regular_file;
pub mod signal;
#[allow(
    unsafe_code,
    clippy::allow_attributes,
    reason = "the one module in which system calls are wrapped"
)]
pub mod sys;
pub mod terminal;
pub mod users;
