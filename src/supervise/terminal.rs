//! The foreground of a terminal: lent to one process group below us, and taken back.
//!
//! Only the foreground group may read the terminal and is sent its Ctrl-C and
//! Ctrl-Z, so a command that people talk to must be that group. Whoever lends
//! stands between it and a shell, and keeps the shell's job control whole: when
//! the command stops, the terminal goes back and the lender's own group stops,
//! which is what the shell waits for; when the shell continues that group, the
//! terminal goes to the command again. Callers ignore SIGTTOU, since all of this
//! happens from the background.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::sys::signal::{Signal, killpg};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{Pid, getpgid, getpid, getsid, setpgid, tcgetpgrp, tcsetpgrp};

use super::tree;

/// A terminal that our session controls.
pub(super) struct Terminal {
    fd: OwnedFd,
    /// The group whose foreground it is to lend: the job that a shell started.
    owner: Pid,
    /// As it was when we were started.
    modes: Option<Termios>,
}

/// What the lender has to do after the borrower stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Stop the owner's group: its shell waits for that.
    StopOwner,
    Nothing,
}

impl Terminal {
    /// The terminal behind `fd`, if it is the one that controls our session.
    pub(super) fn of(fd: BorrowedFd<'_>, owner: Pid) -> Option<Terminal> {
        tcgetpgrp(fd).ok()?;
        let fd = fd.try_clone_to_owned().ok()?;
        let modes = tcgetattr(&fd).ok();
        Some(Terminal { fd, owner, modes })
    }

    /// For a child between fork and exec: makes it a group of its own, and the
    /// terminal's foreground if that was the owner's. Only system calls.
    pub(super) fn lend_in_child(&self) -> io::Result<impl FnMut() -> io::Result<()> + use<>> {
        let fd = self.fd.try_clone()?;
        let owner = self.owner;
        Ok(move || {
            setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
            if tcgetpgrp(&fd) == Ok(owner) {
                // One that hung up meanwhile is the program's to notice.
                let _ = tcsetpgrp(&fd, getpid());
            }
            Ok(())
        })
    }

    /// The borrower's leader was stopped by `signal`; `told` when that was sent to
    /// us and passed on, so that somebody will also end it.
    pub(super) fn stopped(&self, borrower: Pid, signal: i32, told: bool) -> Then {
        let asked = [Signal::SIGTTIN as i32, Signal::SIGTTOU as i32].contains(&signal);
        // Before the look at the foreground, since it takes its time.
        let can_be_continued = can_be_continued(self.owner);
        if asked && self.is_owners() {
            // It was moved to the foreground since (`fg`) and wants to use it.
            self.go_on(borrower);
            return Then::Nothing;
        }
        self.take_back(borrower);
        if can_be_continued {
            return Then::StopOwner;
        }
        if signal == Signal::SIGTSTP as i32 && !told {
            // No shell is there that could ever continue it (PID 1 of a container).
            self.go_on(borrower);
        }
        Then::Nothing
    }

    /// Continues the borrower, in the foreground if the owner is there now.
    pub(super) fn go_on(&self, borrower: Pid) {
        if self.is_owners() {
            let _ = tcsetpgrp(&self.fd, borrower);
        }
        let _ = killpg(borrower, Signal::SIGCONT);
    }

    fn is_owners(&self) -> bool {
        tcgetpgrp(&self.fd) == Ok(self.owner)
    }

    /// After the borrower's end or stop. A foreground that a shell has given to
    /// somebody else meanwhile stays.
    pub(super) fn take_back(&self, borrower: Pid) {
        if tcgetpgrp(&self.fd) == Ok(borrower) {
            let _ = tcsetpgrp(&self.fd, self.owner);
        }
    }

    /// As [`take_back`](Self::take_back), from a group that has no process left.
    pub(super) fn take_back_from_the_dead(&self) {
        if let Ok(group) = tcgetpgrp(&self.fd)
            && killpg(group, None) == Err(nix::errno::Errno::ESRCH)
        {
            let _ = tcsetpgrp(&self.fd, self.owner);
            self.restore_modes();
        }
    }

    /// After a borrower that was killed, perhaps with echo off; what one that
    /// ended by itself has set (`stty`) was meant.
    pub(super) fn restore_modes(&self) {
        if let Some(modes) = &self.modes {
            let _ = tcsetattr(&self.fd, SetArg::TCSADRAIN, modes);
        }
    }
}

/// Whether a shell stands above `group`: in its session, in another group. What
/// POSIX calls an orphaned group has none, and a stop would be for ever.
fn can_be_continued(group: Pid) -> bool {
    let Ok(session) = getsid(None) else { return false };
    tree::snapshot().values().any(|process| {
        let parent = Pid::from_raw(process.ppid);
        getpgid(Some(Pid::from_raw(process.pid))) == Ok(group)
            && process.ppid > 0
            && getsid(Some(parent)) == Ok(session)
            && getpgid(Some(parent)).is_ok_and(|other| other != group)
    })
}

/// Whether `group` has other members than this process: the rest of a pipeline,
/// or the script that started us.
pub(super) fn shares_group() -> bool {
    let (me, group) = (getpid(), getpgid(None));
    tree::snapshot().values().any(|process| {
        process.pid != me.as_raw() && getpgid(Some(Pid::from_raw(process.pid))) == group
    })
}

/// Whether a person at a terminal started this job in its foreground and sees its
/// output there. For the agent, whose parent's group that is.
pub fn at_terminal() -> bool {
    use std::io::IsTerminal;
    let group = getpgid(Some(Pid::from_raw(parent_pid())));
    io::stdout().is_terminal() && group.is_ok() && tcgetpgrp(io::stdin()) == group
}

/// The guard's process group, as the agent sees it: the terminal's owner.
pub(super) fn guards_group() -> Option<i32> {
    getpgid(Some(Pid::from_raw(parent_pid()))).ok().map(Pid::as_raw)
}

fn parent_pid() -> i32 {
    nix::unistd::getppid().as_raw()
}
