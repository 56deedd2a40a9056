//! The probe that stays alive: says which critical Xids the driver tells of, and what the GPUs do
//! when it is asked.

use std::io::{self, ErrorKind, PipeReader, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Child;

use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

use super::answer::WatchLine;
use super::{Answers, Collected, KEPT_NOISE, KILL_TIMEOUT, ProbeError, started};
use linux::sys::{Pid, PollFd, PollFlags, Signal, poll};
use settings::ProbeMode;

/// Bytes of a line: some hundred, and a kilobyte for each GPU where it was asked for them.
const LONGEST_LINE: usize = 1 << 20;

/// A running probe. Belongs to the thread that started it, with which it dies.
#[derive(Debug)]
pub struct WatchProbe {
    child: Child,
    /// None before Linux 5.3.
    pidfd: Option<OwnedFd>,
    lines: UnixStream,
    noise: PipeReader,
    kept: Collected,
    /// It writes no more lines.
    ended: bool,
}

/// Why [`WatchProbe::wait`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    Readable,
    Stopped,
}

/// What the probe writes, for any thread.
#[derive(Debug)]
pub struct WatchLines {
    socket: UnixStream,
    rest: Vec<u8>,
    /// Nothing more will come.
    pub ended: bool,
}

impl WatchProbe {
    /// Starts it for these GPUs (`0000:18:00.0`). `library`: the driver's, if the user names it.
    ///
    /// # Errors
    /// As [`super::run`], where it cannot be executed.
    pub fn start(
        mode: ProbeMode,
        library: Option<&str>,
        gpus: &[String],
    ) -> Result<(WatchProbe, WatchLines), ProbeError> {
        let mut args = vec!["watch", library.unwrap_or_default()];
        args.extend(gpus.iter().map(String::as_str));
        let started = started(mode, &args, Answers::Socket)?;
        let pid = i32::try_from(started.child.id()).ok().and_then(Pid::from_raw);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let (child, noise) = (started.child, started.noise);
        let failed = |error: io::Error| ProbeError::NotStarted {
            attempts: vec![("socket".to_owned(), error.to_string())],
        };
        let lines = UnixStream::from(started.answer);
        let socket = lines.try_clone().map_err(failed)?;
        let kept = Collected::new(KEPT_NOISE);
        let probe = WatchProbe { child, pidfd, lines, noise, kept, ended: false };
        Ok((probe, WatchLines { socket, rest: Vec::new(), ended: false }))
    }

    pub fn pid(&self) -> Option<i32> {
        i32::try_from(self.child.id()).ok()
    }

    /// Waits until there is something to read, or `stop` has no writer any more.
    pub fn wait(&mut self, stop: &PipeReader) -> Waited {
        loop {
            let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
            if !self.ended {
                polled.push(PollFd::new(&self.lines, PollFlags::IN));
            }
            if !self.kept.ended {
                polled.push(PollFd::new(&self.noise, PollFlags::IN));
            }
            match poll(&mut polled, None) {
                Err(Errno::INTR) => continue,
                Err(_) => return Waited::Stopped,
                Ok(_) => {}
            }
            let mut ready = polled.iter().map(|polled| !polled.revents().is_empty());
            let mut is_ready = |polled: bool| polled && ready.next().unwrap_or_default();
            let stopped = is_ready(true);
            let (readable, noisy) = (is_ready(!self.ended), is_ready(!self.kept.ended));
            // A full pipe would hold a driver library that prints.
            if noisy {
                self.kept.take(&mut self.noise);
            }
            match (stopped, readable) {
                (true, _) => return Waited::Stopped,
                (_, true) => return Waited::Readable,
                _ => {}
            }
        }
    }

    /// Kills it. One that does not end within a moment is stuck in the driver, and is left to the
    /// reaper of orphans. Without a pidfd the closed socket ends it: who supervises the ranks reaps
    /// our children, and its pid may be another process by now.
    pub fn end(mut self) {
        let Some(pidfd) = &self.pidfd else { return };
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
        let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(KILL_TIMEOUT));
        // An error: it was reaped with the ranks.
        let _ = self.child.try_wait();
    }

    /// Reads no more lines, only what it prints. Who supervises the ranks may reap it; so nothing
    /// else does before the end.
    pub fn read_out(&mut self) {
        self.ended = true;
    }

    /// What it printed beside its lines, as a driver library does before it crashes.
    pub fn noise(&self) -> String {
        String::from_utf8_lossy(&self.kept.bytes).trim().to_owned()
    }
}

impl WatchLines {
    #[cfg(any(test, feature = "fixtures"))]
    pub fn of(socket: UnixStream) -> WatchLines {
        socket.set_nonblocking(true).expect("a socket that does not block");
        WatchLines { socket, rest: Vec::new(), ended: false }
    }

    /// Asks what the GPUs do now, which a [`WatchLine::Gpus`] answers. False: nobody is there to answer.
    pub fn ask(&mut self) -> bool {
        loop {
            match self.socket.write(b"?") {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                asked => return asked.is_ok_and(|bytes| bytes > 0),
            }
        }
    }

    /// The lines that are there; never waits.
    pub fn take(&mut self) -> Vec<WatchLine> {
        let mut lines = Vec::new();
        let mut chunk = [0; 4096];
        // Bounded, since who asks for the lines must not wait for a probe that never stops.
        for _ in 0..64 {
            match self.socket.read(&mut chunk) {
                Ok(0) => self.ended = true,
                Ok(count) => self.rest.extend(chunk.iter().take(count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.ended = true,
            }
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                lines.extend(serde_json::from_slice::<WatchLine>(&line));
            }
            // No line of the probe.
            self.ended |= self.rest.len() > LONGEST_LINE;
            if self.ended {
                break;
            }
        }
        lines
    }
}
