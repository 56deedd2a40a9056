//! `ranklaunch`: starts a node's part of a distributed PyTorch job, supervises its processes,
//! captures their output and reports one verdict.
//!
//! The modules are rooms along a corridor that [`launch`] walks, in this order:
//!
//! ```text
//! settings → observe → (muster: gather) → decide (plan, check) → clear → (muster: agree)
//!          → prepare → supervise + logs → report
//! ```
//!
//! Only `launch` calls rooms that have effects. The result of a room is a type
//! ([`settings::Settings`], [`observe::Facts`], [`plan::Plan`], [`muster::LinkReport`]), which the
//! later rooms take. Of each other the rooms call only pure functions: `report` shows the command
//! line that `plan` renders. [`lint`] is beside the corridor: it reads manifests, judges them by
//! `settings` and `plan`, and starts nothing. [`verdict`] has the exit codes and the table of ids,
//! [`findings`] their explanations.

#![deny(unsafe_code)]

mod annotations;
mod arguments;
mod cgroups;
mod check;
mod clear;
mod cli;
mod columns;
mod contract;
mod cpus;
mod deadline;
mod decide;
mod diagnose;
mod embedded;
mod endpoint;
mod engine;
mod escape;
mod export;
mod findings;
#[cfg(any(test, fuzzing))]
mod fuzz;
#[cfg(any(test, fuzzing))]
mod fuzzing;
mod hang;
mod history;
mod host;
mod hostlist;
mod inject;
mod lang;
mod launch;
mod launchers;
mod letters;
mod lint;
mod logs;
mod mask;
mod muster;
mod names;
mod nearest;
mod net;
mod observe;
mod outcome;
mod own_executable;
mod pace;
mod pattern;
mod plan;
mod prepare;
mod probe;
mod procfs;
mod random;
mod ranges;
mod rank;
mod recorder;
mod regular_file;
mod report;
mod run_id;
mod settings;
mod signal;
mod stacks;
mod status;
mod style;
mod supervise;
#[allow(
    unsafe_code,
    clippy::allow_attributes,
    reason = "the one room in which system calls are wrapped"
)]
mod sys;
mod terminal;
#[doc(hidden)]
pub mod testing;
mod top;
mod torchrun_options;
mod users;
mod verdict;
mod version;
mod warm;
mod watch;

pub use launch::main;
