//! Shell text as words with their places: quotes, `$'…'`, substitutions, here-documents.
//!
//! Finds where words and commands end and nothing else; what a word means is said in
//! [`super::command`]. Any text has words: a quote that never closes is a letter.

use std::ops::Range;

use super::command::Reader;
use super::spans::Spans;
use super::{code, everywhere, mark_document};

/// Substitutions in substitutions that are followed.
const DEEPEST: usize = 16;

/// One piece of a script.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Word(Range<usize>),
    /// `;`, `&&`, `|`, a line end, a parenthesis: the next word begins a command.
    Ends,
    /// The body of a here-document.
    Document(Range<usize>),
}

/// Marks the secrets of a script that begins at `at`.
pub(super) fn script(spans: &mut Spans, at: usize, text: &str, depth: usize) {
    if depth > DEEPEST {
        spans.hide(at, text.len());
        return;
    }
    // What is code for another program (`python - <<E`, `jq`), and what a quote hides from us.
    code::mark(spans, at, text);
    everywhere(spans, at, text);
    let mut reader = Reader::at_depth(depth);
    for piece in pieces(text) {
        match piece {
            Piece::Word(part) => {
                let word = text.get(part.clone()).unwrap_or_default();
                reader.raw(spans, at + part.start, word);
            }
            Piece::Ends => reader.end(),
            Piece::Document(part) => {
                mark_document(spans, at + part.start, text.get(part).unwrap_or_default());
            }
        }
    }
}

fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut documents: Vec<String> = Vec::new();
    let mut at = 0;
    while let Some(c) = text.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = text.get(at..).unwrap_or_default();
        match c {
            '\n' => {
                pieces.push(Piece::Ends);
                at += 1;
                for end in std::mem::take(&mut documents) {
                    let body = text.get(at..).unwrap_or_default();
                    let length = body_length(body, &end);
                    pieces.push(Piece::Document(at..at + length));
                    at += length;
                }
            }
            c if c.is_whitespace() => at += c.len_utf8(),
            '\\' if rest.starts_with("\\\n") => at += 2,
            '#' => {
                let end = rest.find('\n').unwrap_or(rest.len());
                pieces.push(Piece::Document(at..at + end));
                at += end;
            }
            '<' if rest.starts_with("<<") && !rest.starts_with("<<<") => {
                let word = rest.get(2..).unwrap_or_default().trim_start_matches(['-', ' ']);
                let skipped = rest.len() - word.len();
                let end = word.find(|c: char| c.is_whitespace() || ";&|()<>".contains(c));
                let word = word.get(..end.unwrap_or(word.len())).unwrap_or_default();
                let name = word.trim_matches(['"', '\'', '\\']);
                if !name.is_empty() {
                    documents.push(name.to_owned());
                }
                at += skipped + word.len();
            }
            ';' | '&' | '|' | '(' | ')' | '`' | '<' | '>' => {
                if !matches!(c, '<' | '>') {
                    pieces.push(Piece::Ends);
                }
                at += 1;
            }
            _ => {
                let length = word_length(rest);
                pieces.push(Piece::Word(at..at + length));
                at += length;
            }
        }
    }
    pieces
}

fn body_length(body: &str, end: &str) -> usize {
    let mut length = 0;
    for line in body.split_inclusive('\n') {
        if line.trim() == end {
            return length;
        }
        length += line.len();
    }
    length
}

/// Bytes of the word at the beginning, one or more.
fn word_length(text: &str) -> usize {
    let mut at = 0;
    while let Some(c) = text.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = text.get(at..).unwrap_or_default();
        at += match c {
            c if c.is_whitespace() || ";&|()<>`".contains(c) => break,
            _ => enclosed(rest).unwrap_or_else(|| {
                // A backslash and what it escapes.
                let next = rest.chars().nth(1).filter(|_| c == '\\');
                c.len_utf8() + next.map_or(0, char::len_utf8)
            }),
        };
    }
    at.max(text.chars().next().map_or(1, char::len_utf8))
}

/// Bytes of what begins with a quote or a `$(` and is closed.
fn enclosed(text: &str) -> Option<usize> {
    if let Some(inside) = text.strip_prefix("$'") {
        return Some(closing(inside, '\'', true)? + 3);
    }
    if let Some(inside) = text.strip_prefix("$(").or_else(|| text.strip_prefix("${")) {
        let close = if text.starts_with("$(") { ')' } else { '}' };
        return Some(balanced(inside, close)? + 3);
    }
    let inside = text.get(1..)?;
    match text.chars().next()? {
        '\'' => Some(closing(inside, '\'', false)? + 2),
        '"' => Some(closing(inside, '"', true)? + 2),
        _ => None,
    }
}

fn closing(text: &str, quote: char, escapes: bool) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if escapes => escaped = true,
            c if c == quote => return Some(at),
            _ => {}
        }
    }
    None
}

/// A substitution that is longer is read as the commands in it; bounds the search for the end of
/// one that has none.
const LONGEST: usize = 1 << 10;

/// Where the bracket closes that stands before the text; quotes in it are skipped.
fn balanced(text: &str, close: char) -> Option<usize> {
    let open = if close == ')' { '(' } else { '{' };
    let (mut depth, mut at) = (0usize, 0);
    while at < LONGEST
        && let Some(c) = text.get(at..)?.chars().next()
    {
        let rest = text.get(at..)?;
        let quoted = match c {
            '\'' | '"' => {
                let inside = rest.get(1..)?;
                closing(inside, c, c == '"').map(|end| end + 2)
            }
            _ => None,
        };
        match c {
            c if c == close && depth == 0 => return Some(at),
            c if c == close => depth -= 1,
            c if c == open => depth += 1,
            _ => {}
        }
        at += quoted.unwrap_or(c.len_utf8());
    }
    None
}

/// One part of a word.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    Plain(Range<usize>),
    /// Without its quotes.
    Quoted(Range<usize>),
    /// What `$(…)` runs.
    Command(Range<usize>),
}

/// The parts of a word in their order.
pub(super) fn parts(word: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let (mut at, mut plain) = (0, 0);
    while let Some(c) = word.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = word.get(at..).unwrap_or_default();
        let Some(length) = enclosed(rest) else {
            let next = rest.chars().nth(1).filter(|_| c == '\\');
            at += c.len_utf8() + next.map_or(0, char::len_utf8);
            continue;
        };
        if plain < at {
            parts.push(Part::Plain(plain..at));
        }
        let end = at + length;
        parts.push(match rest.as_bytes() {
            [b'$', b'(', ..] => Part::Command(at + 2..end - 1),
            [b'$', b'{', ..] => Part::Plain(at..end),
            [b'$', ..] => Part::Quoted(at + 2..end - 1),
            _ => Part::Quoted(at + 1..end - 1),
        });
        (at, plain) = (end, end);
    }
    if plain < word.len() {
        parts.push(Part::Plain(plain..word.len()));
    }
    parts
}

/// A word as the program gets it, near enough to know its name.
pub(super) fn unquoted(word: &str) -> String {
    let parts = parts(word);
    let text = parts.iter().map(|part| match part {
        Part::Plain(part) => word.get(part.clone()).unwrap_or_default().replace('\\', ""),
        Part::Quoted(part) | Part::Command(part) => {
            word.get(part.clone()).unwrap_or_default().to_owned()
        }
    });
    text.collect()
}
