//! Keeps the last lines of one rank, both streams in order of arrival, for the closing block and
//! the termination message.
//!
//! Holds at most [`LINES`] lines and [`BYTES`] bytes. Only the end of a chunk is read, so the
//! cost does not grow with the output.

use std::borrow::Cow;
use std::collections::VecDeque;

use memchr::{memchr_iter, memrchr, memrchr_iter};

use verdict::outcome::Stream;

pub(super) const LINES: usize = 200;
const BYTES: usize = 256 * 1024;
/// Maximum bytes of a kept line. A longer line keeps its beginning, which has the message.
const LONGEST: usize = 4 * 1024;

/// One of the last lines, without its newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailLine {
    pub stream: Stream,
    pub bytes: Vec<u8>,
}

impl TailLine {
    /// The line as text; invalid UTF-8 becomes U+FFFD.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }
}

#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: VecDeque<TailLine>,
    bytes: usize,
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Tail {
    pub(super) fn append(&mut self, stream: Stream, chunk: &[u8]) {
        let Some(end) = memrchr(b'\n', chunk) else {
            keep(self.partial(stream), chunk);
            return;
        };
        let (whole, rest) = chunk.split_at_checked(end).unwrap_or((chunk, &[]));
        // Nothing before newline number LINES from the end is kept.
        let mut start = 0;
        if let Some(at) = memrchr_iter(b'\n', whole).nth(LINES - 1) {
            self.partial(stream).clear();
            start = at + 1;
        }
        let whole = whole.get(start..).unwrap_or_default();
        let mut from = 0;
        for end in memchr_iter(b'\n', whole).chain([whole.len()]) {
            let mut line = std::mem::take(self.partial(stream));
            keep(&mut line, whole.get(from..end).unwrap_or_default());
            let spare = self.push(TailLine { stream, bytes: line });
            *self.partial(stream) = spare;
            from = end + 1;
        }
        keep(self.partial(stream), rest.get(1..).unwrap_or_default());
    }

    /// The last `n` lines, unfinished ones last.
    pub(super) fn last(&self, n: usize) -> Vec<TailLine> {
        let unfinished = [(Stream::Out, &self.out), (Stream::Err, &self.err)]
            .into_iter()
            .filter(|(_, bytes)| !bytes.is_empty())
            .map(|(stream, bytes)| TailLine { stream, bytes: bytes.clone() });
        let whole = self.lines.iter().skip(self.lines.len().saturating_sub(n)).cloned();
        let mut lines: Vec<TailLine> = whole.chain(unfinished).collect();
        lines.drain(..lines.len().saturating_sub(n));
        lines
    }

    fn partial(&mut self, stream: Stream) -> &mut Vec<u8> {
        match stream {
            Stream::Out => &mut self.out,
            Stream::Err => &mut self.err,
        }
    }

    /// Adds a line. Gives the buffer of the line that it displaced, to reuse it.
    fn push(&mut self, mut line: TailLine) -> Vec<u8> {
        if line.bytes.last() == Some(&b'\r') {
            line.bytes.pop();
        }
        self.bytes += line.bytes.len();
        self.lines.push_back(line);
        let mut spare = Vec::new();
        while self.lines.len() > LINES || self.bytes > BYTES {
            let Some(old) = self.lines.pop_front() else { break };
            self.bytes -= old.bytes.len();
            spare = old.bytes;
        }
        spare.clear();
        spare
    }
}

/// Appends to an unfinished line: a `\r` restarts the line, as on a terminal.
fn keep(line: &mut Vec<u8>, bytes: &[u8]) {
    // A trailing `\r` may be half of `\r\n`, so it takes effect with the next byte.
    if line.last() == Some(&b'\r') && !bytes.is_empty() {
        line.clear();
    }
    let body = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let bytes = match memrchr(b'\r', body) {
        Some(at) => {
            line.clear();
            bytes.get(at + 1..).unwrap_or_default()
        }
        None => bytes,
    };
    let room = LONGEST.saturating_sub(line.len());
    line.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(tail: &Tail, n: usize) -> Vec<String> {
        tail.last(n).iter().map(|line| line.text().into_owned()).collect()
    }

    #[test]
    fn the_last_lines_stay_whatever_the_chunks() {
        let all: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        for size in [1, 7, 100, 5_000, 100_000] {
            let mut tail = Tail::default();
            all.as_bytes().chunks(size).for_each(|chunk| tail.append(Stream::Out, chunk));
            let lines = texts(&tail, 500);
            assert_eq!(lines.len(), LINES, "chunks of {size}");
            assert_eq!(lines.first().map(String::as_str), Some("line 800"), "chunks of {size}");
            assert_eq!(lines.last().map(String::as_str), Some("line 999"), "chunks of {size}");
            assert_eq!(texts(&tail, 2), ["line 998", "line 999"]);
        }
    }

    #[test]
    fn tail_holds_both_streams_in_order_of_arrival() {
        let mut tail = Tail::default();
        tail.append(Stream::Out, b"a\nunfin");
        tail.append(Stream::Err, b"Traceback\n");
        tail.append(Stream::Out, b"ished\nlast");
        let lines = tail.last(10);
        let seen: Vec<(Stream, &[u8])> =
            lines.iter().map(|line| (line.stream, line.bytes.as_slice())).collect();
        assert_eq!(
            seen,
            [
                (Stream::Out, &b"a"[..]),
                (Stream::Err, b"Traceback"),
                (Stream::Out, b"unfinished"),
                (Stream::Out, b"last"),
            ]
        );
    }

    #[test]
    fn tail_is_bounded_by_bytes_too() {
        let mut tail = Tail::default();
        for _ in 0..1000 {
            tail.append(Stream::Err, &[b'x'; 10_000]);
            tail.append(Stream::Err, b"\n");
        }
        assert!(tail.bytes <= BYTES);
        assert!(tail.lines.iter().all(|line| line.bytes.len() <= LONGEST));
    }

    #[test]
    fn a_progress_bar_leaves_its_last_state() {
        for chunks in [
            &[&b"\r1%\r2%\r3%\n"[..]][..],
            &[b"\r1%", b"\r2%", b"\r3%", b"\n"],
            &[b"1%\r", b"2%\r", b"3%\n"],
        ] {
            let mut tail = Tail::default();
            chunks.iter().for_each(|chunk| tail.append(Stream::Err, chunk));
            assert_eq!(texts(&tail, 9), ["3%"], "{chunks:?}");
        }
    }
}
