//! A process between others' children and the job.
//!
//! A shell that starts something in the background and then becomes us (`x & exec
//! ranklaunch …`) leaves us its children, whose orphans come to us as the job's do. A
//! leftover with a cleared environment could not be told from them. So the work goes on
//! in a child that has none: every orphan below it is the job's. This process stays,
//! passes signals on, reaps, and ends as that child ends. PID 1 needs none of it: the
//! kernel ends all that it leaves.

use std::io;
use std::os::fd::AsFd;

use nix::libc::{SI_KERNEL, signalfd_siginfo};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{Signal as Send, WaitOptions};

use super::keeper::{children_of_self, number, own_pid};
use super::outcome::End;
use crate::sys::{self, Fork};
use crate::verdict::Verdict;

/// Goes on in a child where this process has children of others; gives the exit code in
/// the parent, once that child has ended, and None where the work is to be done.
///
/// `orphaned` is what the child gets should this process be killed. Call before any
/// thread exists and before anything of the signal state was changed.
pub(super) fn apart_from_strangers(orphaned: Send) -> io::Result<Option<i32>> {
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
        Fork::Parent { child } => Ok(Some(relay(child.as_raw())?)),
    }
}

fn relay(child: i32) -> io::Result<i32> {
    let mut watched = SigSet::all();
    for kept in [Signal::SIGKILL, Signal::SIGSTOP, Signal::SIGTTIN, Signal::SIGTTOU] {
        watched.remove(kept);
    }
    watched.thread_block()?;
    let signals = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == child => {
                if let Some(end) = End::from_wait(status) {
                    return Ok(end.shell_code());
                }
            }
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Err(_no_child) => return Ok(Verdict::Internal.code()),
            Ok(None) => match signals.read_signal() {
                Ok(Some(info)) => pass_on(&info, child),
                _ => {
                    let mut waits = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
                    let _ = poll(&mut waits, PollTimeout::NONE);
                }
            },
        }
    }
}

/// The child is in our process group: what the terminal sends, it has had already.
fn pass_on(info: &signalfd_siginfo, child: i32) {
    let signal = number(info);
    if signal == Signal::SIGCHLD as i32 || info.ssi_code == SI_KERNEL {
        return;
    }
    let from_child = i32::try_from(info.ssi_pid).is_ok_and(|sender| sender == child);
    if !from_child {
        sys::send(child, signal);
    } else if signal == Signal::SIGTSTP as i32 {
        // Its command was stopped, and a shell waits for us to stop as well.
        sys::send(own_pid(), Signal::SIGSTOP as i32);
    }
}
