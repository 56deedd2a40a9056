//! Executes an open file instead of a path.
//!
//! execveat with an empty path is the only way to run a memfd in a root without /proc; std can
//! only execute paths. The call runs in std's pre-exec hook, so std still handles pipes, reaping
//! and the report of a failed exec.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;

/// A null-terminated array of C strings, built before the fork because the
/// child of a threaded process must not allocate.
pub(super) struct CArray {
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl CArray {
    /// # Errors
    /// A NUL byte.
    pub(super) fn of<T: Into<Vec<u8>>>(words: impl IntoIterator<Item = T>) -> io::Result<CArray> {
        let strings: Result<Vec<CString>, _> = words.into_iter().map(CString::new).collect();
        let strings = strings?;
        let mut pointers: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
        pointers.push(std::ptr::null());
        Ok(CArray { _strings: strings, pointers })
    }

    /// `NAME=value` of each.
    ///
    /// # Errors
    /// A NUL byte.
    pub(super) fn of_environment<'a>(
        pairs: impl IntoIterator<Item = (&'a OsString, &'a OsString)>,
    ) -> io::Result<CArray> {
        let joined = |(name, value): (&OsString, &OsString)| {
            [name.as_bytes(), b"=", value.as_bytes()].concat()
        };
        CArray::of(pairs.into_iter().map(joined))
    }

    pub(super) fn as_ptr(&self) -> *const *const libc::c_char {
        self.pointers.as_ptr()
    }
}

// SAFETY: the pointers lead to the heap of `_strings`, which is owned, never
// changed, and moves without moving what it points to.
unsafe impl Send for CArray {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for CArray {}

/// Makes `command` execute the file behind `program` with `arguments` (the first is argv\[0\])
/// and exactly `environment`. The command's own program, arguments and environment are then
/// unused.
///
/// # Errors
///
/// A NUL byte in an argument or variable.
pub fn execute_descriptor(
    command: &mut Command,
    program: OwnedFd,
    arguments: &[&OsStr],
    environment: &[(OsString, OsString)],
) -> io::Result<()> {
    let arguments = CArray::of(arguments.iter().map(|argument| argument.as_bytes()))?;
    let pairs = environment.iter().map(|(name, value)| (name, value));
    let environment = CArray::of_environment(pairs)?;
    let hook = move || {
        let descriptor = program.as_raw_fd();
        let attempt = || {
            // SAFETY: the descriptor is open, the path is an empty literal, both
            // arrays are null-terminated and alive; the call allocates nothing.
            unsafe {
                libc::syscall(
                    libc::SYS_execveat,
                    descriptor,
                    c"".as_ptr(),
                    arguments.as_ptr(),
                    environment.as_ptr(),
                    libc::AT_EMPTY_PATH,
                )
            };
            io::Error::last_os_error()
        };
        let error = attempt();
        if error.raw_os_error() != Some(libc::ENOENT) {
            return Err(error);
        }
        // Under emulation (binfmt_misc) the interpreter opens the file again by
        // its number, which close-on-exec has closed by then.
        // SAFETY: fcntl on an open descriptor of this process.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) };
        Err(attempt())
    };
    // SAFETY: the hook makes system calls only: no allocation, no lock.
    unsafe { command.pre_exec(hook) };
    Ok(())
}
