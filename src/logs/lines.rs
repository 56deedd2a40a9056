//! Bytes of one stream → whole, prefixed lines for the console.
//!
//! Owns what is left of an unfinished line and the state of a progress bar.
//! Takes chunks of any size and the time; gives finished lines, many at once,
//! appended to a buffer. Knows nothing of sinks and never waits.

use std::time::{Duration, Instant};

use memchr::memchr;

use super::escape::{push_escaped, unfinished_suffix};

/// Longest line of the console, in bytes of the rank; container runtimes cut there too.
pub(super) const LONGEST_LINE: usize = 16 * 1024;
/// An unfinished line is shown after this long without a byte…
const IDLE: Duration = Duration::from_millis(200);
/// …or after this long without an end, for writers of a dot now and then.
const UNENDING: Duration = Duration::from_secs(2);
/// A line that rewrites itself with `\r` is shown at most this often.
pub(super) const PROGRESS: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct LineFormatter {
    prefix: Vec<u8>,
    /// The line so far, from its last `\r` or its last showing on.
    partial: Vec<u8>,
    /// When the first byte of `partial` came, and the last.
    began: Option<Instant>,
    touched: Option<Instant>,
    /// The beginning of this line has been shown already.
    shown: bool,
    progress: Progress,
    /// Lines given out so far.
    pub(super) emitted: u64,
}

#[derive(Debug, Default)]
struct Progress {
    /// This line has had a `\r`.
    active: bool,
    /// What stood before the last `\r`, unless shown.
    state: Option<Vec<u8>>,
    last_shown: Option<Instant>,
}

impl Progress {
    fn due(&self) -> Option<Instant> {
        self.last_shown.and_then(|at| at.checked_add(PROGRESS))
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due().is_none_or(|due| due <= now)
    }
}

impl LineFormatter {
    pub(super) fn new(prefix: &str) -> LineFormatter {
        LineFormatter {
            prefix: prefix.as_bytes().to_vec(),
            partial: Vec::new(),
            began: None,
            touched: None,
            shown: false,
            progress: Progress::default(),
            emitted: 0,
        }
    }

    /// Appends every line that `chunk` finishes.
    pub(super) fn feed(&mut self, chunk: &[u8], now: Instant, out: &mut Vec<u8>) {
        let mut rest = chunk;
        while let Some((line, after)) =
            memchr(b'\n', rest).and_then(|end| Some((rest.get(..end)?, rest.get(end + 1..)?)))
        {
            let fresh = self.partial.is_empty() && !self.shown && !self.progress.active;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if fresh && line.len() <= LONGEST_LINE && memchr(b'\r', line).is_none() {
                emit(&self.prefix, line, out);
                self.emitted += 1;
            } else {
                self.extend(line, now, out);
                self.end_line(out);
            }
            rest = after;
        }
        if !rest.is_empty() {
            self.extend(rest, now, out);
            self.touched = Some(now);
            self.began.get_or_insert(now);
        }
    }

    /// When [`tick`](Self::tick) has something to show if nothing comes before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.progress.active {
            let quiet = self.touched?.checked_add(IDLE)?;
            return Some(self.progress.due().map_or(quiet, |due| due.max(quiet)));
        }
        let (began, touched) = (self.began?, self.touched?);
        Some(began.checked_add(UNENDING)?.min(touched.checked_add(IDLE)?))
    }

    /// Shows an unfinished line whose time has come.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        self.began = None;
        self.touched = None;
        if self.progress.active {
            if !self.partial.is_empty() {
                self.progress.state = Some(std::mem::take(&mut self.partial));
            }
            self.show_progress(now, out);
        } else {
            self.show_partial(out);
        }
    }

    /// The stream has ended: shows what is left.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.partial.is_empty() || self.progress.state.is_some() {
            self.end_line(out);
        }
    }

    fn extend(&mut self, bytes: &[u8], now: Instant, out: &mut Vec<u8>) {
        let mut rest = bytes;
        while let Some((state, after)) =
            memchr(b'\r', rest).and_then(|end| Some((rest.get(..end)?, rest.get(end + 1..)?)))
        {
            self.append(state, out);
            self.progress.active = true;
            if !self.partial.is_empty() {
                let spare = self.progress.state.take().unwrap_or_default();
                self.progress.state = Some(std::mem::replace(&mut self.partial, spare));
                self.partial.clear();
            }
            if self.progress.is_due(now) {
                self.show_progress(now, out);
            }
            rest = after;
        }
        self.append(rest, out);
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

    /// Shows the unfinished line, but for an unfinished character; what follows
    /// becomes a line of its own.
    fn show_partial(&mut self, out: &mut Vec<u8>) {
        let whole = self.partial.len() - unfinished_suffix(&self.partial);
        if let (true, Some(text)) = (whole > 0, self.partial.get(..whole)) {
            emit(&self.prefix, text, out);
            self.emitted += 1;
            self.partial.drain(..whole);
            self.shown = true;
        }
    }

    fn show_progress(&mut self, now: Instant, out: &mut Vec<u8>) {
        if let Some(state) = self.progress.state.take() {
            emit(&self.prefix, &state, out);
            self.emitted += 1;
            self.progress.last_shown = Some(now);
        }
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        let state = self.progress.state.take();
        let last = match state {
            Some(state) if self.partial.is_empty() => Some(state),
            _ if !self.partial.is_empty() => Some(std::mem::take(&mut self.partial)),
            // All of it has been shown: its end is no line of its own.
            _ if self.shown || self.progress.active => None,
            _ => Some(Vec::new()),
        };
        if let Some(line) = last {
            emit(&self.prefix, &line, out);
            self.emitted += 1;
        }
        self.partial.clear();
        self.began = None;
        self.touched = None;
        self.shown = false;
        self.progress.active = false;
    }
}

fn emit(prefix: &[u8], line: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(prefix);
    push_escaped(line, out);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds (milliseconds, bytes), ticking at each deadline on the way, and ends the stream.
    fn shown(script: &[(u64, &[u8])]) -> Vec<String> {
        let start = Instant::now();
        let mut formatter = LineFormatter::new("[r0] ");
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

    #[test]
    fn an_unfinished_line_is_shown_when_idle_and_its_rest_is_not_torn() {
        assert_eq!(
            shown(&[(0, b"loading ..."), (150, b"."), (400, b" done\nnext\n")]),
            ["loading ....", " done", "next"]
        );
        assert_eq!(shown(&[(0, b"prompt> "), (300, b"\nnext\n")]), ["prompt> ", "next"]);
    }

    #[test]
    fn a_line_that_grows_without_end_is_shown_every_two_seconds() {
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
    fn a_progress_bar_is_shown_every_five_seconds_and_at_its_end() {
        let bars: Vec<String> = (0..=100).map(|n| format!("\r{n}%")).collect();
        let mut script: Vec<(u64, &[u8])> =
            bars.iter().enumerate().map(|(n, bar)| (n as u64 * 100, bar.as_bytes())).collect();
        script.push((10_050, b"\ndone\n"));
        assert_eq!(shown(&script), ["0%", "50%", "100%", "done"]);
    }

    #[test]
    fn a_progress_bar_that_stops_is_shown_as_it_stands() {
        assert_eq!(shown(&[(0, b"\r1%"), (100, b"\r2%"), (9_000, b"")]), ["1%", "2%"]);
        assert_eq!(shown(&[(0, b"\r1%"), (100, b"\r2%\r")]), ["1%", "2%"]);
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
