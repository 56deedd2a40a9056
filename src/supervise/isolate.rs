//! Runs work that may get stuck in the kernel in a process of its own.
//!
//! No signal ends a thread that waits in a dead mount or a driver (state D), and a process with
//! such a thread does not end either; its parent would wait as long as the mount is dead. So the
//! work is done in a child that sends its exit code as soon as it is known. Takes the work;
//! gives its exit code, even if the child never ends.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, WaitStatus};

use crate::ends::take_over;
use linux::signal;
use linux::sys::{self, Fork, Pid, Signal};
use verdict::Verdict;
use verdict::outcome::End;

/// Time limit for the child to end after it has sent its exit code.
const LEAVE: Duration = Duration::from_secs(1);

/// The exit code of `work`, as soon as it is known. Call before any thread exists.
///
/// The child dies with this process. If no process can be created, the work is done here.
pub fn isolate(work: impl FnOnce() -> i32) -> i32 {
    let Ok((mut verdict, mut said)) = io::pipe() else { return work() };
    let parent = rustix::process::getpid();
    match Fork::single_threaded() {
        Err(_) => work(),
        Ok(Fork::Child) => {
            drop(verdict);
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            if rustix::process::getppid() != Some(parent) {
                // The parent died before the death signal was set.
                sys::exit_now(End::Signal(9).shell_code());
            }
            let code = work();
            detach_stdio();
            let _ = said.write_all(&code.to_le_bytes());
            sys::exit_now(code)
        }
        Ok(Fork::Parent { child }) => {
            drop(said);
            let mut bytes = [0u8; 4];
            match verdict.read_exact(&mut bytes) {
                Ok(()) => {
                    let _ = ended(child, Some(Instant::now() + LEAVE));
                    i32::from_le_bytes(bytes)
                }
                // The child died without an exit code.
                Err(_) => match ended(child, None).and_then(End::from_wait) {
                    Some(end) => take_over(end),
                    None => Verdict::Internal.code(),
                },
            }
        }
    }
}

/// Closes the standard streams: a process that cannot end would keep a pipe open, and its reader
/// would wait. The console's writer threads have copies of their own, which close when these
/// threads end.
pub(crate) fn detach_stdio() {
    let _ = io::stdout().flush();
    // A pipe in place of /dev/null, which a bare root does not have.
    let Ok((nothing, nowhere)) = io::pipe() else { return };
    sys::replace_copies(&[io::stdout().as_fd(), io::stderr().as_fd()], nowhere.as_fd());
    let _ = rustix::stdio::dup2_stdin(nothing.as_fd());
    let _ = rustix::stdio::dup2_stdout(nowhere.as_fd());
    let _ = rustix::stdio::dup2_stderr(nowhere.as_fd());
}

/// The end of the child; None if it has not ended by the deadline.
fn ended(child: i32, deadline: Option<Instant>) -> Option<WaitStatus> {
    let pid = Pid::from_raw(child);
    // The child is not reaped yet, so its pid is not reused.
    let handle = pid.and_then(|pid| signal::handle(pid).ok().flatten());
    let mut options = WaitOptions::empty();
    options.set(WaitOptions::NOHANG, deadline.is_some());
    loop {
        match rustix::process::waitpid(pid, options) {
            Ok(Some((_, status))) => return Some(status),
            Err(rustix::io::Errno::INTR) => {}
            Ok(None) => {
                let left = deadline?.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                signal::wait_for_end(handle.as_ref(), left);
            }
            Err(_) => return None,
        }
    }
}
