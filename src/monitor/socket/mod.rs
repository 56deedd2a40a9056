//! The run's control socket, by which `ps`, `logs`, `top`, `stacks` and `dump` ask the agent of a job.
//!
//! [`RunServer`] is the agent's side: a thread that answers from the first moment of a launch to its end, and never
//! holds the supervision. [`jobs`] and [`ask`] are the command's side. Both decide who is believed: see `server` for
//! who is answered, and `client` for what is taken from the socket of another user.

mod answer;
mod client;
mod server;

pub use answer::{
    Answer, Ask, DumpFile, Job, JobDump, JobStacks, Missing, NodeDump, NodeStacks, Refused,
    Selection, Unanswered,
};
pub use client::{Listener, ask, ask_all, jobs};
pub use server::{Everywhere, OTHERS, READING, RunServer, RunningRanks};
