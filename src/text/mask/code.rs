//! Finds secrets in program text: quoted strings that are assigned to a secret name.
//!
//! Covers `login(key="…")`, `os.environ["HF_TOKEN"] = "…"` and `"api_key": "…"` in any language.

use super::names::{hides, is_secret_name, is_variable};
use super::spans::Spans;

/// Marks quoted strings after a secret name and `=`, `:` or `,`.
pub(super) fn mark(spans: &mut Spans, at: usize, text: &str) {
    let mut from = 0;
    while let Some(found) = text.get(from..).and_then(|rest| rest.find(['"', '\''])) {
        let open = from + found;
        let rest = text.get(open + 1..).unwrap_or_default();
        let quote = text.get(open..=open).unwrap_or_default();
        let before = text.get(..open).unwrap_or_default();
        let unescaped = before.trim_end_matches('\\');
        let Some(length) = closed(rest, quote, before.len() - unescaped.len()) else {
            from = open + 1;
            continue;
        };
        let inside = rest.get(..length).unwrap_or_default();
        let name = name_before(unescaped);
        let is_argument = || takes_secret(unescaped) && !inside.contains("://");
        // `("HF_TOKEN", "API_KEY")` is a list of names.
        let hidden = !is_variable(inside)
            && (name.is_some_and(|name| is_secret_name(name) && hides(name, inside))
                || is_argument());
        if hidden {
            spans.hide(at + open + 1, length);
        }
        // A quote may open or close, so each is tried as an opening one.
        from = if hidden { open + 1 + length + 1 } else { open + 1 };
    }
}

/// Whether the text ends in a call that takes a secret: `login(`, `login(u, `, `set_api_key(`.
fn takes_secret(text: &str) -> bool {
    let near = text.len().saturating_sub(LONGEST_CALL);
    let near = (near..text.len()).find_map(|at| text.get(at..)).unwrap_or_default();
    let Some((called, arguments)) = near.rsplit_once('(') else { return false };
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let function = called.get(called.trim_end_matches(is_part).len()..).unwrap_or_default();
    let sets = ["set_", "save_"].iter().find_map(|verb| function.strip_prefix(verb));
    let is_positional = arguments.is_empty() || arguments.trim_end().ends_with(',');
    is_positional
        && !arguments.contains(')')
        && (function.ends_with("login") || sets.is_some_and(is_secret_name))
}

/// The length of a call before its secret.
const LONGEST_CALL: usize = 100;

/// Longer than any secret in a program; bounds the search for an unclosed quote.
const LONGEST: usize = 16 << 10;

/// Position of the closing quote of a string, whose opening quote has this many backslashes.
fn closed(text: &str, quote: &str, escapes: usize) -> Option<usize> {
    let mut slashes = 0;
    for (at, c) in text.char_indices().take(LONGEST) {
        let ends = if escapes == 0 { slashes % 2 == 0 } else { slashes == escapes };
        match c {
            '\\' => slashes += 1,
            c if quote.starts_with(c) && ends => return Some(at - escapes),
            _ => slashes = 0,
        }
    }
    None
}

/// The name in `name =`, `["name"] =`, `"name":` and `("name",` at the end of a text.
fn name_before(text: &str) -> Option<&str> {
    let text = text.trim_end();
    // An `r"…"`, a `b'…'`.
    let text =
        text.strip_suffix(['b', 'r', 'f', 'u']).filter(|t| t.ends_with(['=', ' '])).unwrap_or(text);
    let text = text.trim_end();
    let (before, is_pair) = match text.strip_suffix(['=', ':']) {
        Some(before) => (before, false),
        None => (text.strip_suffix(',')?, true),
    };
    let before = before.trim_end().trim_end_matches([']', ')']).trim_end();
    let quoted = before.trim_end_matches(['"', '\'']);
    let is_quoted = quoted.len() < before.len();
    if is_pair && !is_quoted {
        return None;
    }
    let quoted = quoted.trim_end_matches('\\');
    let is_part = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    let name = quoted.get(quoted.trim_end_matches(is_part).len()..)?;
    (!name.is_empty()).then_some(name)
}
