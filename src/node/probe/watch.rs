//! The probe that stays alive: reports the critical Xids of the driver, and the state of the GPUs on request.

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

/// Maximum bytes of a line. A line has some hundred bytes, or a kilobyte for each GPU in the answer to a request.
const LONGEST_LINE: usize = 1 << 20;

/// A running probe. It belongs to the thread that started it, and dies with that thread.
#[derive(Debug)]
pub struct WatchProbe {
    child: Child,
    /// The pidfd of the probe; None before Linux 5.3.
    pidfd: Option<OwnedFd>,
    lines: UnixStream,
    noise: PipeReader,
    kept: Collected,
    /// The probe writes no more lines.
    ended: bool,
}

/// The reason why [`WatchProbe::wait`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    Readable,
    Stopped,
}

/// The lines of the probe, for any thread.
#[derive(Debug)]
pub struct WatchLines {
    socket: UnixStream,
    rest: Vec<u8>,
    /// No more lines will come.
    pub ended: bool,
}

impl WatchProbe {
    /// Starts the probe for these GPUs (`0000:18:00.0`). `library`: the driver's library, if the user names it.
    ///
    /// # Errors
    /// As [`super::run`], if the probe cannot be executed.
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

    /// Waits until there is something to read, or `stop` has no more writer.
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
            // A full pipe would block a driver library that prints.
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

    /// Kills the probe. A probe that does not end within a moment is stuck in the driver, and is left to the reaper of
    /// orphans. Without a pidfd the closed socket ends the probe: the supervisor of the ranks reaps our children, so
    /// the probe's pid may belong to another process by now.
    pub fn end(mut self) {
        let Some(pidfd) = &self.pidfd else { return };
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
        let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(KILL_TIMEOUT));
        // An error means that the probe was reaped with the ranks.
        let _ = self.child.try_wait();
    }

    /// Stops reading lines, and reads only the probe's other output. The supervisor of the ranks may reap the probe, so
    /// nobody else does so before the end.
    pub fn read_out(&mut self) {
        self.ended = true;
    }

    /// The probe's output beside its lines, such as that of a driver library before it crashes.
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

    /// Requests the current state of the GPUs, which a [`WatchLine::Gpus`] answers. False: no probe is there to answer.
    pub fn ask(&mut self) -> bool {
        loop {
            match self.socket.write(b"?") {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                asked => return asked.is_ok_and(|bytes| bytes > 0),
            }
        }
    }

    /// The available lines; never waits.
    pub fn take(&mut self) -> Vec<WatchLine> {
        let mut lines = Vec::new();
        let mut chunk = [0; 4096];
        // The loop is bounded, since the caller must not wait for a probe that never stops.
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
            // A longer line does not come from the probe.
            self.ended |= self.rest.len() > LONGEST_LINE;
            if self.ended {
                break;
            }
        }
        lines
    }
}
