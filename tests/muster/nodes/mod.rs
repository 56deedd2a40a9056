//! Jobs of several hosts under faults: each host has its own network, address, name and /etc/hosts,
//! and runs the real executable.
//!
//! The tests that wait for the peer timeout (`absence`, `collective`) begin first and run beside
//! each other and the rest.

mod absence;
mod collective;
mod command;
mod cut;
mod engines;
mod faults;
mod memory;
mod partition;
mod refusals;
mod replaced;
mod restart;
mod shared_port;
mod silence;
