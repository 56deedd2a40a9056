//! Runs the embedded node-probe and reads its answer.
//!
//! Takes the allowed ways to execute it (file, memfd), its arguments and a deadline; gives the parsed [`Answer`] or a
//! [`ProbeError`]. A driver that hangs costs the deadline, a driver that crashes costs a message. Must never block on a
//! process that no signal can end, and must wait only for its own child. A probe that watches the driver stays alive
//! until its owner ends it.

#[path = "../node-probe/src/answer.rs"]
mod answer;
mod start;

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, Read, Write as _};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

pub use answer::{
    Answer, CallError, GpuProcess, Health, LIBRARIES, NvmlAnswer, NvmlGpu, PcieLink, ProcessKind,
    WatchLine,
};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, kill_process_group, pidfd_open, pidfd_send_signal};
pub(crate) use start::Ends;
use start::Started;

use linux::signal::wait_for_end;
use linux::sys::{Pid, PollFd, PollFlags, Signal, poll};
use settings::ProbeMode;
use text::lang::Text;
use text::text;

/// Note about the build of the embedded probe: the C library that it needs on the node.
pub const NOTE: &str = env!("RANKLAUNCH_PROBE_NOTE");

/// The dynamic loader that the probe names.
const LOADER: &str = env!("RANKLAUNCH_PROBE_INTERPRETER");

/// Maximum bytes of an answer, more than 256 GPUs with only failed calls need; a longer answer is not the probe's.
const LONGEST_ANSWER: usize = 4 << 20;

/// Bytes of the probe's standard error that are kept for the message about a crash.
const KEPT_NOISE: usize = 2048;

/// Time limit for a killed probe to end before it is abandoned.
const KILL_TIMEOUT: Duration = Duration::from_millis(250);

/// The reason why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeError {
    /// `--probe nvidia-smi` or `off`.
    SwitchedOff,
    /// The probe's dynamic loader does not exist in this root (Alpine, distroless, scratch).
    NoLoader,
    /// No way of executing the probe worked; each way with the kernel's error.
    NotStarted(String),
    /// The probe gave no answer by the deadline. `gone` is false if even SIGKILL did not end it.
    TimedOut { after: Duration, gone: bool },
    /// The probe was killed by a signal that we did not send.
    Crashed { signal: i32, noise: String },
    /// The probe ended without an answer.
    Silent { code: i32, noise: String },
    /// The probe's answer cannot be parsed.
    Garbled { why: String },
}

impl ProbeError {
    pub fn text(&self) -> Text {
        let after_colon = |noise: &str| match noise {
            "" => String::new(),
            noise => format!(": {noise}"),
        };
        match self {
            ProbeError::SwitchedOff => {
                text!("the probe is switched off by --probe", "node-probe 已被 --probe 关闭")
            }
            ProbeError::NoLoader => text!(
                "this root has no glibc loader ({LOADER})",
                "此根文件系统中没有 glibc 加载器（{LOADER}）"
            ),
            ProbeError::NotStarted(attempts) => text!(
                "the probe could not be executed: {attempts}",
                "无法执行 node-probe：{attempts}"
            ),
            ProbeError::TimedOut { after, gone: true } => {
                text!("no answer within {after:?}; killed", "在 {after:?} 内没有应答，已被终止")
            }
            ProbeError::TimedOut { after, gone: false } => text!(
                "no answer within {after:?}, and SIGKILL does not end it: \
                 it waits in the kernel, for a driver or a file server",
                "在 {after:?} 内没有应答，且 SIGKILL 无法结束它：它卡在内核中，在等待驱动或文件服务器"
            ),
            ProbeError::Crashed { signal, noise } => {
                let noise = after_colon(noise);
                text!("died of signal {signal}{noise}", "被信号 {signal} 终止{noise}")
            }
            ProbeError::Silent { code, noise } => {
                let noise = after_colon(noise);
                text!(
                    "ended with code {code} and no answer{noise}",
                    "以退出码 {code} 结束，没有应答{noise}"
                )
            }
            ProbeError::Garbled { why } => {
                text!("the answer cannot be read: {why}", "无法解析应答：{why}")
            }
        }
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text().en)
    }
}

/// Runs the probe once and waits for its answer, at most `timeout`.
///
/// Blocks the calling thread, which must live until this returns: the probe dies with the thread that started it.
///
/// # Errors
///
/// See [`ProbeError`]; no error is a statement about GPUs.
pub fn run(mode: ProbeMode, args: &[&str], timeout: Duration) -> Result<Answer, ProbeError> {
    let deadline = Instant::now() + timeout;
    wait(started(mode, args)?, timeout, deadline, is_answer)?.answer()
}

/// The addresses of a name by the C library of the node.
///
/// # Errors
/// Why there is none, for a message.
pub fn resolve(mode: ProbeMode, name: &str, timeout: Duration) -> Result<Vec<IpAddr>, String> {
    match run(mode, &["resolve", name], timeout).map_err(|error| error.to_string())? {
        Answer::Names(names) if !names.addresses.is_empty() => Ok(names.addresses),
        Answer::Names(names) => Err(names.error.map_or_else(String::new, |(_, words)| words)),
        _ => Err("the probe answered something else".to_owned()),
    }
}

/// Starts the probe in the first way that works.
fn started(mode: ProbeMode, args: &[&str]) -> Result<Started, ProbeError> {
    let ways = start::ways(mode);
    if ways.is_empty() {
        return Err(ProbeError::SwitchedOff);
    }
    // Without this test a missing loader would look like a missing probe: execve gives ENOENT for both.
    if !Path::new(LOADER).exists() {
        return Err(ProbeError::NoLoader);
    }
    let mut attempts = Vec::new();
    for way in ways {
        match start::start(&way, args) {
            Ok(started) => return Ok(started),
            Err(error) => attempts.push(format!("{way}: {error}")),
        }
    }
    Err(ProbeError::NotStarted(attempts.join("; ")))
}

/// Runs another program in the same way, with `env` in addition to our own environment. Gives its standard output if it
/// ended with 0 by the deadline, or if its status went to the supervisor of the ranks.
///
/// # Errors
///
/// As [`run`]; also `Silent` if the program printed something and failed.
pub fn run_tool(
    program: &Path,
    args: &[&str],
    env: &[(OsString, OsString)],
    timeout: Duration,
) -> Result<Vec<u8>, ProbeError> {
    run_program(program, args, env, timeout, Ends::Process)
}

/// [`run_tool`] with the processes that end at the deadline: a shell's commands end with it.
pub(crate) fn run_program(
    program: &Path,
    args: &[&str],
    env: &[(OsString, OsString)],
    timeout: Duration,
    ends: Ends,
) -> Result<Vec<u8>, ProbeError> {
    let deadline = Instant::now() + timeout;
    let started = start::start_tool(program, args, env, ends)
        .map_err(|error| ProbeError::NotStarted(format!("{}: {error}", program.display())))?;
    let ended = wait(started, timeout, deadline, |_| false)?;
    if ended.succeeded() { Ok(ended.answer) } else { Err(ended.failure()) }
}

/// Whether these bytes are the complete answer.
fn is_answer(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Answer>(bytes).is_ok()
}

/// The end of the process, and its output.
struct Ended {
    /// None if the process gave its whole answer but did not end, because a thread is stuck in the driver. Also None if
    /// it ended and the supervisor of the ranks, which waits for every child, took its status.
    status: Option<ExitStatus>,
    answer: Vec<u8>,
    noise: Vec<u8>,
}

impl Ended {
    fn succeeded(&self) -> bool {
        self.status.is_none_or(|status| status.success())
    }

    fn answer(self) -> Result<Answer, ProbeError> {
        // A whole answer counts even if the library crashed while the process ended.
        match serde_json::from_slice::<Answer>(&self.answer) {
            Ok(Answer::Usage(why)) => Err(ProbeError::Garbled { why }),
            Ok(answer) => Ok(answer),
            Err(error) if self.succeeded() => Err(ProbeError::Garbled { why: error.to_string() }),
            Err(_) => Err(self.failure()),
        }
    }

    fn failure(&self) -> ProbeError {
        let noise = String::from_utf8_lossy(&self.noise).trim().to_owned();
        match self.status.and_then(|status| status.signal()) {
            Some(signal) => ProbeError::Crashed { signal, noise },
            None => {
                let code = self.status.and_then(|status| status.code());
                ProbeError::Silent { code: code.unwrap_or(-1), noise }
            }
        }
    }
}

/// Waits for the process. `is_whole` tells whether the output is complete when the pipe is closed; then the wait does
/// not last until the deadline.
fn wait(
    mut started: Started,
    timeout: Duration,
    mut deadline: Instant,
    is_whole: fn(&[u8]) -> bool,
) -> Result<Ended, ProbeError> {
    let mut whole = false;
    let mut source = File::from(started.answer);
    let mut answer = Collected::new(LONGEST_ANSWER);
    let mut noise = Collected::new(KEPT_NOISE);
    // pidfd_open gives ENOSYS before Linux 5.3; then the end of the pipes shows the end of the process.
    let pid = pid_of(&started.child);
    let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    loop {
        if let Some(status) = ended(&mut started.child) {
            answer.take(&mut source);
            noise.take(&mut started.noise);
            return Ok(Ended { status, answer: answer.bytes, noise: noise.bytes });
        }
        if answer.ended && !whole && is_whole(&answer.bytes) {
            whole = true;
            deadline = deadline.min(Instant::now() + KILL_TIMEOUT);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let mut polled = Vec::with_capacity(3);
        if !answer.ended {
            polled.push(PollFd::new(&source, PollFlags::IN));
        }
        if !noise.ended {
            polled.push(PollFd::new(&started.noise, PollFlags::IN));
        }
        let left = match &pidfd {
            Some(pidfd) => {
                polled.push(PollFd::new(pidfd, PollFlags::IN));
                left
            }
            // After both pipes are closed, nothing wakes us when the process ends, so poll.
            None => left.min(Duration::from_millis(1)),
        };
        // After an interrupted or failed poll the loop looks again.
        let _ = poll(&mut polled, Some(left));
        answer.take(&mut source);
        noise.take(&mut started.noise);
    }
    if let (Ends::Group, Some(pid)) = (started.ends, pid) {
        // The process has not been waited for, so its group still belongs to it.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    match &pidfd {
        Some(pidfd) => drop(pidfd_send_signal(pidfd, Signal::KILL)),
        None => drop(started.child.kill()),
    }
    if whole {
        return Ok(Ended { status: None, answer: answer.bytes, noise: noise.bytes });
    }
    Err(ProbeError::TimedOut { after: timeout, gone: gone(&mut started.child, pidfd.as_ref()) })
}

fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

/// None while the child runs; the inner None means that its status was taken elsewhere.
fn ended(child: &mut Child) -> Option<Option<ExitStatus>> {
    match child.try_wait() {
        Ok(Some(status)) => Some(Some(status)),
        Ok(None) => None,
        // The only possible error is ECHILD.
        Err(_no_child) => Some(None),
    }
}

/// Whether a killed child ends within [`KILL_TIMEOUT`]. Otherwise it is stuck in the kernel and left to the reaper of
/// orphans.
fn gone(child: &mut Child, pidfd: Option<&OwnedFd>) -> bool {
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        if ended(child).is_some() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        wait_for_end(pidfd, left);
    }
}

/// The kept output of a pipe that must be emptied, whatever the amount.
#[derive(Debug)]
struct Collected {
    bytes: Vec<u8>,
    most: usize,
    ended: bool,
}

impl Collected {
    fn new(most: usize) -> Collected {
        Collected { bytes: Vec::new(), most, ended: false }
    }

    /// Reads the available bytes; the pipe does not block.
    fn take(&mut self, pipe: &mut impl Read) {
        let mut chunk = [0; 4096];
        // The loop is bounded, since a library that never stops printing must not delay the deadline.
        for _ in 0..64 {
            match pipe.read(&mut chunk) {
                Ok(0) => {
                    self.ended = true;
                    return;
                }
                Ok(count) => {
                    let room = self.most.saturating_sub(self.bytes.len());
                    self.bytes.extend(chunk.iter().take(count.min(room)));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.ended = error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            }
        }
    }
}

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
    /// As [`run`], if the probe cannot be executed.
    pub fn start(
        mode: ProbeMode,
        library: Option<&str>,
        gpus: &[String],
    ) -> Result<(WatchProbe, WatchLines), ProbeError> {
        let mut args = vec!["watch", library.unwrap_or_default()];
        args.extend(gpus.iter().map(String::as_str));
        let started = started(mode, &args)?;
        let pid = pid_of(&started.child);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let (child, noise) = (started.child, started.noise);
        let failed = |error: io::Error| ProbeError::NotStarted(format!("socket: {error}"));
        let lines = UnixStream::from(started.answer);
        let socket = lines.try_clone().map_err(failed)?;
        let kept = Collected::new(KEPT_NOISE);
        let probe = WatchProbe { child, pidfd, lines, noise, kept, ended: false };
        Ok((probe, WatchLines { socket, rest: Vec::new(), ended: false }))
    }

    pub fn pid(&self) -> Option<i32> {
        pid_of(&self.child).map(Pid::as_raw_pid)
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
        wait_for_end(Some(pidfd), KILL_TIMEOUT);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustix::process::WaitOptions;

    use super::*;

    /// The test acts like the supervisor of the ranks, which waits for every child of the agent.
    #[test]
    fn output_counts_although_the_status_was_taken() {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        // Other tests have children as well.
        if !harness::inside::is_own_process(
            output_counts_although_the_status_was_taken,
            "REAPED_CHILD",
        ) {
            return;
        }
        std::thread::spawn(|| {
            loop {
                match rustix::process::wait(WaitOptions::empty()) {
                    Ok(_) => drop(TAKEN.fetch_add(1, Ordering::Relaxed)),
                    Err(_no_child) => std::thread::yield_now(),
                }
            }
        });
        let began = Instant::now();
        while TAKEN.load(Ordering::Relaxed) == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "no status was ever taken");
            let within = Duration::from_secs(30);
            let answer = run_tool(Path::new("/bin/sh"), &["-c", "echo said"], &[], within);
            assert_eq!(answer.expect("an answer"), b"said\n");
        }
    }
}
