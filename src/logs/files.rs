//! The one writer of a run's log files.
//!
//! Owns a bounded queue per file and one thread, which alone touches the file
//! system: a mount that hangs stops this thread and nobody else. Takes chunks;
//! what does not fit is dropped, and where it would have stood a line says how
//! much. After an error a file is tried again every 2 s.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::capped::CappedFile;
use super::human_bytes;
use super::patience::Patience;
use crate::lang::Text;
use crate::logs::Console;
use crate::text;

/// Bytes that wait per file.
const QUEUE_BYTES: usize = 4 * 1024 * 1024;
/// Smaller chunks are copied behind the one before, to keep their number low.
const SMALL: usize = 16 * 1024;
/// Empty chunks kept for readers while there is traffic.
const SPARES: usize = 8;
const RETRY: Duration = Duration::from_secs(2);

/// What became of one file.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FileAccount {
    /// Bytes that never reached the file.
    pub(super) lost: u64,
    /// Bytes that were removed between head and tail.
    pub(super) missing: u64,
}

#[derive(Debug, Clone)]
pub(super) struct FileWriter {
    shared: Arc<Shared>,
    folder: PathBuf,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queues: Vec<Queue>,
    /// Files that the writer has not taken over yet.
    new: Vec<CappedFile>,
    spares: Vec<Vec<u8>>,
    served: usize,
    busy: bool,
    closing: bool,
    done: bool,
    problems: Vec<Text>,
}

#[derive(Debug)]
struct Queue {
    chunks: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Bytes dropped since the last take: the gap stands behind what is queued.
    gap: u64,
    account: FileAccount,
    patience: Patience,
    retry_at: Option<Instant>,
}

/// One file's way to the writer.
#[derive(Debug, Clone)]
pub(super) struct FilePort {
    shared: Arc<Shared>,
    index: usize,
}

impl FileWriter {
    pub(super) fn start(folder: PathBuf, console: Console) -> std::io::Result<FileWriter> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            room: Condvar::new(),
        });
        let writer = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("log-files".to_owned())
            .stack_size(super::STACK)
            .spawn(move || writer.write_files(&console))?;
        Ok(FileWriter { shared, folder })
    }

    /// Adds a file of at most `cap` bytes, which the writer creates at once.
    pub(super) fn add(&self, name: String, cap: u64, lang: crate::lang::Lang) -> FilePort {
        let mut state = self.shared.lock();
        state.new.push(CappedFile::new(&self.folder, name, cap, lang));
        state.queues.push(Queue {
            chunks: VecDeque::new(),
            bytes: 0,
            gap: 0,
            account: FileAccount::default(),
            patience: Patience::new(),
            retry_at: None,
        });
        self.shared.work.notify_one();
        FilePort { shared: Arc::clone(&self.shared), index: state.queues.len() - 1 }
    }

    /// Asks the writer to write what is queued and end; false when it has not by the deadline.
    pub(super) fn close(&self, deadline: Duration) -> bool {
        let mut state = self.shared.lock();
        state.closing = true;
        self.shared.work.notify_one();
        let (_state, wait) = self
            .shared
            .room
            .wait_timeout_while(state, deadline, |state| !state.done)
            .unwrap_or_else(PoisonError::into_inner);
        !wait.timed_out()
    }

    pub(super) fn take_problems(&self) -> Vec<Text> {
        std::mem::take(&mut self.shared.lock().problems)
    }
}

impl FilePort {
    /// Queues `chunk` and leaves an empty buffer in its place.
    pub(super) fn push(&self, chunk: &mut Vec<u8>) {
        let mut state = self.shared.lock();
        loop {
            let State { queues, spares, busy, .. } = &mut *state;
            let Some(queue) = queues.get_mut(self.index) else { break };
            if queue.gap == 0 && queue.bytes + chunk.len() <= QUEUE_BYTES {
                queue.bytes += chunk.len();
                match queue.chunks.back_mut() {
                    Some(last)
                        if chunk.len() <= SMALL && last.capacity() - last.len() >= chunk.len() =>
                    {
                        last.extend_from_slice(chunk);
                    }
                    // A quiet stream keeps its own small buffer.
                    _ if chunk.len() <= SMALL => {
                        let mut copy = Vec::with_capacity(SMALL);
                        copy.extend_from_slice(chunk);
                        queue.chunks.push_back(copy);
                    }
                    _ => {
                        let spare = spares.pop().unwrap_or_default();
                        queue.chunks.push_back(std::mem::replace(chunk, spare));
                    }
                }
                chunk.clear();
                if !*busy {
                    self.shared.work.notify_one();
                }
                return;
            }
            let patience = queue.patience.left();
            if queue.gap > 0 || patience.is_zero() {
                queue.gap += chunk.len() as u64;
                queue.account.lost += chunk.len() as u64;
                break;
            }
            let before = Instant::now();
            state = self
                .shared
                .room
                .wait_timeout(state, patience)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if let Some(queue) = state.queues.get_mut(self.index) {
                queue.patience.spend(before.elapsed());
            }
        }
        chunk.clear();
    }

    pub(super) fn account(&self) -> FileAccount {
        self.shared.lock().queues.get(self.index).map(|queue| queue.account).unwrap_or_default()
    }
}

impl State {
    /// The next file in turn that has something and may be tried.
    fn next(&self, now: Instant) -> Option<usize> {
        let count = self.queues.len();
        (1..=count).map(|step| (self.served + step) % count.max(1)).find(|index| {
            self.queues.get(*index).is_some_and(|queue| {
                (queue.bytes > 0 || queue.gap > 0)
                    && (self.closing || queue.retry_at.is_none_or(|at| at <= now))
            })
        })
    }

    fn next_retry(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| queue.retry_at).min()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer's thread. Ends when told to close and all is written, or cannot be.
    fn write_files(&self, console: &Console) {
        let mut files: Vec<CappedFile> = Vec::new();
        let mut failing: Vec<bool> = Vec::new();
        let mut state = self.lock();
        loop {
            if !state.new.is_empty() {
                let fresh = std::mem::take(&mut state.new);
                let first = files.len();
                files.extend(fresh);
                failing.resize(files.len(), false);
                drop(state);
                // An error shows again with the first bytes.
                files.iter_mut().skip(first).for_each(|file| drop(file.open().map(|_| ())));
                state = self.lock();
                continue;
            }
            let now = Instant::now();
            let Some(index) = state.next(now) else {
                if state.closing {
                    state.done = true;
                    self.room.notify_all();
                    return;
                }
                state.busy = false;
                state = self.rest(state, now);
                continue;
            };
            state.served = index;
            state.busy = true;
            let closing = state.closing;
            let (mut chunks, gap) = match state.queues.get_mut(index) {
                Some(queue) => {
                    let chunks = std::mem::take(&mut queue.chunks);
                    queue.patience.earn(queue.bytes);
                    queue.bytes = 0;
                    (chunks, std::mem::take(&mut queue.gap))
                }
                None => continue,
            };
            drop(state);
            self.room.notify_all();

            let Some(file) = files.get_mut(index) else { return };
            let mut spares = Vec::new();
            let mut result = Ok(());
            while let Some(mut chunk) = chunks.pop_front() {
                if let Err((written, error)) = file.write(&chunk) {
                    chunk.drain(..written.min(chunk.len()));
                    chunks.push_front(chunk);
                    result = Err(error);
                    break;
                }
                chunk.clear();
                spares.push(chunk);
            }
            let mut unsaid = gap;
            if gap > 0 && result.is_ok() {
                let bytes = human_bytes(gap);
                let newline = if file.ends_in_newline() { "" } else { "\n" };
                let line = text!(
                    "{newline}[ranklaunch] {gap} bytes ({bytes}) are missing here: the disk did not take them in time\n",
                    "{newline}[ranklaunch] 此处缺失 {gap} 字节（{bytes}）：磁盘未能及时写入\n"
                );
                match file.write(line.get(console.lang()).as_bytes()) {
                    Ok(()) => unsaid = 0,
                    Err((_, error)) => result = Err(error),
                }
            }
            let missing = file.missing();
            let name = file.name().to_owned();
            let was_failing =
                failing.get_mut(index).map(|was| std::mem::replace(was, result.is_err()));

            state = self.lock();
            state.spares.extend(spares.into_iter().filter(|chunk| chunk.capacity() > SMALL));
            state.spares.truncate(SPARES);
            let State { queues, problems, .. } = &mut *state;
            let Some(queue) = queues.get_mut(index) else { continue };
            queue.account.missing = missing;
            queue.gap += unsaid;
            let said = match (&result, was_failing) {
                (Err(error), Some(false)) => Some(text!(
                    "log file {name} cannot be written: {error}; the job goes on, the file is tried again every 2 s",
                    "无法写入日志文件 {name}：{error}；任务继续运行，每 2 秒重试一次"
                )),
                (Ok(()), Some(true)) => {
                    let lost = human_bytes(queue.account.lost);
                    Some(text!(
                        "log file {name} is written again, {lost} of it are missing",
                        "日志文件 {name} 已恢复写入，缺失 {lost}"
                    ))
                }
                _ => None,
            };
            if let Some(said) = said {
                console.say(&format!("ranklaunch: {}", said.get(console.lang())));
                problems.push(said);
            }
            queue.retry_at = None;
            if result.is_err() {
                let left: usize = chunks.iter().map(Vec::len).sum();
                if closing {
                    queue.account.lost += (left + queue.bytes) as u64;
                    queue.gap = 0;
                    queue.bytes = 0;
                    queue.chunks.clear();
                } else {
                    queue.bytes += left;
                    chunks.append(&mut queue.chunks);
                    queue.chunks = chunks;
                    queue.retry_at = Instant::now().checked_add(RETRY);
                }
            }
        }
    }

    /// Waits for work, for a retry, or to give the spare chunks back.
    fn rest<'a>(&'a self, state: MutexGuard<'a, State>, now: Instant) -> MutexGuard<'a, State> {
        let retry = state.next_retry().map(|at| at.saturating_duration_since(now));
        let idle = (!state.spares.is_empty()).then_some(Duration::from_secs(1));
        let Some(pause) = retry.into_iter().chain(idle).min() else {
            return self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        let (mut state, wait) =
            self.work.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner);
        if wait.timed_out() {
            let spares = std::mem::take(&mut state.spares);
            drop(state);
            if !spares.is_empty() {
                drop(spares);
                crate::sys::memory::release_free_memory();
            }
            state = self.lock();
        }
        state
    }
}
