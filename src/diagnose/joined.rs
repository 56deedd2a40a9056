//! Lines of a log that hold several lines of a program.
//!
//! Each part gets the prefixes of the whole line, since its writer, its node and its time are
//! those of the line.

use std::sync::LazyLock;

use memchr::memmem;
use regex::bytes::Regex;

use super::prefixes::prefix;
use text::pattern::compile;

/// Maximum number of parts of a line that are read: the first half and the last half of them.
const MOST_PARTS: usize = 256;

/// The lines that one line holds; None if it holds only one.
pub(super) fn parts(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let parts = unescaped(line).or_else(|| unglued(line))?;
    let surplus = parts.len().saturating_sub(MOST_PARTS);
    let dropped = MOST_PARTS / 2..MOST_PARTS / 2 + surplus;
    let kept = parts.into_iter().enumerate().filter(|(number, _)| !dropped.contains(number));
    Some(kept.map(|(_, part)| part).collect())
}

/// The lines of several writes, each with the prefix of its rank.
fn unglued(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    static MARK: LazyLock<Option<Regex>> = LazyLock::new(|| compile(r"\[rank\d{1,6}\]:").ok());
    let marks: Vec<usize> = MARK.as_ref()?.find_iter(line).map(|mark| mark.start()).collect();
    if marks.iter().all(|mark| *mark == 0) {
        return None;
    }
    let own = prefix(line);
    let cuts: Vec<usize> = marks.iter().copied().filter(|mark| *mark >= own.len()).collect();
    if cuts.is_empty() {
        return None;
    }
    // The text before the rank of the first part is the prefix of all parts.
    let outer = marks.first().filter(|mark| **mark < own.len()).copied().unwrap_or(own.len());
    let (outer, _) = line.split_at_checked(outer)?;
    let ends = cuts.iter().copied().skip(1).chain([line.len()]);
    let mut parts = vec![line.get(..*cuts.first()?)?.to_vec()];
    for (from, to) in cuts.iter().zip(ends) {
        parts.push([outer, line.get(*from..to)?].concat());
    }
    Some(parts)
}

/// The lines of a traceback that JSON or `repr` wrote into one line. A logger that writes the
/// traceback as a warning has caught the exception.
fn unescaped(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    const HEAD: &[u8] = b"Traceback (most recent call last):";
    let at = memmem::find_iter(line, HEAD).find(|at| line.get(at + HEAD.len()) == Some(&b'\\'))?;
    let (before, _) = line.split_at_checked(at)?;
    if memmem::find(&before.to_ascii_lowercase(), b"warning").is_some() {
        return None;
    }
    let own = prefix(line);
    let mut parts = vec![Vec::new()];
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            parts.last_mut()?.push(byte);
            continue;
        }
        // Each backslash is doubled if the text was quoted twice.
        while bytes.next_if_eq(&b'\\').is_some() {}
        match bytes.peek() {
            Some(b'n') => {
                bytes.next();
                parts.push(Vec::new());
            }
            Some(b'"' | b'\'') => {}
            _ => parts.last_mut()?.push(byte),
        }
    }
    // The text before a head in the same line is not part of its traceback.
    let cut = |part: Vec<u8>| match memmem::find(&part, HEAD).map(|at| part.split_at(at)) {
        Some((before, head)) if !before.is_empty() => vec![before.to_vec(), head.to_vec()],
        _ => vec![part],
    };
    let parts = parts.into_iter().flat_map(cut).filter(|part| !part.is_empty());
    let with_prefix = |(number, part): (usize, Vec<u8>)| {
        if number == 0 { part } else { [own, part.as_slice()].concat() }
    };
    Some(parts.enumerate().map(with_prefix).collect())
}
