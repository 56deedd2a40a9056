//! Lines of a log that hold several lines of a program.

use std::sync::LazyLock;

use memchr::memmem;
use regex::bytes::Regex;

use super::rows::compile;

/// The lines of several writes that stand in one line, each with the prefix of its rank.
pub(super) fn unglued(line: &[u8]) -> Option<Vec<&[u8]>> {
    static MARK: LazyLock<Option<Regex>> = LazyLock::new(|| compile(r"\[rank\d{1,6}\]:").ok());
    let marks: Vec<usize> = MARK.as_ref()?.find_iter(line).map(|mark| mark.start()).collect();
    let from = usize::from(marks.first() == Some(&0));
    let mut rest = line;
    let mut parts = Vec::new();
    for at in marks.get(from..)?.iter().rev() {
        let (before, part) = rest.split_at_checked(*at)?;
        parts.push(part);
        rest = before;
    }
    if parts.is_empty() {
        return None;
    }
    parts.push(rest);
    parts.reverse();
    Some(parts)
}

/// The lines of a traceback that stands in one line, as JSON and `repr` write it.
pub(super) fn unescaped(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    const HEAD: &[u8] = b"Traceback (most recent call last):";
    memmem::find_iter(line, HEAD).find(|at| line.get(at + HEAD.len()) == Some(&b'\\'))?;
    let mut parts = vec![Vec::new()];
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            parts.last_mut()?.push(byte);
            continue;
        }
        // Quoted twice, each backslash stands twice.
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
    // What stands before a head in its line is not of its traceback.
    let cut = |part: Vec<u8>| match memmem::find(&part, HEAD).map(|at| part.split_at(at)) {
        Some((before, head)) if !before.is_empty() => vec![before.to_vec(), head.to_vec()],
        _ => vec![part],
    };
    Some(parts.into_iter().flat_map(cut).collect())
}
