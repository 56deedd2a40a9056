//! A process of its own for work that may get stuck in the kernel.
//!
//! No signal ends a thread that waits in a dead mount or a driver (state D), and a
//! process with such a thread does not end either: its parent would wait for it as
//! long as the mount is dead. So the work is done in a child that says its verdict
//! when it has one, and whoever started us gets that verdict whatever becomes of
//! the child. Takes the work; gives its exit code.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, WaitStatus};

use super::outcome::End;
use crate::signal;
use crate::sys::{self, Fork, Pid, Signal};
use crate::verdict::Verdict;

/// How long a child that has said its verdict may take to be gone.
const LEAVE: Duration = Duration::from_secs(1);

/// The exit code of `work`, as soon as it is known. Call before any thread exists.
///
/// The child dies with this process. Where no process can be made, the work is done here.
pub fn isolate(work: impl FnOnce() -> i32) -> i32 {
    let Ok((mut verdict, mut said)) = io::pipe() else { return work() };
    let parent = rustix::process::getpid();
    match sys::fork_single_threaded() {
        Err(_) => work(),
        Ok(Fork::Child) => {
            drop(verdict);
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            if rustix::process::getppid() != Some(parent) {
                // It died before the signal was asked for.
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
                // It died without one.
                Err(_) => match ended(child, None).and_then(End::from_wait) {
                    Some(End::Signal(signal)) => {
                        sys::die_by(signal);
                        End::Signal(signal).shell_code()
                    }
                    Some(End::Code(code)) => code,
                    None => Verdict::Internal.code(),
                },
            }
        }
    }
}

/// Lets the standard streams go: a process that cannot end would hold a pipe open,
/// and its reader would wait for it. The console's writers have copies of their own,
/// and how soon these threads end is not known.
pub fn detach_stdio() {
    let _ = io::stdout().flush();
    // A pipe that ends nowhere, since a bare root has no /dev/null.
    let Ok((nothing, nowhere)) = io::pipe() else { return };
    sys::replace_copies(&[io::stdout().as_fd(), io::stderr().as_fd()], nowhere.as_fd());
    let _ = rustix::stdio::dup2_stdin(nothing.as_fd());
    let _ = rustix::stdio::dup2_stdout(nowhere.as_fd());
    let _ = rustix::stdio::dup2_stderr(nowhere.as_fd());
}

/// How the child ended; None when it has not by the deadline.
fn ended(child: i32, deadline: Option<Instant>) -> Option<WaitStatus> {
    let pid = Pid::from_raw(child);
    // The child is not reaped yet: its pid is its own.
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
