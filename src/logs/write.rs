//! Writes to a console descriptor: batches of whole lines, and the last line of a terminal, which shows the current
//! state of the job below all other output.
//!
//! The descriptor may be shared, so its flags are left alone. A write may block, which is why each sink has a thread.
//! Another process may have made the descriptor non-blocking. A writer that is to stop is interrupted in its write
//! (see [`linux::sys::interrupt`]), so that it knows what the console has taken.
//!
//! The writer of the console erases the status line before each write and draws it again afterwards, a few times a
//! second at most. The cursor stays at the beginning of the line, so that one sequence erases the line even after a
//! narrower window has wrapped it. Must never wait: the line is drawn only if the terminal takes bytes at once.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::ops::AddAssign;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memchr::{memchr_iter, memrchr};

use linux::sys::{PollFd, PollFlags, poll};
use linux::terminal;
use text::columns::{columns, start_within};
use text::style::{END, Style};

/// Maximum bytes per write: our own text waits for one write at most.
const PIECE: usize = 128 * 1024;

/// A write that failed or was stopped, with the text that was not written.
#[derive(Debug)]
pub(super) struct WriteFailure {
    /// None: the writer was told to stop.
    pub(super) error: Option<std::io::Error>,
    /// Of the batch; its end is among it.
    pub(super) batch: Lost,
    /// The rest of the urgent text.
    pub(super) urgent_rest: Vec<u8>,
}

/// Text that was not written.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) lines: u64,
    pub(super) bytes: u64,
}

impl AddAssign for Lost {
    fn add_assign(&mut self, other: Lost) {
        self.lines += other.lines;
        self.bytes += other.bytes;
    }
}

impl Lost {
    /// `is_torn`: something was written of the line with which `text` begins.
    pub(super) fn of(text: &[u8], is_torn: bool) -> Lost {
        let lines = memchr_iter(b'\n', text).count() as u64;
        // Of this line only its end is missing.
        let is_shown = is_torn && text.first() == Some(&b'\n');
        Lost { lines: lines - u64::from(is_shown), bytes: text.len() as u64 }
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
                let batch = Lost::of(lost, is_torn);
                WriteFailure { error, batch, urgent_rest: Vec::new() }
            })?;
            rest = after;
            let between = urgent();
            if !between.is_empty() {
                write_all(file, &between, may_go_on).map_err(|(error, unwritten)| {
                    let lost = between.get(between.len() - unwritten..).unwrap_or_default();
                    let batch = Lost::of(after, false);
                    WriteFailure { error, batch, urgent_rest: lost.to_vec() }
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

/// Minimum time between two drawings.
const PAUSE: Duration = Duration::from_millis(250);
/// Narrower windows have no status line.
const NARROWEST: usize = 20;

#[derive(Debug, Default)]
pub(super) struct StatusLine {
    /// The text of the line; None if there is no line.
    text: Option<String>,
    /// Whether the line is dimmed relative to the other lines.
    dim: bool,
    /// Whether the line is on the screen.
    drawn: bool,
    /// Whether `text` differs from the text drawn last.
    changed: bool,
    last: Option<Instant>,
}

impl StatusLine {
    pub(super) fn set(&mut self, text: Option<&str>, dim: bool) {
        self.dim = dim;
        if self.text.as_deref() != text {
            self.text = text.map(str::to_owned);
            self.changed = true;
        }
    }

    /// Whether there is something to draw or to erase.
    pub(super) fn is_pending(&self) -> bool {
        match self.text {
            Some(_) => self.changed || !self.drawn,
            None => self.drawn,
        }
    }

    /// Whether the line is on the screen and should not be.
    pub(super) fn must_go(&self) -> bool {
        self.drawn && self.text.is_none()
    }

    /// The time at which the line may be drawn; None if the screen is up to date.
    pub(super) fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let after = self.last.and_then(|last| last.checked_add(PAUSE));
        let due = if self.text.is_none() { now } else { after.unwrap_or(now) };
        self.is_pending().then_some(due)
    }

    /// Whether the line must be erased before anything else is written.
    pub(super) fn take_drawn(&mut self) -> bool {
        std::mem::take(&mut self.drawn)
    }

    /// The bytes to write now, if the terminal is ours and takes them. A line that cannot be drawn is tried again
    /// later.
    pub(super) fn next(&mut self, terminal: &File) -> Vec<u8> {
        self.last = Some(Instant::now());
        let is_ours = terminal::is_foreground(terminal);
        let mut ready = [PollFd::new(terminal, PollFlags::OUT)];
        let takes_bytes = poll(&mut ready, Some(Duration::ZERO)).is_ok_and(|count| count > 0);
        if !is_ours {
            // Text that a shell has written since must not be erased.
            self.drawn = false;
        }
        if !is_ours || !takes_bytes {
            return Vec::new();
        }
        let mut bytes = if self.drawn { terminal::ERASE.to_vec() } else { Vec::new() };
        let width = terminal::width(terminal.as_fd()).filter(|width| *width >= NARROWEST);
        let line =
            self.text.as_deref().zip(width).map(|(text, width)| fitted(text, width, self.dim));
        self.drawn = line.is_some();
        self.changed = false;
        if let Some(line) = line {
            bytes.extend_from_slice(line.as_bytes());
        }
        bytes
    }
}

/// The line with the cursor back at its beginning. It is one column shorter than the terminal, since a full row begins
/// a new row.
fn fitted(text: &str, width: usize, dim: bool) -> String {
    let room = width - 1;
    let shown = match columns(text) <= room {
        true => text.to_owned(),
        false => format!("{}…", start_within(text, room - 1)),
    };
    let begin = if dim { Style::Dim.begins() } else { String::new() };
    format!("{END}{begin}{shown}{END}\r")
}

/// Writes the prepared bytes. An error will affect the next line as well, and is reported then.
pub(super) fn draw(mut terminal: &File, bytes: &[u8]) {
    let _ = terminal.write_all(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::style::plain;

    #[test]
    fn status_line_never_fills_the_row() {
        for text in
            ["short", "正在等待节点 1（0:03/30:00）：节点 1 尚未连接，请稍候", &"x".repeat(300)]
        {
            for width in 20..90 {
                let line = fitted(text, width, width % 2 == 0);
                let shown = plain(&line);
                let shown = shown.strip_suffix('\r').expect("the cursor is at the beginning");
                assert!(columns(shown) < width, "{width}: {shown:?}");
                assert!(!shown.contains(['\n', '\r', '\x1b']), "{shown:?}");
            }
        }
        assert_eq!(plain(&fitted("等待节点", 8, true)), "等待节…\r");
    }

    #[test]
    fn changed_status_line_is_due_with_a_pause() {
        let mut line = StatusLine::default();
        assert_eq!((line.due(), line.is_pending()), (None, false));
        line.set(Some("one"), true);
        assert!(line.due().is_some_and(|due| due <= Instant::now()));
        let nowhere = File::open("/dev/null").expect("a file");
        assert!(line.next(&nowhere).is_empty(), "no terminal");
        assert!(line.due().is_some_and(|due| due > Instant::now()), "tried again later");
        line.set(None, true);
        assert!(!line.is_pending(), "nothing was drawn");
    }
}
