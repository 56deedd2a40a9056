//! The reason why the Python stacks of a process are not known.

use std::io;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Unread {
    /// No file with a Python interpreter is mapped.
    NotPython,
    /// An interpreter that has not been initialized yet, or is finalized.
    NotStarted,
    /// The kernel refuses to show the memory.
    Denied { errno: i32 },
    /// The process ended.
    Gone,
    /// Pointers were stale at each attempt: the process ran on while it was read.
    Changed,
    /// The time limit was exceeded: the kernel did not answer, or there was too much to read.
    Late,
    /// A version whose data structures are not known here.
    Version { found: String },
    /// A build without GIL, which has another layout of objects.
    FreeThreaded { found: String },
    /// `file` has the name of an interpreter, but does not export its state.
    NoSymbol { file: String },
    /// The mapped files cannot be listed.
    Unlisted { errno: i32 },
}

impl Unread {
    pub fn of(error: &io::Error) -> Unread {
        /// Numbers from errno.h, the same on all architectures of Linux that matter here.
        const ESRCH: i32 = 3;
        const EIO: i32 = 5;
        const EFAULT: i32 = 14;
        const ENOENT: i32 = 2;
        match error.raw_os_error() {
            Some(ESRCH | ENOENT) => Unread::Gone,
            Some(EIO | EFAULT) => Unread::Changed,
            errno => Unread::Denied { errno: errno.unwrap_or(0) },
        }
    }
}
