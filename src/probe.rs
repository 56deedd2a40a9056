//! Runs the embedded node-probe and brings back its answer.
//!
//! Takes how it may be executed (file, memfd), its arguments and a deadline;
//! gives the parsed [`Answer`], or a [`ProbeError`] that says what the node did
//! not allow. A driver that hangs costs the deadline, one that crashes costs a
//! message. Must never block on a process that a signal cannot end, and never
//! wait for any process but its own child.

#[path = "node-probe/src/answer.rs"]
mod answer;
mod start;

use std::ffi::OsString;
use std::fmt;
use std::io::{ErrorKind, PipeReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

pub use answer::{
    Answer, CallError, GpuProcess, Health, Instances, MigDevice, NamesAnswer, NvLinks, NvmlAnswer,
    NvmlGpu, PcieLink, ProcessKind, RemappedRows,
};

use crate::lang::Text;
use crate::settings::ProbeMode;
use crate::sys::{Pid, PollFd, PollFlags, Signal, poll};
use crate::text;
use start::Started;

/// The probe's glibc floor, for `--version`.
pub const NOTE: &str = env!("RANKLAUNCH_PROBE_NOTE");

/// The dynamic loader that the probe names.
const LOADER: &str = env!("RANKLAUNCH_PROBE_INTERPRETER");

/// More than 256 GPUs with every call failed; a longer answer is not the probe's.
const LONGEST_ANSWER: usize = 4 << 20;

/// What is kept of the probe's standard error, for the message about a crash.
const KEPT_NOISE: usize = 2048;

/// How long a killed probe may take to be gone before it is left behind.
const KILL_PATIENCE: Duration = Duration::from_millis(250);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeError {
    /// `--probe nvidia-smi` or `off`.
    SwitchedOff,
    /// The probe's dynamic loader is not in this root (Alpine, distroless, scratch).
    NoLoader { loader: String },
    /// No way of executing it worked: each with what the kernel said.
    NotStarted { attempts: Vec<(String, String)> },
    /// No answer by the deadline. `gone` is false when even SIGKILL did not end it.
    TimedOut { after: Duration, gone: bool },
    /// A signal that we did not send.
    Crashed { signal: i32, noise: String },
    /// It ended without an answer.
    Silent { code: i32, noise: String },
    /// Its answer is not what the probe writes.
    Garbled { why: String },
}

impl ProbeError {
    pub fn text(&self) -> Text {
        match self {
            ProbeError::SwitchedOff => {
                text!("the probe is switched off by --probe", "探针已被 --probe 关闭")
            }
            ProbeError::NoLoader { loader } => text!(
                "this root has no glibc loader ({loader})",
                "此根文件系统中没有 glibc 加载器（{loader}）"
            ),
            ProbeError::NotStarted { attempts } => {
                let attempts: Vec<String> =
                    attempts.iter().map(|(way, error)| format!("{way}: {error}")).collect();
                let attempts = attempts.join("; ");
                text!("the probe could not be executed: {attempts}", "无法执行探针：{attempts}")
            }
            ProbeError::TimedOut { after, gone: true } => {
                text!("no answer within {after:?}; killed", "在 {after:?} 内没有应答，已被终止")
            }
            ProbeError::TimedOut { after, gone: false } => text!(
                "no answer within {after:?}, and SIGKILL does not end it: \
                 it is stuck in the driver",
                "在 {after:?} 内没有应答，且 SIGKILL 无法结束它：它卡在驱动程序中"
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
/// Blocks the calling thread, which must live until this returns: the probe dies
/// with the thread that started it.
///
/// # Errors
///
/// See [`ProbeError`]; none of them is a statement about GPUs.
pub fn run(mode: ProbeMode, args: &[&str], timeout: Duration) -> Result<Answer, ProbeError> {
    let ways = start::ways(mode);
    if ways.is_empty() {
        return Err(ProbeError::SwitchedOff);
    }
    // Without this test a missing loader looks like a missing probe: exec says
    // "no such file" for both.
    if !Path::new(LOADER).exists() {
        return Err(ProbeError::NoLoader { loader: LOADER.to_owned() });
    }
    let deadline = Instant::now() + timeout;
    let mut attempts = Vec::new();
    for way in ways {
        match start::start(&way, args) {
            Ok(started) => return wait(started, timeout, deadline, is_answer)?.answer(),
            Err(error) => attempts.push((way.to_string(), error.to_string())),
        }
    }
    Err(ProbeError::NotStarted { attempts })
}

/// Runs another program under the same care, with `env` beside our own environment: what it printed on its standard
/// output, if it ended with 0 by the deadline.
///
/// # Errors
///
/// As [`run`]; `Silent` also when it printed something and failed.
pub fn run_tool(
    program: &Path,
    args: &[&str],
    env: &[(OsString, OsString)],
    timeout: Duration,
) -> Result<Vec<u8>, ProbeError> {
    let deadline = Instant::now() + timeout;
    let started =
        start::start_tool(program, args, env).map_err(|error| ProbeError::NotStarted {
            attempts: vec![(program.display().to_string(), error.to_string())],
        })?;
    let ended = wait(started, timeout, deadline, |_| false)?;
    if ended.succeeded() { Ok(ended.answer) } else { Err(ended.failure()) }
}

/// Whether these bytes are all that the probe has to say.
fn is_answer(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Answer>(bytes).is_ok()
}

/// How it ended and what it left in the pipes.
struct Ended {
    /// None when it gave its whole answer and stayed: a thread of it is stuck in the driver.
    status: Option<ExitStatus>,
    answer: Vec<u8>,
    noise: Vec<u8>,
}

impl Ended {
    fn succeeded(&self) -> bool {
        self.status.is_none_or(|status| status.success())
    }

    fn answer(self) -> Result<Answer, ProbeError> {
        // A whole answer counts even if the library crashed on the way out.
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

/// `is_whole` says of bytes after which the pipe was closed that nothing more is
/// missing; the process is then not waited for to the deadline.
fn wait(
    mut started: Started,
    timeout: Duration,
    mut deadline: Instant,
    is_whole: fn(&[u8]) -> bool,
) -> Result<Ended, ProbeError> {
    let mut whole = false;
    let mut answer = Collected::new(LONGEST_ANSWER);
    let mut noise = Collected::new(KEPT_NOISE);
    // ENOSYS before Linux 5.3: then the pipes' ends say that it is over.
    let pid = i32::try_from(started.child.id()).ok().and_then(Pid::from_raw);
    let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    loop {
        if let Ok(Some(status)) = started.child.try_wait() {
            answer.take(&mut started.answer);
            noise.take(&mut started.noise);
            let status = Some(status);
            return Ok(Ended { status, answer: answer.bytes, noise: noise.bytes });
        }
        if answer.ended && !whole && is_whole(&answer.bytes) {
            whole = true;
            deadline = deadline.min(Instant::now() + KILL_PATIENCE);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let mut polled = Vec::with_capacity(3);
        if !answer.ended {
            polled.push(PollFd::new(&started.answer, PollFlags::IN));
        }
        if !noise.ended {
            polled.push(PollFd::new(&started.noise, PollFlags::IN));
        }
        let left = match &pidfd {
            Some(pidfd) => {
                polled.push(PollFd::new(pidfd, PollFlags::IN));
                left
            }
            // Nothing will wake us when it ends, once both pipes are closed.
            None => left.min(Duration::from_millis(1)),
        };
        // An interrupted or failed poll only means another look.
        let _ = poll(&mut polled, Some(left));
        answer.take(&mut started.answer);
        noise.take(&mut started.noise);
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

/// Whether a killed child is gone within [`KILL_PATIENCE`]. One that is not is
/// stuck in the kernel; it is left to whoever reaps orphans.
fn gone(child: &mut Child, pidfd: Option<&std::os::fd::OwnedFd>) -> bool {
    let deadline = Instant::now() + KILL_PATIENCE;
    loop {
        if matches!(child.try_wait(), Ok(Some(_))) {
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

/// What was read from a pipe that must be emptied, however much comes.
struct Collected {
    bytes: Vec<u8>,
    most: usize,
    ended: bool,
}

impl Collected {
    fn new(most: usize) -> Collected {
        Collected { bytes: Vec::new(), most, ended: false }
    }

    /// Reads what is there now; the pipe does not block.
    fn take(&mut self, pipe: &mut PipeReader) {
        let mut chunk = [0; 4096];
        // A library that never stops printing must not keep us from the deadline.
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
