//! Reads one pipe of a rank and passes the bytes to tail, console and file.
//!
//! One plain thread per stream. The thread waits for a sink no longer than the sink's
//! [`StallBudget`](super::stall_budget::StallBudget). It ends at end of file. After a stop request it ends as soon as
//! the pipe is empty, since a grandchild may keep the write end open for ever.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use memchr::{memchr_iter, memrchr};
use rustix::io::Errno;

use super::backlog::Backlog;
use super::files::FilePort;
use super::lines::LineFormatter;
use super::queue::LAST_BYTES;
use super::sink::Lane;
use super::tail::Tail;
use linux::deadline::millis;
use linux::sys::{PollFd, PollFlags, poll};
use verdict::outcome::{Owner, Stream};

/// Buffer of a quiet stream…
const FIRST_READ: usize = 8 * 1024;
/// …and the largest buffer, for a stream that fills its buffer.
const LARGEST_READ: usize = 256 * 1024;
/// A stream frees its large buffers after it has been quiet for this long.
const QUIET: Duration = Duration::from_secs(1);
/// Lines of a file that two streams share are kept whole up to this length.
const SHARED_LINE: usize = 64 * 1024;
const SHARED_IDLE: Duration = Duration::from_millis(200);

/// Bytes and lines of one stream.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) bytes: AtomicU64,
    pub(super) lines: AtomicU64,
    /// Time of the last bytes, in milliseconds since `epoch`, plus one.
    last: AtomicU64,
}

impl Counters {
    fn count(&self, bytes: usize, lines: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.lines.fetch_add(lines as u64, Ordering::Relaxed);
        let now = millis(epoch().elapsed());
        // 0 means never.
        self.last.store(now.saturating_add(1), Ordering::Relaxed);
    }

    /// Time of the last bytes.
    pub(super) fn last(&self) -> Option<Instant> {
        let after = self.last.load(Ordering::Relaxed).checked_sub(1)?;
        epoch().checked_add(Duration::from_millis(after))
    }
}

/// The moment from which the times of all counters count.
fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

/// The state that the thread of one stream works with.
#[derive(Debug)]
pub(super) struct StreamReader {
    pub(super) owner: Owner,
    pub(super) stream: Stream,
    pub(super) pipe: OwnedFd,
    /// An eventfd: readable when the reader is to stop.
    pub(super) stop: Arc<OwnedFd>,
    pub(super) counters: Arc<Counters>,
    pub(super) tail: Arc<Mutex<Tail>>,
    pub(super) backlog: Option<Arc<Backlog>>,
    pub(super) console: Option<(LineFormatter, Lane)>,
    pub(super) file: Option<FilePort>,
    /// Another stream writes to the same file, so only whole lines are passed on.
    pub(super) shares_file: bool,
    /// Set if this stream may be kept off the console.
    pub(super) quiet: Option<Quiet>,
}

/// A switch that keeps a stream off the console, and counts its lines.
#[derive(Debug)]
pub(super) struct Quiet {
    pub(super) on: Arc<AtomicBool>,
    pub(super) lines: Arc<AtomicU64>,
}

impl StreamReader {
    /// Reads to the end. Gives the error if it ended neither at end of file nor on request.
    pub(super) fn run(mut self) -> Option<std::io::Error> {
        let mut buffer = Vec::new();
        let mut shown = Vec::new();
        let mut carry = Vec::new();
        let mut size = FIRST_READ;
        let mut last_bytes = LAST_BYTES;
        let error = loop {
            let ready = match self.wait(size > FIRST_READ, !carry.is_empty()) {
                Ok(ready) => ready,
                Err(error) => break Some(error.into()),
            };
            if ready.pipe && last_bytes > 0 {
                buffer.reserve(size);
                match rustix::io::read(&self.pipe, rustix::buffer::spare_capacity(&mut buffer)) {
                    Ok(0) => break None,
                    Ok(read) => {
                        if read >= size {
                            size = (size * 2).min(LARGEST_READ);
                        }
                        if ready.stop {
                            last_bytes = last_bytes.saturating_sub(read);
                        }
                        self.pass_on(&mut buffer, &mut shown, &mut carry);
                    }
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(error) => break Some(error.into()),
                }
            } else if ready.stop {
                break None;
            } else {
                self.idle(&mut shown, &mut carry);
                if ready.quiet {
                    size = FIRST_READ;
                    buffer = Vec::new();
                    shown = Vec::new();
                    if let Some((_, lane)) = &self.console {
                        lane.relax();
                    }
                    linux::sys::release_free_memory();
                }
            }
        };
        if let Some((lines, lane)) = &mut self.console {
            let before = lines.emitted;
            lines.finish(&mut shown);
            lane.push(&mut shown, lines.emitted - before);
        }
        self.push_file(&mut carry);
        error
    }

    fn wait(&self, busy: bool, carrying: bool) -> Result<Ready, Errno> {
        let now = Instant::now();
        let lines = self.console.as_ref().and_then(|(lines, _)| lines.deadline());
        let pause = [
            lines.map(|at| at.saturating_duration_since(now)),
            carrying.then_some(SHARED_IDLE),
            busy.then_some(QUIET),
        ]
        .into_iter()
        .flatten()
        .min();
        let stop = self.stop.as_fd();
        let mut fds =
            [PollFd::new(&self.pipe, PollFlags::IN), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        match poll(&mut fds, pause) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let [pipe, stop] = fds.map(|fd| !fd.revents().is_empty());
        Ok(Ready { pipe, stop, quiet: now.elapsed() >= QUIET })
    }

    fn pass_on(&mut self, buffer: &mut Vec<u8>, shown: &mut Vec<u8>, carry: &mut Vec<u8>) {
        let quiet = self.quiet.as_ref().filter(|quiet| quiet.on.load(Ordering::Relaxed));
        let before = self.console.as_ref().map_or(0, |(lines, _)| lines.emitted);
        let newlines = match &mut self.console {
            Some((lines, _)) if quiet.is_none() => {
                let now = Instant::now();
                // Feed before looking at the time: the new bytes may end the line that is due.
                let newlines = lines.feed(buffer, now, shown);
                lines.tick(now, shown);
                newlines
            }
            _ => memchr_iter(b'\n', buffer).count(),
        };
        self.counters.count(buffer.len(), newlines);
        match (&self.console, quiet) {
            (Some(_), Some(quiet)) => {
                quiet.lines.fetch_add(newlines as u64, Ordering::Relaxed);
            }
            (Some((lines, lane)), None) if !shown.is_empty() => {
                lane.push(shown, lines.emitted - before);
            }
            _ => {}
        }
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).append(self.stream, buffer);
        if let Some(backlog) = &self.backlog {
            backlog.push(self.owner, self.stream, buffer, newlines);
        }
        if self.shares_file {
            let whole = memrchr(b'\n', buffer).map_or(0, |end| end + 1);
            let (lines, rest) = buffer.split_at_checked(whole).unwrap_or((buffer, &[]));
            let mut ready = std::mem::take(carry);
            if lines.is_empty() && ready.len() < SHARED_LINE {
                *carry = ready;
            } else {
                ready.extend_from_slice(lines);
                self.push_file(&mut ready);
            }
            carry.extend_from_slice(rest);
            buffer.clear();
        } else {
            self.push_file(buffer);
        }
    }

    fn idle(&mut self, shown: &mut Vec<u8>, carry: &mut Vec<u8>) {
        if let Some((lines, lane)) = &mut self.console {
            let before = lines.emitted;
            lines.tick(Instant::now(), shown);
            if !shown.is_empty() {
                lane.push(shown, lines.emitted - before);
            }
        }
        self.push_file(carry);
    }

    fn push_file(&self, bytes: &mut Vec<u8>) {
        if let (Some(file), false) = (&self.file, bytes.is_empty()) {
            file.push(bytes);
        }
        bytes.clear();
    }
}

#[derive(Debug, Clone, Copy)]
struct Ready {
    pipe: bool,
    stop: bool,
    /// Nothing has come for [`QUIET`].
    quiet: bool,
}
