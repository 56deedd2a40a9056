//! Fills missing standard streams at the start, and replaces copies of them at the end.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::libc;

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
