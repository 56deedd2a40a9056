//! Deadlines for work that may get stuck in the kernel: a dead mount, a driver.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};

use text::lang::failure;
use text::text;

/// Runs `work` in a thread of its own. If no thread can be created (pids limit, or a container
/// that refuses clone3(2)), runs it here, although it may then block the caller.
pub fn spawn_detached(work: impl FnOnce() + Send + 'static) {
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

/// The result of `work`, run in a thread of its own; None after the deadline. The thread is then
/// abandoned, since nothing can end a wait in a dead mount.
pub fn with_deadline<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = mpsc::sync_channel(1);
    spawn_detached(move || {
        let _ = done.send(work());
    });
    result.recv_timeout(timeout).ok()
}

/// [`with_deadline`] for a task of the runtime, which does not block its thread.
pub async fn with_deadline_async<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = tokio::sync::oneshot::channel();
    spawn_detached(move || {
        let _ = done.send(work());
    });
    tokio::time::timeout(timeout, result).await.ok()?.ok()
}

/// The result of `work`, run in a thread of its own while the runtime goes on. If no thread can
/// be created the runtime blocks, since the end of a job needs the result. The thread continues
/// if the future is dropped.
pub fn in_thread<T: Send + 'static>(
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

/// The time that is left until `until`.
///
/// # Errors
/// A timeout if no time is left.
pub fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// One read of a socket, which ends by `until`; 0 at the end of the stream.
///
/// # Errors
/// A timeout, or the error of the socket.
pub fn read_by(
    stream: &mut (impl Read + AsFd),
    until: Instant,
    part: &mut [u8],
) -> io::Result<usize> {
    loop {
        set_socket_timeout(&*stream, Timeout::Recv, Some(left(until)?))?;
        match stream.read(part) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A socket reports its timeout in this way.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            read => return read,
        }
    }
}

/// [`with_deadline`] for work that may fail: a timeout is an error.
///
/// # Errors
/// The error of `work`, or a timeout.
pub fn io_with_deadline<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    with_deadline(timeout, work).unwrap_or_else(|| {
        let seconds = timeout.as_secs();
        let why = text!(
            "no answer within {seconds} s; its mount may be dead",
            "{seconds} 秒内无响应，挂载点可能已失效"
        );
        Err(failure(io::ErrorKind::TimedOut, why))
    })
}

/// Whole milliseconds, at most [`u64::MAX`].
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
