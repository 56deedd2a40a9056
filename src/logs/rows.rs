//! Progress bars that a stream draws in several rows.
//!
//! Several bars at once (`tqdm(position=1)`) write `\n`, the lower bar and `ESC [ A`, ten times a second. If the cursor
//! goes back over a line end, the line did not end there. So after a stream has moved its cursor up, a row that ends in
//! `\n` is held for a moment. If the cursor returns to the row in that time, the row is a bar and is shown at
//! intervals; otherwise it is a line.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum number of rows that are held or told apart.
const ROWS: usize = 32;
/// A progress bar, of one row or several, is shown at most this often.
const PROGRESS: Duration = Duration::from_secs(5);
/// Time within which the cursor may return to a row; usually the row and the return are one write.
const TAKEN_BACK: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct Rows {
    /// The last time that the stream moved its cursor up.
    moved: Option<Instant>,
    /// Rows above the cursor, the highest first, with the time of their end.
    above: VecDeque<(Vec<u8>, Instant)>,
    /// The bars below the first row.
    bars: Vec<Bar>,
}

/// A progress bar: text that is not shown yet, and the time of the last display.
#[derive(Debug, Default)]
pub(super) struct Bar {
    pub(super) state: Option<Vec<u8>>,
    pub(super) last_shown: Option<Instant>,
}

impl Bar {
    pub(super) fn due(&self) -> Option<Instant> {
        self.last_shown.and_then(|at| at.checked_add(PROGRESS))
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due().is_none_or(|due| due <= now)
    }
}

impl Rows {
    /// Whether the stream draws rows, that is, has moved its cursor up recently.
    pub(super) fn are_drawn(&self, now: Instant) -> bool {
        !self.above.is_empty()
            || self.moved.is_some_and(|at| now.saturating_duration_since(at) < PROGRESS)
    }

    /// Ends a row. Gives the oldest held row if too many are held.
    pub(super) fn end(&mut self, row: Vec<u8>, now: Instant) -> Option<Vec<u8>> {
        self.above.push_back((row, now));
        if self.above.len() > ROWS { self.above.pop_front().map(|(row, _)| row) } else { None }
    }

    /// Moves the cursor from `row` to the row above. Gives the text of the row above.
    pub(super) fn up(&mut self, row: Vec<u8>, now: Instant) -> Option<Vec<u8>> {
        self.moved = Some(now);
        // At the first move, the row above has already been shown as a line and is no longer held.
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

    /// The rows to show now: held rows to which the cursor did not return, and bars after their interval. `rests`: the
    /// cursor stands at the beginning of a new line, so that bars above a held row are at their end.
    pub(super) fn due(&mut self, now: Instant, rests: bool) -> Vec<Vec<u8>> {
        let mut shown = Vec::new();
        if self.ends_at().is_some_and(|at| at <= now) {
            if rests {
                return self.rest();
            }
            shown.extend(self.above.drain(..).map(|(row, _)| row));
        }
        for bar in &mut self.bars {
            if bar.is_due(now)
                && let Some(state) = bar.state.take()
            {
                bar.last_shown = Some(now);
                shown.push(state);
            }
        }
        shown
    }

    /// All rows that are not shown yet, at the end of the stream or of the bars.
    pub(super) fn rest(&mut self) -> Vec<Vec<u8>> {
        let bars = self.bars.iter_mut().filter_map(|bar| bar.state.take());
        bars.chain(self.above.drain(..).map(|(row, _)| row)).collect()
    }

    /// The time at which [`due`](Self::due) next has a row.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let bars = self.bars.iter().filter(|bar| bar.state.is_some()).filter_map(Bar::due);
        self.ends_at().into_iter().chain(bars).min()
    }

    fn ends_at(&self) -> Option<Instant> {
        self.above.front().and_then(|(_, at)| at.checked_add(TAKEN_BACK))
    }
}

/// Whether the row is a cleared bar.
pub(super) fn is_blank(row: &[u8]) -> bool {
    row.iter().all(|byte| *byte == b' ')
}

/// Maximum bytes of a recognised sequence: no terminal has more rows.
pub(super) const LONGEST_CURSOR_UP: usize = 3 + MOST_DIGITS;
const MOST_DIGITS: usize = 5;

/// Whether more bytes may complete the sequence `ESC [ n A`.
pub(super) fn may_become_cursor_up(bytes: &[u8]) -> bool {
    let parameters = |rest: &[u8]| rest.len() <= MOST_DIGITS && rest.iter().all(u8::is_ascii_digit);
    bytes == b"\x1b" || bytes.strip_prefix(b"\x1b[").is_some_and(parameters)
}

/// Rows and length of a leading `ESC [ n A`.
pub(super) fn cursor_up(bytes: &[u8]) -> Option<(usize, usize)> {
    let parameters = bytes.strip_prefix(b"\x1b[")?;
    let digits = parameters.iter().position(|byte| !byte.is_ascii_digit())?;
    if digits > MOST_DIGITS {
        return None;
    }
    let count = std::str::from_utf8(parameters.get(..digits)?).ok()?;
    let rows = if count.is_empty() { 1 } else { count.parse::<usize>().ok()?.clamp(1, ROWS) };
    (parameters.get(digits) == Some(&b'A')).then_some((rows, digits + 3))
}
