//! Plans what will be run: membership, layout, devices (`devices`), network and RDMA (`network`,
//! `hcas`), environment, command line (`engine`).
//!
//! Takes [`Settings`](crate::settings::Settings) and [`Facts`](crate::observe::Facts);
//! gives a [`Plan`] or a [`Refusal`](crate::verdict::Refusal). Pure functions: no
//! file, no socket, no clock.

pub(crate) mod binding;
pub(crate) mod conditional;
pub(crate) mod devices;
pub(crate) mod distance;
pub(crate) mod engine;
pub(crate) mod environment;
#[cfg(any(test, fuzzing))]
pub(crate) mod fixtures;
pub(crate) mod hcas;
pub(crate) mod heads;
mod inject;
pub(crate) mod interface;
pub(crate) mod layout;
mod membership;
pub(crate) mod nccl;
mod notes;
pub(crate) mod placeholders;
mod python;
mod rails;
mod recording;
mod restarts;
mod scope;
pub(crate) mod select;
pub(crate) mod sizes;
mod solve;
mod survey;
#[cfg(test)]
mod tests;
mod torchrun;
mod types;
pub(crate) mod variables;

pub(crate) use devices::Hardware;
pub(crate) use engine::{EngineOptions, argv, exec_argv, rank_argv};
pub(crate) use environment::rank_env;
pub(crate) use membership::{
    AskedNproc, asked_nproc, identity, listed, membership, needs_addresses, offered_nproc,
    stated_master, weighed,
};
pub(crate) use notes::{Notes, severity};
pub use scope::Scope;
pub(crate) use solve::node_capacity;
pub(crate) use survey::{Survey, survey};
pub use types::*;
