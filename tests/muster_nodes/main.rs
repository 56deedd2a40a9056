//! Jobs of several hosts under fault: each host has its own network, address, name
//! and /etc/hosts, and runs the real executable.
//!
//! One program, so that the tests that wait for the peer timeout (`absence`,
//! `collective`) begin first and run beside each other and the rest.

mod absence;
mod cluster;
mod collective;
#[path = "../common/mod.rs"]
mod common;
mod engines;
#[path = "../common/fake_nvml.rs"]
mod fake_nvml;
mod faults;
mod memory;
mod refusals;
mod restart;
mod shared_port;
