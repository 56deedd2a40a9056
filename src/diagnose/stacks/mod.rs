//! The stacks of running ranks: Python frames and the kernel's state of each thread.
//!
//! Takes the pids of ranks; gives the frames and the kernel state of their threads. The agent calls it, because an
//! ancestor may read a process's memory where a program that entered the container later may not (`memory`). Nothing
//! is attached, stopped, signalled or loaded into a rank, and no file of the interpreter is opened.

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
mod sockets;
mod syscalls;
mod traceback;
mod unread;

pub use collect::{RankStacks, RunningRank, collect};
pub use group::{Group, alike, grouped};
pub use kernel::{KernelState, Syscall, UsedFile};
pub use process::{ProcessStacks, PythonStack, ThreadStack};
pub use python::Frame;
pub use syscalls::call;
pub use unread::Unread;
