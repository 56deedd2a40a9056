//! Lends the foreground of a terminal to a process group below us, and takes it back.
//!
//! Only the foreground group may read the terminal and gets its Ctrl-C and Ctrl-Z, so an
//! interactive command must be that group. The lender preserves the job control of the shell
//! above it. When the command stops, the lender takes the terminal back and stops its own group,
//! for which the shell waits. When the shell continues that group, the command gets the terminal
//! again. Callers ignore SIGTTOU, since all of this happens from the background.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use rustix::io::Errno;

use super::tree;
use linux::sys::{
    Signal, foreground, group_of, new_group, own_group, own_pid, own_session, session_of,
    set_foreground, signal_group,
};

/// A terminal that our session controls.
pub(super) struct Terminal {
    fd: OwnedFd,
    /// The group that lends its foreground: the job that a shell started.
    owner: i32,
    /// The modes at our start.
    modes: Option<Termios>,
}

/// The action of the lender after the borrower has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Stop the owner's group, since its shell waits for that.
    StopOwner,
    Nothing,
}

impl Terminal {
    /// The terminal behind `fd`, if it controls our session.
    pub(super) fn of(fd: BorrowedFd<'_>, owner: i32) -> Option<Terminal> {
        foreground(fd)?;
        let fd = fd.try_clone_to_owned().ok()?;
        let modes = tcgetattr(&fd).ok();
        Some(Terminal { fd, owner, modes })
    }

    /// For a child between fork and exec: puts it into a group of its own, and makes that the
    /// foreground if the owner's group was. Only system calls.
    pub(super) fn lend_in_child(&self) -> io::Result<impl FnMut() -> io::Result<()> + use<>> {
        let fd = self.fd.try_clone()?;
        let owner = self.owner;
        Ok(move || {
            new_group()?;
            if foreground(&fd) == Some(owner) {
                // The program will notice a terminal that has hung up.
                set_foreground(&fd, own_pid());
            }
            Ok(())
        })
    }

    /// Handles that the borrower's leader was stopped by `signal`. `told`: the signal was sent
    /// to us and forwarded, so its sender will also continue us.
    pub(super) fn stopped(&self, borrower: i32, signal: i32, told: bool) -> Then {
        let asked = [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&signal);
        // Checked before reading the foreground, since this takes a while.
        let can_be_continued = can_be_continued(self.owner);
        if asked && self.is_owners() {
            // The command was moved to the foreground meanwhile (`fg`) and wants to use it.
            self.go_on(borrower);
            return Then::Nothing;
        }
        self.take_back(borrower);
        if can_be_continued {
            return Then::StopOwner;
        }
        if signal == Signal::TSTP.as_raw() && !told {
            // No shell could continue the command (PID 1 of a container).
            self.go_on(borrower);
        }
        Then::Nothing
    }

    /// Continues the borrower, in the foreground if the owner's group is the foreground.
    pub(super) fn go_on(&self, borrower: i32) {
        if self.is_owners() {
            set_foreground(&self.fd, borrower);
        }
        let _ = signal_group(borrower, Some(Signal::CONT));
    }

    fn is_owners(&self) -> bool {
        foreground(&self.fd) == Some(self.owner)
    }

    /// Takes the terminal back after the borrower's end or stop. A foreground that a shell has
    /// given to another group meanwhile stays.
    pub(super) fn take_back(&self, borrower: i32) {
        if foreground(&self.fd) == Some(borrower) {
            set_foreground(&self.fd, self.owner);
        }
    }

    /// Like [`take_back`](Self::take_back), for a borrower's group without any process.
    pub(super) fn take_back_from_the_dead(&self) {
        if let Some(group) = foreground(&self.fd)
            && signal_group(group, None) == Err(Errno::SRCH)
        {
            set_foreground(&self.fd, self.owner);
            self.restore_modes();
        }
    }

    /// Restores the modes after a borrower that was killed, perhaps with echo off. Modes set by a
    /// borrower that ended by itself (`stty`) are kept.
    pub(super) fn restore_modes(&self) {
        if let Some(modes) = &self.modes {
            let _ = tcsetattr(&self.fd, SetArg::TCSADRAIN, modes);
        }
    }
}

/// Whether a shell is above `group`, that is, a parent in the same session and another group. A
/// POSIX orphaned group has none and would stay stopped for ever.
fn can_be_continued(group: i32) -> bool {
    let Some(session) = own_session() else { return false };
    tree::snapshot().values().any(|process| {
        group_of(process.pid) == Some(group)
            && process.ppid > 0
            && session_of(process.ppid) == Some(session)
            && group_of(process.ppid).is_some_and(|other| other != group)
    })
}

/// Whether our group has other members: the rest of a pipeline, or the script that started us.
pub(super) fn shares_group() -> bool {
    let (me, group) = (own_pid(), own_group());
    tree::snapshot()
        .values()
        .any(|process| process.pid != me && group_of(process.pid) == Some(group))
}

/// Whether the job runs in the foreground of a terminal and prints to it. For the agent; the
/// foreground group is that of its parent.
pub fn at_terminal() -> bool {
    use std::io::IsTerminal;
    let group = guards_group();
    io::stdout().is_terminal() && group.is_some() && foreground(io::stdin()) == group
}

/// The guard's process group, as the agent sees it: the terminal's owner.
pub(super) fn guards_group() -> Option<i32> {
    group_of(rustix::process::getppid()?.as_raw_pid())
}
