//! The last steps before the engine starts: ports, limits, the wait for the master, the trials of `check`.
//!
//! Takes addresses and ports of the plan; gives a free port, the proof that a port is free, or a
//! [`master::Reached`]. Closes every socket that it opens. Never waits without a deadline; a
//! refusal names what was tried, how often, and the last result.
//!
//! Here: whether this container allows the threads, processes, files and random bytes of a job. Tries the limits
//! instead of reading them: the container's limit may be in a control group that its namespace hides, and the use by
//! others cannot be read.

mod master;
mod trial;

pub use master::{Wait, check_port, free_port, wait_for_master};
pub use trial::{WriteProblem, all_reduce, try_write};

use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::gettid;

use linux::random;
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal};

/// Called first of all, since maps of the standard library need random bytes.
///
/// # Errors
/// On a kernel or in a container without getrandom(2), if the root has no /dev/urandom.
pub fn has_randomness() -> Result<(), Refusal> {
    random::fill(&mut [0]).map_err(|error| {
        let Text { en, zh } = cause(&error);
        Refusal::new(
            Id::RandomNone,
            text!(
                "the kernel gives no random bytes ({en}), and /dev/urandom cannot be read",
                "无法从内核取得随机数（{zh}），也无法读取 /dev/urandom"
            ),
            text!(
                "let the container have /dev/urandom and the system call getrandom (Linux 3.17)",
                "请让容器可以使用 /dev/urandom 和系统调用 getrandom（Linux 3.17 起）"
            ),
        )
    })
}

/// Containers without a limit report a thousand million files; programs that loop over all
/// possible descriptors then hang for minutes.
const MOST_FILES: u64 = 1 << 20;

/// Raises the soft limits of open files and of locked memory to the hard ones. Processes started
/// later inherit them.
///
/// NCCL has tens of thousands of sockets in large jobs, and the soft limit of 1024 exists only
/// for programs that call select(2). A limit that cannot be raised is kept; `check` reports the
/// hard one.
pub fn raise_limits() {
    for (resource, most) in [(Resource::Nofile, Some(MOST_FILES)), (Resource::Memlock, None)] {
        let Rlimit { current, maximum } = getrlimit(resource);
        let wanted = match (maximum, most) {
            (Some(hard), Some(most)) => Some(hard.min(most)),
            (hard, most) => hard.or(most),
        };
        // None means unlimited.
        let is_more = match (current, wanted) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(current), Some(wanted)) => wanted > current,
        };
        if is_more {
            let _ = setrlimit(resource, Rlimit { current: wanted, maximum });
        }
    }
}

/// Number of files that one rank costs the agent: its connection, two pipes with the stop
/// descriptors of their readers, two log files.
const FILES_PER_RANK: u32 = 7;
/// The same for the engine, listener, journal and run.json.
const FILES: u32 = 16;
/// Number of tasks that one rank costs the container: shim, rank and the readers of two pipes; not
/// counting tasks that the program starts itself.
const TASKS_PER_RANK: u32 = 4;
/// Number of tasks of the job itself: the readers of the engine's pipes, the writers of log files
/// and journal, the sampler, the search for a cause, and two pieces of work that may hang.
const TASKS: u32 = 8;
/// Stack of a thread that only waits; the C library raises it to its minimum.
const STACK: usize = 16 << 10;
/// Maximum time for which the kernel may list a thread that has ended.
const RELEASE: Duration = Duration::from_secs(1);
/// Interval of the check. The kernel takes some microseconds to remove a thread, and the start of
/// the job waits for that.
const LOOK: Duration = Duration::from_micros(20);

/// Whether two threads can be started. Everything that may hang runs in a thread: without one
/// for the console and one for the node nothing can be printed or done. A runtime that cannot
/// start its first thread aborts the program, so this is tried before.
///
/// # Errors
/// If the pids limit is reached (EAGAIN of clone(2)), or the container refuses clone3(2).
pub fn can_start_threads() -> Result<(), Refusal> {
    two_at_once().map_err(|error| no_thread(&error))
}

/// The refusal for a thread that cannot be started.
pub fn no_thread(error: &io::Error) -> Refusal {
    let Text { en, zh } = cause(error);
    let text = text!("no thread can be started: {en}", "无法创建线程：{zh}");
    Refusal::new(Id::PidsLimit, text, hint(error))
}

/// The refusal for a process that the pids limit forbids; None if `error` of fork(2) has another reason.
pub fn no_process(error: &io::Error) -> Option<Refusal> {
    if error.kind() != io::ErrorKind::WouldBlock {
        return None;
    }
    let Text { en, zh } = cause(error);
    let text = text!("no process can be started: {en}", "无法创建进程：{zh}");
    Some(Refusal::new(Id::PidsLimit, text, hint(error)))
}

fn hint(error: &io::Error) -> Text {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return text!(
            "the container's seccomp profile refuses the system call clone3: as Docker before 20.10.10 does; update the container runtime, or docker run --security-opt seccomp=unconfined",
            "容器的 seccomp 配置拒绝系统调用 clone3：20.10.10 之前的 Docker 即如此；请升级容器运行时，或使用 docker run --security-opt seccomp=unconfined"
        );
    }
    text!(
        "raise the pids limit (podPidsLimit, docker run --pids-limit) or the user's nproc limit (ulimit -u)",
        "请提高 pids 限制（podPidsLimit、docker run --pids-limit）或用户的 nproc 限制（ulimit -u）"
    )
}

fn two_at_once() -> io::Result<()> {
    let (held, until_dropped) = mpsc::channel::<()>();
    let first = Builder::new().spawn(move || until_dropped.recv())?;
    let second = Builder::new().spawn(|| {});
    drop(held);
    // Both threads have ended before the next count.
    let _ = first.join();
    second.map(|second| drop(second.join()))
}

/// Whether this node has room for `ranks` ranks. Checked before the start, since a rank whose
/// pipes cannot be read fails at its first line.
///
/// # Errors
/// `Verdict::Limit`, with the needed and the available number.
pub fn has_room(ranks: u32) -> Result<(), Refusal> {
    let needed = FILES + ranks.saturating_mul(FILES_PER_RANK);
    let (got, error) = files(needed);
    if let Some(error) = error {
        let Text { en, zh } = cause(&error);
        return Err(Refusal::new(
            Id::Nofile,
            text!(
                "{ranks} ranks need {needed} open files in ranklaunch, but only {got} more can be opened: {en}",
                "{ranks} 个 rank 需要 ranklaunch 打开 {needed} 个文件，但只能再打开 {got} 个：{zh}"
            ),
            text!(
                "raise the hard limit of open files (docker run --ulimit nofile=1048576, LimitNOFILE, ulimit -Hn), or start fewer ranks with --nproc-per-node; --severity nofile=warn starts anyway",
                "请提高打开文件数的硬限制（docker run --ulimit nofile=1048576、LimitNOFILE、ulimit -Hn），或用 --nproc-per-node 减少 rank 数；--severity nofile=warn 可照常启动"
            ),
        ));
    }
    let needed = TASKS + ranks.saturating_mul(TASKS_PER_RANK);
    let (got, error) = tasks(needed);
    let Some(error) = error else { return Ok(()) };
    let (why, hint) = (cause(&error), hint(&error));
    let (Text { en, zh }, Text { en: hint_en, zh: hint_zh }) = (why, hint);
    Err(Refusal::new(
        Id::PidsLimit,
        text!(
            "{ranks} ranks need {needed} processes and threads of ranklaunch, but only {got} more can be started: {en}",
            "{ranks} 个 rank 需要 ranklaunch 的 {needed} 个进程和线程，但只能再创建 {got} 个：{zh}"
        ),
        text!(
            "{hint_en}; --severity pids.limit=warn starts anyway",
            "{hint_zh}；--severity pids.limit=warn 可照常启动"
        ),
    ))
}

/// The number of descriptors, up to `needed`, that could be opened at once, and the reason for the
/// limit.
fn files(needed: u32) -> (usize, Option<io::Error>) {
    let mut held = Vec::new();
    for _ in 0..needed {
        match eventfd(0, EventfdFlags::CLOEXEC) {
            Ok(file) => held.push(file),
            Err(error) => return (held.len(), Some(error.into())),
        }
    }
    (held.len(), None)
}

/// The same for threads, which count like processes.
fn tasks(needed: u32) -> (usize, Option<io::Error>) {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut held, mut refused) = (Vec::new(), None);
    for _ in 0..needed {
        let gate = Arc::clone(&gate);
        let (tell, id) = mpsc::sync_channel(1);
        let waits = move || {
            let _ = tell.send(gettid().as_raw_nonzero());
            drop(gate.lock());
        };
        match Builder::new().stack_size(STACK).spawn(waits) {
            Ok(thread) => held.push((thread, id)),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let count = held.len();
    drop(closed);
    let mut ids: Vec<_> = held.iter().filter_map(|(_, id)| id.recv().ok()).collect();
    for (thread, _) in held {
        let _ = thread.join();
    }
    // A thread that has been joined still counts against the limit until the kernel has taken it
    // off the list: a rank that is forked in this moment would be refused.
    let deadline = Instant::now() + RELEASE;
    loop {
        ids.retain(|id| Path::new(&format!("/proc/self/task/{id}")).exists());
        if ids.is_empty() || Instant::now() >= deadline {
            return (count, refused);
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_threads_and_files_are_released() {
        let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let before = open();
        for _ in 0..3 {
            assert_eq!(files(200).0, 200);
            let (count, refused) = tasks(64);
            assert_eq!((count, refused.is_none()), (64, true));
        }
        // Other tests open files at the same time.
        assert!(open() < before + 150);
    }
}
