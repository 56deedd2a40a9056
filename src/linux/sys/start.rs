//! Starts a program without waiting for its execve, and executes an open file instead of a path.
//!
//! std's spawn returns after exec has succeeded or failed. On a mount without its server neither happens, and the caller's
//! thread hangs. Here a descriptor becomes readable instead, and the child that waits for the mount has no open pipe,
//! socket or console of its parent.
//!
//! execveat with an empty path is the only way to run a memfd in a root without /proc; std can only execute paths. The call
//! runs in std's pre-exec hook, so std still handles pipes, reaping and the report of a failed exec.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::unistd::ForkResult;

use super::process::open_descriptors;

/// A process that is or will become the program.
#[derive(Debug)]
pub struct Begun {
    pub pid: i32,
    /// End of file without a byte after execve, or if the process was killed before; otherwise
    /// the errno.
    pub report: OwnedFd,
}

/// The search path of execvp(3) without PATH.
const PATH: &str = "/bin:/usr/bin";

/// Forks a process that becomes `argv` with exactly this environment and these streams.
///
/// `prepare` runs in it before execve, under the contract of [`in_child`](super::in_child).
///
/// # Errors
/// A NUL byte, no argument, or an error of fork(2) or pipe(2).
pub fn start(
    argv: &[OsString],
    environment: &BTreeMap<OsString, OsString>,
    streams: [OwnedFd; 3],
    mut prepare: impl FnMut() -> io::Result<()>,
) -> io::Result<Begun> {
    let program = argv.first().ok_or(io::ErrorKind::InvalidInput)?;
    let places = places(program, environment.get(OsStr::new("PATH")))?;
    let environment = CArray::of_environment(environment)?;
    let arguments = CArray::of(argv.iter().map(|word| word.as_bytes()))?;
    // For a file without a `#!` line, as in execvp(3).
    let shell = argv.iter().skip(1).map(|word| word.as_bytes());
    let shells: Vec<CArray> = places
        .iter()
        .map(|place| {
            CArray::of([b"sh".as_slice(), place.as_bytes()].into_iter().chain(shell.clone()))
        })
        .collect::<io::Result<_>>()?;
    let (report, answer) = io::pipe()?;
    let (report, answer) = (OwnedFd::from(report), OwnedFd::from(answer));
    let open = open_descriptors();

    // SAFETY: the child makes system calls on values that were made before the fork, until
    // it executes the program or ends.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Begun { pid: child.as_raw(), report }),
        ForkResult::Child => {
            let answer = answer.as_raw_fd();
            let error = become_streams(&streams)
                .and_then(|()| {
                    close_ours(&open, answer);
                    prepare()
                })
                .map_or_else(
                    |error| error,
                    |()| execute(&places, &shells, &arguments, &environment),
                );
            let number = error.raw_os_error().unwrap_or(libc::EINVAL).to_ne_bytes();
            // SAFETY: plain system calls; the array is alive.
            unsafe {
                libc::write(answer, number.as_ptr().cast(), number.len());
                libc::_exit(127)
            }
        }
    }
}

/// The paths at which execvp(3) would search `program`, in order.
fn places(program: &OsStr, path: Option<&OsString>) -> io::Result<Vec<CString>> {
    let name = program.as_bytes();
    if name.contains(&b'/') || name.is_empty() {
        return Ok(vec![CString::new(name)?]);
    }
    let path = path.map_or(PATH.as_bytes(), |path| path.as_bytes());
    path.split(|byte| *byte == b':')
        .map(|folder| match folder {
            // An empty entry is the working directory.
            b"" => Ok(CString::new(name)?),
            folder => Ok(CString::new([folder, b"/", name].concat())?),
        })
        .collect()
}

fn become_streams(streams: &[OwnedFd; 3]) -> io::Result<()> {
    for (stream, number) in streams.iter().zip(0..) {
        // SAFETY: a plain system call; `stream` is open and above the standard ones, which
        // are open in every process of ours.
        if unsafe { libc::dup2(stream.as_raw_fd(), number) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Closes now the descriptors that exec would close.
fn close_ours(open: &[RawFd], but: RawFd) {
    for fd in open.iter().filter(|fd| **fd > libc::STDERR_FILENO && **fd != but) {
        // SAFETY: plain system calls; nothing of this process uses the number any more.
        unsafe {
            let flags = libc::fcntl(*fd, libc::F_GETFD);
            if flags != -1 && flags & libc::FD_CLOEXEC != 0 {
                libc::close(*fd);
            }
        }
    }
}

/// Returns only if none of `places` could be executed.
fn execute(
    places: &[CString],
    shells: &[CArray],
    arguments: &CArray,
    environment: &CArray,
) -> io::Error {
    let mut denied = false;
    let mut last = libc::ENOENT;
    for (place, shell) in places.iter().zip(shells) {
        // SAFETY: null-terminated strings and arrays, all of them alive.
        unsafe { libc::execve(place.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        let mut error = errno();
        if error == libc::ENOEXEC {
            // SAFETY: as above.
            unsafe { libc::execve(c"/bin/sh".as_ptr(), shell.as_ptr(), environment.as_ptr()) };
            error = errno();
        }
        last = error;
        match error {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return io::Error::from_raw_os_error(error),
        }
    }
    io::Error::from_raw_os_error(if denied { libc::EACCES } else { last })
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

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

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::process::WaitOptions;

    use super::*;

    /// The program's output, or the error of its execve.
    fn ran(
        words: &[&str],
        path: &str,
        prepare: impl FnMut() -> io::Result<()>,
    ) -> Result<String, Option<i32>> {
        let argv: Vec<OsString> = words.iter().map(OsString::from).collect();
        let environment = BTreeMap::from([("PATH".into(), OsString::from(path))]);
        let (mut out, write) = io::pipe().expect("a pipe");
        let (nothing, _) = io::pipe().expect("a pipe");
        let copy = write.try_clone().expect("a copy");
        let streams = [nothing.into(), write.into(), copy.into()];
        let begun = start(&argv, &environment, streams, prepare).expect("a fork");
        let mut number = Vec::new();
        std::fs::File::from(begun.report).read_to_end(&mut number).expect("an answer");
        let mut said = String::new();
        out.read_to_string(&mut said).expect("an end");
        let pid = crate::sys::Pid::from_raw(begun.pid);
        rustix::process::waitpid(pid, WaitOptions::empty()).expect("ours");
        match number.as_slice() {
            [] => Ok(said),
            number => Err(number.try_into().ok().map(i32::from_ne_bytes)),
        }
    }

    #[test]
    fn program_is_found_like_in_a_shell() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text, mode) in
            [("plain", "echo plain $1", 0o755), ("locked", "echo no", 0o644), ("file", "", 0o755)]
        {
            let file = folder.path().join(name);
            // Written by another process, since a descriptor open for writing forbids execution.
            let write = format!("printf '%s' '{text}' > '{}'", file.display());
            Command::new("sh").args(["-c", &write]).status().expect("a shell");
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file, mode).expect("a mode");
        }
        let at = |name: &str| folder.path().join(name).display().to_string();
        let path = format!("/nowhere:{}:{}:/bin:/usr/bin", at("file"), folder.path().display());
        let ran = |words: &[&str]| ran(words, &path, || Ok(()));
        assert_eq!(ran(&["sh", "-c", "echo $PATH"]), Ok(format!("{path}\n")));
        // Without a `#!` line the shell runs it.
        assert_eq!(ran(&["plain", "x"]), Ok("plain x\n".to_owned()));
        assert_eq!(ran(&["locked"]), Err(Some(libc::EACCES)));
        assert_eq!(ran(&["no-such-program"]), Err(Some(libc::ENOENT)));
        assert_eq!(ran(&[&at("file/x")]), Err(Some(libc::ENOTDIR)));
    }

    #[test]
    fn child_before_exec_holds_none_of_our_descriptors() {
        let ours = std::fs::File::open("/dev/null").expect("a file");
        let number = ours.as_raw_fd();
        // SAFETY: a plain system call.
        let look = move || match unsafe { libc::fcntl(number, libc::F_GETFD) } {
            -1 => Err(io::Error::from_raw_os_error(libc::EDOM)),
            _ => Ok(()),
        };
        assert_eq!(ran(&["true"], PATH, look), Err(Some(libc::EDOM)));
    }
}
