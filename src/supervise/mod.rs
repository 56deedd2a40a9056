//! Starts the engine or the ranks, supervises every process of the job, and ends all of them.
//!
//! Owns the guard, its use without a job (`init`), the rank shim, the process tree, the
//! terminal, termination and its [`EndBudget`]. Takes a [`Launch`] (command lines, environments,
//! stop budget) and a receiver of pipes. Gives an [`Outcome`](crate::outcome::Outcome): how each rank and the engine
//! ended, and which processes could not be ended. Decides nothing about the job: the plan fixed
//! what runs, and [`crate::report`] turns the outcome into a verdict.

mod asked;
mod attempts;
mod bind;
pub(crate) mod budget;
mod engine;
mod forwarded;
pub(crate) mod guard;
pub(crate) mod init;
pub(crate) mod isolate;
mod link;
mod manager;
mod message;
mod reaper;
mod record;
mod relay;
mod run;
pub(crate) mod shim;
mod socket;
pub(crate) mod stdin;
mod sweep;
mod terminal;
mod tree;
mod warmed;

pub(crate) use budget::{EndBudget, EndStep};
pub(crate) use engine::{Launch, RankStart, Start, mark_of};
pub(crate) use link::{AgentLink, GuardCommands, Halt};
pub(crate) use message::{ERROR_FILE, LARGEST_RECORD};
pub(crate) use run::{Streams, run};
pub(crate) use socket::have_ranks;
pub(crate) use terminal::at_terminal;
pub(crate) use warmed::WARM;
