//! Lends the foreground of a terminal to a process group below us, and takes it back.
//!
//! Only the foreground group may read the terminal and gets its Ctrl-C and Ctrl-Z, so an
//! interactive command must be that group. The lender preserves the job control of the shell
//! above it. When the command stops, the lender takes the terminal back and stops its own group,
//! for which the shell waits. When the shell continues that group, the command gets the terminal
//! again. Callers ignore SIGTTOU, since all of this happens from the background.
//!
//! Also gives the launcher's own standard input to the ranks, if it is a pipe, a file or a socket. torchrun lets every
//! rank inherit it, and each byte goes to the rank that reads first. Here the first rank of each launcher gets it, and
//! the others an empty one. No process of ours reads it or waits for it. A terminal belongs to `--interactive`; any
//! other device counts as empty.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use rustix::fs::{FileType, fstat, tell};
use rustix::io::Errno;

use super::tree;
use linux::sys::{PollFd, PollFlags, ProcessGroup, Session, Signal, own_pid, poll};
use text::lang::Text;
use text::text;

/// A terminal that our session controls.
pub(super) struct Terminal {
    fd: OwnedFd,
    /// The group that lends its foreground: the job that a shell started.
    owner: ProcessGroup,
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
    pub(super) fn of(fd: BorrowedFd<'_>, owner: ProcessGroup) -> Option<Terminal> {
        ProcessGroup::foreground(fd)?;
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
            ProcessGroup::begin()?;
            if ProcessGroup::foreground(&fd) == Some(owner) {
                // The program will notice a terminal that has hung up.
                ProcessGroup(own_pid()).bring_forward(&fd);
            }
            Ok(())
        })
    }

    /// Handles that the borrower's leader was stopped by `signal`. `told`: the signal was sent
    /// to us and forwarded, so its sender will also continue us.
    pub(super) fn stopped(&self, borrower: ProcessGroup, signal: i32, told: bool) -> Then {
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
    pub(super) fn go_on(&self, borrower: ProcessGroup) {
        if self.is_owners() {
            borrower.bring_forward(&self.fd);
        }
        let _ = borrower.signal(Some(Signal::CONT));
    }

    fn is_owners(&self) -> bool {
        ProcessGroup::foreground(&self.fd) == Some(self.owner)
    }

    /// Takes the terminal back after the borrower's end or stop. A foreground that a shell has
    /// given to another group meanwhile stays.
    pub(super) fn take_back(&self, borrower: ProcessGroup) {
        if ProcessGroup::foreground(&self.fd) == Some(borrower) {
            self.owner.bring_forward(&self.fd);
        }
    }

    /// Like [`take_back`](Self::take_back), for a borrower's group without any process.
    pub(super) fn take_back_from_the_dead(&self) {
        if let Some(group) = ProcessGroup::foreground(&self.fd)
            && group.signal(None) == Err(Errno::SRCH)
        {
            self.owner.bring_forward(&self.fd);
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
fn can_be_continued(group: ProcessGroup) -> bool {
    let Some(session) = Session::own() else { return false };
    tree::snapshot().values().any(|process| {
        ProcessGroup::of(process.pid) == Some(group)
            && process.ppid > 0
            && Session::of(process.ppid) == Some(session)
            && ProcessGroup::of(process.ppid).is_some_and(|other| other != group)
    })
}

/// Whether our group has other members: the rest of a pipeline, or the script that started us.
pub(super) fn shares_group() -> bool {
    let (me, group) = (own_pid(), ProcessGroup::own());
    tree::snapshot()
        .values()
        .any(|process| process.pid != me && ProcessGroup::of(process.pid) == Some(group))
}

/// Whether the job runs in the foreground of a terminal and prints to it. For the agent; the
/// foreground group is that of its parent.
pub fn at_terminal() -> bool {
    use std::io::IsTerminal;
    let group = guards_group();
    io::stdout().is_terminal() && group.is_some() && ProcessGroup::foreground(io::stdin()) == group
}

/// The guard's process group, as the agent sees it: the terminal's owner.
pub(super) fn guards_group() -> Option<ProcessGroup> {
    ProcessGroup::of(rustix::process::getppid()?.as_raw_pid())
}

/// An empty standard input, even in a root without /dev/null.
pub(super) fn no_stdin() -> io::Result<OwnedFd> {
    match std::fs::File::open("/dev/null") {
        Ok(null) => Ok(null.into()),
        // The pipe's other end is closed.
        Err(_) => io::pipe().map(|(end, _)| end.into()),
    }
}

fn stdin_kind() -> Option<FileType> {
    let kind = FileType::from_raw_mode(fstat(io::stdin()).ok()?.st_mode);
    [FileType::Fifo, FileType::RegularFile, FileType::Socket].contains(&kind).then_some(kind)
}

/// The launcher's own standard input, if a rank may have it.
pub(super) fn own_stdin() -> io::Result<OwnedFd> {
    match stdin_kind() {
        Some(_) => io::stdin().as_fd().try_clone_to_owned(),
        None => no_stdin(),
    }
}

/// Names the rank that reads standard input, unless that is known to be empty. `again`: an earlier
/// attempt had it.
pub fn stdin_remark(again: bool) -> Option<Text> {
    let ready = || {
        let mut wait = [PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN)];
        let _ = poll(&mut wait, Some(Duration::ZERO));
        wait[0].revents()
    };
    let (has_some, what) = match stdin_kind()? {
        FileType::RegularFile => {
            let (size, at) = (fstat(io::stdin()).ok()?.st_size, tell(io::stdin()).ok()?);
            (u64::try_from(size).is_ok_and(|size| size > at), text!("a file", "文件"))
        }
        // A pipe without a writer and without data hangs up.
        FileType::Fifo => {
            let ready = ready();
            let is_over = ready.contains(PollFlags::HUP) && !ready.contains(PollFlags::IN);
            (!is_over, text!("a pipe", "管道"))
        }
        _ => (ready().contains(PollFlags::IN), text!("a socket", "套接字")),
    };
    let Text { en, zh } = what;
    has_some.then(|| match again {
        false => text!(
            "standard input ({en}) goes to the first rank here",
            "标准输入（{zh}）交给此处的第一个 rank"
        ),
        true => text!(
            "standard input ({en}) goes to the first rank here: what earlier attempts have left of it",
            "标准输入（{zh}）交给此处的第一个 rank：只剩先前尝试未读完的部分"
        ),
    })
}

/// Leaves an empty standard input to this shim, unless its rank is the first of the node.
pub(super) fn leave_stdin_to_first(is_first: bool) {
    if !is_first
        && stdin_kind().is_some()
        && let Ok(nothing) = no_stdin()
    {
        let _ = rustix::stdio::dup2_stdin(nothing);
    }
}
