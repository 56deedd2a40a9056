//! Deadlines for work that may get stuck in the kernel: a dead mount, a driver.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};

use text::lang::failure;
use text::text;

/// How long a thread that has done its work waits for more. The start of a job has some tens of works within
/// milliseconds; a thread costs as much as a short one of them.
const IDLE: Duration = Duration::from_millis(500);

type Work = Box<dyn FnOnce() + Send>;

/// Works that wait for a thread, and the number of idle threads. Each work has an idle thread, or one that begins.
struct Pool {
    works: VecDeque<Work>,
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { works: VecDeque::new(), idle: 0 });
static WORK: Condvar = Condvar::new();

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` in a thread that does nothing else meanwhile. If no thread can be created (pids limit, or a container
/// that refuses clone3(2)), runs it here, although it may then block the caller.
pub fn spawn_detached(work: impl FnOnce() + Send + 'static) {
    if let Err((work, _)) = in_own_thread(Box::new(work)) {
        work();
    }
}

/// [`spawn_detached`] for work that others do as well.
///
/// # Errors
/// No thread can be created, and `work` does not run.
pub fn try_spawn_detached(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    in_own_thread(Box::new(work)).map_err(|(_, error)| error)
}

/// Runs `work` in an idle thread or a new one; gives it back if there is none.
fn in_own_thread(work: Work) -> Result<(), (Work, io::Error)> {
    let mut pool = pool();
    pool.works.push_back(work);
    if pool.idle >= pool.works.len() {
        WORK.notify_one();
        return Ok(());
    }
    let run = || {
        while let Some(work) = another() {
            work();
        }
    };
    // A thread takes no work before the pool is unlocked, so without a new thread the last one is still this one.
    match std::thread::Builder::new().name("in-time".to_owned()).spawn(run) {
        Ok(_) => Ok(()),
        Err(error) => pool.works.pop_back().map_or(Ok(()), |work| Err((work, error))),
    }
}

/// The next work of an idle thread; None after [`IDLE`].
fn another() -> Option<Work> {
    let mut pool = pool();
    pool.idle += 1;
    let waited = WORK.wait_timeout_while(pool, IDLE, |pool| pool.works.is_empty());
    let (mut pool, _) = waited.unwrap_or_else(PoisonError::into_inner);
    pool.idle -= 1;
    pool.works.pop_front()
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
    tokio::time::timeout(timeout, begun(work)).await.ok()?.ok()
}

/// The result of `work`, which runs in a thread from now on. If no thread can be created the caller blocks.
pub fn begun<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> tokio::sync::oneshot::Receiver<T> {
    let (done, result) = tokio::sync::oneshot::channel();
    spawn_detached(move || {
        let _ = done.send(work());
    });
    result
}

/// The result of `work`, run in a thread of its own while the runtime goes on. If no thread can
/// be created the runtime blocks, since the end of a job needs the result. The thread continues
/// if the future is dropped.
pub fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = T> {
    let result = begun(work);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Works that run at once.
    const WORKS: usize = 16;

    fn threads() -> Vec<std::thread::ThreadId> {
        let (tell, told) = mpsc::channel();
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock().expect("the gate");
        for _ in 0..WORKS {
            let (tell, gate) = (tell.clone(), Arc::clone(&gate));
            spawn_detached(move || {
                tell.send(std::thread::current().id()).expect("it is told");
                drop(gate.lock());
            });
        }
        // All are at work at once.
        let ids = told.iter().take(WORKS).collect();
        drop(held);
        ids
    }

    #[test]
    fn every_work_has_a_thread_of_its_own_while_it_runs() {
        for _ in 0..20 {
            let mut ids = threads();
            ids.sort_by_key(|id| format!("{id:?}"));
            ids.dedup();
            assert_eq!(ids.len(), WORKS);
        }
    }

    #[test]
    fn idle_threads_are_used_again_and_end() {
        // Other tests use the same threads, so one of many rounds is enough.
        let until = Instant::now() + Duration::from_secs(60);
        let known = threads();
        while !threads().iter().any(|id| known.contains(id)) {
            assert!(Instant::now() < until, "each work has a new thread");
        }
        while pool().idle > 0 {
            assert!(Instant::now() < until, "idle threads do not end");
            std::thread::sleep(IDLE / 10);
        }
    }

    #[test]
    fn late_work_is_abandoned_and_holds_no_other() {
        let (release, held) = mpsc::channel::<()>();
        let work = move || held.recv().is_ok();
        assert_eq!(with_deadline(Duration::from_millis(1), work), None);
        assert_eq!(with_deadline(Duration::from_secs(60), || 7), Some(7));
        drop(release);
    }
}
