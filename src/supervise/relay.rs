//! Separates children that we inherited from a shell from those of the job.
//!
//! A shell that starts a background process and then execs us (`x & exec ranklaunch …`) leaves
//! us its children. We adopt their orphans as well as those of the job, and could not tell a
//! leftover with a cleared environment from them. So the work is done in a child without other
//! children: every orphan below it belongs to the job. This process forwards signals, reaps, and
//! ends as that child ends. PID 1 does not need this, since the kernel ends everything with it.

use std::io;

use rustix::process::WaitOptions;

use super::reaper::children_of_self;
use linux::sys::{
    self, Fork, PollFd, PollFlags, Signal, SignalQueue, SignalSet, Taken, own_pid, poll,
};
use verdict::Verdict;
use verdict::outcome::End;

/// Forks if this process has foreign children. Gives the exit code in the parent, after the
/// child has ended, and None in the process that has to do the work.
///
/// The child gets the signal `orphaned` if this process is killed. Call before any thread exists
/// and before the signal state is changed.
pub(super) fn isolate_from_foreign_children(orphaned: Signal) -> io::Result<Option<i32>> {
    if own_pid() == 1 || children_of_self().is_empty() {
        return Ok(None);
    }
    let parent = rustix::process::getpid();
    match Fork::single_threaded()? {
        Fork::Child => {
            let _ = rustix::process::set_parent_process_death_signal(Some(orphaned));
            if rustix::process::getppid() != Some(parent) {
                sys::exit_now(End::Signal(orphaned.as_raw()).shell_code());
            }
            Ok(None)
        }
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
