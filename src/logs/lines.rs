//! Turns the bytes of one stream into whole, prefixed lines for the console.
//!
//! Owns the unfinished line and the state of a progress bar. Takes chunks of any size and the
//! time; appends finished lines to a buffer. Knows nothing of sinks and never waits.

use std::time::{Duration, Instant};

use memchr::{memchr, memchr_iter, memchr2, memchr2_iter, memrchr};

use super::rows::{Bar, LONGEST_CURSOR_UP, Rows, cursor_up, is_blank, may_become_cursor_up};
use text::escape::{is_plain, push_escaped, unfinished_suffix};

/// Longest line on the console, in bytes written by the rank. Container runtimes split at the same length.
pub(super) const LONGEST_LINE: usize = 16 * 1024;
/// An unfinished line is shown after this long without a new byte…
const IDLE: Duration = Duration::from_millis(200);
/// …or after this long without an end, for programs that print a dot now and then.
const UNENDING: Duration = Duration::from_secs(2);

/// Text that the console shows before and after each line of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Marks {
    pub(super) before: String,
    pub(super) after: &'static str,
}

#[derive(Debug, Default)]
pub(super) struct LineFormatter {
    marks: Marks,
    /// The current line since its last `\r` or since it was last shown.
    partial: Vec<u8>,
    /// Time of the first and of the last byte of `partial`.
    began: Option<Instant>,
    touched: Option<Instant>,
    /// The beginning of this line was already shown.
    shown: bool,
    /// The line contains a `\r`.
    is_bar: bool,
    /// The text before the last `\r`, unless it was shown.
    bar: Bar,
    rows: Rows,
    /// Lines emitted since they were last taken.
    pub(super) emitted: u64,
}

impl LineFormatter {
    pub(super) fn new(marks: &Marks) -> LineFormatter {
        LineFormatter { marks: marks.clone(), ..LineFormatter::default() }
    }

    /// The number of lines that were emitted since the last call.
    pub(super) fn take_emitted(&mut self) -> u64 {
        std::mem::take(&mut self.emitted)
    }

    /// Appends every line that is finished by `chunk`. Gives the number of line feeds in `chunk`.
    pub(super) fn feed(&mut self, chunk: &[u8], now: Instant, out: &mut Vec<u8>) -> usize {
        // Joins a sequence that was split across two reads.
        let joined = self.take_unfinished().map(|begun| [&begun, chunk].concat());
        let mut rest = joined.as_deref().unwrap_or(chunk);
        let mut rows = self.rows.are_drawn(now);
        let mut feeds = 0;
        while let Some(end) = memchr(b'\n', rest) {
            let fresh = self.partial.is_empty() && !self.shown && !self.is_bar && !rows;
            if fresh {
                let (length, lines) = self.emit_plain(rest, out);
                if lines > 0 {
                    rest = rest.get(length..).unwrap_or_default();
                    feeds += lines;
                    continue;
                }
            }
            let (line, after) = rest.split_at_checked(end).unwrap_or((rest, &[]));
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if fresh && line.len() <= LONGEST_LINE && stays(line) {
                emit(&self.marks, line, out);
                self.emitted += 1;
            } else {
                self.extend(line, now, out);
                if self.rows.are_drawn(now) {
                    self.end_row(now, out);
                } else {
                    self.end_line(out);
                }
                rows = self.rows.are_drawn(now);
            }
            rest = after.get(1..).unwrap_or_default();
            feeds += 1;
        }
        if !rest.is_empty() {
            self.extend(rest, now, out);
            self.touched = Some(now);
            self.began.get_or_insert(now);
        }
        feeds
    }

    /// Emits the whole lines at the beginning of `text` that need no escape. Gives their length and their number.
    fn emit_plain(&mut self, text: &[u8], out: &mut Vec<u8>) -> (usize, usize) {
        let (mut start, mut lines) = (0, 0);
        for end in memchr_iter(b'\n', text) {
            let line = text.get(start..end).unwrap_or_default();
            if line.len() > LONGEST_LINE || !is_plain(line) {
                break;
            }
            put(&self.marks, out, |out| out.extend_from_slice(line));
            start = end + 1;
            lines += 1;
        }
        self.emitted += lines as u64;
        (start, lines)
    }

    /// The time to call [`tick`](Self::tick), if no byte arrives before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.line_deadline().into_iter().chain(self.rows.deadline()).min()
    }

    fn line_deadline(&self) -> Option<Instant> {
        if self.is_bar {
            let quiet = self.touched?.checked_add(IDLE)?;
            return Some(self.bar.due().map_or(quiet, |due| due.max(quiet)));
        }
        let (began, touched) = (self.began?, self.touched?);
        Some(began.checked_add(UNENDING)?.min(touched.checked_add(IDLE)?))
    }

    /// Shows an unfinished line that is due.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let rests = self.partial.is_empty() && !self.is_bar;
        let rows = self.rows.due(now, rests);
        self.emit_rows(rows, out);
        if self.line_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        self.began = None;
        self.touched = None;
        if self.is_bar {
            if !self.partial.is_empty() {
                self.bar.state = Some(std::mem::take(&mut self.partial));
            }
            self.show_progress(now, out);
        } else {
            self.show_partial(out);
        }
    }

    /// Shows the rest at the end of the stream.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        let rows = self.rows.rest();
        self.emit_rows(rows, out);
        if !self.partial.is_empty() || self.bar.state.is_some() {
            self.end_line(out);
        }
    }

    /// Takes the beginning of a cursor sequence from the end of the unfinished line.
    fn take_unfinished(&mut self) -> Option<Vec<u8>> {
        let from = self.partial.len().saturating_sub(LONGEST_CURSOR_UP);
        let at = from + memrchr(0x1b, self.partial.get(from..)?)?;
        if !may_become_cursor_up(self.partial.get(at..)?) {
            return None;
        }
        let begun = self.partial.split_off(at);
        if self.partial.is_empty() {
            self.began = None;
        }
        Some(begun)
    }

    fn extend(&mut self, bytes: &[u8], now: Instant, out: &mut Vec<u8>) {
        let (mut rest, mut from) = (bytes, 0);
        while let Some(at) = rest.get(from..).and_then(|tail| memchr2(b'\r', 0x1b, tail)) {
            let (state, after) = rest.split_at_checked(from + at).unwrap_or((rest, &[]));
            if let Some((rows, length)) = cursor_up(after) {
                self.append(state, out);
                (0..rows).for_each(|_| self.go_up(now, out));
                (rest, from) = (after.get(length..).unwrap_or_default(), 0);
                continue;
            }
            let Some(after) = after.strip_prefix(b"\r") else {
                from += at + 1;
                continue;
            };
            self.append(state, out);
            self.is_bar = true;
            if !self.partial.is_empty() {
                let spare = self.bar.state.take().unwrap_or_default();
                self.bar.state = Some(std::mem::replace(&mut self.partial, spare));
                self.partial.clear();
            }
            if self.bar.is_due(now) {
                self.show_progress(now, out);
            }
            (rest, from) = (after, 0);
        }
        self.append(rest, out);
    }

    /// Moves the cursor back to the row above, which becomes the unfinished line again.
    fn go_up(&mut self, now: Instant, out: &mut Vec<u8>) {
        let state = self.bar.state.take().unwrap_or_default();
        let partial = std::mem::take(&mut self.partial);
        let row = if partial.is_empty() { state } else { partial };
        self.bar.state = self.rows.up(row, now).filter(|row| !is_blank(row));
        self.is_bar = true;
        self.shown = false;
        let rows = self.rows.due(now, false);
        self.emit_rows(rows, out);
    }

    /// Ends the row; it is held if the cursor may still go back to it.
    fn end_row(&mut self, now: Instant, out: &mut Vec<u8>) {
        let state = self.bar.state.take().unwrap_or_default();
        let partial = std::mem::take(&mut self.partial);
        let row = if partial.is_empty() { state } else { partial };
        let full = self.rows.end(row, now);
        self.emit_rows(full, out);
        self.begin_line();
    }

    fn emit_rows(&mut self, rows: impl IntoIterator<Item = Vec<u8>>, out: &mut Vec<u8>) {
        for row in rows.into_iter().filter(|row| !is_blank(row)) {
            emit(&self.marks, &row, out);
            self.emitted += 1;
        }
    }

    fn append(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut rest = bytes;
        while self.partial.len() + rest.len() > LONGEST_LINE {
            let room = LONGEST_LINE.saturating_sub(self.partial.len());
            let (now, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
            self.partial.extend_from_slice(now);
            self.show_partial(out);
            rest = later;
        }
        self.partial.extend_from_slice(rest);
    }

    /// Shows the unfinished line except an incomplete character. The text after it becomes a line of its own.
    fn show_partial(&mut self, out: &mut Vec<u8>) {
        let whole = self.partial.len() - unfinished_suffix(&self.partial);
        if let (true, Some(text)) = (whole > 0, self.partial.get(..whole)) {
            emit(&self.marks, text, out);
            self.emitted += 1;
            self.partial.drain(..whole);
            self.shown = true;
        }
    }

    fn show_progress(&mut self, now: Instant, out: &mut Vec<u8>) {
        // A cleared bar is not shown.
        if let Some(state) = self.bar.state.take().filter(|state| !is_blank(state)) {
            emit(&self.marks, &state, out);
            self.emitted += 1;
            self.bar.last_shown = Some(now);
        }
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        let state = self.bar.state.take();
        let last = match state {
            Some(state) if self.partial.is_empty() => Some(state),
            _ if !self.partial.is_empty() => Some(std::mem::take(&mut self.partial)),
            // Everything was shown already, so the line end adds no line.
            _ if self.shown || self.is_bar => None,
            _ => Some(Vec::new()),
        };
        if let Some(line) = last {
            emit(&self.marks, &line, out);
            self.emitted += 1;
        }
        self.begin_line();
    }

    fn begin_line(&mut self) {
        self.partial.clear();
        self.began = None;
        self.touched = None;
        self.shown = false;
        self.is_bar = false;
    }
}

/// Whether nothing in a line moves the cursor.
fn stays(line: &[u8]) -> bool {
    memchr2_iter(b'\r', 0x1b, line).all(|at| {
        let rest = line.get(at..).unwrap_or_default();
        rest.first() == Some(&0x1b) && cursor_up(rest).is_none()
    })
}

fn emit(marks: &Marks, line: &[u8], out: &mut Vec<u8>) {
    put(marks, out, |out| push_escaped(line, out));
}

/// Appends a line between its marks.
fn put(marks: &Marks, out: &mut Vec<u8>, line: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(marks.before.as_bytes());
    line(out);
    out.extend_from_slice(marks.after.as_bytes());
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds (milliseconds, bytes), calls `tick` at each deadline in between, and ends the
    /// stream.
    fn shown(script: &[(u64, &[u8])]) -> Vec<String> {
        let start = Instant::now();
        let mut formatter = LineFormatter::new(&Marks { before: "[r0] ".to_owned(), after: "" });
        let mut out = Vec::new();
        for (at, bytes) in script {
            let now = start + Duration::from_millis(*at);
            while let Some(deadline) = formatter.deadline().filter(|deadline| *deadline <= now) {
                formatter.tick(deadline, &mut out);
            }
            formatter.feed(bytes, now, &mut out);
        }
        formatter.finish(&mut out);
        let text = String::from_utf8(out).expect("valid UTF-8");
        assert_eq!(formatter.emitted, text.matches('\n').count() as u64);
        text.lines()
            .map(|line| line.strip_prefix("[r0] ").expect("every line has the prefix").to_owned())
            .collect()
    }

    #[test]
    fn lines_are_whole_whatever_the_chunks() {
        assert_eq!(
            shown(&[(0, b"one\ntw"), (1, b"o\n\nth"), (2, b"ree")]),
            ["one", "two", "", "three"]
        );
        assert_eq!(shown(&[(0, b"windows\r\nline\r\n")]), ["windows", "line"]);
        assert_eq!(shown(&[(0, b"windows\r"), (1, b"\nline\n")]), ["windows", "line"]);
    }

    /// A read may end anywhere, and one read may hold all rows of a bar.
    #[test]
    fn rows_are_rows_whatever_the_chunks() {
        let text = b"bar 0\nbar 1\x1b[A\rbar 2\x1b[1A\n\x1b[31mred\x1b[0m\nend\x1b\n";
        let whole = shown(&[(0, text)]);
        assert_eq!(whole, ["bar 0", "bar 1", "bar 2", "\x1b[31mred\x1b[0m", "end\\x1b"]);
        let line = b"one\n\x1b[A two\n\x1b[3Athree\n";
        let rows = shown(&[(0, line)]);
        assert!(!rows.iter().any(|row| row.contains("[A") || row.contains("[3A")), "{rows:?}");
        for at in 0..text.len() {
            // A piece that ends in a carriage return is shown as the current state of a bar.
            let (first, second) = text.split_at(at);
            if first.last() != Some(&b'\r') {
                assert_eq!(shown(&[(0, first), (0, second)]), whole, "cut at {at}");
            }
        }
        for at in 0..line.len() {
            let (first, second) = line.split_at(at);
            assert_eq!(shown(&[(0, first), (0, second)]), rows, "cut at {at}");
        }
    }

    /// Plain lines take a way of their own through a chunk.
    #[test]
    fn plain_lines_are_shown_whatever_the_chunks() {
        let long = "x".repeat(LONGEST_LINE + 1);
        let parts = [
            "one\ttwo\n",
            "\n",
            "\u{1b}[31mred\u{1b}[0m\n",
            "a\rb\n",
            "训练\n",
            "\x07\n",
            &long,
            "\n",
        ];
        proptest::proptest!(|(picks in proptest::collection::vec(0..parts.len(), 1..40), colour: bool)| {
            let text: Vec<&str> = picks.iter().map(|pick| parts[*pick]).collect();
            let after = if colour { "\x1b[0m" } else { "" };
            let marks = Marks { before: "[r0] ".to_owned(), after };
            let now = Instant::now();
            let feed = |chunks: &[&[u8]]| {
                let (mut lines, mut out) = (LineFormatter::new(&marks), Vec::new());
                for chunk in chunks {
                    lines.feed(chunk, now, &mut out);
                }
                lines.finish(&mut out);
                (out, lines.emitted)
            };
            let whole = text.concat();
            let bytes: Vec<&[u8]> = whole.as_bytes().chunks(1).collect();
            proptest::prop_assert_eq!(feed(&[whole.as_bytes()]), feed(&bytes));
        });
    }

    #[test]
    fn idle_unfinished_line_is_shown_rest_stays_whole() {
        assert_eq!(
            shown(&[(0, b"loading ..."), (150, b"."), (400, b" done\nnext\n")]),
            ["loading ....", " done", "next"]
        );
        assert_eq!(shown(&[(0, b"prompt> "), (300, b"\nnext\n")]), ["prompt> ", "next"]);
    }

    #[test]
    fn endless_line_is_shown_every_two_seconds() {
        let dots: Vec<(u64, &[u8])> = (0..30).map(|n| (n * 100, &b"."[..])).collect();
        assert_eq!(shown(&dots), [".".repeat(20), ".".repeat(10)]);
    }

    #[test]
    fn a_character_cut_by_idleness_is_kept_together() {
        assert_eq!(
            shown(&[(0, "训".as_bytes()), (1, b"\xe7\xbb"), (300, b"\x83\n")]),
            ["训", "练"]
        );
        assert_eq!(shown(&[(0, b"\xe7\xbb")]), [r"\xe7\xbb"]);
    }

    #[test]
    fn progress_bar_is_shown_every_five_seconds() {
        let bars: Vec<String> = (0..=100).map(|n| format!("\r{n}%")).collect();
        let mut script: Vec<(u64, &[u8])> =
            bars.iter().enumerate().map(|(n, bar)| (n as u64 * 100, bar.as_bytes())).collect();
        script.push((10_050, b"\ndone\n"));
        assert_eq!(shown(&script), ["0%", "50%", "100%", "done"]);
    }

    #[test]
    fn stopped_progress_bar_shows_its_last_state() {
        assert_eq!(shown(&[(0, b"\r1%"), (100, b"\r2%"), (9_000, b"")]), ["1%", "2%"]);
        assert_eq!(shown(&[(0, b"\r1%"), (100, b"\r2%\r")]), ["1%", "2%"]);
    }

    /// `tqdm(position=0)` and `tqdm(position=1)`, at 10 Hz for 12 s.
    #[test]
    fn stacked_bars_are_shown_every_five_seconds() {
        let mut script: Vec<(u64, Vec<u8>)> = Vec::new();
        for n in 0..=120u64 {
            script.push((n * 100, format!("\r outer {}%", n / 12).into_bytes()));
            // Python writes the parts one by one.
            script.push((n * 100, b"\n".to_vec()));
            script.push((n * 100 + 1, format!("\r inner {n}%").into_bytes()));
            script.push((n * 100 + 1, b"\x1b[A".to_vec()));
        }
        script.push((12_010, b"\n\ndone\n".to_vec()));
        let script: Vec<(u64, &[u8])> =
            script.iter().map(|(at, bytes)| (*at, bytes.as_slice())).collect();
        let lines = shown(&script);
        assert!(lines.len() <= 10, "{lines:?}");
        let has = |text: &str| lines.iter().any(|line| line == text);
        assert!(has(" outer 0%") && has(" outer 10%"), "{lines:?}");
        assert!(has(" inner 0%") && has(" inner 120%"), "{lines:?}");
        assert!(has("done") && !lines.iter().any(|line| line.contains("x1b")), "{lines:?}");
    }

    #[test]
    fn line_between_bars_is_shown_in_order() {
        let bars = b"\r outer 1%\n\r inner 1%\x1b[A";
        // tqdm.write: clears both bars, prints the message, draws both again.
        let wiped = b"\r         \r\n\r         \r\x1b[Aa message\n\r outer 2%\n\r inner 2%\x1b[A";
        let lines = shown(&[(0, bars), (100, wiped), (9_000, b"\nplain\n"), (20_000, b"a\nb\n")]);
        let at = |text: &str| lines.iter().position(|line| line == text);
        assert!(at("a message").is_some() && at("a message") < at("plain"), "{lines:?}");
        assert_eq!(lines[lines.len() - 2..], ["a", "b"], "{lines:?}");
        assert!(lines.iter().all(|line| !line.trim().is_empty()), "{lines:?}");
    }

    /// The lines after the bars do not stand before the last state of a bar.
    #[test]
    fn last_state_of_lower_bar_is_shown_when_rows_rest() {
        let bars = |n: u32| format!("\r outer {n}%\n\r inner {n}%\x1b[A");
        let (one, two) = (bars(1), bars(2));
        let script: [(u64, &[u8]); 4] =
            [(0, one.as_bytes()), (100, two.as_bytes()), (300, b"\n\ndone\n"), (1_000, b"late\n")];
        let lines = shown(&script);
        let at = |text: &str| lines.iter().position(|line| line == text);
        assert!(at(" inner 2%").is_some() && at(" inner 2%") < at("done"), "{lines:?}");
        assert!(at("done") < at("late"), "{lines:?}");
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let long = "é".repeat(LONGEST_LINE);
        let lines = shown(&[(0, long.as_bytes()), (1, b"\nnext\n")]);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[..2].concat(), long);
        assert!(lines.iter().all(|line| line.len() <= LONGEST_LINE));

        let odd = format!("a{}\n", "é".repeat(LONGEST_LINE));
        let lines = shown(&[(0, odd.as_bytes())]);
        assert_eq!(format!("{}\n", lines.concat()), odd);
    }
}
