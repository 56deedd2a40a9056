//! The only writer of our own standard output and standard error.
//!
//! Owns two sinks with a thread each. Takes our own text and finished lines of the ranks; writes
//! whole lines, our own first, the streams in turn. A blocked sink blocks neither the other sink
//! nor, beyond its [`StallBudget`](super::stall_budget::StallBudget), a producer: buffers are
//! bounded, and lines that do not fit are dropped, counted and reported at the gap.
//!
//! Starts threads, so it must be created after the last fork without exec.

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
pub(crate) struct Console {
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
    pub(crate) fn new(out: OwnedFd, err: OwnedFd, lang: Lang) -> Console {
        // With `2>&1` into a pipe two writers would split each other's lines when the pipe is
        // full, so one thread serves both.
        let same = same_file(&out, &err);
        let out = Sink::start(out, lang);
        let err = if same { Arc::clone(&out) } else { Sink::start(err, lang) };
        Console { inner: Arc::new(Inner { out, err, lang }) }
    }

    /// The console over copies of descriptors 1 and 2. Output to a closed one is discarded.
    pub(crate) fn standard(lang: Lang) -> Console {
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

    pub(crate) fn lang(&self) -> Lang {
        self.inner.lang
    }

    /// Queues our own text, as whole lines, for standard error, ahead of every rank. Never
    /// waits; beyond a backlog of 256 KiB the text is dropped and counted. Control characters in
    /// quoted text are escaped.
    pub(crate) fn say(&self, text: &str) {
        self.inner.err.say(&printable(text));
    }

    /// One line of our own while the job runs.
    pub(crate) fn report(&self, text: &Text) {
        self.say(&format!("ranklaunch: {}", text.get(self.inner.lang)));
    }

    /// Waits until everything queued is written; false if the deadline passes before. Both sinks
    /// share the deadline.
    pub(crate) fn flush(&self, deadline: Duration) -> bool {
        let until = Instant::now().checked_add(deadline);
        [&self.inner.err, &self.inner.out].into_iter().fold(true, |done, sink| {
            let left = until.map_or(deadline, |at| at.saturating_duration_since(Instant::now()));
            sink.flush(left) && done
        })
    }

    /// A lane for the finished lines of one stream; `lost` counts its dropped lines.
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
