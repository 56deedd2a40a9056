//! The text that waits for one console, and the accounts of the lines that the console does not show.
//!
//! Owns the queue of our own text and one queue per stream. The writer takes from them in turn, with the report of a gap
//! after the text that it took. Each queue knows the number of its lines that are not written yet, so a console whose
//! time is over loses none uncounted. Pure: knows no thread and no descriptor.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::queue::StallBudget;
use super::write::{Lost, StatusLine, WriteFailure};
use text::lang::{Lang, Text, bytes as human_bytes, cause};
use text::text;

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

    pub(super) fn lose(&self, lines: u64) {
        self.lost.fetch_add(lines, Ordering::Relaxed);
    }

    pub(super) fn wait(&self, lines: u64) {
        self.waiting.fetch_add(lines, Ordering::Relaxed);
    }

    /// Lines wait no longer, and some of them are lost.
    fn end_wait(&self, lines: u64, lost: u64) {
        self.waiting.fetch_sub(lines, Ordering::Relaxed);
        self.lose(lost);
    }
}

/// The report of a gap at the end of a text that is to be written. All zero: there is no report.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Notice {
    /// The text that is reported as lost.
    lost: Lost,
    /// Length of the report itself in bytes.
    length: u64,
}

impl Notice {
    /// Appends the report, which is one line, to `batch`.
    fn write(lost: Lost, text: &str, batch: &mut Vec<u8>) -> Notice {
        batch.extend_from_slice(text.as_bytes());
        Notice { lost, length: text.len() as u64 }
    }

    /// What was not written of a text before this report, which is its last line.
    fn told_by(self, unwritten: Lost) -> Lost {
        if self.lost.lines == 0 || unwritten.lines == 0 {
            return unwritten;
        }
        let bytes = unwritten.bytes.saturating_sub(self.length);
        Lost { lines: unwritten.lines - 1, bytes }
    }

    /// What was not written of a text, and what a lost report at its end has reported.
    fn said_by(self, unwritten: Lost) -> Lost {
        let mut lost = self.told_by(unwritten);
        if unwritten.lines > 0 {
            lost += self.lost;
        }
        lost
    }
}

#[derive(Debug, Default)]
pub(super) struct LaneQueue {
    prefix: String,
    pub(super) buffer: Vec<u8>,
    /// Lines in the buffer.
    pub(super) lines: u64,
    /// Lines that the writer has taken and not written yet.
    in_hand: u64,
    account: Arc<ConsoleAccount>,
    pub(super) lost: Lost,
    pub(super) stall_budget: StallBudget,
    pub(super) closed: bool,
}

impl LaneQueue {
    pub(super) fn new(prefix: &str, account: Arc<ConsoleAccount>) -> LaneQueue {
        LaneQueue { prefix: prefix.to_owned(), account, ..LaneQueue::default() }
    }

    fn is_idle(&self) -> bool {
        self.buffer.is_empty() && self.lost.lines == 0
    }

    /// Nothing of it will be written any more.
    pub(super) fn is_done(&self) -> bool {
        self.closed && self.in_hand == 0 && self.is_idle()
    }

    /// Drops the queued lines.
    pub(super) fn drop_queued(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        self.account.end_wait(lines, lines);
        self.lost += Lost { lines, bytes: self.buffer.len() as u64 };
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
        let lost = std::mem::take(&mut self.lost);
        if lost.lines == 0 {
            return Notice::default();
        }
        let (lines, bytes) = (lost.lines, human_bytes(lost.bytes));
        let notice = text!("{lines} lines ({bytes}) dropped", "丢弃了 {lines} 行（{bytes}）");
        Notice::write(lost, &format!("{}{}\n", self.prefix, notice.get(lang)), batch)
    }
}

/// All text that waits for a console.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) own: Vec<u8>,
    pub(super) own_lost: Lost,
    /// The error that lost our own text.
    why_lost: Option<Text>,
    pub(super) lanes: BTreeMap<u64, LaneQueue>,
    pub(super) status: StatusLine,
    /// The lane that was served last.
    served: u64,
    /// The writer holds text that is not written yet.
    pub(super) busy: bool,
    /// Lines were dropped since the console took nothing in its time, and it has taken nothing since.
    pub(super) is_stuck: bool,
    /// The reader of this console is gone for good.
    pub(super) dead: bool,
    pub(super) closed: bool,
}

impl Waiting {
    pub(super) fn is_idle(&self) -> bool {
        self.dead
            || (!self.busy
                && self.own.is_empty()
                && self.own_lost.lines == 0
                && !self.status.must_go()
                && self.lanes.values().all(LaneQueue::is_idle))
    }

    /// Takes our own text and, after it, the report of a gap. None if there is neither.
    pub(super) fn take_own(&mut self, batch: &mut Vec<u8>, lang: Lang) -> Option<Notice> {
        if self.own.is_empty() && self.own_lost.lines == 0 {
            return None;
        }
        batch.clear();
        std::mem::swap(&mut self.own, batch);
        let (lost, why) = (std::mem::take(&mut self.own_lost), self.why_lost.take());
        if lost.lines == 0 {
            return Some(Notice::default());
        }
        let (lines, bytes) = (lost.lines, human_bytes(lost.bytes));
        let why = why.map(|why| format!("{}{}", lang.colon(), why.get(lang))).unwrap_or_default();
        let notice = text!(
            "ranklaunch: {lines} lines ({bytes}) dropped{why}\n",
            "ranklaunch: 丢弃了 {lines} 行（{bytes}）{why}\n"
        );
        Some(Notice::write(lost, notice.get(lang), batch))
    }

    /// Takes from the next lane in turn that has lines.
    pub(super) fn take_lane(&mut self, batch: &mut Vec<u8>, lang: Lang) -> Option<(u64, Notice)> {
        let after = self.lanes.range(self.served + 1..).chain(self.lanes.range(..=self.served));
        let next = after.filter(|(_, lane)| !lane.is_idle()).map(|(id, _)| *id).next();
        let id = next?;
        self.served = id;
        Some((id, self.lanes.get_mut(&id)?.take(batch, lang)))
    }

    /// The lines that the writer took from a lane are written, except for `lost`.
    pub(super) fn end_hand(&mut self, lane: Option<u64>, lost: u64) {
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
    pub(super) fn lose_written(
        &mut self,
        failure: WriteFailure,
        lane: Option<u64>,
        batch: Notice,
        urgent: Notice,
    ) {
        let lost = batch.said_by(failure.batch);
        match failure.error {
            // The lane reports the gap, and our own text is still shown.
            None => {
                if let Some(lane) = lane.and_then(|id| self.lanes.get_mut(&id)) {
                    lane.lost += lost;
                }
                self.own.splice(..0, failure.urgent_rest);
            }
            Some(error) => {
                self.own_lost += lost;
                self.own_lost += urgent.said_by(Lost::of(&failure.urgent_rest, false));
                self.why_lost = Some(cause(&error));
            }
        }
        self.end_hand(lane, batch.told_by(failure.batch).lines);
    }

    pub(super) fn has_lines_in_hand(&self) -> bool {
        self.lanes.values().any(|lane| lane.in_hand > 0)
    }

    /// The reader is gone: no line is shown any more.
    pub(super) fn die(&mut self, lane: Option<u64>, failure: &WriteFailure, batch: Notice) {
        self.end_hand(lane, batch.told_by(failure.batch).lines);
        self.dead = true;
        self.own.clear();
        self.lanes.values_mut().for_each(LaneQueue::drop_queued);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::AtomicBool;

    use super::super::write::LineWriter;
    use super::*;

    /// Behaviour of `> run.log` on a disk that is full for a while.
    #[test]
    fn lost_lines_are_counted_when_reports_are_lost() {
        let full = File::options().write(true).open("/dev/full").expect("it exists");
        let mut state = Waiting { own: b"one\ntwo\nthree\n".to_vec(), ..Waiting::default() };
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
        let lane = LaneQueue::new("[r0] ", Arc::clone(&account));
        let lane = LaneQueue { lost: Lost { lines: 40, bytes: 900 }, ..lane };
        state.lanes.insert(1, LaneQueue { buffer: b"[r0] four\n".to_vec(), lines: 1, ..lane });
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
}
