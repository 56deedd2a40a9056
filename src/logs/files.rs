//! The only writer of a run's log files.
//!
//! Owns a bounded queue per file and one thread. Only this thread touches the file system, so a mount that hangs blocks
//! nothing else. Takes chunks; chunks that do not fit are dropped, and a line at the gap says how much was lost. After
//! an error a file is tried again every 2 s. At the end the thread writes as long as the disk makes progress, and
//! counts the remaining bytes as lost.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::capped::CappedFile;
use super::console::Console;
use super::folder::LogFolder;
use super::index::{IndexWriter, Writer};
use super::queue::{FileAccount, Piece, Queue, SMALL, Stage};
use super::thread;
use text::lang::bytes as human_bytes;
use text::lang::{Lang, Text, cause};
use text::text;

/// Empty chunks kept for readers while there is traffic.
const SPARES: usize = 8;
const RETRY: Duration = Duration::from_secs(2);
/// Written bytes are released from the queue after this many bytes…
const RELEASE_BYTES: usize = 1024 * 1024;
/// …or after this long, so that a slow disk shows progress.
const RELEASE_AFTER: Duration = Duration::from_millis(50);
/// Time without progress after which a disk is given up at the end.
const STALL: Duration = Duration::from_secs(5);

/// The outcome of the writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    Whole,
    /// This many bytes were not written in time.
    Left(u64),
}

#[derive(Debug, Clone)]
pub(super) struct FileWriter {
    shared: Arc<Shared>,
    folder: Arc<LogFolder>,
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
    /// Files that the writer has not taken over yet, each with the kind of process whose output it holds.
    new: Vec<(CappedFile, Writer)>,
    spares: Vec<Vec<u8>>,
    served: usize,
    busy: bool,
    stage: Stage,
    done: bool,
    /// Bytes that the disk has taken.
    taken: u64,
    problems: Vec<Text>,
    removal_said: bool,
}

/// The producer's end of one file's queue.
#[derive(Debug, Clone)]
pub(super) struct FilePort {
    shared: Arc<Shared>,
    index: usize,
}

impl FileWriter {
    pub(super) fn start(folder: Arc<LogFolder>, console: Console) -> std::io::Result<FileWriter> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            room: Condvar::new(),
        });
        let writer = Arc::clone(&shared);
        let place = Arc::clone(&folder);
        thread::start("log-files".to_owned(), move || writer.write_files(&place, &console))?;
        Ok(FileWriter { shared, folder })
    }

    /// Adds a file of at most `cap` bytes, which the writer creates at once.
    pub(super) fn add(&self, name: String, writer: Writer, cap: u64, lang: Lang) -> FilePort {
        let mut state = self.shared.lock();
        let file = CappedFile::new(Arc::clone(&self.folder), name, cap, lang);
        state.new.push((file, writer));
        state.queues.push(Queue::new());
        self.shared.work.notify_one();
        FilePort { shared: Arc::clone(&self.shared), index: state.queues.len() - 1 }
    }

    /// The ranks have ended: from now on their pipes are emptied into memory, however slow the
    /// disk is.
    pub(super) fn expect_last_bytes(&self) {
        let mut state = self.shared.lock();
        state.stage = state.stage.max(Stage::LastBytes);
        self.shared.room.notify_all();
    }

    /// Asks the writer to write the queue and end. Waits until the writer has ended, the disk makes no progress, or the
    /// deadline passes.
    pub(super) fn close(&self, deadline: Duration) -> Closed {
        let until = Instant::now().checked_add(deadline);
        let mut state = self.shared.lock();
        state.stage = state.stage.max(Stage::Closing);
        self.shared.work.notify_one();
        let (mut taken, mut since) = (state.taken, Instant::now());
        while !state.done {
            let now = Instant::now();
            if state.taken != taken {
                (taken, since) = (state.taken, now);
            }
            let left = until.map_or(STALL, |until| until.saturating_duration_since(now));
            let left = left.min(STALL.saturating_sub(now - since));
            if left.is_zero() {
                return match state.give_up() {
                    // All is written; the writer just has not reported it yet.
                    0 => Closed::Whole,
                    left => Closed::Left(left),
                };
            }
            state = self
                .shared
                .room
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Closed::Whole
    }

    /// Problems so far; each was reported when it occurred.
    pub(super) fn problems(&self) -> Vec<Text> {
        self.shared.lock().problems.clone()
    }
}

impl FilePort {
    /// Queues `chunk` and leaves an empty buffer in its place.
    pub(super) fn push(&self, chunk: &mut Vec<u8>) {
        let mut state = self.shared.lock();
        loop {
            let State { queues, spares, busy, stage, .. } = &mut *state;
            let (busy, stage) = (*busy, *stage);
            let Some(queue) = queues.get_mut(self.index) else { break };
            if queue.takes(chunk.len(), stage) {
                queue.skip_to_a_line(chunk);
                queue.push(chunk, spares);
                if !busy {
                    self.shared.work.notify_one();
                }
                return;
            }
            let left = queue.stall_budget.left();
            if queue.has_gap() || left.is_zero() || stage != Stage::Running {
                queue.lose(chunk.len());
                break;
            }
            let before = Instant::now();
            state = self
                .shared
                .room
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if let Some(queue) = state.queues.get_mut(self.index) {
                queue.stall_budget.spend(before.elapsed());
            }
        }
        chunk.clear();
    }

    /// The account so far. Queued bytes may still be written, so they do not count as lost.
    pub(super) fn so_far(&self) -> FileAccount {
        let state = self.shared.lock();
        state.queues.get(self.index).map(|queue| queue.account).unwrap_or_default()
    }

    /// The account as it would be if nothing more were written.
    pub(super) fn account(&self) -> FileAccount {
        let state = self.shared.lock();
        let Some(queue) = state.queues.get(self.index) else { return FileAccount::default() };
        FileAccount { lost: queue.account.lost + queue.bytes as u64, ..queue.account }
    }
}

impl State {
    /// The next file in turn that has bytes and may be tried.
    fn next(&self, now: Instant) -> Option<usize> {
        let count = self.queues.len();
        (1..=count).map(|step| (self.served + step) % count.max(1)).find(|index| {
            self.queues.get(*index).is_some_and(|queue| {
                !queue.pieces.is_empty()
                    && (self.stage >= Stage::Closing || queue.retry_at.is_none_or(|at| at <= now))
            })
        })
    }

    fn next_retry(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| queue.retry_at).min()
    }

    /// Records that `bytes` of this file are written.
    fn release(&mut self, index: usize, bytes: usize) {
        self.taken += bytes as u64;
        if let Some(queue) = self.queues.get_mut(index) {
            queue.bytes = queue.bytes.saturating_sub(bytes);
            queue.stall_budget.earn(bytes);
        }
    }

    /// Counts all unwritten bytes as lost, and returns their number.
    fn give_up(&mut self) -> u64 {
        self.stage = Stage::GivenUp;
        let mut all = 0;
        for queue in &mut self.queues {
            let left = std::mem::take(&mut queue.bytes) as u64;
            queue.account.lost += left;
            queue.pieces.clear();
            all += left;
        }
        all
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer's thread. Ends after a close request, when all is written or given up.
    fn write_files(&self, folder: &Arc<LogFolder>, console: &Console) {
        let mut index = IndexWriter::new(Arc::clone(folder));
        let mut files: Vec<CappedFile> = Vec::new();
        let mut failing: Vec<bool> = Vec::new();
        let mut state = self.lock();
        loop {
            if !state.new.is_empty() {
                let fresh = std::mem::take(&mut state.new);
                let first = files.len();
                for (file, writer) in fresh {
                    files.push(file);
                    index.add(writer);
                }
                failing.resize(files.len(), false);
                drop(state);
                // An error here is reported again with the first bytes.
                files.iter_mut().skip(first).for_each(|file| drop(file.open().map(|_| ())));
                state = self.lock();
                continue;
            }
            let now = Instant::now();
            if index.due().is_some_and(|due| due <= now) {
                drop(state);
                index.flush(now);
                state = self.lock();
                continue;
            }
            let Some(next) = state.next(now) else {
                if state.stage >= Stage::Closing {
                    drop(state);
                    index.flush(now);
                    self.last_look(&mut files, folder, console);
                    self.lock().done = true;
                    self.room.notify_all();
                    return;
                }
                state.busy = false;
                state = self.rest(state, now, index.due());
                continue;
            };
            state.served = next;
            state.busy = true;
            let Some(queue) = state.queues.get_mut(next) else { continue };
            let mut pieces = std::mem::take(&mut queue.pieces);
            drop(state);

            let Some(file) = files.get_mut(next) else { return };
            let (spares, result) =
                self.write_pieces(next, file, &mut pieces, &mut index, console.lang());
            let (missing, gone) = (file.missing(), file.gone());
            let was_failing =
                failing.get_mut(next).map(|was| std::mem::replace(was, result.is_err()));
            let name = file.name().to_owned();

            state = self.lock();
            state.spares.extend(spares.into_iter().filter(|chunk| chunk.capacity() > SMALL));
            state.spares.truncate(SPARES);
            let closing = state.stage >= Stage::Closing;
            let given_up = state.stage == Stage::GivenUp;
            if gone > 0 {
                self.say_removed(&mut state, folder, console);
            }
            let State { queues, problems, .. } = &mut *state;
            let Some(queue) = queues.get_mut(next) else { continue };
            queue.account.missing = missing;
            queue.account.gone = gone;
            queue.retry_at = None;
            if result.is_err() && !given_up {
                pieces.append(&mut queue.pieces);
                if closing {
                    queue.account.lost += std::mem::take(&mut queue.bytes) as u64;
                } else {
                    queue.pieces = pieces;
                    queue.retry_at = Instant::now().checked_add(RETRY);
                }
            }
            let said = match (&result, was_failing) {
                (Err(error), Some(false)) => {
                    let Text { en, zh } = cause(error);
                    Some(text!(
                        "log file {name} cannot be written: {en}; the job goes on, the file is tried again every 2 s",
                        "无法写入日志文件 {name}：{zh}；任务继续运行，每 2 秒重试一次"
                    ))
                }
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
                console.report(&said);
                problems.push(said);
            }
        }
    }

    /// Writes until all is written or an error occurs; the rest stays in `pieces`. Returns the empty chunks for reuse.
    fn write_pieces(
        &self,
        number: usize,
        file: &mut CappedFile,
        pieces: &mut VecDeque<Piece>,
        index: &mut IndexWriter,
        lang: Lang,
    ) -> (Vec<Vec<u8>>, std::io::Result<()>) {
        let mut spares = Vec::new();
        let (mut written, mut since) = (0, Instant::now());
        let mut result = file.look();
        while result.is_ok()
            && let Some(piece) = pieces.pop_front()
        {
            match piece {
                Piece::Bytes(mut chunk) => {
                    let (bytes, came) = chunk.first();
                    let (count, is_last) = (bytes.len(), bytes.len() == chunk.bytes.len());
                    let note = |name: &str, at, bytes| index.note(number, name, at, bytes, came);
                    match file.write(bytes, note) {
                        Ok(()) if is_last => {
                            written += count;
                            chunk.bytes.clear();
                            if spares.len() < SPARES {
                                spares.push(chunk.bytes);
                            }
                        }
                        Ok(()) => {
                            written += count;
                            chunk.drop_first(count);
                            pieces.push_front(Piece::Bytes(chunk));
                        }
                        Err((part, error)) => {
                            written += part;
                            chunk.drop_first(part);
                            pieces.push_front(Piece::Bytes(chunk));
                            result = Err(error);
                        }
                    }
                }
                Piece::Gap(gap) => {
                    if let Err(error) = say_gap(file, gap, number, index, lang) {
                        pieces.push_front(Piece::Gap(gap));
                        result = Err(error);
                    }
                }
            }
            let last = pieces.is_empty() || result.is_err();
            if last || written >= RELEASE_BYTES || since.elapsed() >= RELEASE_AFTER {
                let mut state = self.lock();
                if state.stage == Stage::GivenUp {
                    pieces.clear();
                    break;
                }
                state.release(number, std::mem::take(&mut written));
                since = Instant::now();
                drop(state);
                self.room.notify_all();
            }
        }
        (spares, result)
    }

    /// Finds files at the end that were removed after the last write to them.
    fn last_look(&self, files: &mut [CappedFile], folder: &LogFolder, console: &Console) {
        for (index, file) in files.iter_mut().enumerate() {
            let _ = file.look_now();
            let mut state = self.lock();
            if let Some(queue) = state.queues.get_mut(index) {
                queue.account.gone = file.gone();
            }
            if file.gone() > 0 {
                self.say_removed(&mut state, folder, console);
            }
        }
    }

    fn say_removed(&self, state: &mut State, folder: &LogFolder, console: &Console) {
        if std::mem::replace(&mut state.removal_said, true) {
            return;
        }
        let path = folder.path();
        let path = path.display();
        let said = text!(
            "log files in {path} were removed or cut while the job ran; what comes is written to new ones, what was in the old ones is gone",
            "{path} 中的日志文件在任务运行期间被删除或截断；后续输出写入新文件，原有内容已丢失"
        );
        console.report(&said);
        state.problems.push(said);
    }

    /// Waits for work, for a retry, or until the spare chunks can be freed.
    fn rest<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        now: Instant,
        index: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        let index = index.map(|at| at.saturating_duration_since(now));
        let retry = state.next_retry().map(|at| at.saturating_duration_since(now));
        let idle = (!state.spares.is_empty()).then_some(Duration::from_secs(1));
        let Some(pause) = retry.into_iter().chain(idle).chain(index).min() else {
            return self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        let (mut state, wait) =
            self.work.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner);
        if wait.timed_out() && idle == Some(pause) {
            let spares = std::mem::take(&mut state.spares);
            drop(state);
            if !spares.is_empty() {
                drop(spares);
                linux::sys::release_free_memory();
            }
            state = self.lock();
        }
        state
    }
}

fn say_gap(
    file: &mut CappedFile,
    gap: u64,
    number: usize,
    index: &mut IndexWriter,
    lang: Lang,
) -> std::io::Result<()> {
    let bytes = human_bytes(gap);
    let newline = if file.ends_in_newline() { "" } else { "\n" };
    let line = text!(
        "{newline}[ranklaunch] {gap} bytes ({bytes}) are missing here: the disk did not take them in time\n",
        "{newline}[ranklaunch] 此处缺失 {gap} 字节（{bytes}）：磁盘未能及时写入\n"
    );
    let now = Instant::now();
    let note = |name: &str, at, bytes| index.note(number, name, at, bytes, now);
    file.write(line.get(lang).as_bytes(), note).map_err(|(_, error)| error)
}
