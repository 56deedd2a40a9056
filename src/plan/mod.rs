//! What will be run: membership, layout, devices, network, environment, command line.
//!
//! Takes [`Settings`](crate::settings::Settings) and [`Facts`](crate::observe::Facts);
//! gives a [`Plan`] or a [`Refusal`](crate::verdict::Refusal). Pure functions: no
//! file, no socket, no clock.

pub mod binding;
pub(crate) mod conditional;
pub mod devices;
pub mod distance;
pub mod engine;
pub mod environment;
#[cfg(any(test, fuzzing))]
pub(crate) mod fixtures;
pub mod hcas;
pub mod heads;
pub mod layout;
mod membership;
pub mod nccl;
pub mod network;
mod notes;
pub mod placeholders;
mod python;
mod rails;
mod restarts;
mod scope;
pub mod select;
pub(crate) mod sizes;
mod solve;
mod survey;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_tasks;
mod types;
pub mod variables;

pub use engine::{EngineOptions, argv, exec_argv, rank_argv};
pub use environment::rank_env;
pub use membership::{AskedNproc, asked_nproc, identity, membership, offered_nproc};
pub use notes::{Notes, severity};
pub use scope::Scope;
pub use solve::node_capacity;
pub use survey::{Survey, plan, survey};
pub use types::*;
