//! fork, and hooks between fork and exec.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::unistd::ForkResult;
use rustix::process::getpid;

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
    unsafe { nix::libc::_exit(code) }
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
pub fn watch(
    fd: std::os::fd::OwnedFd,
) -> io::Result<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>> {
    // SAFETY: register() asks that the number stays the same and open until the
    // AsyncFd is dropped; an OwnedFd that the AsyncFd itself owns does both.
    unsafe { tokio::io::unix::AsyncFd::register(fd) }.map_err(io::Error::from)
}
