//! Starts the engine or the ranks, supervises every process of the job, and ends all of them.
//!
//! Owns the guard, its use without a job (`init`), the rank shim, the process tree, the
//! terminal, termination and its [`EndBudget`]. Takes a [`Launch`] (command lines, environments,
//! stop budget) and a receiver of pipes. Gives an [`Outcome`](verdict::outcome::Outcome): how each rank and the engine
//! ended, and which processes could not be ended. Decides nothing about the job: the plan fixed
//! what runs, and `report` turns the outcome into a verdict.

#![deny(unsafe_code)]

mod asked;
mod bind;
mod budget;
mod engine;
mod forwarded;
pub mod guard;
pub mod init;
pub mod inject;
pub mod isolate;
mod link;
mod reaper;
mod run;
pub mod shim;
mod socket;
mod terminal;
mod tree;
pub mod warm;
mod warmed;

pub use asked::handles;
pub use budget::{EndBudget, EndStep};
pub use engine::{Launch, Patience, RankStart, Start, mark_of};
pub use link::{AgentLink, AgentReport, GuardCommands};
pub use run::{Streams, run};
pub use socket::{ERROR_FILE, LARGEST_RECORD, have_ranks};
pub use terminal::{at_terminal, stdin_remark};
pub use warmed::WARM;
