//! Whether this container lets us have the threads, processes and files of a job.
//!
//! Limits are tried, not read: that of the container may stand in a control group that
//! its namespace does not show, and what others use of it is nowhere to be read.

use std::io;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use rustix::event::{EventfdFlags, eventfd};

use crate::lang::Text;
use crate::text;
use crate::verdict::{Id, Refusal};

/// What one rank costs the agent: its connection, two pipes with what stops their
/// readers, two log files.
const FILES_PER_RANK: u32 = 7;
/// The same of the engine, listener, journal, run.json and what reads them.
const FILES: u32 = 16;
/// What one rank costs the container: shim, rank and the readers of two pipes. What the
/// program starts itself is its own.
const TASKS_PER_RANK: u32 = 4;
/// The readers of the engine's pipes, the writer of the log files and work that may hang.
const TASKS: u32 = 4;
/// Of a thread that only waits; the least that the C library allows is used.
const STACK: usize = 16 << 10;

/// Everything that may hang is read or written in a thread of its own: without one
/// for the console and one for the node nothing can be said or done. A runtime that
/// cannot start its first one gives up the whole program, so it is tried before.
///
/// # Errors
/// A pids limit that is used up (EAGAIN of clone(2)), or a container that refuses clone3(2).
pub fn can_start_threads() -> Result<(), Refusal> {
    two_at_once().map_err(|error| {
        let text = text!("no thread can be started: {error}", "无法创建线程：{error}");
        Refusal::new(Id::PidsLimit, text, hint(&error))
    })
}

fn hint(error: &io::Error) -> Text {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return text!(
            "the container's seccomp profile refuses the system call clone3: Docker before 20.10.10 and its kin do so; update the container runtime, or docker run --security-opt seccomp=unconfined",
            "容器的 seccomp 配置拒绝系统调用 clone3：20.10.10 之前的 Docker 等会如此；请升级容器运行时，或使用 docker run --security-opt seccomp=unconfined"
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
    // Both are gone before anybody counts again.
    let _ = first.join();
    second.map(|second| drop(second.join()))
}

/// Whether this node can carry `ranks` ranks: half-way through the start it would be too
/// late, since a rank whose output nobody can read dies of its first line.
///
/// # Errors
/// `Verdict::Limit` with what is needed and what could be had.
pub fn has_room(ranks: u32) -> Result<(), Refusal> {
    let needed = FILES + ranks.saturating_mul(FILES_PER_RANK);
    let (got, error) = files(needed);
    if let Some(error) = error {
        return Err(Refusal::new(
            Id::Nofile,
            text!(
                "{ranks} ranks need {needed} open files in the launcher, and only {got} more can be opened: {error}",
                "{ranks} 个 rank 需要启动器打开 {needed} 个文件，但只能再打开 {got} 个：{error}"
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
    let Text { en, zh } = hint(&error);
    Err(Refusal::new(
        Id::PidsLimit,
        text!(
            "{ranks} ranks need {needed} processes and threads of the launcher, and only {got} more can be started: {error}",
            "{ranks} 个 rank 需要启动器的 {needed} 个进程和线程，但只能再创建 {got} 个：{error}"
        ),
        text!(
            "{en}; --severity pids.limit=warn starts anyway",
            "{zh}；--severity pids.limit=warn 可照常启动"
        ),
    ))
}

/// How many of `needed` descriptors could be had at once, and why no more.
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

/// The same of threads, which count as processes do.
fn tasks(needed: u32) -> (usize, Option<io::Error>) {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut held, mut refused) = (Vec::new(), None);
    for _ in 0..needed {
        let gate = Arc::clone(&gate);
        match Builder::new().stack_size(STACK).spawn(move || drop(gate.lock())) {
            Ok(thread) => held.push(thread),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let count = held.len();
    drop(closed);
    for thread in held {
        let _ = thread.join();
    }
    (count, refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tried_is_given_back() {
        let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let before = open();
        for _ in 0..3 {
            assert_eq!(files(200).0, 200);
            let (count, refused) = tasks(64);
            assert_eq!((count, refused.is_none()), (64, true));
        }
        // Other tests open files of their own meanwhile.
        assert!(open() < before + 150);
    }
}
