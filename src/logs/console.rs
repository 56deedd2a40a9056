//! The only writer of our own standard output and standard error.
//!
//! Owns two sinks with a thread each. Takes our own text and finished lines of the ranks. Writes whole lines: our own
//! first, then the streams in turn. A blocked sink does not block the other sink, and blocks a producer for no longer
//! than its [`StallBudget`](super::queue::StallBudget) allows: buffers are bounded, and lines that do not fit
//! are dropped, counted and reported at the gap.
//!
//! Starts threads, so it must be created after the last fork without exec.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::sink::{Lane, Sink};
use super::waiting::ConsoleAccount;
use linux::terminal::{Look, Screen, can_draw};
use text::escape::printable;
use text::lang::{Lang, Text};
use text::style::{Color, Style, paint};
use verdict::outcome::Stream;

/// A handle to the one console writer; cheap to clone.
#[derive(Debug, Clone)]
pub struct Console {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    out: Side,
    err: Side,
    lang: Lang,
    /// The terminal has a status line as its last line, below which nothing else is written.
    has_status: bool,
}

/// One descriptor.
#[derive(Debug)]
struct Side {
    sink: Arc<Sink>,
    screen: Screen,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for side in [&self.out, &self.err] {
            side.sink.close();
        }
    }
}

impl Console {
    /// A console over any two descriptors, which may be the same open file. If no thread can be started it is silent.
    pub fn new(out: OwnedFd, err: OwnedFd, lang: Lang, color: Color) -> Console {
        Console::over(out, err, lang, color).0
    }

    /// A console, and whether it has its threads.
    fn over(out: OwnedFd, err: OwnedFd, lang: Lang, color: Color) -> (Console, io::Result<()>) {
        let (out_screen, err_screen) = (Screen::of(&out, color), Screen::of(&err, color));
        // With `2>&1` into a pipe, two writers would split each other's lines when the pipe is full. So one thread
        // serves both.
        let same = same_file(&out, &err);
        let has_status =
            err_screen.is_terminal() && (same || !out_screen.is_terminal()) && can_draw();
        let (out, started) = Sink::start(out, lang);
        let (err, err_started) =
            if same { (Arc::clone(&out), Ok(())) } else { Sink::start(err, lang) };
        let out = Side { sink: out, screen: out_screen };
        let inner = Inner { out, err: Side { sink: err, screen: err_screen }, lang, has_status };
        (Console { inner: Arc::new(inner) }, started.and(err_started))
    }

    /// The console over copies of descriptors 1 and 2. Output to a closed descriptor is discarded.
    ///
    /// # Errors
    /// No thread can be started, so the console would say nothing.
    pub fn standard(lang: Lang, color: Color) -> io::Result<Console> {
        let copy = |fd: std::os::fd::BorrowedFd<'_>| {
            fd.try_clone_to_owned().or_else(|_| File::create("/dev/null").map(OwnedFd::from))
        };
        match (copy(io::stdout().as_fd()), copy(io::stderr().as_fd())) {
            (Ok(out), Ok(err)) => {
                let (console, started) = Console::over(out, err, lang, color);
                started.map(|()| console)
            }
            _ => {
                let dead = || Side { sink: Sink::dead(), screen: Screen::none() };
                let inner = Inner { out: dead(), err: dead(), lang, has_status: false };
                Ok(Console { inner: Arc::new(inner) })
            }
        }
    }

    pub fn lang(&self) -> Lang {
        self.inner.lang
    }

    /// Queues our own text, as whole lines, for standard error, ahead of every rank. Never waits; text beyond a backlog
    /// of 256 KiB is dropped and counted. Control characters in quoted text are escaped.
    pub fn say(&self, text: &str) {
        let look = self.inner.err.screen.look();
        self.inner.err.sink.say(&look.shown(&printable(text)));
    }

    /// The appearance of our own text: its colours and the columns of the terminal.
    pub fn look(&self) -> Look {
        self.inner.err.screen.look()
    }

    /// Whether the terminal has a last line that shows the current state of the job.
    pub fn has_status(&self) -> bool {
        self.inner.has_status
    }

    /// Sets the status line; None removes it. Never waits.
    pub fn status(&self, text: Option<&str>) {
        if self.inner.has_status {
            let text = text.map(|text| printable(text).replace('\n', " "));
            self.inner.err.sink.status(text.as_deref(), self.inner.err.screen.colour);
        }
    }

    fn side(&self, stream: Stream) -> &Side {
        match stream {
            Stream::Out => &self.inner.out,
            Stream::Err => &self.inner.err,
        }
    }

    /// Whether the lines of a stream get colours.
    pub(super) fn has_colour(&self, stream: Stream) -> bool {
        self.side(stream).screen.colour
    }

    /// Writes one line of our own while the job runs.
    pub fn report(&self, text: &Text) {
        let name = paint(Style::Dim, "ranklaunch:");
        self.say(&format!("{name} {}", text.get(self.inner.lang)));
    }

    /// Waits until everything queued is written; false if the deadline passes first. Both sinks share the deadline.
    pub fn flush(&self, deadline: Duration) -> bool {
        let until = Instant::now().checked_add(deadline);
        [&self.inner.err, &self.inner.out].into_iter().fold(true, |done, side| {
            let left = until.map_or(deadline, |at| at.saturating_duration_since(Instant::now()));
            side.sink.flush(left) && done
        })
    }

    /// [`flush`](Self::flush), after which the console's time is over: the lines of ranks that it has not taken by then
    /// are dropped and counted.
    pub fn show_out(&self, deadline: Duration) {
        if !self.flush(deadline) {
            for side in [&self.inner.err, &self.inner.out] {
                side.sink.drop_lines();
            }
        }
    }

    /// A lane for the finished lines of one stream; `account` counts them.
    pub(super) fn lane(&self, stream: Stream, prefix: &str, account: Arc<ConsoleAccount>) -> Lane {
        Lane::open(Arc::clone(&self.side(stream).sink), prefix, account)
    }
}

fn same_file(one: &OwnedFd, other: &OwnedFd) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}
