//! Finds secrets in text that is neither a command nor a document: a header, a sentence, an
//! error.
//!
//! Hides little, since most of the text is meant to be read: a name of several parts with its
//! value, a header, and tokens with a known shape.

use super::assigned::pairs;
use super::command::{is_clearly_option, is_option};
use super::names::{hides, holds_nothing, is_name, is_secret_name};
use super::spans::Spans;

/// Prefixes of tokens of known services, and the least length of the rest.
const SHAPES: &[(&str, usize)] = &[
    ("hf_", 24),
    ("sk-", 24),
    ("ghp_", 24),
    ("gho_", 24),
    ("ghs_", 24),
    ("ghu_", 24),
    ("ghr_", 24),
    ("github_pat_", 24),
    ("glpat-", 16),
    ("nvapi-", 24),
    ("xoxb-", 16),
    ("xoxp-", 16),
    ("AIza", 30),
    // JSON Web Tokens, by the first key of their header: alg, typ, kid.
    ("eyJhbGciOi", 24),
    ("eyJ0eXAiOi", 24),
    ("eyJraWQiOi", 24),
];
const PEM: &str = "-----BEGIN ";
const PEM_END: &str = "-----END ";

/// Headers whose whole line is the value.
const HEADERS: &[&str] = &["authorization", "proxy-authorization", "cookie", "set-cookie"];

/// Marks tokens with a known shape, at any position.
pub(super) fn shapes(spans: &mut Spans, at: usize, text: &str) {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    for (begin, least) in SHAPES {
        let mut done = 0;
        for (found, _) in text.match_indices(begin) {
            if found < done {
                continue;
            }
            let before = text.get(..found).and_then(|before| before.chars().next_back());
            let rest = text.get(found + begin.len()..).unwrap_or_default();
            // All parts are one byte long.
            let length = rest.chars().take_while(|c| is_part(*c)).count();
            done = found + begin.len() + length;
            if length >= *least && !before.is_some_and(|c| c.is_ascii_alphanumeric()) {
                spans.hide(at + found, begin.len() + length);
            }
        }
    }
    keys(spans, at, text);
    bearers(spans, at, text);
}

/// Marks PEM blocks of private keys, up to their end or the end of the text.
fn keys(spans: &mut Spans, at: usize, text: &str) {
    let mut done = 0;
    for (found, _) in text.match_indices(PEM) {
        if found < done {
            continue;
        }
        let rest = text.get(found + PEM.len()..).unwrap_or_default();
        let Some((title, _)) = rest.split_once("-----") else { continue };
        if !title.contains("PRIVATE KEY") {
            continue;
        }
        let end = rest.find(PEM_END).map(|end| {
            let after = rest.get(end + PEM_END.len()..).unwrap_or_default();
            let dashes = after.find("-----").map_or(after.len(), |dashes| dashes + 5);
            end + PEM_END.len() + dashes
        });
        let length = PEM.len() + end.unwrap_or(rest.len());
        spans.hide(at + found, length);
        done = found + length;
    }
}

/// `Bearer X` and `Basic X`, where X is no word of a sentence.
fn bearers(spans: &mut Spans, at: usize, text: &str) {
    for scheme in ["Bearer ", "bearer ", "Basic "] {
        for (found, _) in text.match_indices(scheme) {
            let start = found + scheme.len();
            let rest = text.get(start..).unwrap_or_default();
            let is_end = |c: char| c.is_whitespace() || "\"'\\,;".contains(c);
            let token = rest.get(..rest.find(is_end).unwrap_or(rest.len())).unwrap_or_default();
            let is_word = token.len() < 16 && !token.contains(|c: char| c.is_ascii_digit());
            if !is_word && !holds_nothing(token) {
                spans.hide(at + start, token.len());
            }
        }
    }
}

/// `Authorization: Bearer …`, `api_key: …`, `api_key = …` as a whole line. False for any other
/// line.
pub(super) fn header(spans: &mut Spans, at: usize, line: &str) -> bool {
    let trimmed = line.trim_start().trim_start_matches("- ");
    let Some((before, rest)) = trimmed.split_once([':', '=']) else { return false };
    let name = before.trim_end();
    let value = rest.trim_start();
    let is_apart = if trimmed.get(before.len()..).is_some_and(|rest| rest.starts_with('=')) {
        // `A= command` is no header.
        name.len() < before.len() && is_literal(value)
    } else {
        // `https://…`, `host:port` and `user:password@host` are no headers.
        name == before
            && (value.len() < rest.len() || HEADERS.contains(&name.to_ascii_lowercase().as_str()))
    };
    if !is_apart || !is_name(name) || name.contains([':', '/', '@']) || !is_secret_name(name) {
        return false;
    }
    // "key: the hero of the story" is a sentence.
    let is_compound = name.contains(['_', '-', '.']) || name.chars().any(char::is_uppercase);
    let words = value.split_whitespace().count();
    if !is_compound && words > 2 && !HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
        return false;
    }
    if hides(name, value) {
        let start = line.len() - value.len();
        spans.hide(at + start, value.trim_end().len());
    }
    true
}

/// `"a b"`, `a`; not the code in `token = f()`.
fn is_literal(value: &str) -> bool {
    let value = value.trim_end();
    let is_quoted =
        |quote: char| value.len() > 1 && value.starts_with(quote) && value.ends_with(quote);
    is_quoted('"')
        || is_quoted('\'')
        || !value.contains(|c: char| c.is_whitespace() || "([{".contains(c))
}

/// Marks `NAME=value` and `--name value` in a sentence, if the name has several parts or is in
/// capitals; "the key=is here" is unchanged.
pub(super) fn sentence(spans: &mut Spans, at: usize, text: &str) {
    let mut offset = 0;
    let mut option: Option<&str> = None;
    let mut last = "";
    for word in text.split_inclusive(char::is_whitespace) {
        let bare = word.trim_end();
        if bare.is_empty() {
            offset += word.len();
            continue;
        }
        if let Some(name) = option.take()
            && hides(name, bare)
            && !is_clearly_option(bare)
            && (last != "=" || is_literal(bare))
        {
            spans.hide(at + offset, bare.len());
        } else if bare == "=" && is_clear(last) && is_secret_name(last) {
            option = Some(last);
        } else if let Some((name, _)) = bare.split_once('=') {
            if is_clear(name) || name.starts_with(['-', '?']) || bare.contains('&') {
                pairs(spans, at + offset, bare);
            }
        } else if is_option(bare) && is_clear(bare) && is_secret_name(bare) {
            option = Some(bare);
        }
        last = bare;
        offset += word.len();
    }
}

/// Whether a name cannot be an ordinary word of a sentence.
fn is_clear(name: &str) -> bool {
    let name = name.trim_start_matches('-');
    name.contains(['_', '-', '.']) || (name.len() > 1 && name.chars().any(char::is_uppercase))
}
