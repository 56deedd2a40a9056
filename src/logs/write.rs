//! Writes batches of whole lines to a console descriptor.
//!
//! The descriptor may be shared, so its flags are left alone. A write may block, which is why each sink has a thread.
//! Another process may have made the descriptor non-blocking.

use std::fs::File;
use std::io::{ErrorKind, Write};

use memchr::{memchr_iter, memrchr};

use linux::sys::{PollFd, PollFlags, poll};

/// Maximum bytes per write: our own text waits for one write at most.
const PIECE: usize = 128 * 1024;

/// A write that failed, with the text that was lost.
#[derive(Debug)]
pub(super) struct WriteFailure {
    pub(super) error: std::io::Error,
    pub(super) lines: u64,
    pub(super) bytes: usize,
    /// The end of the batch is among the lost text.
    pub(super) of_batch: bool,
    /// The end of the last urgent text is among the lost text.
    pub(super) of_urgent: bool,
}

impl WriteFailure {
    /// Whether the reader is gone for good: a closed pipe, a closed terminal, a bad descriptor. A file (`> run.log`)
    /// may accept the next write after any error.
    pub(super) fn is_final(&self, file: &File) -> bool {
        use rustix::io::Errno;
        let code = self.error.raw_os_error();
        let is = |errnos: &[Errno]| errnos.iter().any(|one| code == Some(one.raw_os_error()));
        let is_file = || file.metadata().is_ok_and(|it| it.is_file());
        is(&[Errno::PIPE, Errno::BADF, Errno::CONNRESET, Errno::NOTCONN])
            || (is(&[Errno::IO, Errno::INVAL]) && !is_file())
    }
}

/// Writes `batch`; between two lines, about every 128 KiB, `urgent` may insert its text.
pub(super) fn write_lines(
    file: &File,
    batch: &[u8],
    mut urgent: impl FnMut() -> Vec<u8>,
) -> Result<(), WriteFailure> {
    let mut rest = batch;
    while !rest.is_empty() {
        let reach = rest.get(..PIECE).unwrap_or(rest);
        let end = memrchr(b'\n', reach).map_or(reach.len(), |at| at + 1);
        let (piece, after) = rest.split_at_checked(end).unwrap_or((rest, &[]));
        write_all(file, piece).map_err(|(error, unwritten)| {
            // Ends the partial line before the next text; this write may fail as well.
            if unwritten < piece.len() {
                let _ = write_all(file, b"\n");
            }
            let lost = batch.get(batch.len() - after.len() - unwritten..).unwrap_or_default();
            WriteFailure {
                error,
                lines: memchr_iter(b'\n', lost).count() as u64,
                bytes: lost.len(),
                of_batch: true,
                of_urgent: false,
            }
        })?;
        rest = after;
        let between = urgent();
        if !between.is_empty() {
            write_all(file, &between).map_err(|(error, unwritten)| {
                let lost = between.get(between.len() - unwritten..).unwrap_or_default();
                let lines = memchr_iter(b'\n', lost).chain(memchr_iter(b'\n', after)).count();
                WriteFailure {
                    error,
                    lines: lines as u64,
                    bytes: lost.len() + after.len(),
                    of_batch: !after.is_empty(),
                    of_urgent: true,
                }
            })?;
        }
    }
    Ok(())
}

/// Writes all bytes. An error carries how many were not written.
fn write_all(mut file: &File, bytes: &[u8]) -> Result<(), (std::io::Error, usize)> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match file.write(rest) {
            Ok(0) => return Err((ErrorKind::WriteZero.into(), rest.len())),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(file, PollFlags::OUT)], None);
            }
            Err(error) => return Err((error, rest.len())),
        }
    }
    Ok(())
}
