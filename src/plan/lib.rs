//! Plans what will be run: membership, layout, devices (`devices`), network and RDMA (`network`,
//! `hcas`), environment, command line (`engine`).
//!
//! Takes [`Settings`](settings::Settings) and [`Facts`](node::observe::Facts);
//! gives a [`Plan`] or a [`Refusal`](verdict::Refusal). Pure functions: no
//! file, no socket, no clock.

#![deny(unsafe_code)]

pub mod binding;
pub mod devices;
pub mod engine;
pub mod environment;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod hcas;
pub mod interface;
pub mod layout;
mod left_out;
mod membership;
pub mod nccl;
pub mod placeholders;
mod python;
mod rails;
mod recording;
mod resume;
pub mod sizes;
mod solve;
mod survey;
#[cfg(test)]
mod tests;
mod torchrun;
mod types;
pub mod variables;

pub use devices::Hardware;
pub use engine::{EngineOptions, argv, exec_argv, rank_argv};
pub use environment::rank_env;
pub use membership::{
    AskedNproc, asked_nproc, identity, listed, membership, needs_addresses, offered_nproc,
    stated_master, weighed,
};
pub use resume::{newest, refused_without, unreadable};
pub use solve::node_capacity;
pub use survey::{Survey, survey};
pub use types::*;
