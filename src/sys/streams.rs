//! Standard streams that are missing at the start, and copies of them at the end.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use nix::libc;

/// Below it copies are looked for where /proc does not list what is open.
const WITHOUT_PROC: RawFd = 1024;

/// Opens something in the place of each standard stream that is closed. Runs before
/// main and before Rust's own start-up, which does the same with /dev/null alone and
/// aborts the program in a root that has none.
///
/// Without /dev/null standard input is a pipe that ends at once. The others are the root
/// folder, which every root has: a write to it fails with EBADF, which std takes for a
/// closed stream. System calls only.
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

/// The numbers of the descriptors that are open; where /proc cannot say, of those that may be.
pub(super) fn open_descriptors() -> Vec<RawFd> {
    std::fs::read_dir("/proc/self/fd").map_or_else(
        |_| (3..WITHOUT_PROC).collect(),
        |entries| {
            let names = entries.flatten().map(|entry| entry.file_name());
            names.filter_map(|name| name.to_str()?.parse().ok()).collect()
        },
    )
}

/// Puts `with` in the place of every descriptor above 2 that is a copy of one of
/// `streams`: it leads to the same file.
///
/// For the last moments of a process that may not be able to end. The numbers stay in
/// use, so nothing that still writes to one of them meets another file.
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
            // SAFETY: dup3 replaces what an open number leads to; its owner keeps the number.
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

    /// The end of a pipe comes although copies of its writing end stay open.
    #[test]
    fn a_reader_does_not_wait_for_copies() {
        let (read, write) = std::io::pipe().expect("a pipe");
        let (_other, mut unrelated) = std::io::pipe().expect("a pipe");
        let (_nothing, nowhere) = std::io::pipe().expect("a pipe");
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
