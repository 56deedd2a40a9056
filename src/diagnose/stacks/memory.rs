//! Reads of another process's memory.
//!
//! `pread` on `/proc/PID/mem` needs the same right as a debugger (ptrace(2), "Ptrace access mode
//! checking"). An ancestor with the same user id has this right, also below Yama's mode 1 and in a
//! default container, whose seccomp filter refuses process_vm_readv(2). The process is not stopped
//! and notices nothing, so every pointer may be stale by the time it is followed.
//! [`Unread`] is the reason why something is not known.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Longest single read. A length that was read from a process may be anything.
pub(super) const LONGEST: usize = 1 << 20;

/// Bytes at addresses.
pub(super) trait Memory {
    /// Fills `into` from `at`.
    ///
    /// # Errors
    /// [`Unread::Changed`] if nothing is mapped there, so that the pointer was stale.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Unread>;

    fn bytes<const N: usize>(&self, at: u64) -> Result<[u8; N], Unread> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes)?;
        Ok(bytes)
    }

    fn u64(&self, at: u64) -> Result<u64, Unread> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    fn u32(&self, at: u64) -> Result<u32, Unread> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    /// Reads `length` bytes.
    fn block(&self, at: u64, length: usize) -> Result<Vec<u8>, Unread> {
        if length > LONGEST {
            return Err(Unread::Changed);
        }
        let mut bytes = vec![0; length];
        self.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads text up to its NUL byte, at most `most` bytes.
    fn text(&self, at: u64, most: usize) -> Result<Vec<u8>, Unread> {
        /// Small, since the end of the mapping may be near.
        const STEP: usize = 64;
        let mut text = Vec::new();
        while text.len() < most {
            let at = at.wrapping_add(text.len() as u64);
            // A read must not cross into a page that may not exist.
            let step = STEP - usize::try_from(at % STEP as u64).unwrap_or(0);
            let part = self.block(at, step)?;
            match part.iter().position(|byte| *byte == 0) {
                Some(end) => {
                    text.extend_from_slice(part.get(..end).unwrap_or_default());
                    return Ok(text);
                }
                None => text.extend_from_slice(&part),
            }
        }
        text.truncate(most);
        Ok(text)
    }
}

/// The memory of a living process.
#[derive(Debug)]
pub(super) struct ProcessMemory {
    file: File,
    /// No read begins later.
    until: Instant,
}

impl ProcessMemory {
    /// Opens the memory of a process. `folder`: its folder in /proc.
    pub(super) fn open(folder: &Path, until: Instant) -> Result<ProcessMemory, Unread> {
        match File::open(folder.join("mem")) {
            Ok(file) => Ok(ProcessMemory { file, until }),
            Err(error) => Err(Unread::of(&error)),
        }
    }
}

impl Memory for ProcessMemory {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Unread> {
        if Instant::now() >= self.until {
            return Err(Unread::Late);
        }
        // The file's offset is a signed number; the upper half belongs to the kernel.
        if i64::try_from(at).is_err() {
            return Err(Unread::Changed);
        }
        match self.file.read_exact_at(into, at) {
            Ok(()) => Ok(()),
            // The end of the file means that the process has no memory any more.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Unread::Gone),
            Err(error) => Err(Unread::of(&error)),
        }
    }
}

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
