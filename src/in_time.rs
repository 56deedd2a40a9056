//! Work that may get stuck in the kernel: a dead mount, a driver.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

/// The result of `work`, done in a thread of its own; None when it has none by then.
/// The thread is left behind: nothing can end a wait in a dead mount.
pub(crate) fn in_time<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("in-time".to_owned())
        .spawn(move || {
            let _ = done.send(work());
        })
        .ok()?;
    result.recv_timeout(patience).ok()
}

/// [`in_time`] for a task of the runtime, whose thread others share meanwhile.
pub(crate) async fn beside<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    tokio::time::timeout(patience, tokio::task::spawn_blocking(work)).await.ok()?.ok()
}

/// [`in_time`] for what may fail: no answer is an error like any other.
///
/// # Errors
/// That of `work`, or that there was no answer.
pub(crate) fn io_in_time<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    in_time(patience, work).unwrap_or_else(|| {
        let seconds = patience.as_secs();
        let why = format!("no answer within {seconds} s, is its mount dead?");
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    })
}
