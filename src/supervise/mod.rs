//! Starts the engine, keeps every process of the job in hand, ends all of them.
//!
//! Owns the guard (the process that outlives everything), its use without a job
//! (init), the rank shim, the process tree, the terminal, termination and its
//! [`EndBudget`]. Takes a [`Launch`] (command lines, environments,
//! stop budget) and a place to hand pipes to; gives an [`Outcome`]: how each rank
//! and the engine ended, and what could not be ended. Decides nothing about the
//! job: what runs was fixed by the plan, what it meant is said by the report.

mod bind;
pub mod budget;
mod engine;
pub mod guard;
pub mod init;
pub mod isolate;
mod link;
mod message;
mod outcome;
mod reaper;
mod relay;
mod run;
pub mod shim;
mod socket;
mod sweep;
mod terminal;
mod tree;

pub use budget::{EndBudget, EndStep};
pub use engine::{Launch, RankStart, Start};
pub use link::{AgentLink, GuardCommands, Halt};
pub use message::JOB_MARK;
pub use outcome::{
    End, Notice, OtherWorld, Outcome, Owner, Planned, RankEnd, StopReason, Stream, Survivor, Unit,
    exec_code,
};
pub use run::{Streams, run};
pub use terminal::at_terminal;
