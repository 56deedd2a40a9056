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

/// A process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessGroup(pub i32);

impl ProcessGroup {
    pub fn own() -> ProcessGroup {
        ProcessGroup(getpgrp().as_raw())
    }

    /// The group of `pid`; None if it has ended.
    pub fn of(pid: i32) -> Option<ProcessGroup> {
        getpgid(Some(Pid::from_raw(pid))).ok().map(|group| ProcessGroup(group.as_raw()))
    }

    /// Puts this process into a group of its own. Only a system call, so usable in
    /// [`in_child`](super::in_child).
    pub fn begin() -> io::Result<()> {
        Ok(setpgid(Pid::from_raw(0), Pid::from_raw(0))?)
    }

    /// Puts a child that has executed nothing yet into a group of its own.
    pub fn give(child: i32) {
        let _ = setpgid(Pid::from_raw(child), Pid::from_raw(child));
    }

    /// killpg(3); None only tests whether the group has a process.
    ///
    /// # Errors
    /// `ESRCH` if it has none.
    pub fn signal(self, signal: Option<Signal>) -> Result<(), Errno> {
        let signal = signal.and_then(|signal| Named::try_from(signal.as_raw()).ok());
        let sent = killpg(Pid::from_raw(self.0), signal);
        sent.map_err(|errno| Errno::from_raw_os_error(errno as i32))
    }

    /// The foreground group of the terminal that controls our session; None if `fd` is not that
    /// terminal.
    pub fn foreground(fd: impl AsFd) -> Option<ProcessGroup> {
        tcgetpgrp(fd).ok().map(|group| ProcessGroup(group.as_raw()))
    }

    /// Gives it the foreground. A terminal that has hung up is no error.
    pub fn bring_forward(self, fd: impl AsFd) {
        let _ = tcsetpgrp(fd, Pid::from_raw(self.0));
    }
}

/// A session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session(pub i32);

impl Session {
    /// Ours.
    pub fn own() -> Option<Session> {
        getsid(None).ok().map(|session| Session(session.as_raw()))
    }

    /// The session of `pid`; None if it has ended.
    pub fn of(pid: i32) -> Option<Session> {
        getsid(Some(Pid::from_raw(pid))).ok().map(|session| Session(session.as_raw()))
    }

    /// Puts this process into a session of its own; usable in [`in_child`](super::in_child), too.
    pub fn begin() -> io::Result<()> {
        Ok(setsid().map(drop)?)
    }
}
