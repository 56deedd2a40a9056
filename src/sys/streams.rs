//! Standard streams that are missing at the start.

use nix::libc;

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
