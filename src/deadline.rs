//! Work that may get stuck in the kernel: a dead mount, a driver.

use std::io;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::lang::failure;
use crate::text;

/// Does `work` in a thread of its own, or here where none is to be had: the pids limit is
/// used up, or the container refuses clone3(2). What hangs then hangs us; what does not,
/// which is nearly all, is done.
fn spawn_detached(work: impl FnOnce() + Send + 'static) {
    let work = Arc::new(Mutex::new(Some(work)));
    let take = |work: &Mutex<Option<_>>| work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let theirs = Arc::clone(&work);
    let spawned = std::thread::Builder::new().name("in-time".to_owned()).spawn(move || {
        if let Some(work) = take(&theirs) {
            work();
        }
    });
    if spawned.is_err()
        && let Some(work) = take(&work)
    {
        work();
    }
}

/// The result of `work`, done in a thread of its own; None when it has none by then.
/// The thread is left behind: nothing can end a wait in a dead mount.
pub(crate) fn with_deadline<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = mpsc::sync_channel(1);
    spawn_detached(move || {
        let _ = done.send(work());
    });
    result.recv_timeout(timeout).ok()
}

/// [`with_deadline`] for a task of the runtime, whose thread others share meanwhile.
pub(crate) async fn with_deadline_async<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = tokio::sync::oneshot::channel();
    spawn_detached(move || {
        let _ = done.send(work());
    });
    tokio::time::timeout(timeout, result).await.ok()?.ok()
}

/// The result of `work`, done in a thread of its own while the runtime goes on. Where
/// no thread can be made the runtime waits for it: the end of a job has no other choice.
/// The thread runs on when nobody waits any more.
pub(crate) fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = T> {
    let (done, result) = tokio::sync::oneshot::channel();
    spawn_detached(move || {
        let _ = done.send(work());
    });
    async move {
        match result.await {
            Ok(result) => result,
            // The thread panicked, and the panic hook has ended the program.
            Err(_) => std::future::pending().await,
        }
    }
}

/// [`with_deadline`] for what may fail: no answer is an error like any other.
///
/// # Errors
/// That of `work`, or that there was no answer.
pub(crate) fn io_with_deadline<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    with_deadline(timeout, work).unwrap_or_else(|| {
        let seconds = timeout.as_secs();
        let why = text!(
            "no answer within {seconds} s, is its mount dead?",
            "{seconds} 秒内无响应，挂载点可能已失效"
        );
        Err(failure(io::ErrorKind::TimedOut, why))
    })
}
