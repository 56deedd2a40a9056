//! Writes batches of whole lines to a console descriptor.
//!
//! The descriptor may be shared, so its flags are left alone. A write may block, which is why each sink has a thread.
//! Another process may have made the descriptor non-blocking. A writer that is to stop is interrupted in its write
//! (see [`linux::sys::interrupt`]), so that it knows what the console has taken.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use memchr::{memchr_iter, memrchr};

use linux::sys::{PollFd, PollFlags, poll};

/// Maximum bytes per write: our own text waits for one write at most.
const PIECE: usize = 128 * 1024;

/// A write that failed or was stopped, with the text that was not written.
#[derive(Debug)]
pub(super) struct WriteFailure {
    /// None: the writer was told to stop.
    pub(super) error: Option<std::io::Error>,
    /// Of the batch; its end is among it.
    pub(super) batch: Unwritten,
    pub(super) urgent: Unwritten,
    /// The rest of the urgent text, for a writer that was told to stop.
    pub(super) urgent_rest: Vec<u8>,
}

/// Text that was not written.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unwritten {
    pub(super) lines: u64,
    pub(super) bytes: usize,
}

impl Unwritten {
    /// `is_torn`: something was written of the line with which `text` begins.
    fn of(text: &[u8], is_torn: bool) -> Unwritten {
        let lines = memchr_iter(b'\n', text).count() as u64;
        // Of this line only its end is missing.
        let is_shown = is_torn && text.first() == Some(&b'\n');
        Unwritten { lines: lines - u64::from(is_shown), bytes: text.len() }
    }
}

impl WriteFailure {
    /// Whether the reader is gone for good: a closed pipe, a closed terminal, a bad descriptor. A file (`> run.log`)
    /// may accept the next write after any error.
    pub(super) fn is_final(&self, file: &File) -> bool {
        use rustix::io::Errno;
        let code = self.error.as_ref().and_then(std::io::Error::raw_os_error);
        let is = |errnos: &[Errno]| errnos.iter().any(|one| code == Some(one.raw_os_error()));
        let is_file = || file.metadata().is_ok_and(|it| it.is_file());
        is(&[Errno::PIPE, Errno::BADF, Errno::CONNRESET, Errno::NOTCONN])
            || (is(&[Errno::IO, Errno::INVAL]) && !is_file())
    }
}

/// The writer of a descriptor.
#[derive(Debug)]
pub(super) struct LineWriter<'a> {
    pub(super) file: &'a File,
    /// Set when lines of ranks are no longer to be written.
    pub(super) stop: &'a AtomicBool,
    /// The last line was stopped in its middle, so a line end comes before the next text.
    pub(super) is_torn: bool,
}

impl LineWriter<'_> {
    /// Writes lines of ranks; between two lines, about every 128 KiB, `urgent` may insert its text.
    pub(super) fn lines(
        &mut self,
        batch: &[u8],
        urgent: impl FnMut() -> Vec<u8>,
    ) -> Result<(), WriteFailure> {
        let stop = self.stop;
        self.write(batch, || !stop.load(Ordering::Relaxed), urgent)
    }

    /// Writes our own text, which nothing stops.
    pub(super) fn own(&mut self, text: &[u8]) -> Result<(), WriteFailure> {
        self.write(text, || true, Vec::new)
    }

    fn write(
        &mut self,
        batch: &[u8],
        may_go_on: impl Fn() -> bool + Copy,
        mut urgent: impl FnMut() -> Vec<u8>,
    ) -> Result<(), WriteFailure> {
        let (mut rest, file) = (batch, self.file);
        while !rest.is_empty() {
            let reach = rest.get(..PIECE).unwrap_or(rest);
            let end = memrchr(b'\n', reach).map_or(reach.len(), |at| at + 1);
            let (piece, after) = rest.split_at_checked(end).unwrap_or((rest, &[]));
            let ended = self.end_torn_line(may_go_on);
            let whole = |error| (error, piece.len());
            let written = ended.map_err(whole).and_then(|()| write_all(file, piece, may_go_on));
            written.map_err(|(error, unwritten)| {
                let lost = batch.get(batch.len() - after.len() - unwritten..).unwrap_or_default();
                let is_torn = unwritten < piece.len();
                if is_torn {
                    self.is_torn = true;
                    // Ends the partial line before the next text; this write may fail as well.
                    if error.is_some() {
                        let _ = self.end_torn_line(|| true);
                    }
                }
                WriteFailure {
                    error,
                    batch: Unwritten::of(lost, is_torn),
                    urgent: Unwritten::default(),
                    urgent_rest: Vec::new(),
                }
            })?;
            rest = after;
            let between = urgent();
            if !between.is_empty() {
                write_all(file, &between, may_go_on).map_err(|(error, unwritten)| {
                    let lost = between.get(between.len() - unwritten..).unwrap_or_default();
                    WriteFailure {
                        error,
                        batch: Unwritten::of(after, false),
                        urgent: Unwritten::of(lost, false),
                        urgent_rest: lost.to_vec(),
                    }
                })?;
            }
        }
        Ok(())
    }

    fn end_torn_line(
        &mut self,
        may_go_on: impl Fn() -> bool,
    ) -> Result<(), Option<std::io::Error>> {
        if self.is_torn {
            write_all(self.file, b"\n", may_go_on).map_err(|(error, _)| error)?;
            self.is_torn = false;
        }
        Ok(())
    }
}

/// Writes all bytes. An error carries how many were not written; without an error, `may_go_on` said no.
fn write_all(
    mut file: &File,
    bytes: &[u8],
    may_go_on: impl Fn() -> bool,
) -> Result<(), (Option<std::io::Error>, usize)> {
    let mut rest = bytes;
    while !rest.is_empty() {
        if !may_go_on() {
            return Err((None, rest.len()));
        }
        match file.write(rest) {
            Ok(0) => return Err((Some(ErrorKind::WriteZero.into()), rest.len())),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(file, PollFlags::OUT)], None);
            }
            Err(error) => return Err((Some(error), rest.len())),
        }
    }
    Ok(())
}
