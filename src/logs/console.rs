//! The one writer of our own standard output and standard error.
//!
//! Owns two sinks with a thread each. Takes our own text and finished lines of
//! the ranks; gives whole lines, our own first, the streams in turn. A sink that
//! stops taking holds back neither the other sink nor, beyond its
//! [`StallBudget`](super::stall_budget::StallBudget), a producer: buffers are bounded, what
//! does not fit is dropped and counted, and the count is said where the gap is.
//!
//! Starts threads: to be made after the last fork without exec.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use super::escape::printable;
use super::sink::{Lane, Sink};
use crate::lang::{Lang, Text};
use crate::supervise::Stream;

/// A handle to the one console writer; cheap to clone.
#[derive(Debug, Clone)]
pub struct Console {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    out: Arc<Sink>,
    err: Arc<Sink>,
    lang: Lang,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for sink in [&self.out, &self.err] {
            sink.close();
        }
    }
}

impl Console {
    /// A console over any two descriptors, which may be the same open file.
    pub fn new(out: OwnedFd, err: OwnedFd, lang: Lang) -> Console {
        // `2>&1` into a pipe: two writers would cut each other's lines wherever
        // the pipe fills, so one thread then serves both.
        let same = same_file(&out, &err);
        let out = Sink::start(out, lang);
        let err = if same { Arc::clone(&out) } else { Sink::start(err, lang) };
        Console { inner: Arc::new(Inner { out, err, lang }) }
    }

    /// The console over copies of descriptors 1 and 2. One that is closed swallows what it is given.
    pub fn standard(lang: Lang) -> Console {
        let copy = |fd: std::os::fd::BorrowedFd<'_>| {
            fd.try_clone_to_owned().or_else(|_| File::create("/dev/null").map(OwnedFd::from))
        };
        match (copy(std::io::stdout().as_fd()), copy(std::io::stderr().as_fd())) {
            (Ok(out), Ok(err)) => Console::new(out, err, lang),
            _ => {
                let dead = || Arc::new(Sink::new(true));
                Console { inner: Arc::new(Inner { out: dead(), err: dead(), lang }) }
            }
        }
    }

    pub fn lang(&self) -> Lang {
        self.inner.lang
    }

    /// Queues our own text, as whole lines, for standard error, ahead of every
    /// rank. Never waits; beyond 256 KiB of backlog it is dropped and counted.
    /// What it quotes from others is made fit for a terminal.
    pub fn say(&self, text: &str) {
        self.inner.err.say(&printable(text));
    }

    /// One line of our own while the job runs.
    pub fn report(&self, text: &Text) {
        self.say(&format!("ranklaunch: {}", text.get(self.inner.lang)));
    }

    /// Queues our own text for standard output, under the same rules.
    pub fn say_out(&self, text: &str) {
        self.inner.out.say(&printable(text));
    }

    /// Waits until all that was queued is written, or the deadline has passed
    /// (false). Both sinks share the one deadline.
    pub fn flush(&self, deadline: Duration) -> bool {
        let until = Instant::now().checked_add(deadline);
        [&self.inner.err, &self.inner.out].into_iter().fold(true, |done, sink| {
            let left = until.map_or(deadline, |at| at.saturating_duration_since(Instant::now()));
            sink.flush(left) && done
        })
    }

    /// A place for the finished lines of one stream; `lost` counts its dropped lines.
    pub(super) fn lane(&self, sink: Stream, prefix: &str, lost: Arc<AtomicU64>) -> Lane {
        let sink = match sink {
            Stream::Out => Arc::clone(&self.inner.out),
            Stream::Err => Arc::clone(&self.inner.err),
        };
        Lane::open(sink, prefix, lost)
    }
}

fn same_file(one: &OwnedFd, other: &OwnedFd) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}
