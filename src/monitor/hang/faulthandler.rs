//! Asks the faulthandler of a rank for its stacks, by a signal: the last way to them.
//!
//! The stacks of a rank are read from its memory (room `stacks`), which takes nothing from it. If the
//! kernel refuses that, or the interpreter is one whose memory is not understood, the injected file has
//! left a handler that writes them into a file of the run, also while the GIL is held. A signal wakes
//! the rank out of a system call: Python goes on with what it did, but a library in C may not. So this
//! is only for a rank that stands still.
//!
//! The signal is SIGRTMAX−6 (58). SIGUSR1, SIGUSR2, SIGHUP and SIGCONT are those of schedulers and of the
//! programs that checkpoint for them; the lowest real-time signals are those of the C library, .NET and
//! garbage collectors, SIGRTMAX that of valgrind. torch, NCCL, accelerate and deepspeed use none.

use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use linux::regular_file;
use linux::signal;
use linux::sys::{Pid, send_real_time};
use text::lang::failure;
use text::text;

/// The same number as in src/supervise/inject/sitecustomize.py.
const BELOW: i32 = 6;
const NUMBER: u32 = 58;
const DESCRIPTOR: u32 = 1000;
/// faulthandler ends each list of 100 frames and of 100 threads: some hundreds of KiB.
const LARGEST: u64 = 4 << 20;
const POLL: Duration = Duration::from_millis(5);
/// The handler writes without a pause, so a file that has not grown for this long is complete.
const COMPLETE: Duration = Duration::from_millis(50);

/// The stacks of all threads of a process, in faulthandler's words. `control`: the folder of its file.
/// Waits for `timeout` at most.
///
/// # Errors
/// Unsupported: the process has no handler of ours, and gets no signal. TimedOut: it is stopped, or
/// sits in the kernel; the answer may come later, and is not taken for that of the next question.
pub(crate) fn stacks(control: &Path, pid: i32, timeout: Duration) -> io::Result<String> {
    let until = Instant::now() + timeout;
    let path = control.join(format!("{pid}.stacks"));
    let none = || {
        let why = text!(
            "this process has no handler that writes its stacks",
            "该进程没有写出堆栈的处理函数"
        );
        failure(io::ErrorKind::Unsupported, why)
    };
    let (mut file, before) = regular_file::open(&path).map_err(|_| none())?;
    let process = Pid::from_raw(pid).ok_or_else(none)?;
    // The handle pins the process: the process that is examined is the one that gets the signal.
    let handle = signal::handle(process)?.ok_or_else(none)?;
    if !has_handler(pid) || !holds(pid, &path) {
        return Err(none());
    }
    send_real_time(handle.as_fd(), BELOW)?;
    let (mut length, mut grew) = (before, Instant::now());
    loop {
        let now = file.metadata()?.len();
        if now > length {
            (length, grew) = (now, Instant::now());
        }
        let late = Instant::now() >= until;
        if length > before && (late || grew.elapsed() >= COMPLETE) {
            break;
        }
        if late {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(POLL);
    }
    file.seek(SeekFrom::Start(before))?;
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A process without a handler would be ended by the signal.
fn has_handler(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name))?.trim();
        u64::from_str_radix(mask, 16).ok()
    };
    mask("SigCgt:").is_some_and(|caught| caught >> (NUMBER - 1) & 1 == 1)
}

/// Whether the handler's descriptor is still the file. If the kernel hides the descriptor, as it hides the
/// memory, the answer is yes.
fn holds(pid: i32, path: &Path) -> bool {
    match std::fs::read_link(format!("/proc/{pid}/fd/{DESCRIPTOR}")) {
        Ok(file) => std::fs::canonicalize(path).is_ok_and(|path| path == file),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, ChildStdout, Command, Stdio};

    use super::*;
    use supervise::inject::Injection;

    const LONG: Duration = Duration::from_secs(30);

    /// A Python as a rank starts it, which says `ready`.
    struct Rank {
        _folder: tempfile::TempDir,
        injection: Injection,
        child: Child,
        out: BufReader<ChildStdout>,
    }

    impl Rank {
        fn start(program: &str) -> Rank {
            let folder = tempfile::tempdir().expect("a folder");
            let injection = Injection::write(folder.path()).expect("written");
            let mut child = Command::new("python3")
                .args(["-c", &format!("{program}\nprint('ready', flush=True)\nlast()")])
                .env("PYTHONPATH", folder.path().join("inject/python"))
                .env("RANKLAUNCH_CONTROL", injection.control())
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts");
            let out = BufReader::new(child.stdout.take().expect("its output"));
            let mut rank = Rank { _folder: folder, injection, child, out };
            assert_eq!(rank.line(), "ready\n");
            rank
        }

        fn line(&mut self) -> String {
            let mut line = String::new();
            self.out.read_line(&mut line).expect("read");
            line
        }

        fn pid(&self) -> i32 {
            self.child.id().try_into().expect("a pid")
        }

        fn stacks(&self, timeout: Duration) -> io::Result<String> {
            stacks(&self.injection.control(), self.pid(), timeout)
        }

        /// The stacks as soon as the rank is in this function.
        fn stacks_in(&self, function: &str) -> String {
            let until = Instant::now() + LONG;
            loop {
                let said = self.stacks(LONG).expect("its stacks");
                if said.contains(&format!("in {function}\n")) {
                    return said;
                }
                assert!(Instant::now() < until, "{said}");
            }
        }

        fn lives(&mut self) -> bool {
            self.child.try_wait().expect("ours").is_none()
        }
    }

    impl Drop for Rank {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Holds the GIL for ever in C.
    const HELD: &str = "
import ctypes
def culprit(): ctypes.PyDLL(None).pause()
def last():
    while True: culprit()";

    #[test]
    fn rank_holding_the_gil_reports_its_stack() {
        let mut rank = Rank::start(HELD);
        for _ in 0..2 {
            let said = rank.stacks_in("culprit");
            assert!(said.contains("in last\n"), "{said}");
            assert_eq!(said.matches("most recent call first").count(), 1, "{said}");
        }
        assert!(rank.lives());
    }

    /// PR_SET_DUMPABLE has the effect of an interpreter with file capabilities, or of one that the user
    /// may not read.
    #[test]
    fn non_dumpable_rank_reports_its_stack() {
        let hidden = format!("{HELD}\nctypes.CDLL(None).prctl(4, 0)");
        let rank = Rank::start(&hidden);
        let said = rank.stacks_in("culprit");
        assert!(said.contains("in last\n"), "{said}");
    }

    #[test]
    fn stack_request_does_not_shorten_a_sleep() {
        let mut rank = Rank::start(
            "
import time
def last():
    before = time.monotonic()
    time.sleep(1.5)
    print(time.monotonic() - before >= 1.5, flush=True)",
        );
        rank.stacks_in("last");
        assert_eq!(rank.line(), "True\n");
    }

    #[test]
    fn process_without_our_handler_gets_no_signal() {
        const WAITS: &str =
            "import faulthandler, os, signal, threading\nlast = threading.Event().wait\n";
        for program in [
            // The default action would end the rank.
            "faulthandler.unregister(58)",
            "signal.signal(58, signal.SIG_IGN)",
            // The descriptor with this number is closed or not ours any more.
            "os.closerange(3, 2000)",
            "os.dup2(1, 1000)",
        ] {
            let mut rank = Rank::start(&format!("{WAITS}{program}"));
            let error = rank.stacks(LONG).expect_err(program);
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{program}");
            assert!(rank.lives(), "{program}");
        }
        let here = std::process::id().try_into().expect("a pid");
        let folder = tempfile::tempdir().expect("a folder");
        assert!(stacks(folder.path(), here, LONG).is_err());
    }

    #[test]
    fn stack_request_to_stopped_rank_times_out() {
        let rank = Rank::start("import threading\nlast = threading.Event().wait");
        let pid = Pid::from_raw(rank.pid()).expect("a pid");
        rustix::process::kill_process(pid, linux::sys::Signal::STOP).expect("stopped");
        let error = rank.stacks(Duration::from_millis(100)).expect_err("no answer");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
