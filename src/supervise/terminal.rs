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

use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use rustix::io::Errno;

use super::tree;
use crate::sys::{
    Signal, foreground, group_of, new_group, own_group, own_pid, own_session, session_of,
    set_foreground, signal_group,
};

/// A terminal that our session controls.
pub(super) struct Terminal {
    fd: OwnedFd,
    /// The group whose foreground it is to lend: the job that a shell started.
    owner: i32,
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
    pub(super) fn of(fd: BorrowedFd<'_>, owner: i32) -> Option<Terminal> {
        foreground(fd)?;
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
            new_group()?;
            if foreground(&fd) == Some(owner) {
                // One that hung up meanwhile is the program's to notice.
                set_foreground(&fd, own_pid());
            }
            Ok(())
        })
    }

    /// The borrower's leader was stopped by `signal`; `told` when that was sent to
    /// us and passed on, so that somebody will also end it.
    pub(super) fn stopped(&self, borrower: i32, signal: i32, told: bool) -> Then {
        let asked = [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&signal);
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
        if signal == Signal::TSTP.as_raw() && !told {
            // No shell is there that could ever continue it (PID 1 of a container).
            self.go_on(borrower);
        }
        Then::Nothing
    }

    /// Continues the borrower, in the foreground if the owner is there now.
    pub(super) fn go_on(&self, borrower: i32) {
        if self.is_owners() {
            set_foreground(&self.fd, borrower);
        }
        let _ = signal_group(borrower, Some(Signal::CONT));
    }

    fn is_owners(&self) -> bool {
        foreground(&self.fd) == Some(self.owner)
    }

    /// After the borrower's end or stop. A foreground that a shell has given to
    /// somebody else meanwhile stays.
    pub(super) fn take_back(&self, borrower: i32) {
        if foreground(&self.fd) == Some(borrower) {
            set_foreground(&self.fd, self.owner);
        }
    }

    /// As [`take_back`](Self::take_back), from a group that has no process left.
    pub(super) fn take_back_from_the_dead(&self) {
        if let Some(group) = foreground(&self.fd)
            && signal_group(group, None) == Err(Errno::SRCH)
        {
            set_foreground(&self.fd, self.owner);
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
fn can_be_continued(group: i32) -> bool {
    let Some(session) = own_session() else { return false };
    tree::snapshot().values().any(|process| {
        group_of(process.pid) == Some(group)
            && process.ppid > 0
            && session_of(process.ppid) == Some(session)
            && group_of(process.ppid).is_some_and(|other| other != group)
    })
}

/// Whether `group` has other members than this process: the rest of a pipeline,
/// or the script that started us.
pub(super) fn shares_group() -> bool {
    let (me, group) = (own_pid(), own_group());
    tree::snapshot()
        .values()
        .any(|process| process.pid != me && group_of(process.pid) == Some(group))
}

/// Whether a person at a terminal started this job in its foreground and sees its
/// output there. For the agent, whose parent's group that is.
pub fn at_terminal() -> bool {
    use std::io::IsTerminal;
    let group = guards_group();
    io::stdout().is_terminal() && group.is_some() && foreground(io::stdin()) == group
}

/// The guard's process group, as the agent sees it: the terminal's owner.
pub(super) fn guards_group() -> Option<i32> {
    group_of(rustix::process::getppid()?.as_raw_pid())
}
