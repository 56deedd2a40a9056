//! Splits shell text into words with their positions: quotes, `$'…'`, substitutions,
//! here-documents.
//!
//! Finds only the ends of words and commands; [`super::command`] decides the meaning of a word.
//! Accepts any text: an unclosed quote is a letter.

use std::ops::Range;

/// One piece of a script.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Word(Range<usize>),
    /// `;`, `&&`, `|`, a line end, a parenthesis: the next word begins a command.
    Ends,
    /// The body of a here-document.
    Document(Range<usize>),
}

/// The words of a script, the ends of its commands, and its here-documents and comments.
pub(super) fn pieces(text: &str) -> Vec<Piece> {
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

/// Length in bytes of the first word, one or more.
fn word_length(text: &str) -> usize {
    let mut at = 0;
    while let Some(c) = text.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = text.get(at..).unwrap_or_default();
        at += match c {
            c if c.is_whitespace() || ";&|()<>`".contains(c) => break,
            _ => enclosed(rest).unwrap_or_else(|| {
                // A backslash and the character that it escapes.
                let next = rest.chars().nth(1).filter(|_| c == '\\');
                c.len_utf8() + next.map_or(0, char::len_utf8)
            }),
        };
    }
    at.max(text.chars().next().map_or(1, char::len_utf8))
}

/// Length in bytes of a closed quote or `$(` at the start.
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

/// A longer substitution is read as the commands in it; bounds the search for an unclosed one.
const LONGEST: usize = 1 << 10;

/// Position of the bracket that closes the bracket before the text; skips quotes.
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
pub(super) enum WordPart {
    Plain(Range<usize>),
    /// Without its quotes.
    Quoted(Range<usize>),
    /// The command in `$(…)`.
    Command(Range<usize>),
}

/// The parts of a word in their order.
pub(super) fn parts(word: &str) -> Vec<WordPart> {
    let mut parts: Vec<WordPart> = Vec::new();
    let (mut at, mut plain) = (0, 0);
    while let Some(c) = word.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = word.get(at..).unwrap_or_default();
        let Some(length) = enclosed(rest) else {
            let next = rest.chars().nth(1).filter(|_| c == '\\');
            at += c.len_utf8() + next.map_or(0, char::len_utf8);
            continue;
        };
        if plain < at {
            parts.push(WordPart::Plain(plain..at));
        }
        let end = at + length;
        parts.push(match rest.as_bytes() {
            [b'$', b'(', ..] => WordPart::Command(at + 2..end - 1),
            [b'$', b'{', ..] => WordPart::Plain(at..end),
            [b'$', ..] => WordPart::Quoted(at + 2..end - 1),
            _ => WordPart::Quoted(at + 1..end - 1),
        });
        (at, plain) = (end, end);
    }
    if plain < word.len() {
        parts.push(WordPart::Plain(plain..word.len()));
    }
    parts
}

/// A word approximately as the program gets it, to recognise its name.
pub(super) fn unquoted(word: &str) -> String {
    let parts = parts(word);
    let text = parts.iter().map(|part| match part {
        WordPart::Plain(part) => word.get(part.clone()).unwrap_or_default().replace('\\', ""),
        WordPart::Quoted(part) | WordPart::Command(part) => {
            word.get(part.clone()).unwrap_or_default().to_owned()
        }
    });
    text.collect()
}
