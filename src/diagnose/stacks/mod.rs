//! The stacks of running ranks: Python frames and the kernel's state of each thread.
//!
//! Takes the pids of ranks; gives the frames and the kernel state of their threads. The agent calls it, because an
//! ancestor may read a process's memory where a program that entered the container later may not (`memory`). Nothing
//! is attached, stopped, signalled or loaded into a rank, and no file of the interpreter is opened.

mod collect;
mod elf;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod kernel;
mod layout;
mod memory;
mod process;
mod python;
mod syscalls;

pub use collect::{Group, RankStacks, RunningRank, alike, collect, grouped};
pub use kernel::{KernelState, Syscall, UsedFile};
pub use memory::Unread;
pub use process::{ProcessStacks, ThreadStack};
pub use python::{Frame, PythonStack};
pub use syscalls::call;
