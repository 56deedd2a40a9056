//! A process between others' children and the job.
//!
//! A shell that starts something in the background and then becomes us (`x & exec
//! ranklaunch …`) leaves us its children, whose orphans come to us as the job's do. A
//! leftover with a cleared environment could not be told from them. So the work goes on
//! in a child that has none: every orphan below it is the job's. This process stays,
//! passes signals on, reaps, and ends as that child ends. PID 1 needs none of it: the
//! kernel ends all that it leaves.

use std::io;

use rustix::process::WaitOptions;

use super::outcome::End;
use super::reaper::children_of_self;
use crate::sys::{
    self, Fork, PollFd, PollFlags, Signal, SignalQueue, SignalSet, Taken, own_pid, poll,
};
use crate::verdict::Verdict;

/// Goes on in a child where this process has children of others; gives the exit code in
/// the parent, once that child has ended, and None where the work is to be done.
///
/// `orphaned` is what the child gets should this process be killed. Call before any
/// thread exists and before anything of the signal state was changed.
pub(super) fn isolate_from_foreign_children(orphaned: Signal) -> io::Result<Option<i32>> {
    if own_pid() == 1 || children_of_self().is_empty() {
        return Ok(None);
    }
    let parent = rustix::process::getpid();
    match sys::fork_single_threaded()? {
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

/// The child is in our process group: what the terminal sends, it has had already.
fn pass_on(taken: Taken, child: i32) {
    if taken.is(Signal::CHILD) || taken.by_kernel {
        return;
    }
    if taken.sender != child {
        sys::send(child, taken.number);
    } else if taken.is(Signal::TSTP) {
        // Its command was stopped, and a shell waits for us to stop as well.
        sys::send(own_pid(), Signal::STOP.as_raw());
    }
}
