//! Reads of another process's memory.
//!
//! `pread` on `/proc/PID/mem` needs the same right as a debugger (ptrace(2), "Ptrace access mode
//! checking"). An ancestor with the same user id has this right, also below Yama's mode 1 and in a
//! default container, whose seccomp filter refuses process_vm_readv(2). The process is not stopped
//! and notices nothing, so every pointer may be stale by the time it is followed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use super::unread::Unread;

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
