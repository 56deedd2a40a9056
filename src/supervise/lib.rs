//! Starts the engine or the ranks, supervises every process of the job, and ends all of them.
//!
//! Owns the guard, its use without a job (`init`), the rank shim, the process tree, the
//! terminal, termination and its [`EndBudget`]. Takes a [`Launch`] (command lines, environments,
//! stop budget) and a receiver of pipes. Gives an [`Outcome`](verdict::outcome::Outcome): how each rank and the engine
//! ended, and which processes could not be ended. Decides nothing about the job: the plan fixed
//! what runs, and `report` turns the outcome into a verdict.

#![deny(unsafe_code)]

mod asked;
mod attempts;
mod bind;
pub mod budget;
mod ends;
mod engine;
mod forwarded;
pub mod guard;
pub mod init;
pub mod inject;
pub mod isolate;
mod link;
mod manager;
mod message;
mod reaper;
mod record;
mod relay;
mod run;
pub mod shim;
mod socket;
pub mod stdin;
mod sweep;
mod terminal;
mod tree;
pub mod warm;
mod warmed;

pub use budget::{EndBudget, EndStep};
pub use engine::{Launch, RankStart, Start, mark_of};
pub use link::{AgentLink, GuardCommands};
pub use message::{ERROR_FILE, LARGEST_RECORD};
pub use run::{Streams, run};
pub use socket::have_ranks;
pub use terminal::at_terminal;
pub use warmed::WARM;
