//! One console descriptor: the thread that writes it, and the queues that it serves.
//!
//! Owns the queue of our own text and one lane per stream, all bounded. A producer waits for room within its
//! [`StallBudget`] and then drops lines. The writer reports the gap after the text that it took from the lane. Each lane
//! knows the number of its lines that are not written yet, so a console whose time is over loses none uncounted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::stall_budget::StallBudget;
use super::status_line::{self, StatusLine};
use super::thread;
use super::write::{LineWriter, Unwritten, WriteFailure};
use linux::sys::{Signal, interrupt, unblock_in_this_thread};
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
/// Time in which a writer that is told to stop says what it has not written; it is interrupted again and again.
const STOPPED: Duration = Duration::from_millis(200);
const INTERRUPT: Duration = Duration::from_millis(2);
/// A console that has had its time, and has taken nothing since, is waited for no longer than this.
const STUCK: Duration = Duration::from_millis(200);

/// The lines of one owner that the console does not show.
#[derive(Debug, Default)]
pub(super) struct ConsoleAccount {
    /// Lines that were dropped.
    lost: AtomicU64,
    /// Lines that wait, or are being written.
    waiting: AtomicU64,
}

impl ConsoleAccount {
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// The lost lines if the console took nothing more.
    pub(super) fn unshown(&self) -> u64 {
        self.lost() + self.waiting.load(Ordering::Relaxed)
    }

    fn lose(&self, lines: u64) {
        self.lost.fetch_add(lines, Ordering::Relaxed);
    }

    fn wait(&self, lines: u64) {
        self.waiting.fetch_add(lines, Ordering::Relaxed);
    }

    /// Lines wait no longer, and some of them are lost.
    fn end_wait(&self, lines: u64, lost: u64) {
        self.waiting.fetch_sub(lines, Ordering::Relaxed);
        self.lose(lost);
    }
}

/// One stream's queue to a sink. Closes when dropped; queued lines are still written.
#[derive(Debug)]
pub(super) struct Lane {
    sink: Arc<Sink>,
    id: u64,
    account: Arc<ConsoleAccount>,
}

impl Lane {
    /// A lane of `sink` whose gaps are reported after `prefix`; `account` counts its lines.
    pub(super) fn open(sink: Arc<Sink>, prefix: &str, account: Arc<ConsoleAccount>) -> Lane {
        let id = {
            let mut state = sink.lock();
            state.next_id += 1;
            let id = state.next_id;
            state.lanes.insert(id, LaneState::new(prefix, Arc::clone(&account)));
            id
        };
        Lane { sink, id, account }
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
                lane.lines += lines;
                self.account.wait(lines);
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
        self.account.lose(lines);
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
            lane.is_done()
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
    /// Set while the writer is to leave the lines that it has in hand.
    stop: AtomicBool,
    /// The thread of the writer; 0 before it runs.
    writer: AtomicI32,
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
    /// Lines were dropped since the console took nothing in its time, and it has taken nothing since.
    is_stuck: bool,
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

    /// What was not written of a text before this report, which is its last line.
    fn told_by(self, lost: Unwritten) -> Unwritten {
        if self.lines == 0 || lost.lines == 0 {
            return lost;
        }
        let bytes = lost.bytes.saturating_sub(self.length);
        Unwritten { lines: lost.lines - 1, bytes }
    }

    /// What was not written of a text, and what a lost report at its end has reported.
    fn said_by(self, lost: Unwritten) -> Unwritten {
        let Unwritten { lines, bytes } = self.told_by(lost);
        if lost.lines == 0 {
            return lost;
        }
        let reported = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        Unwritten { lines: lines + self.lines, bytes: bytes.saturating_add(reported) }
    }
}

#[derive(Debug)]
struct LaneState {
    prefix: String,
    buffer: Vec<u8>,
    /// Lines in the buffer.
    lines: u64,
    /// Lines that the writer has taken and not written yet.
    in_hand: u64,
    account: Arc<ConsoleAccount>,
    lost_lines: u64,
    lost_bytes: u64,
    stall_budget: StallBudget,
    closed: bool,
}

impl LaneState {
    fn new(prefix: &str, account: Arc<ConsoleAccount>) -> LaneState {
        LaneState {
            prefix: prefix.to_owned(),
            buffer: Vec::new(),
            lines: 0,
            in_hand: 0,
            account,
            lost_lines: 0,
            lost_bytes: 0,
            stall_budget: StallBudget::new(),
            closed: false,
        }
    }

    fn is_idle(&self) -> bool {
        self.buffer.is_empty() && self.lost_lines == 0
    }

    /// Nothing of it will be written any more.
    fn is_done(&self) -> bool {
        self.closed && self.in_hand == 0 && self.is_idle()
    }

    /// Drops the queued lines.
    fn drop_queued(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        self.account.end_wait(lines, lines);
        self.lost_lines += lines;
        self.lost_bytes += self.buffer.len() as u64;
        self.buffer = Vec::new();
    }

    /// The lines in hand are written, except for these.
    fn end_hand(&mut self, lost: u64) {
        self.account.end_wait(std::mem::take(&mut self.in_hand), lost);
    }

    /// Takes the queued lines and, after them, the report of a gap.
    fn take(&mut self, batch: &mut Vec<u8>, lang: Lang) -> Notice {
        batch.clear();
        std::mem::swap(&mut self.buffer, batch);
        self.in_hand = std::mem::take(&mut self.lines);
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
    fn take_lane(&mut self, batch: &mut Vec<u8>, lang: Lang) -> Option<(u64, Notice)> {
        let after = self.lanes.range(self.served + 1..).chain(self.lanes.range(..=self.served));
        let next = after.filter(|(_, lane)| !lane.is_idle()).map(|(id, _)| *id).next();
        let id = next?;
        self.served = id;
        Some((id, self.lanes.get_mut(&id)?.take(batch, lang)))
    }

    /// The lines that the writer took from a lane are written, except for `lost`.
    fn end_hand(&mut self, lane: Option<u64>, lost: u64) {
        let Some(id) = lane else { return };
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.end_hand(lost);
            if lane.is_done() {
                self.lanes.remove(&id);
            }
        }
    }

    /// Counts the losses of a failed write of our own text or of a lane. For a lost report, the lines that it reported
    /// are counted, not its own line.
    fn lose_written(
        &mut self,
        failure: WriteFailure,
        lane: Option<u64>,
        batch: Notice,
        urgent: Notice,
    ) {
        let of_lane = batch.told_by(failure.batch);
        let lost = batch.said_by(failure.batch);
        let Some(error) = failure.error else {
            // The lane reports the gap, and our own text is still shown.
            if let Some(lane) = lane.and_then(|id| self.lanes.get_mut(&id)) {
                lane.lost_lines += lost.lines;
                lane.lost_bytes += lost.bytes as u64;
            }
            self.own.splice(..0, failure.urgent_rest);
            return self.end_hand(lane, of_lane.lines);
        };
        self.end_hand(lane, of_lane.lines);
        let own = urgent.said_by(failure.urgent);
        self.own_lost.lines += lost.lines + own.lines;
        self.own_lost.bytes += (lost.bytes + own.bytes) as u64;
        self.own_lost.why = Some(cause(&error));
    }

    fn has_lines_in_hand(&self) -> bool {
        self.lanes.values().any(|lane| lane.in_hand > 0)
    }

    /// The reader is gone: no line is shown any more.
    fn die(&mut self, lane: Option<u64>, failure: &WriteFailure, batch: Notice) {
        self.end_hand(lane, batch.told_by(failure.batch).lines);
        self.dead = true;
        self.own.clear();
        self.lanes.values_mut().for_each(LaneState::drop_queued);
    }
}

impl Sink {
    pub(super) fn new(dead: bool) -> Sink {
        let state = State { dead, ..State::default() };
        Sink {
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            stop: AtomicBool::new(false),
            writer: AtomicI32::new(0),
        }
    }

    /// A sink with its writer. If no thread can be started it is dead, and tells the reason.
    pub(super) fn start(fd: OwnedFd, lang: Lang) -> (Arc<Sink>, io::Result<()>) {
        let sink = Arc::new(Sink::new(false));
        let writer = Arc::clone(&sink);
        let started =
            thread::start("console".to_owned(), move || writer.write_out(&File::from(fd), lang));
        if started.is_err() {
            sink.lock().dead = true;
        }
        (sink, started)
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

    /// Waits until the queue is empty; false if it is not empty after `deadline`, or the console has had its time.
    pub(super) fn flush(&self, deadline: Duration) -> bool {
        let wait = |state, most| {
            let waits = |state: &mut State| !state.is_idle();
            let waited = self.room.wait_timeout_while(state, most, waits);
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        let state = self.lock();
        if !state.is_stuck {
            return wait(state, deadline).is_idle();
        }
        let state = wait(state, deadline.min(STUCK));
        if state.is_stuck {
            return state.is_idle();
        }
        wait(state, deadline.saturating_sub(STUCK)).is_idle()
    }

    /// Drops the lines of ranks that are not written, and counts them; our own text waits on. The writer leaves the
    /// lines in hand. Only one that is in a write that nothing interrupts (a file of a dead mount) does not: what it has
    /// in hand then counts as waiting.
    pub(super) fn drop_lines(&self) {
        let mut state = self.lock();
        state.is_stuck = !state.is_idle();
        state.lanes.values_mut().for_each(LaneState::drop_queued);
        self.stop.store(true, Ordering::Relaxed);
        let began = Instant::now();
        while state.has_lines_in_hand() && began.elapsed() < STOPPED {
            // The signal may come just before the write.
            interrupt(self.writer.load(Ordering::Relaxed));
            let waited = self.room.wait_timeout(state, INTERRUPT);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.stop.store(false, Ordering::Relaxed);
        self.work.notify_one();
    }

    /// The writer's thread. Ends when the console is gone and all is written.
    fn write_out(&self, file: &File, lang: Lang) {
        unblock_in_this_thread(Signal::URG);
        self.writer.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        let mut writer = LineWriter { file, stop: &self.stop, is_torn: false };
        let mut batch = Vec::new();
        let mut own = Vec::new();
        let mut state = self.lock();
        loop {
            let mut lane = None;
            let mut notice = state.take_own(&mut own, lang);
            if notice.is_none() {
                own.clear();
                (lane, notice) = state.take_lane(&mut batch, lang).unzip();
                if lane.is_none() {
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
            let result = if lane.is_some() {
                writer.lines(&batch, || {
                    let mut urgent = Vec::new();
                    of_urgent = self.lock().take_own(&mut urgent, lang).unwrap_or_default();
                    urgent
                })
            } else {
                writer.own(&own)
            };
            // A burst should not keep its buffers for the rest of the job.
            if batch.len() < 16 * 1024 && batch.capacity() > 64 * 1024 {
                batch = Vec::new();
            }
            state = self.lock();
            let Err(failure) = result else {
                state.end_hand(lane, 0);
                state.is_stuck = false;
                continue;
            };
            let is_stopped = failure.error.is_none();
            if failure.is_final(file) {
                state.die(lane, &failure, notice);
                self.room.notify_all();
                return;
            }
            state.lose_written(failure, lane, notice, of_urgent);
            if is_stopped {
                self.room.notify_all();
            } else {
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
        let stop = AtomicBool::new(false);
        let write = |batch: &[u8]| {
            let mut writer = LineWriter { file: &full, stop: &stop, is_torn: false };
            writer.lines(batch, Vec::new).expect_err("it is full")
        };
        for _ in 0..3 {
            let notice = state.take_own(&mut batch, lang).expect("there is text");
            let failure = write(&batch);
            state.lose_written(failure, None, notice, Notice::default());
            assert_eq!((state.own_lost.lines, state.own_lost.bytes), (3, 14));
        }
        let account = Arc::new(ConsoleAccount::default());
        account.wait(1);
        let lane = LaneState::new("[r0] ", Arc::clone(&account));
        let lane = LaneState { lost_lines: 40, lost_bytes: 900, ..lane };
        state.lanes.insert(1, LaneState { buffer: b"[r0] four\n".to_vec(), lines: 1, ..lane });
        let (lane, of_lane) = state.take_lane(&mut batch, lang).expect("there is text");
        let mut urgent = Vec::new();
        let of_urgent = state.take_own(&mut urgent, lang).expect("there is text");
        let told = String::from_utf8_lossy(&urgent);
        assert!(told.starts_with("ranklaunch: 3 lines (14 B) dropped: No space left"), "{told}");
        let failure = write(&batch);
        assert_eq!((account.lost(), account.unshown()), (0, 1));
        state.lose_written(failure, Some(lane), of_lane, of_urgent);
        assert_eq!((account.lost(), account.unshown()), (1, 1), "the 40 were counted before");
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
        let sink = Sink::start(disk.into(), Lang::En).0;
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
