//! `ranklaunch`: the program that starts a node's part of a distributed PyTorch
//! job and keeps it in hand until the last byte.
//!
//! The modules are rooms along a corridor that [`launch`] walks, in this order:
//!
//! ```text
//! settings → observe → (muster: gather) → decide (plan, check) → clear → (muster: agree)
//!          → prepare → supervise + logs → report
//! ```
//!
//! Only `launch` makes a room do something. What a room learns or decides is a type
//! ([`settings::Settings`], [`observe::Facts`], [`plan::Plan`], [`muster::LinkReport`]), which the
//! rooms behind it take; of each other they call pure functions at most: `report` shows the
//! command line that `plan` writes. [`lint`] stands beside the corridor: it reads manifests, asks
//! `settings` and `plan` what they would say, and starts nothing. [`findings`] explains what all
//! of them say by id.

#![deny(unsafe_code)]

mod arguments;
pub mod check;
pub mod clear;
pub mod cli;
mod columns;
pub mod cpus;
mod deadline;
pub mod decide;
mod endpoint;
pub mod engine;
pub mod findings;
pub mod host;
mod hostlist;
pub mod lang;
pub mod launch;
pub mod launchers;
pub mod lint;
pub mod logs;
pub mod mask;
pub mod muster;
pub mod names;
pub mod nearest;
mod net;
pub mod observe;
pub mod pace;
pub mod plan;
pub mod prepare;
pub mod probe;
pub mod procfs;
mod random;
pub mod rank;
pub mod report;
pub mod settings;
mod signal;
pub mod supervise;
#[allow(
    unsafe_code,
    clippy::allow_attributes,
    reason = "the one room in which system calls are wrapped"
)]
pub mod sys;
pub mod verdict;
pub mod version;
pub mod watch;
