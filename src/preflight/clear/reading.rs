//! Reads what processes and mounts may never answer, and goes on without them.
//!
//! The kernel gives the arguments, the environment and the maps of a process only under the lock of its memory. A
//! process that waits for a page of a dead mount holds this lock, and whoever reads then waits as well, where no signal
//! reaches. So a scan runs in a thread of its own, which says what it reads. Where a read stands still, all processes are
//! tried at once, by one thread for each that does not answer; those are silent from then on, the threads are
//! abandoned, and the scan begins again without them. While all answer this costs one thread for a scan. All waits
//! together take [`PATIENCE`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use linux::deadline::{spawn_detached, try_spawn_detached, with_deadline};
use linux::host::Host;

/// Time that processes and mounts without an answer may take in all. The script of any process may lie on a dead mount.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// A read that takes longer than this may stand still.
const STILL: Duration = Duration::from_millis(250);
/// Time in which every process is to answer once one did not.
const TRIED: Duration = Duration::from_millis(500);
/// Threads that begin to try. While processes are left that no thread has come to, there are twice as many after each
/// [`STEP`]…
const THREADS: usize = 64;
/// …up to this number: every process that does not answer keeps one, and the threads count against the pids limit of
/// the job. Processes that were not tried then count as silent.
const MOST_THREADS: usize = 1024;
/// A process that answers takes some microseconds.
const STEP: Duration = Duration::from_millis(20);

/// The state of all scans for one request.
#[derive(Debug, Default)]
pub(super) struct Reading {
    silent: Mutex<BTreeSet<i32>>,
    /// The processes that answered in the last trial.
    answered: Mutex<BTreeSet<i32>>,
    /// Patience is over: only processes that have answered are read.
    is_over: AtomicBool,
    waited: Mutex<Duration>,
    /// Device and inode of each file that was asked for; None if it is gone, or its mount gave no answer.
    files: Mutex<BTreeMap<PathBuf, Option<(u64, u64)>>>,
}

/// The reads of one scan.
#[derive(Debug, Default)]
pub(super) struct Reads {
    reading: Arc<Reading>,
    now: Arc<Now>,
}

/// What a scan reads now.
#[derive(Debug, Default)]
struct Now {
    /// 0: it does not read a process.
    pid: AtomicI32,
    /// Number of reads so far.
    count: AtomicU64,
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reading {
    /// A reading that knows from an earlier one which processes are silent.
    pub(super) fn without(silent: &BTreeSet<i32>) -> Arc<Reading> {
        Arc::new(Reading { silent: Mutex::new(silent.clone()), ..Reading::default() })
    }

    fn is_silent(&self, pid: i32) -> bool {
        lock(&self.silent).contains(&pid)
            || (self.is_over.load(Ordering::Relaxed) && !lock(&self.answered).contains(&pid))
    }

    fn left(&self) -> Duration {
        PATIENCE.saturating_sub(*lock(&self.waited))
    }

    fn spend(&self, began: Instant) {
        *lock(&self.waited) += began.elapsed();
    }

    /// The result of `scan`, which may run several times.
    pub(super) fn of<T: Send + 'static>(
        self: &Arc<Reading>,
        host: &Host,
        scan: impl Fn(Reads) -> T + Clone + Send + 'static,
    ) -> T {
        loop {
            let now = Arc::new(Now::default());
            let reads = Reads { reading: Arc::clone(self), now: Arc::clone(&now) };
            let (done, result) = sync_channel(1);
            let scan = scan.clone();
            spawn_detached(move || {
                let _ = done.send(scan(reads));
            });
            let mut seen = 0;
            let stands = loop {
                match result.recv_timeout(STILL) {
                    Ok(found) => return found,
                    // The thread panicked, and the panic hook ends the program.
                    Err(RecvTimeoutError::Disconnected) => std::thread::sleep(STILL),
                    Err(RecvTimeoutError::Timeout) => {
                        let pid = now.pid.load(Ordering::Relaxed);
                        let count = now.count.load(Ordering::Relaxed);
                        if pid != 0 && count == seen {
                            break pid;
                        }
                        seen = count;
                    }
                }
            };
            *lock(&self.waited) += STILL;
            if self.left().is_zero() {
                self.is_over.store(true, Ordering::Relaxed);
            } else {
                self.try_all(host);
            }
            // It may stand still in something that was not tried.
            lock(&self.silent).insert(stands);
        }
    }

    /// Reads all processes that are not silent yet. Those that do not answer are silent from now on.
    fn try_all(&self, host: &Host) {
        #[derive(Default)]
        struct Trial {
            next: VecDeque<i32>,
            open: BTreeSet<i32>,
        }
        let began = Instant::now();
        let mut pids: Vec<i32> = host.pids();
        pids.retain(|pid| !self.is_silent(*pid));
        // A process that waits for a page of a dead mount is in state D, so it is tried after the others.
        pids.sort_by_cached_key(|pid| host.process(*pid).stat().is_some_and(|it| it.state == b'D'));
        let (next, open) = (pids.iter().copied().collect(), pids.iter().copied().collect());
        let trial = Arc::new((Mutex::new(Trial { next, open }), Condvar::new()));
        let work = || {
            let (trial, host) = (Arc::clone(&trial), host.clone());
            move || {
                let (state, ended) = &*trial;
                let next = || lock(state).next.pop_front();
                while let Some(pid) = next() {
                    let _ = (host.process(pid).cmdline(), host.process(pid).environ());
                    let mut state = lock(state);
                    state.open.remove(&pid);
                    if state.open.is_empty() {
                        ended.notify_all();
                    }
                }
            }
        };
        let (state, ended) = &*trial;
        let most = TRIED.min(self.left());
        let mut threads = 0;
        let mut trial = loop {
            let wanted = (threads * 2).clamp(THREADS, MOST_THREADS) - threads;
            let more = wanted.min(lock(state).next.len());
            threads += (0..more).take_while(|_| try_spawn_detached(work()).is_ok()).count();
            let step = STEP.min(most.saturating_sub(began.elapsed()));
            let is_open = |trial: &mut Trial| !trial.open.is_empty();
            let waited = ended.wait_timeout_while(lock(state), step, is_open);
            let trial = waited.unwrap_or_else(PoisonError::into_inner).0;
            if trial.open.is_empty() || began.elapsed() >= most {
                break trial;
            }
        };
        trial.next.clear();
        self.spend(began);
        lock(&self.silent).extend(&trial.open);
        let answered = pids.into_iter().filter(|pid| !trial.open.contains(pid));
        *lock(&self.answered) = answered.collect();
    }
}

impl Reads {
    /// The arguments of a process; see [`linux::procfs::ProcessFiles::cmdline`].
    pub(super) fn cmdline(&self, host: &Host, pid: i32) -> Option<Vec<Vec<u8>>> {
        self.read(pid, || host.process(pid).cmdline())
    }

    /// The environment of a process; see [`linux::procfs::ProcessFiles::environ`].
    pub(super) fn environ(&self, host: &Host, pid: i32) -> Option<Vec<Vec<u8>>> {
        self.read(pid, || host.process(pid).environ())
    }

    /// See [`linux::procfs::ProcessFiles::exe`]. Kernels before 4.1 take the lock for it as well.
    pub(super) fn exe(&self, host: &Host, pid: i32) -> Option<PathBuf> {
        self.read(pid, || host.process(pid).exe())
    }

    /// See [`linux::procfs::ProcessFiles::has_mapped`].
    pub(super) fn has_mapped(&self, host: &Host, pid: i32, part: &[u8]) -> bool {
        self.read(pid, || Some(host.process(pid).has_mapped(part))).unwrap_or_default()
    }

    /// Whether the kernel gives nothing of a process.
    pub(super) fn is_silent(&self, pid: i32) -> bool {
        self.reading.is_silent(pid)
    }

    fn read<T>(&self, pid: i32, read: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.is_silent(pid) {
            return None;
        }
        self.now.count.fetch_add(1, Ordering::Relaxed);
        self.now.pid.store(pid, Ordering::Relaxed);
        let found = read();
        self.now.pid.store(0, Ordering::Relaxed);
        found
    }

    /// Device and inode of a file, read once.
    pub(super) fn identity(&self, path: PathBuf) -> Option<(u64, u64)> {
        let reading = &self.reading;
        if let Some(known) = lock(&reading.files).get(&path) {
            return *known;
        }
        let (began, left) = (Instant::now(), reading.left());
        let read = {
            let path = path.clone();
            move || std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
        };
        let found = if left.is_zero() { None } else { with_deadline(left, read).flatten() };
        reading.spend(began);
        lock(&reading.files).insert(path, found);
        found
    }
}
