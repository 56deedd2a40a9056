//! Processes: fork and the hook before exec, process groups and sessions, the standard streams and inherited descriptors.
//!
//! Groups and sessions are plain numbers, not [`Pid`](super::Pid)s: one whose leader is outside of our PID namespace has
//! the number 0 here (`unshare --pid --fork`, `docker exec`), which is no pid. rustix would turn it into a `NonZero` or an
//! error, so nix makes these calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sys::signal::{Signal as Named, killpg};
use nix::unistd::{
    ForkResult, Pid, getpgid, getpgrp, getsid, setpgid, setsid, tcgetpgrp, tcsetpgrp,
};
use rustix::io::Errno;
use rustix::process::getpid;

use super::Signal;

/// The side of a fork on which the caller is.
#[derive(Debug)]
pub enum Fork {
    Parent { child: i32 },
    Child,
}

/// False if /proc shows more than one thread of this process.
pub(crate) fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count) <= 1
}

impl Fork {
    /// fork(2) of a process with a single thread.
    ///
    /// The guard and the rank shim fork before any thread exists, so the child may run ordinary code
    /// (allocation, locks). Fails with `EBUSY` if /proc shows more threads.
    pub fn single_threaded() -> io::Result<Fork> {
        if !is_single_threaded() {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy));
        }
        // SAFETY: with a single thread no lock can be held by a thread that does
        // not exist in the child, so the child is an ordinary copy of the parent.
        match unsafe { nix::unistd::fork() }? {
            ForkResult::Parent { child } => Ok(Fork::Parent { child: child.as_raw() }),
            ForkResult::Child => Ok(Fork::Child),
        }
    }
}

/// Runs `prepare` in the child between fork and exec.
///
/// `prepare` must only make system calls: no allocation, no locks, no panics,
/// since other threads of the parent may have held any lock at the fork.
pub fn in_child(
    command: &mut Command,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) -> &mut Command {
    // SAFETY: the contract above; every caller in this crate passes a closure
    // of plain system calls on values that were made before the fork.
    unsafe { command.pre_exec(prepare) }
}

/// `_exit(2)`: ends this process without running destructors or flushing stdio.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions; nothing of this process is needed after it.
    unsafe { libc::_exit(code) }
}

/// Our pid as a number.
pub fn own_pid() -> i32 {
    getpid().as_raw_pid()
}

/// The pid of our parent as a number; 0 if it is outside of our PID namespace.
pub fn parent_pid() -> i32 {
    i32::try_from(std::os::unix::process::parent_id()).unwrap_or(0)
}

/// The name of the host or container (uname(2)).
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Registers a descriptor with tokio.
pub fn watch(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: register() asks that the number stays the same and open until the
    // AsyncFd is dropped; an OwnedFd that the AsyncFd itself owns does both.
    unsafe { tokio::io::unix::AsyncFd::register(fd) }.map_err(io::Error::from)
}

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
    /// [`in_child`].
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

    /// Puts this process into a session of its own; usable in [`in_child`], too.
    pub fn begin() -> io::Result<()> {
        Ok(setsid().map(drop)?)
    }
}

/// Copies are searched below this number if /proc does not list the open descriptors.
const WITHOUT_PROC: RawFd = 1024;

/// Opens a replacement for each closed standard stream. Runs before main and before Rust's own
/// start-up, which does the same only with /dev/null and aborts the program in a root without
/// it.
///
/// Without /dev/null standard input is an empty pipe. The others are the root folder, which
/// always exists: a write to it fails with EBADF, which std treats as a closed stream. Only
/// system calls.
pub(super) fn fill_missing() {
    for stream in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: system calls on plain numbers, literals and a local array. open and pipe
        // give the lowest free number first, which is `stream`.
        unsafe {
            if libc::fcntl(stream, libc::F_GETFD) != -1
                || libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) != -1
            {
                continue;
            }
            let mut ends = [-1; 2];
            if stream == libc::STDIN_FILENO && libc::pipe(ends.as_mut_ptr()) == 0 {
                let [_, write] = ends;
                libc::close(write);
            } else {
                libc::open(c"/".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
            }
        }
    }
}

/// The numbers of the open descriptors; without /proc, all numbers that may be open.
pub(super) fn open_descriptors() -> Vec<RawFd> {
    std::fs::read_dir("/proc/self/fd").map_or_else(
        |_| (3..WITHOUT_PROC).collect(),
        |entries| {
            let names = entries.flatten().map(|entry| entry.file_name());
            names.filter_map(|name| name.to_str()?.parse().ok()).collect()
        },
    )
}

/// The number of a descriptor that the program which executed us has opened for us.
#[derive(Debug, Clone, Copy)]
pub struct Inherited(pub RawFd);

impl Inherited {
    /// The descriptors above the standard streams that a program would inherit if this process executed it.
    pub fn all() -> Vec<RawFd> {
        let is_kept = |fd: &RawFd| {
            // SAFETY: a plain system call on a number.
            let flags = unsafe { libc::fcntl(*fd, libc::F_GETFD) };
            *fd > libc::STDERR_FILENO && flags != -1 && flags & libc::FD_CLOEXEC == 0
        };
        open_descriptors().into_iter().filter(is_kept).collect()
    }

    /// A copy of it.
    ///
    /// # Errors
    /// `EBADF` if there is none with this number.
    pub fn copy(self) -> io::Result<OwnedFd> {
        let Inherited(number) = self;
        if number < 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the number is used for one system call, which copies the descriptor or fails; its
        // owner, whoever that is, keeps it. -1 is excluded above.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        Ok(rustix::io::fcntl_dupfd_cloexec(borrowed, 3)?)
    }

    /// Takes it over.
    ///
    /// # Errors
    /// `EBADF` if there is none with this number.
    pub fn take(self) -> io::Result<OwnedFd> {
        let copy = self.copy()?;
        if self.0 > libc::STDERR_FILENO {
            // SAFETY: a plain system call; the number was opened for us, and nothing of this process knows it.
            unsafe { libc::close(self.0) };
        }
        Ok(copy)
    }
}

/// Replaces every descriptor above 2 that refers to the same file as one of `streams` by `with`.
///
/// For the end of a process that may not be able to exit. The numbers stay in use, so a late
/// write cannot reach another file.
pub fn replace_copies(streams: &[BorrowedFd<'_>], with: BorrowedFd<'_>) {
    let identity = |fd: RawFd| {
        // SAFETY: fstat of a plain number into a local; a number that is not open is an error.
        unsafe {
            let mut stat = std::mem::zeroed::<libc::stat>();
            (libc::fstat(fd, &raw mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
        }
    };
    let of: Vec<_> = streams.iter().filter_map(|fd| identity(fd.as_raw_fd())).collect();
    for fd in open_descriptors().into_iter().filter(|fd| *fd > libc::STDERR_FILENO) {
        if identity(fd).is_some_and(|file| of.contains(&file)) {
            // SAFETY: dup3 replaces the file behind an open number; its owner keeps the number.
            unsafe { libc::dup3(with.as_raw_fd(), fd, libc::O_CLOEXEC) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    use super::*;

    /// The reader gets end of file although copies of the write end were open.
    #[test]
    fn a_reader_does_not_wait_for_copies() {
        let (read, write) = io::pipe().expect("a pipe");
        let (_other, mut unrelated) = io::pipe().expect("a pipe");
        let (_nothing, nowhere) = io::pipe().expect("a pipe");
        let mut reader = Command::new("cat");
        let reader = reader.stdin(read).stdout(Stdio::piped()).spawn().expect("a reader");
        let mut copy = write.try_clone().expect("a copy");
        copy.write_all(b"before").expect("written");
        replace_copies(&[write.as_fd()], nowhere.as_fd());
        copy.write_all(b"after").expect("it leads nowhere");
        unrelated.write_all(b"x").expect("it is what it was");
        let read = reader.wait_with_output().expect("an end");
        assert_eq!(read.stdout, b"before");
    }
}
