//! Whole lines from pieces of any size.
//!
//! A carriage return also ends a piece of a line: a progress bar is one line of many pieces.

use std::sync::OnceLock;

use regex::bytes::{Captures, Regex};

use text::pattern::compile;

/// A longer line is read as several lines. Bounds the memory that a log without line ends takes.
pub(super) const LONGEST: usize = 64 * 1024;

/// Bytes of a name or of words that are kept from a line.
pub(super) const LONGEST_PART: usize = 300;

/// A part of a line, cut to [`LONGEST_PART`] bytes so that a log cannot make the program keep more.
pub(super) fn kept(part: &[u8]) -> String {
    String::from_utf8_lossy(part.get(..LONGEST_PART).unwrap_or(part)).into_owned()
}

/// A pattern of this crate, compiled on first use. A pattern that does not compile matches nothing.
pub(super) struct Pattern(&'static str, OnceLock<Option<Regex>>);

impl Pattern {
    pub(super) const fn new(pattern: &'static str) -> Pattern {
        Pattern(pattern, OnceLock::new())
    }

    pub(super) fn get(&self) -> Option<&Regex> {
        self.1.get_or_init(|| compile(self.0).ok()).as_ref()
    }

    pub(super) fn is_match(&self, text: &[u8]) -> bool {
        self.get().is_some_and(|pattern| pattern.is_match(text))
    }

    pub(super) fn captures<'t>(&self, text: &'t [u8]) -> Option<Captures<'t>> {
        self.get()?.captures(text)
    }
}

/// A line, or a piece of one, without its end. Never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) bytes: &'a [u8],
    /// Counts line feeds, from 1: the number that an editor shows.
    pub(super) number: u64,
    /// Offset of the first byte in the log.
    pub(super) offset: u64,
}

/// The state between two pieces.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    unfinished: Vec<u8>,
    number: u64,
    offset: u64,
    /// The rest of a line whose beginning is lost is dropped.
    broken: bool,
}

impl Lines {
    pub(super) fn new() -> Lines {
        Lines { unfinished: Vec::new(), number: 1, offset: 0, broken: false }
    }

    /// Gives every line that ends in `bytes`.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(Line<'_>)) {
        while !bytes.is_empty() {
            let room = LONGEST - self.unfinished.len();
            let window = bytes.get(..room.min(bytes.len())).unwrap_or(bytes);
            let end = memchr::memchr2(b'\n', b'\r', window);
            let (piece, rest) = window.split_at(end.unwrap_or(window.len()));
            if end.is_none() && piece.len() < room {
                self.unfinished.extend_from_slice(piece);
                return;
            }
            let whole = if self.unfinished.is_empty() {
                piece
            } else {
                self.unfinished.extend_from_slice(piece);
                &self.unfinished
            };
            let length = whole.len() as u64;
            if !whole.is_empty() && !self.broken {
                each(Line { bytes: whole, number: self.number, offset: self.offset });
            }
            self.unfinished.clear();
            self.broken &= end.is_none();
            self.offset += length + u64::from(end.is_some());
            self.number += u64::from(rest.first() == Some(&b'\n'));
            let taken = piece.len() + usize::from(end.is_some());
            bytes = bytes.get(taken..).unwrap_or_default();
        }
    }

    /// Number of line feeds, plus one if text follows the last of them.
    pub(super) fn count(&self, last: &[u8]) -> u64 {
        self.number - u64::from(matches!(last.last(), None | Some(b'\n')))
    }

    /// Records that bytes are missing from here on, with `line_feeds` among them. Gives the line
    /// before the gap.
    pub(super) fn skip(&mut self, bytes: u64, line_feeds: u64, each: impl FnMut(Line<'_>)) {
        self.finish(each);
        self.offset += bytes;
        self.number += line_feeds;
        self.broken = true;
    }

    /// Gives the last line, which has no line end.
    pub(super) fn finish(&mut self, mut each: impl FnMut(Line<'_>)) {
        if !self.unfinished.is_empty() && !self.broken {
            each(Line { bytes: &self.unfinished, number: self.number, offset: self.offset });
            self.offset += self.unfinished.len() as u64;
            self.unfinished.clear();
        }
    }
}
