//! Ends a process that this program has started, at once or after a while.

use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, waitpid};

use linux::procfs;
use linux::sys::{Pid, Signal};

/// Time limit for a process to end after SIGKILL. A process that waits for a dead mount takes
/// longer.
const ENDS: Duration = Duration::from_millis(250);

/// Kills the process if it has not ended by itself within this time.
pub(super) fn kill_after(process: &procfs::Process, within: Duration) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(handle) = linux::signal::handle(pid) else { return };
    match &handle {
        Some(_) => linux::signal::wait_for_end(handle.as_ref(), within),
        None => std::thread::sleep(within),
    }
    kill(process);
}

/// Sends SIGKILL and waits a moment for the end.
pub(super) fn kill(process: &procfs::Process) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(handle) = linux::signal::handle(pid) else { return };
    let one = (pid, process.start_ticks);
    let sent = linux::signal::send("/proc".as_ref(), one, handle.as_ref(), Signal::KILL);
    let until = Instant::now() + ENDS;
    while sent.is_ok() && Instant::now() < until {
        // A supervising process may have taken its status already.
        if !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)) {
            return;
        }
        let left = until.saturating_duration_since(Instant::now());
        linux::signal::wait_for_end(handle.as_ref(), left);
    }
}
