//! A short log with the lines that it had before somebody pasted it.
//!
//! Mail programs and terminals wrap long lines, and Markdown indents blocks of code. A row matches whole lines, so
//! lines that were wrapped are joined where the whole line has a row that its parts lack.

use super::blocks::is_exception;
use super::catalogue::Catalogue;
use super::lines::{Line, Lines};
use super::prefixes::{Level, may_be_dated, peel, prefix};
use super::quoted::unquoted;
use text::order::InOrder;

/// A longer log is no excerpt.
pub(super) const LONGEST: usize = 32 * 1024;
/// The widths at which lines are wrapped.
const WIDTHS: std::ops::RangeInclusive<usize> = 24..=200;
/// The indentation of a block of code.
const INDENT: usize = 4;
/// Maximum number of lines that one line was wrapped into.
const MOST_PARTS: usize = 12;

/// A line of an excerpt. Not wrapped by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Whole {
    pub(super) bytes: Vec<u8>,
    pub(super) number: u64,
    pub(super) offset: u64,
}

impl Whole {
    pub(super) fn line(&self) -> Line<'_> {
        Line { bytes: &self.bytes, number: self.number, offset: self.offset }
    }
}

/// The lines of a text, without the indentation of blocks and with wrapped lines joined; None if that changes nothing.
pub(super) fn whole_lines(catalogue: &Catalogue, text: &[u8]) -> Option<Vec<Whole>> {
    let mut lines: Vec<Whole> = Vec::new();
    let mut each = |line: Line<'_>| {
        let bytes = unquoted(line.bytes).into_owned();
        lines.push(Whole { bytes, number: line.number, offset: line.offset });
    };
    let mut split = Lines::new();
    split.feed(text, &mut each);
    split.finish(&mut each);
    let outdented = outdent(&mut lines);
    let (joined, changed) = join(catalogue, &lines);
    (outdented || changed).then_some(joined)
}

/// Removes the indentation of paragraphs that are indented as a whole.
fn outdent(lines: &mut [Whole]) -> bool {
    let mut changed = false;
    let mut last = None;
    // Empty lines are not given, so the numbers show where a paragraph ends.
    let paragraphs = lines.chunk_by_mut(|one, next| {
        next.number == one.number + 1 && !next.bytes.trim_ascii().is_empty()
    });
    for paragraph in paragraphs {
        let spaces = |line: &Whole| line.bytes.iter().take_while(|byte| **byte == b' ').count();
        let tabs = paragraph.iter().all(|line| line.bytes.first() == Some(&b'\t'));
        let least = paragraph.iter().map(spaces).min().unwrap_or_default();
        let first = paragraph.first().map(|line| line.number);
        let apart = last.zip(first).is_none_or(|(last, first)| last + 1 < first);
        last = paragraph.last().map(|line| line.number);
        let cut = if tabs { 1 } else { least };
        // Source code below a frame is no paragraph of its own.
        if (tabs || least >= INDENT) && apart {
            paragraph.iter_mut().for_each(|line| drop(line.bytes.drain(..cut)));
            changed = true;
        }
    }
    changed
}

fn join(catalogue: &Catalogue, lines: &[Whole]) -> (Vec<Whole>, bool) {
    let width = lines.iter().map(|line| length(&line.bytes)).max().unwrap_or_default();
    if !WIDTHS.contains(&width) {
        return (lines.to_vec(), false);
    }
    let (mut out, mut changed) = (Vec::new(), false);
    let mut rest = lines;
    while let Some(first) = rest.first() {
        let wrapped = rest.windows(2).take(MOST_PARTS - 1).take_while(|pair| match pair {
            [one, next] => is_wrapped(one, next, width),
            _ => false,
        });
        let most = wrapped.count() + 1;
        // The fewest parts that together have another row: more parts may be another line.
        let cut = (2..=most).find_map(|count| cut(catalogue, rest.get(..count)?, width));
        let parts = rest.get(..if cut.is_some() { most } else { 1 }).unwrap_or_default();
        changed |= cut.is_some();
        let bytes = glued(parts, cut.unwrap_or(usize::MAX));
        let taken = parts.len();
        out.push(Whole { bytes, number: first.number, offset: first.offset });
        rest = rest.get(taken..).unwrap_or_default();
    }
    (out, changed)
}

/// Characters of a line.
fn length(line: &[u8]) -> usize {
    String::from_utf8_lossy(line).chars().count()
}

/// Whether the second line may be the rest of the first: its first word did not fit into the width.
fn is_wrapped(one: &Whole, next: &Whole, width: usize) -> bool {
    let word = next.bytes.split(|byte| *byte == b' ').next().unwrap_or_default();
    let begins = |words: &[u8]| next.bytes.starts_with(words);
    let is_full = length(&one.bytes) >= width;
    let did_not_fit = !word.is_empty() && length(&one.bytes) + 1 + length(word) > width;
    next.number == one.number + 1
        && (is_full || did_not_fit)
        && (prefix(&one.bytes).is_empty() || prefix(&next.bytes).is_empty())
        && !begins(b"Traceback")
        && !is_exception(&next.bytes)
        && peel(&next.bytes).body == 0
        && !(is_dated(&one.bytes) && is_dated(&next.bytes))
}

/// Whether a line begins with a time.
fn is_dated(line: &[u8]) -> bool {
    line.first().is_some_and(|first| *first == b'[' || first.is_ascii_digit())
        && may_be_dated(line.get(..32).unwrap_or(line))
}

/// The length from which parts were cut within a word, if the parts as one line have other rows than each for itself.
fn cut(catalogue: &Catalogue, parts: &[Whole], width: usize) -> Option<usize> {
    let rows = |line: &[u8]| catalogue.find(line).rows.into_iter().in_set();
    // The words of an error count together with its beginning.
    let begins = parts.first().map(|part| peel(&part.bytes)).is_some_and(|first| {
        first.level == Level::Error
            || is_exception(first.text.get(first.body..).unwrap_or_default())
    });
    let first = if begins { parts.get(..1).unwrap_or_default() } else { parts };
    let of_parts = first.iter().flat_map(|part| catalogue.find(&part.bytes).rows).in_set();
    let of_whole = |cut: usize| {
        let rows = rows(&glued(parts, cut));
        (!rows.is_empty() && rows != of_parts).then_some((rows.len(), cut))
    };
    let (_, cut) =
        [usize::MAX, width].into_iter().filter_map(of_whole).max_by_key(|(rows, _)| *rows)?;
    Some(cut)
}

/// The parts as one line. A part of the length `cut` ends within a word.
fn glued(parts: &[Whole], cut: usize) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    let mut last = 0;
    for part in parts {
        if !out.is_empty() && last < cut && out.last() != Some(&b' ') {
            out.push(b' ');
        }
        out.extend_from_slice(&part.bytes);
        last = length(&part.bytes);
    }
    out
}
