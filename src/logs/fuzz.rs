//! Fuzz target for the output of ranks on its way to the console and to a terminal. Not part of the program.

pub mod index;

use std::time::{Duration, Instant};

use super::config::Marks;
use super::lines::{LONGEST_LINE, LineFormatter};
use text::columns::{columns, end_within, shortened_path, start_within, wrapped};
use text::escape::printable;
use text::fuzzing::assert_printable;

/// Output of a rank. The first two bytes choose how the output is cut and how wide the terminal is.
///
/// Every cut gives the same lines, no line is longer than the console allows, and no sequence is left that a terminal
/// would obey. Text that is fitted into a width is no wider than that width, and loses no letter when it is folded.
pub fn console(data: &[u8]) -> bool {
    let [cut, wide, bytes @ ..] = data else { return false };
    let whole = shown(std::iter::once(bytes));
    let size = usize::from(*cut) + 1;
    // A piece that ends in a carriage return is shown as the current state of a bar, so no piece ends there.
    let mut left = bytes;
    let pieces = std::iter::from_fn(|| {
        let ends = |at: &usize| *at >= left.len() || left.get(at - 1) != Some(&b'\r');
        let at = (size..=left.len().max(size)).find(ends)?.min(left.len());
        let (piece, rest) = left.split_at(at);
        left = rest;
        (!piece.is_empty()).then_some(piece)
    });
    assert_eq!(whole, shown(pieces), "by pieces of {size}");
    assert_printable(&whole);
    for line in whole.lines() {
        let line = line.strip_prefix("[r0] ").expect("a prefix");
        // An escaped byte takes four places.
        assert!(line.len() <= 4 * LONGEST_LINE + 16, "{} bytes", line.len());
    }
    let text = printable(&String::from_utf8_lossy(bytes)).into_owned();
    assert_printable(&text);
    assert_eq!(printable(&text), text);
    fitted(&text, usize::from(*wide));
    !whole.is_empty()
}

fn shown<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
    let start = Instant::now();
    let mut formatter = LineFormatter::new(&Marks { before: "[r0] ".to_owned(), after: "" });
    let mut out = Vec::new();
    for piece in pieces {
        formatter.feed(piece, start, &mut out);
    }
    // A formatter that still holds a bar or a row asks to be called again within a minute.
    if let Some(deadline) = formatter.deadline() {
        assert!(deadline <= start + Duration::from_secs(60), "{:?}", deadline - start);
    }
    formatter.finish(&mut out);
    let text = String::from_utf8(out).expect("valid UTF-8");
    assert_eq!(formatter.emitted, text.matches('\n').count() as u64);
    text
}

fn fitted(text: &str, wide: usize) {
    for line in text.lines().take(4) {
        let bare = text::style::plain(line).into_owned();
        let (start, end) = (start_within(&bare, wide), end_within(&bare, wide));
        assert!(columns(start) <= wide && columns(end) <= wide, "{wide}: {bare:?}");
        assert!(bare.starts_with(start) && bare.ends_with(end));
        let short = shortened_path(&bare, wide);
        assert!(wide == 0 || columns(&short) <= wide, "{wide}: {bare:?} {short:?}");
    }
    let letters = |text: &str| -> String {
        text::style::plain(text).chars().filter(|letter| !letter.is_whitespace()).collect()
    };
    let folded = wrapped(text, wide);
    assert_eq!(letters(&folded), letters(text), "{wide}");
}
