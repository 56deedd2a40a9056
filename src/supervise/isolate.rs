//! Work in a process of its own, whose end this process takes over.
//!
//! Work that may get stuck in the kernel ([`isolate`]).
//! No signal ends a thread that waits in a dead mount or a driver (state D), and a process with
//! such a thread does not end either; its parent would wait as long as the mount is dead. So the
//! work is done in a child that sends its exit code as soon as it is known. Takes the work;
//! gives its exit code, even if the child never ends.
//!
//! Work beside children that we inherited from a shell ([`isolate_from_foreign_children`]). A shell that starts a
//! background process and then execs us (`x & exec ranklaunch …`) leaves us its children. We adopt their orphans as well
//! as those of the job, and could not tell a leftover with a cleared environment from them. So the work is done in a
//! child without other children: every orphan below it belongs to the job. This process forwards signals, reaps, and
//! ends as that child ends. PID 1 does not need this, since the kernel ends everything with it.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, WaitStatus};

use super::reaper::children_of_self;
use linux::signal;
use linux::sys::{
    self, Fork, Pid, PollFd, PollFlags, Signal, SignalQueue, SignalSet, Taken, own_pid, poll,
};
use verdict::Verdict;
use verdict::outcome::End;

/// Time limit for the child to end after it has sent its exit code.
const LEAVE: Duration = Duration::from_secs(1);

/// Forks a child that gets the signal `orphaned` if this process is killed.
fn fork_below_us(orphaned: Signal) -> io::Result<Fork> {
    let parent = rustix::process::getpid();
    let fork = Fork::single_threaded()?;
    if let Fork::Child = fork {
        let _ = rustix::process::set_parent_process_death_signal(Some(orphaned));
        if rustix::process::getppid() != Some(parent) {
            // The parent died before the death signal was set.
            sys::exit_now(End::Signal(orphaned.as_raw()).shell_code());
        }
    }
    Ok(fork)
}

/// Ends this process in the same way if that was by a signal; else gives the code to end with.
pub(crate) fn take_over(end: End) -> i32 {
    if let End::Signal(signal) = end {
        sys::die_by(signal);
    }
    end.shell_code()
}

/// The exit code of `work`, as soon as it is known. Call before any thread exists.
///
/// The child dies with this process. If no process can be created, the work is done here.
pub fn isolate(work: impl FnOnce() -> i32) -> i32 {
    let Ok((mut verdict, mut said)) = io::pipe() else { return work() };
    match fork_below_us(Signal::KILL) {
        Err(_) => work(),
        Ok(Fork::Child) => {
            drop(verdict);
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

/// Forks if this process has foreign children. Gives the exit code in the parent, after the
/// child has ended, and None in the process that has to do the work.
///
/// The child gets the signal `orphaned` if this process is killed. Call before any thread exists
/// and before the signal state is changed.
pub(super) fn isolate_from_foreign_children(orphaned: Signal) -> io::Result<Option<i32>> {
    if own_pid() == 1 || children_of_self().is_empty() {
        return Ok(None);
    }
    match fork_below_us(orphaned)? {
        Fork::Child => Ok(None),
        Fork::Parent { child } => Ok(Some(relay(child)?)),
    }
}

fn relay(child: i32) -> io::Result<i32> {
    let kept = [Signal::KILL, Signal::STOP, Signal::TTIN, Signal::TTOU];
    let signals = SignalQueue::begin(SignalSet::all_but(&kept))?;
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid.as_raw_pid() == child => {
                if let Some(end) = End::from_wait(status) {
                    return Ok(end.shell_code());
                }
            }
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Err(_no_child) => return Ok(Verdict::Internal.code()),
            Ok(None) => match signals.take() {
                Some(taken) => pass_on(taken, child),
                None => {
                    let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], None);
                }
            },
        }
    }
}

/// The child is in our process group, so it already has the signals of the terminal.
fn pass_on(taken: Taken, child: i32) {
    if taken.is(Signal::CHILD) || taken.by_kernel {
        return;
    }
    if taken.sender != child {
        sys::send(child, taken.number);
    } else if taken.is(Signal::TSTP) {
        // The child's command was stopped, and a shell expects us to stop as well.
        sys::send(own_pid(), Signal::STOP.as_raw());
    }
}
