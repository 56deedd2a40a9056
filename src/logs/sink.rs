//! One console descriptor: the thread that writes it, and the queues that it serves.
//!
//! Owns the queue of our own text and one lane per stream, all bounded. A producer waits for room within its
//! [`StallBudget`] and then drops lines. The writer reports the gap after the text that it took from the lane.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::stall_budget::StallBudget;
use super::status_line::{self, StatusLine};
use super::thread;
use super::write::{WriteFailure, write_lines};
use linux::terminal;
use text::lang::bytes as human_bytes;
use text::lang::{Lang, Text, cause};
use text::text;

/// Maximum bytes of finished lines that wait per stream.
const LANE_BYTES: usize = 1024 * 1024;
/// Maximum bytes of our own text that wait.
const OWN_BYTES: usize = 256 * 1024;
/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(2);
/// Pause after a failed write once the console is closed.
const RETRY_AT_END: Duration = Duration::from_millis(50);

/// One stream's queue to a sink. Closes when dropped; queued lines are still written.
#[derive(Debug)]
pub(super) struct Lane {
    sink: Arc<Sink>,
    id: u64,
    lost: Arc<AtomicU64>,
}

impl Lane {
    /// A lane of `sink` whose gaps are reported after `prefix`; `lost` counts its dropped lines.
    pub(super) fn open(sink: Arc<Sink>, prefix: &str, lost: Arc<AtomicU64>) -> Lane {
        let id = {
            let mut state = sink.lock();
            state.next_id += 1;
            let id = state.next_id;
            state.lanes.insert(id, LaneState::new(prefix));
            id
        };
        Lane { sink, id, lost }
    }

    /// Queues `text`, which holds `lines` whole lines, and leaves an empty buffer.
    pub(super) fn push(&self, text: &mut Vec<u8>, lines: u64) {
        let mut state = self.sink.lock();
        loop {
            let (dead, busy) = (state.dead, state.busy);
            let Some(lane) = state.lanes.get_mut(&self.id) else { break };
            let fits = lane.buffer.is_empty() || lane.buffer.len() + text.len() <= LANE_BYTES;
            if !dead && lane.lost_lines == 0 && fits {
                if lane.buffer.is_empty() {
                    std::mem::swap(&mut lane.buffer, text);
                } else {
                    lane.buffer.extend_from_slice(text);
                }
                text.clear();
                if !busy {
                    self.sink.work.notify_one();
                }
                return;
            }
            let left = lane.stall_budget.left();
            if dead || lane.lost_lines > 0 || left.is_zero() {
                if !dead {
                    lane.lost_lines += lines;
                    lane.lost_bytes += text.len() as u64;
                }
                break;
            }
            let before = Instant::now();
            state =
                self.sink.room.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            if let Some(lane) = state.lanes.get_mut(&self.id) {
                lane.stall_budget.spend(before.elapsed());
            }
        }
        self.lost.fetch_add(lines, Ordering::Relaxed);
        text.clear();
    }
}

impl Lane {
    /// Frees the buffer of a burst after the stream has gone quiet.
    pub(super) fn relax(&self) {
        if let Some(lane) = self.sink.lock().lanes.get_mut(&self.id)
            && lane.buffer.is_empty()
        {
            lane.buffer = Vec::new();
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut state = self.sink.lock();
        let done = state.lanes.get_mut(&self.id).is_some_and(|lane| {
            lane.closed = true;
            lane.is_idle()
        });
        if done {
            state.lanes.remove(&self.id);
        }
    }
}

#[derive(Debug)]
pub(super) struct Sink {
    state: Mutex<State>,
    /// Signals that there is something to write.
    work: Condvar,
    /// Signals that something was taken or written.
    room: Condvar,
}

#[derive(Debug, Default)]
struct State {
    own: Vec<u8>,
    own_lost: Lost,
    lanes: BTreeMap<u64, LaneState>,
    next_id: u64,
    status: StatusLine,
    /// The lane that was served last.
    served: u64,
    /// The writer holds text that is not written yet.
    busy: bool,
    /// The reader of this sink is gone for good.
    dead: bool,
    closed: bool,
}

#[derive(Debug, Default)]
struct Lost {
    lines: u64,
    bytes: u64,
    why: Option<Text>,
}

/// The report of a gap at the end of a text that is to be written. All zero: there is no report.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Notice {
    /// Lines and bytes that are reported as lost.
    lines: u64,
    bytes: u64,
    /// Length of the report itself in bytes.
    length: usize,
}

impl Notice {
    /// Appends the report, which is one line, to `batch`.
    fn write(lines: u64, bytes: u64, text: &str, batch: &mut Vec<u8>) -> Notice {
        batch.extend_from_slice(text.as_bytes());
        Notice { lines, bytes, length: text.len() }
    }
}

#[derive(Debug)]
struct LaneState {
    prefix: String,
    buffer: Vec<u8>,
    lost_lines: u64,
    lost_bytes: u64,
    stall_budget: StallBudget,
    closed: bool,
}

impl LaneState {
    fn new(prefix: &str) -> LaneState {
        LaneState {
            prefix: prefix.to_owned(),
            buffer: Vec::new(),
            lost_lines: 0,
            lost_bytes: 0,
            stall_budget: StallBudget::new(),
            closed: false,
        }
    }

    fn is_idle(&self) -> bool {
        self.buffer.is_empty() && self.lost_lines == 0
    }

    /// Takes the queued lines and, after them, the report of a gap.
    fn take(&mut self, batch: &mut Vec<u8>, lang: Lang) -> Notice {
        batch.clear();
        std::mem::swap(&mut self.buffer, batch);
        self.stall_budget.earn(batch.len());
        let lines = std::mem::take(&mut self.lost_lines);
        let lost = std::mem::take(&mut self.lost_bytes);
        if lines == 0 {
            return Notice::default();
        }
        let bytes = human_bytes(lost);
        let notice = text!("{lines} lines ({bytes}) dropped", "丢弃了 {lines} 行（{bytes}）");
        Notice::write(lines, lost, &format!("{}{}\n", self.prefix, notice.get(lang)), batch)
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.dead
            || (!self.busy
                && self.own.is_empty()
                && self.own_lost.lines == 0
                && !self.status.must_go()
                && self.lanes.values().all(LaneState::is_idle))
    }

    /// Takes our own text and, after it, the report of a gap. None if there is neither.
    fn take_own(&mut self, batch: &mut Vec<u8>, lang: Lang) -> Option<Notice> {
        if self.own.is_empty() && self.own_lost.lines == 0 {
            return None;
        }
        batch.clear();
        std::mem::swap(&mut self.own, batch);
        let Lost { lines, bytes: lost, why } = std::mem::take(&mut self.own_lost);
        if lines == 0 {
            return Some(Notice::default());
        }
        let bytes = human_bytes(lost);
        let why = why.map(|why| format!("{}{}", lang.colon(), why.get(lang))).unwrap_or_default();
        let notice = text!(
            "ranklaunch: {lines} lines ({bytes}) dropped{why}\n",
            "ranklaunch: 丢弃了 {lines} 行（{bytes}）{why}\n"
        );
        Some(Notice::write(lines, lost, notice.get(lang), batch))
    }

    /// Takes from the next lane in turn that has lines.
    fn take_lane(&mut self, batch: &mut Vec<u8>, lang: Lang) -> Option<Notice> {
        let after = self.lanes.range(self.served + 1..).chain(self.lanes.range(..=self.served));
        let next = after.filter(|(_, lane)| !lane.is_idle()).map(|(id, _)| *id).next();
        let id = next?;
        self.served = id;
        let lane = self.lanes.get_mut(&id)?;
        let notice = lane.take(batch, lang);
        if lane.closed {
            self.lanes.remove(&id);
        }
        Some(notice)
    }

    /// Counts the losses of a failed write. For a lost report, the lines that it reported are counted, not its own
    /// line.
    fn lose_written(&mut self, failure: &WriteFailure, batch: Notice, urgent: Notice) {
        let lost = &mut self.own_lost;
        lost.lines += failure.lines;
        lost.bytes += failure.bytes as u64;
        for (is_lost, notice) in [(failure.of_batch, batch), (failure.of_urgent, urgent)] {
            if is_lost && notice.lines > 0 {
                lost.lines = lost.lines.saturating_sub(1) + notice.lines;
                lost.bytes = lost.bytes.saturating_sub(notice.length as u64) + notice.bytes;
            }
        }
        lost.why = Some(cause(&failure.error));
    }
}

impl Sink {
    pub(super) fn new(dead: bool) -> Sink {
        let state = State { dead, ..State::default() };
        Sink { state: Mutex::new(state), work: Condvar::new(), room: Condvar::new() }
    }

    pub(super) fn start(fd: OwnedFd, lang: Lang) -> Arc<Sink> {
        let sink = Arc::new(Sink::new(false));
        let writer = Arc::clone(&sink);
        let started =
            thread::start("console".to_owned(), move || writer.write_out(&File::from(fd), lang));
        if started.is_err() {
            sink.lock().dead = true;
        }
        sink
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn say(&self, text: &str) {
        let mut state = self.lock();
        if text.is_empty() || state.dead {
            return;
        }
        let whole = if text.ends_with('\n') { "" } else { "\n" };
        if state.own_lost.lines > 0 || state.own.len() + text.len() > OWN_BYTES {
            state.own_lost.lines += text.lines().count() as u64;
            state.own_lost.bytes += text.len() as u64;
        } else {
            state.own.extend_from_slice(text.as_bytes());
            state.own.extend_from_slice(whole.as_bytes());
        }
        self.work.notify_one();
    }

    /// Sets the last line of the terminal; None removes it. Never waits.
    pub(super) fn status(&self, text: Option<&str>, dim: bool) {
        let mut state = self.lock();
        state.status.set(text, dim);
        if state.status.is_pending() {
            self.work.notify_one();
        }
    }

    /// Nothing more will be queued; the writer ends when all is written.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }

    /// Waits until the queue is empty; false if it is not empty after `deadline`.
    pub(super) fn flush(&self, deadline: Duration) -> bool {
        let (_state, wait) = self
            .room
            .wait_timeout_while(self.lock(), deadline, |state| !state.is_idle())
            .unwrap_or_else(PoisonError::into_inner);
        !wait.timed_out()
    }

    /// The writer's thread. Ends when the console is gone and all is written.
    fn write_out(&self, file: &File, lang: Lang) {
        let mut batch = Vec::new();
        let mut own = Vec::new();
        let mut state = self.lock();
        loop {
            let mut from_lane = false;
            let mut notice = state.take_own(&mut own, lang);
            if notice.is_none() {
                own.clear();
                notice = state.take_lane(&mut batch, lang);
                from_lane = notice.is_some();
                if !from_lane {
                    let due = state.status.due();
                    if due.is_some_and(|due| due <= Instant::now()) {
                        let bytes = state.status.next(file);
                        state.busy = true;
                        drop(state);
                        status_line::draw(file, &bytes);
                        state = self.lock();
                        continue;
                    }
                    if state.closed {
                        return;
                    }
                    state.busy = false;
                    self.room.notify_all();
                    state = match due {
                        None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
                        Some(due) => {
                            let left = due.saturating_duration_since(Instant::now());
                            let waited = self.work.wait_timeout(state, left);
                            waited.unwrap_or_else(PoisonError::into_inner).0
                        }
                    };
                    continue;
                }
            }
            let notice = notice.unwrap_or_default();
            state.busy = true;
            let is_drawn = state.status.take_drawn();
            drop(state);
            self.room.notify_all();
            if is_drawn && terminal::is_foreground(file) {
                status_line::draw(file, terminal::ERASE);
            }
            let mut of_urgent = Notice::default();
            let result = if from_lane {
                write_lines(file, &batch, || {
                    let mut urgent = Vec::new();
                    of_urgent = self.lock().take_own(&mut urgent, lang).unwrap_or_default();
                    urgent
                })
            } else {
                write_lines(file, &own, Vec::new)
            };
            // A burst should not keep its buffers for the rest of the job.
            if batch.len() < 16 * 1024 && batch.capacity() > 64 * 1024 {
                batch = Vec::new();
            }
            state = self.lock();
            if let Err(failure) = result {
                if failure.is_final(file) {
                    state.dead = true;
                    state.own.clear();
                    state.lanes.values_mut().for_each(|lane| lane.buffer.clear());
                    self.room.notify_all();
                    return;
                }
                state.lose_written(&failure, notice, of_urgent);
                // The output is redirected to a full disk (`> run.log`): writing goes on when there is space again. At
                // the end it is tried more often, since nobody waits for long.
                let was_closed = state.closed;
                let pause = if was_closed { RETRY_AT_END } else { RETRY };
                let waited = self
                    .work
                    .wait_timeout_while(state, pause, |state| state.closed == was_closed)
                    .unwrap_or_else(PoisonError::into_inner);
                state = waited.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, SeekFrom};
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// Behaviour of `> run.log` on a disk that is full for a while.
    #[test]
    fn lost_lines_are_counted_when_reports_are_lost() {
        let full = File::options().write(true).open("/dev/full").expect("it exists");
        let mut state = State { own: b"one\ntwo\nthree\n".to_vec(), ..State::default() };
        let (mut batch, lang) = (Vec::new(), Lang::En);
        for _ in 0..3 {
            let notice = state.take_own(&mut batch, lang).expect("there is text");
            let failure = write_lines(&full, &batch, Vec::new).expect_err("it is full");
            state.lose_written(&failure, notice, Notice::default());
            assert_eq!((state.own_lost.lines, state.own_lost.bytes), (3, 14));
        }
        let lane = LaneState { lost_lines: 40, lost_bytes: 900, ..LaneState::new("[r0] ") };
        state.lanes.insert(1, LaneState { buffer: b"[r0] four\n".to_vec(), ..lane });
        let of_lane = state.take_lane(&mut batch, lang).expect("there is text");
        let mut urgent = Vec::new();
        let of_urgent = state.take_own(&mut urgent, lang).expect("there is text");
        let told = String::from_utf8_lossy(&urgent);
        assert!(told.starts_with("ranklaunch: 3 lines (14 B) dropped: No space left"), "{told}");
        let failure = write_lines(&full, &batch, Vec::new).expect_err("it is full");
        state.lose_written(&failure, of_lane, of_urgent);
        let lost = (state.own_lost.lines, state.own_lost.bytes);
        assert_eq!(lost, (41, 910), "the urgent text was not among it");
        state.take_own(&mut batch, Lang::Zh).expect("there is text");
        let told = String::from_utf8_lossy(&batch);
        assert!(told.contains("丢弃了 41 行（910 B）：磁盘空间已满"), "{told}");
    }

    /// `> run.log` on a disk that becomes free between the closing of the console and the end.
    #[test]
    fn full_disk_is_retried_with_pauses_when_closing() {
        const SOON: Duration = Duration::from_secs(30);
        const WATCHED: Duration = Duration::from_millis(500);
        let memory = rustix::fs::memfd_create("console", rustix::fs::MemfdFlags::CLOEXEC);
        let disk = File::from(memory.expect("a file in memory"));
        let mut place = disk.try_clone().expect("a copy");
        // A file accepts no bytes at the largest position.
        place.seek(SeekFrom::Start(i64::MAX.unsigned_abs())).expect("it stands there");
        let sink = Sink::start(disk.into(), Lang::En);
        sink.say("one");
        sink.close();
        // The writer signals before each write that it has taken something.
        let (mut writes, began) = (0, Instant::now());
        let mut state = sink.lock();
        while let Some(left) = WATCHED.checked_sub(began.elapsed()) {
            let (again, wait) = sink.room.wait_timeout(state, left).expect("no panic");
            state = again;
            writes += u32::from(!wait.timed_out());
        }
        drop(state);
        assert!(writes < 100, "{writes} in {WATCHED:?}");
        place.seek(SeekFrom::Start(0)).expect("there is room again");
        let (mut text, began) = ([0; 256], Instant::now());
        loop {
            let count = place.read_at(&mut text, 0).expect("readable");
            let text = String::from_utf8_lossy(&text[..count]);
            if text.starts_with("ranklaunch: 1 line (4 B) dropped") && text.ends_with('\n') {
                break;
            }
            assert!(began.elapsed() < SOON, "{text}");
            std::thread::yield_now();
        }
    }
}
