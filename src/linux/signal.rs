//! Sends a signal to exactly one process, even if its pid may be reused.
//!
//! The process is identified by pid and start time. A handle (pidfd) pins the process that has
//! the pid, and the start time is read again after it was opened. If the kernel refuses handles,
//! kill(2) directly after that check is the best possible.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};

use crate::procfs::Process;
use crate::sys::{Pid, PollFd, PollFlags, Signal, poll};

/// A handle of the process; None if handles are not available: ENOSYS before Linux 5.3, EPERM
/// under older seccomp profiles and in gVisor, EMFILE without free descriptors.
///
/// # Errors
/// ESRCH: there is no such process.
pub fn handle(pid: Pid) -> Result<Option<OwnedFd>, Errno> {
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => Ok(Some(handle)),
        Err(Errno::SRCH) => Err(Errno::SRCH),
        Err(_) => Ok(None),
    }
}

/// Polling interval for a process without a handle.
const BLIND: Duration = Duration::from_millis(1);

/// Waits until the process behind `handle` has ended, at most `timeout`. Without a handle it
/// returns after a moment, so that the caller polls.
pub fn wait_for_end(handle: Option<&OwnedFd>, timeout: Duration) {
    match handle {
        Some(handle) => drop(poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(timeout))),
        None => std::thread::sleep(timeout.min(BLIND)),
    }
}

/// Sends `signal` to the process that has had `pid` since `start_ticks`. `handle` was opened
/// before; `proc` is the mount point of procfs.
///
/// # Errors
/// ESRCH: it has ended; EPERM: we may not signal it.
pub fn send(
    proc: &Path,
    (pid, start_ticks): (Pid, u64),
    handle: Option<&OwnedFd>,
    signal: Signal,
) -> Result<(), Errno> {
    let same = || {
        let now = Process::at(proc, pid.as_raw_pid());
        now.filter(|now| now.start_ticks == start_ticks).ok_or(Errno::SRCH)
    };
    same()?;
    if let Some(handle) = handle {
        match pidfd_send_signal(handle, signal) {
            Ok(()) => return Ok(()),
            Err(Errno::SRCH) => return Err(Errno::SRCH),
            // A seccomp profile may allow one call and refuse the other.
            Err(_) => same()?,
        };
    }
    kill_process(pid, signal)
}
