//! One console descriptor: the thread that writes it, and the lanes that it serves.
//!
//! Owns the text that waits ([`Waiting`]), all of it bounded. A producer waits for room within its [`StallBudget`] and
//! then drops lines.
//!
//! [`StallBudget`]: super::queue::StallBudget

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::start_thread;
use super::waiting::{ConsoleAccount, LaneQueue, Notice, Waiting};
use super::write::{LineWriter, Lost, draw};
use linux::sys::{Signal, interrupt, unblock_in_this_thread};
use linux::terminal;
use text::lang::Lang;

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
        let id = sink.lanes_opened.fetch_add(1, Ordering::Relaxed) + 1;
        sink.state.lock().lanes.insert(id, LaneQueue::new(prefix, Arc::clone(&account)));
        Lane { sink, id, account }
    }

    /// Queues `text`, which holds `lines` whole lines, and leaves an empty buffer.
    pub(super) fn push(&self, text: &mut Vec<u8>, lines: u64) {
        let mut state = self.sink.state.lock();
        loop {
            let (dead, busy) = (state.dead, state.busy);
            let Some(lane) = state.lanes.get_mut(&self.id) else { break };
            let fits = lane.buffer.is_empty() || lane.buffer.len() + text.len() <= LANE_BYTES;
            if !dead && lane.lost.lines == 0 && fits {
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
            if dead || lane.lost.lines > 0 || left.is_zero() {
                if !dead {
                    lane.lost += Lost { lines, bytes: text.len() as u64 };
                }
                break;
            }
            let before = Instant::now();
            self.sink.room.wait_for(&mut state, left);
            if let Some(lane) = state.lanes.get_mut(&self.id) {
                lane.stall_budget.spend(before.elapsed());
            }
        }
        self.account.lose(lines);
        text.clear();
    }

    /// Frees the buffer of a burst after the stream has gone quiet.
    pub(super) fn relax(&self) {
        if let Some(lane) = self.sink.state.lock().lanes.get_mut(&self.id)
            && lane.buffer.is_empty()
        {
            lane.buffer = Vec::new();
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut state = self.sink.state.lock();
        let done = state.lanes.get_mut(&self.id).is_some_and(|lane| {
            lane.closed = true;
            lane.is_done()
        });
        if done {
            state.lanes.remove(&self.id);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Sink {
    state: Mutex<Waiting>,
    /// Signals that there is something to write.
    work: Condvar,
    /// Signals that something was taken or written.
    room: Condvar,
    /// Set while the writer is to leave the lines that it has in hand.
    stop: AtomicBool,
    /// The thread of the writer; 0 before it runs.
    writer: AtomicI32,
    /// Number of lanes so far; each is known by its number, from 1.
    lanes_opened: AtomicU64,
}

impl Sink {
    /// A sink that discards everything.
    pub(super) fn dead() -> Arc<Sink> {
        let sink = Sink::default();
        sink.state.lock().dead = true;
        Arc::new(sink)
    }

    /// A sink with its writer. If no thread can be started it is dead, and tells the reason.
    pub(super) fn start(fd: OwnedFd, lang: Lang) -> (Arc<Sink>, io::Result<()>) {
        let sink = Arc::new(Sink::default());
        let writer = Arc::clone(&sink);
        let started =
            start_thread("console".to_owned(), move || writer.write_out(&File::from(fd), lang));
        if started.is_err() {
            sink.state.lock().dead = true;
        }
        (sink, started)
    }

    pub(super) fn say(&self, text: &str) {
        let mut state = self.state.lock();
        if text.is_empty() || state.dead {
            return;
        }
        if state.own_lost.lines > 0 || state.own.len() + text.len() > OWN_BYTES {
            let lines = text.lines().count() as u64;
            state.own_lost += Lost { lines, bytes: text.len() as u64 };
        } else {
            state.own.extend_from_slice(text.as_bytes());
            if !text.ends_with('\n') {
                state.own.push(b'\n');
            }
        }
        self.work.notify_one();
    }

    /// Sets the last line of the terminal; None removes it. Never waits.
    pub(super) fn status(&self, text: Option<&str>, dim: bool) {
        let mut state = self.state.lock();
        state.status.set(text, dim);
        if state.status.is_pending() {
            self.work.notify_one();
        }
    }

    /// Nothing more will be queued; the writer ends when all is written.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
    }

    /// Waits until the queue is empty; false if it is not empty after `deadline`, or the console has had its time.
    pub(super) fn flush(&self, deadline: Duration) -> bool {
        let waits = |state: &mut Waiting| !state.is_idle();
        let mut state = self.state.lock();
        let was_stuck = state.is_stuck;
        let first = if was_stuck { deadline.min(STUCK) } else { deadline };
        self.room.wait_while_for(&mut state, waits, first);
        if was_stuck && !state.is_stuck {
            self.room.wait_while_for(&mut state, waits, deadline.saturating_sub(STUCK));
        }
        state.is_idle()
    }

    /// Drops the lines of ranks that are not written, and counts them; our own text waits on. The writer leaves the
    /// lines in hand. Only one that is in a write that nothing interrupts (a file of a dead mount) does not: what it has
    /// in hand then counts as waiting.
    pub(super) fn drop_lines(&self) {
        let mut state = self.state.lock();
        state.is_stuck = !state.is_idle();
        state.lanes.values_mut().for_each(LaneQueue::drop_queued);
        self.stop.store(true, Ordering::Relaxed);
        let began = Instant::now();
        while state.has_lines_in_hand() && began.elapsed() < STOPPED {
            // The signal may come just before the write.
            interrupt(self.writer.load(Ordering::Relaxed));
            self.room.wait_for(&mut state, INTERRUPT);
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
        let mut state = self.state.lock();
        loop {
            let mut lane = None;
            let mut notice = state.take_own(&mut own, lang);
            if notice.is_none() {
                own.clear();
                (lane, notice) = state.take_lane(&mut batch, lang).unzip();
            }
            let Some(notice) = notice else {
                let due = state.status.due();
                if due.is_some_and(|due| due <= Instant::now()) {
                    let bytes = state.status.next(file);
                    state.busy = true;
                    MutexGuard::unlocked(&mut state, || draw(file, &bytes));
                    continue;
                }
                if state.closed {
                    return;
                }
                state.busy = false;
                self.room.notify_all();
                match due {
                    None => self.work.wait(&mut state),
                    Some(due) => drop(self.work.wait_until(&mut state, due)),
                }
                continue;
            };
            state.busy = true;
            let is_drawn = state.status.take_drawn();
            let mut of_urgent = Notice::default();
            let result = MutexGuard::unlocked(&mut state, || {
                self.room.notify_all();
                if is_drawn && terminal::is_foreground(file) {
                    draw(file, terminal::ERASE);
                }
                let result = if lane.is_some() {
                    writer.lines(&batch, || {
                        let mut urgent = Vec::new();
                        let notice = self.state.lock().take_own(&mut urgent, lang);
                        of_urgent = notice.unwrap_or_default();
                        urgent
                    })
                } else {
                    writer.own(&own)
                };
                // A burst should not keep its buffers for the rest of the job.
                if batch.len() < 16 * 1024 && batch.capacity() > 64 * 1024 {
                    batch = Vec::new();
                }
                result
            });
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
                self.work.wait_while_for(&mut state, |state| state.closed == was_closed, pause);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, SeekFrom};
    use std::os::unix::fs::FileExt as _;

    use super::*;

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
        let mut state = sink.state.lock();
        while let Some(left) = WATCHED.checked_sub(began.elapsed()) {
            writes += u32::from(!sink.room.wait_for(&mut state, left).timed_out());
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
