//! Rows that a stream draws below each other and goes back to.
//!
//! Several progress bars at once (`tqdm(position=1)`) write `\n`, the lower bar and
//! `ESC [ A`, ten times a second: a line end that is taken back is no line end. So
//! once a stream has moved its cursor up, what ends in `\n` is held for a moment. Taken
//! back in that time it is a bar, which is shown now and then; otherwise a line.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::lines::PROGRESS;

/// Rows that may wait, and rows that are told apart.
const ROWS: usize = 32;
/// How long a line end may still be taken back: both are mostly one write.
const TAKEN_BACK: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct Rows {
    /// The last time that the stream moved its cursor up.
    moved: Option<Instant>,
    /// Rows above the cursor, the highest first, with the time of their end.
    above: VecDeque<(Vec<u8>, Instant)>,
    /// Below the first row: what each bar shows, unless shown, and when it was.
    bars: Vec<Bar>,
}

#[derive(Debug, Default)]
struct Bar {
    state: Option<Vec<u8>>,
    last_shown: Option<Instant>,
}

impl Bar {
    fn due(&self) -> Option<Instant> {
        self.last_shown.and_then(|at| at.checked_add(PROGRESS))
    }
}

impl Rows {
    /// Whether the stream draws rows; it has stopped to when it did not for a while.
    pub(super) fn are_drawn(&self, now: Instant) -> bool {
        !self.above.is_empty()
            || self.moved.is_some_and(|at| now.saturating_duration_since(at) < PROGRESS)
    }

    /// A row has ended. Gives one that waits too long already.
    pub(super) fn end(&mut self, row: Vec<u8>, now: Instant) -> Option<Vec<u8>> {
        self.above.push_back((row, now));
        if self.above.len() > ROWS { self.above.pop_front().map(|(row, _)| row) } else { None }
    }

    /// The cursor leaves `row` upwards. Gives what stands in the row above.
    pub(super) fn up(&mut self, row: Vec<u8>, now: Instant) -> Option<Vec<u8>> {
        self.moved = Some(now);
        // The first time the row above was taken for a line and is not here any more.
        let depth = self.above.len().clamp(1, ROWS);
        if !is_blank(&row) {
            if self.bars.len() < depth {
                self.bars.resize_with(depth, Bar::default);
            }
            if let Some(bar) = self.bars.get_mut(depth - 1) {
                bar.state = Some(row);
            }
        }
        self.above.pop_back().map(|(row, _)| row)
    }

    /// What is to be shown now: lines whose end nobody took back, bars whose time has come.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut shown = Vec::new();
        if self.ends_at().is_some_and(|at| at <= now) {
            shown.extend(self.above.drain(..).map(|(row, _)| row));
        }
        for bar in &mut self.bars {
            if bar.due().is_none_or(|due| due <= now)
                && let Some(state) = bar.state.take()
            {
                bar.last_shown = Some(now);
                shown.push(state);
            }
        }
        shown
    }

    /// The stream has ended: all that was not shown.
    pub(super) fn rest(&mut self) -> Vec<Vec<u8>> {
        let bars = self.bars.iter_mut().filter_map(|bar| bar.state.take());
        bars.chain(self.above.drain(..).map(|(row, _)| row)).collect()
    }

    /// When [`due`](Self::due) has something.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let bars = self.bars.iter().filter(|bar| bar.state.is_some()).filter_map(Bar::due);
        self.ends_at().into_iter().chain(bars).min()
    }

    fn ends_at(&self) -> Option<Instant> {
        self.above.front().and_then(|(_, at)| at.checked_add(TAKEN_BACK))
    }
}

/// A bar that was wiped.
pub(super) fn is_blank(row: &[u8]) -> bool {
    row.iter().all(|byte| *byte == b' ')
}

/// Rows and length of a leading `ESC [ n A`.
pub(super) fn cursor_up(bytes: &[u8]) -> Option<(usize, usize)> {
    let parameters = bytes.strip_prefix(b"\x1b[")?;
    let digits = parameters.iter().position(|byte| !byte.is_ascii_digit())?;
    let count = std::str::from_utf8(parameters.get(..digits)?).ok()?;
    let rows = if count.is_empty() { 1 } else { count.parse::<usize>().ok()?.clamp(1, ROWS) };
    (parameters.get(digits) == Some(&b'A')).then_some((rows, digits + 3))
}
