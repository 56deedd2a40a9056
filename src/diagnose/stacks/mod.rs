//! The stacks of running ranks: Python frames and the kernel's state of each thread.
//!
//! Takes the pids of ranks; gives the present work of their threads. The agent reads, because an ancestor may read a
//! process's memory even if a program that entered the container later may not (`memory`). [`StacksServer`] answers
//! in a thread of its own. [`jobs`] and [`ask`] are the side of the command, which asks in the same way for the whole
//! evidence of a job, and for the data of a viewer. Nothing is attached, stopped, signalled or loaded into a rank,
//! and no file of the interpreter is opened. Never holds up supervision.

mod answer;
mod client;
mod collect;
mod elf;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod group;
mod kernel;
mod layout;
mod lines;
mod maps;
mod memory;
mod process;
mod python;
mod server;
mod sockets;
mod syscalls;
mod traceback;
mod unread;

pub use answer::{
    Answer, Ask, DumpFile, Job, JobDump, JobStacks, Missing, NodeDump, NodeStacks, RankStacks,
    Refused, Selection, Unanswered,
};
pub use client::{Listener, ask, ask_all, jobs};
pub use collect::{RunningRank, collect};
pub use group::{Group, alike, grouped};
pub use kernel::{KernelState, Syscall, UsedFile};
pub use process::{ProcessStacks, PythonStack, ThreadStack};
pub use python::Frame;
pub use server::{Everywhere, OTHERS, READING, RunningRanks, StacksServer};
pub use syscalls::call;
pub use unread::Unread;
