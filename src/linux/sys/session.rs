//! Process groups, sessions and the foreground of a terminal.
//!
//! Plain numbers, not [`Pid`](super::Pid)s: a group or session whose leader is outside of our
//! PID namespace has the number 0 here (`unshare --pid --fork`, `docker exec`), which is no pid.
//! rustix would turn it into a `NonZero` or an error, so nix makes these calls.

use std::io;
use std::os::fd::AsFd;

use nix::sys::signal::{Signal as Named, killpg};
use nix::unistd::{Pid, getpgid, getpgrp, getsid, setpgid, setsid, tcgetpgrp, tcsetpgrp};
use rustix::io::Errno;

use super::Signal;

/// Our process group.
pub fn own_group() -> i32 {
    getpgrp().as_raw()
}

/// The process group of `pid`; None if it has ended.
pub fn group_of(pid: i32) -> Option<i32> {
    getpgid(Some(Pid::from_raw(pid))).ok().map(Pid::as_raw)
}

/// Our session.
pub fn own_session() -> Option<i32> {
    getsid(None).ok().map(Pid::as_raw)
}

/// The session of `pid`; None if it has ended.
pub fn session_of(pid: i32) -> Option<i32> {
    getsid(Some(Pid::from_raw(pid))).ok().map(Pid::as_raw)
}

/// Puts this process into a group of its own. Only a system call, so usable in
/// [`in_child`](super::in_child).
pub fn new_group() -> io::Result<()> {
    Ok(setpgid(Pid::from_raw(0), Pid::from_raw(0))?)
}

/// Puts a child that has executed nothing yet into a group of its own.
pub fn give_group(child: i32) {
    let _ = setpgid(Pid::from_raw(child), Pid::from_raw(child));
}

/// Puts this process into a session of its own; usable in [`in_child`](super::in_child), too.
pub fn new_session() -> io::Result<()> {
    Ok(setsid().map(drop)?)
}

/// killpg(3); None only tests whether the group has a process.
///
/// # Errors
/// `ESRCH` if it has none.
pub fn signal_group(group: i32, signal: Option<Signal>) -> Result<(), Errno> {
    let signal = signal.and_then(|signal| Named::try_from(signal.as_raw()).ok());
    killpg(Pid::from_raw(group), signal).map_err(|errno| Errno::from_raw_os_error(errno as i32))
}

/// The foreground group of the terminal that controls our session; None if `fd` is not that
/// terminal.
pub fn foreground(fd: impl AsFd) -> Option<i32> {
    tcgetpgrp(fd).ok().map(Pid::as_raw)
}

/// Gives the foreground to `group`. A terminal that has hung up is no error.
pub fn set_foreground(fd: impl AsFd, group: i32) {
    let _ = tcsetpgrp(fd, Pid::from_raw(group));
}
