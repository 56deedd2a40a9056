//! Runs the embedded node-probe and reads its answer.
//!
//! Takes the allowed ways to execute it (file, memfd), its arguments and a deadline; gives the parsed [`Answer`] or a
//! [`ProbeError`]. A driver that hangs costs the deadline, a driver that crashes costs a message. Must never block on a
//! process that no signal can end, and must wait only for its own child. A probe that watches the driver stays alive
//! until its owner ends it.

#[path = "../node-probe/src/answer.rs"]
mod answer;
mod start;
mod watch;

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{PidfdFlags, kill_process_group, pidfd_open, pidfd_send_signal};

pub use answer::{
    Answer, CallError, GpuProcess, Health, LIBRARIES, NvmlAnswer, NvmlGpu, PcieLink, ProcessKind,
    WatchLine,
};

pub use watch::{Waited, WatchLines, WatchProbe};

use linux::sys::{Pid, PollFd, PollFlags, Signal, poll};
use settings::ProbeMode;
use start::{Answers, Ends, Started};
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
    NoLoader { loader: String },
    /// No way of executing the probe worked; each way with the kernel's error.
    NotStarted { attempts: Vec<(String, String)> },
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
        match self {
            ProbeError::SwitchedOff => {
                text!("the probe is switched off by --probe", "node-probe 已被 --probe 关闭")
            }
            ProbeError::NoLoader { loader } => text!(
                "this root has no glibc loader ({loader})",
                "此根文件系统中没有 glibc 加载器（{loader}）"
            ),
            ProbeError::NotStarted { attempts } => {
                let attempts: Vec<String> =
                    attempts.iter().map(|(way, error)| format!("{way}: {error}")).collect();
                let attempts = attempts.join("; ");
                text!(
                    "the probe could not be executed: {attempts}",
                    "无法执行 node-probe：{attempts}"
                )
            }
            ProbeError::TimedOut { after, gone: true } => {
                text!("no answer within {after:?}; killed", "在 {after:?} 内没有应答，已被终止")
            }
            ProbeError::TimedOut { after, gone: false } => text!(
                "no answer within {after:?}, and SIGKILL does not end it: \
                 it waits in the kernel, for a driver or a file server",
                "在 {after:?} 内没有应答，且 SIGKILL 无法结束它：它卡在内核中，在等待驱动或文件服务器"
            ),
            ProbeError::Crashed { signal, noise } => {
                let noise = shown(noise);
                text!("died of signal {signal}{noise}", "被信号 {signal} 终止{noise}")
            }
            ProbeError::Silent { code, noise } => {
                let noise = shown(noise);
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

impl std::error::Error for ProbeError {}

fn shown(noise: &str) -> String {
    if noise.is_empty() { String::new() } else { format!(": {noise}") }
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
    wait(started(mode, args, Answers::Pipe)?, timeout, deadline, is_answer)?.answer()
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
fn started(mode: ProbeMode, args: &[&str], answers: Answers) -> Result<Started, ProbeError> {
    let ways = start::ways(mode);
    if ways.is_empty() {
        return Err(ProbeError::SwitchedOff);
    }
    // Without this test a missing loader would look like a missing probe: execve gives ENOENT for both.
    if !Path::new(LOADER).exists() {
        return Err(ProbeError::NoLoader { loader: LOADER.to_owned() });
    }
    let mut attempts = Vec::new();
    for way in ways {
        match start::start(&way, args, answers) {
            Ok(started) => return Ok(started),
            Err(error) => attempts.push((way.to_string(), error.to_string())),
        }
    }
    Err(ProbeError::NotStarted { attempts })
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
    answer_of(program, args, env, timeout, Ends::Process)
}

/// Like [`run_tool`] for a shell: at the deadline its commands end as well.
///
/// # Errors
///
/// As [`run_tool`].
pub(crate) fn run_shell(
    shell: &Path,
    args: &[&str],
    env: &[(OsString, OsString)],
    timeout: Duration,
) -> Result<Vec<u8>, ProbeError> {
    answer_of(shell, args, env, timeout, Ends::Group)
}

fn answer_of(
    program: &Path,
    args: &[&str],
    env: &[(OsString, OsString)],
    timeout: Duration,
    ends: Ends,
) -> Result<Vec<u8>, ProbeError> {
    let deadline = Instant::now() + timeout;
    let started =
        start::start_tool(program, args, env, ends).map_err(|error| ProbeError::NotStarted {
            attempts: vec![(program.display().to_string(), error.to_string())],
        })?;
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
    let pid = i32::try_from(started.child.id()).ok().and_then(Pid::from_raw);
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
fn gone(child: &mut Child, pidfd: Option<&std::os::fd::OwnedFd>) -> bool {
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        if ended(child).is_some() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let mut polled = Vec::new();
        let left = match pidfd {
            Some(pidfd) => {
                polled.push(PollFd::new(pidfd, PollFlags::IN));
                left
            }
            None => left.min(Duration::from_millis(1)),
        };
        let _ = poll(&mut polled, Some(left));
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
