//! Whether this container lets us have threads at all.

use std::io;
use std::sync::mpsc;
use std::thread::Builder;

use crate::text;
use crate::verdict::{Refusal, Verdict};

/// Everything that may hang is read or written in a thread of its own: without one
/// for the console and one for the node nothing can be said or done. A runtime that
/// cannot start its first one gives up the whole program, so it is tried before: a
/// pids limit that is used up (EAGAIN of clone(2)) is a limit to raise.
pub fn can_start_threads() -> Result<(), Refusal> {
    two_at_once().map_err(|error| {
        Refusal::new(
            Verdict::Limit,
            "pids.limit",
            text!("no thread can be started: {error}", "无法创建线程：{error}"),
            text!(
                "raise the pids limit (podPidsLimit, docker run --pids-limit) or the user's nproc limit (ulimit -u)",
                "请提高 pids 限制（podPidsLimit、docker run --pids-limit）或用户的 nproc 限制（ulimit -u）"
            ),
        )
    })
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
