//! Secrets in whatever is printed, stored or sent.
//!
//! Takes names, values, argument lists and files as they are; gives text for
//! people. Each file here reads one form: [`names`] says which names hide their
//! values, [`command`] reads the words of a command, [`shell`] a script, [`json`]
//! a document, [`url`] a URL, [`code`] program text, [`sentence`] the rest. They
//! mark parts of the text ([`spans`]); nothing but the marked parts is changed.
//! Hiding one value too many costs a reader a moment, one too few costs somebody
//! a key: in doubt the value is hidden. What ranks write is theirs and is not read.

mod code;
mod command;
mod json;
mod names;
mod sentence;
mod shell;
mod spans;
mod url;

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};

use serde_json::Value;

use command::Reader;
use names::hides;
pub use names::is_secret_name;
pub use spans::MASK;
use spans::Spans;

/// The value as it may be shown under this name. What a variable holds may be a
/// command line, and is read as one.
pub fn mask_value(name: &str, value: &OsStr) -> OsString {
    let text = value.to_string_lossy();
    if hides(name, &text) {
        return MASK.into();
    }
    let mut spans = Spans::default();
    whole(&mut spans, &text);
    shown(spans, &text, value)
}

/// An argument list as it may be shown: `--token X`, `--api-key=X`, `HF_TOKEN=X`, and the same
/// inside an argument that is a command line itself (`bash -c "HF_TOKEN=X python …"`).
///
/// Any other argument with spaces is a sentence, such as a prompt, and passes through.
pub fn mask_args(args: &[OsString]) -> Vec<OsString> {
    let mut reader = Reader::default();
    let mut masked = Vec::with_capacity(args.len());
    for (at, arg) in args.iter().enumerate() {
        let text = arg.to_string_lossy();
        let mut spans = Spans::default();
        // A process that wrote itself a title has its whole command line in one word.
        if at == 0 && text.contains(char::is_whitespace) {
            whole(&mut spans, &text);
        } else {
            reader.word(&mut spans, 0, &text);
        }
        masked.push(shown(spans, &text, arg));
    }
    masked
}

/// A configuration file as it may be kept: a document, or lines of `NAME=value` and `name: value`.
pub fn mask_file(text: &str) -> String {
    let mut spans = Spans::default();
    mark_document(&mut spans, 0, text);
    spans.apply(text)
}

/// Hides what stands under a secret name: `{"HF_TOKEN": "…"}`, and the same as
/// `{"name": "HF_TOKEN", "value": "…"}`; other texts lose the secrets in them.
pub fn mask_json(document: &mut Value) {
    match document {
        Value::Object(entries) => {
            let name = ["name", "variable"].iter().find_map(|key| entries.get(*key)?.as_str());
            let named = name.filter(|name| is_secret_name(name)).map(str::to_owned);
            for (key, value) in entries.iter_mut() {
                let name = named.as_deref().filter(|_| key == "value").unwrap_or(key);
                match value {
                    Value::String(text) if hides(name, text) => *text = MASK.to_owned(),
                    other => mask_json(other),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(mask_json),
        Value::String(text) => {
            let mut spans = Spans::default();
            value(&mut spans, 0, text);
            *text = spans.apply(text);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The masked text; bytes that are no UTF-8 stay what they are where nothing is hidden.
fn shown(spans: Spans, text: &str, given: &OsStr) -> OsString {
    let shown = spans.apply(text);
    if shown == text { given.to_owned() } else { shown.into() }
}

/// A text that stands for itself: a variable's value, a process's title.
fn whole(spans: &mut Spans, text: &str) {
    if text.contains(char::is_whitespace) && !text.contains('\n') {
        // `HF_TOKEN=a b` is one assignment, spaces or not.
        let assigned = text.split_once('=').filter(|(name, _)| names::is_name(name));
        if let Some((name, value)) = assigned.filter(|(name, value)| hides(name, value)) {
            spans.hide(name.len() + 1, value.len());
            return;
        }
        let document = json::mark(spans, 0, text) || sentence::header(spans, 0, text);
        if !document {
            shell::script(spans, 0, text, 0);
        }
        everywhere(spans, 0, text);
    } else {
        Reader::default().word(spans, 0, text);
    }
}

/// One value whose name is no secret: a document, a command line, a header, a URL, a sentence.
fn value(spans: &mut Spans, at: usize, text: &str) {
    if !json::mark(spans, at, text) {
        if text.contains('\n') {
            if command::is_command_line(text) {
                shell::script(spans, at, text, 1);
            } else {
                mark_document(spans, at, text);
            }
        } else if text.contains(char::is_whitespace) {
            if sentence::header(spans, at, text) {
            } else if command::is_command_line(text) {
                shell::script(spans, at, text, 1);
            } else {
                sentence::sentence(spans, at, text);
            }
        } else {
            plain(spans, at, text);
            return;
        }
    }
    everywhere(spans, at, text);
}

/// One word.
fn plain(spans: &mut Spans, at: usize, word: &str) {
    sentence::header(spans, at, word);
    command::pairs(spans, at, word);
    url::mark_user(spans, at, word);
    everywhere(spans, at, word);
}

/// What is a secret wherever it stands.
fn everywhere(spans: &mut Spans, at: usize, text: &str) {
    url::mark(spans, at, text);
    sentence::shapes(spans, at, text);
}

/// A file, or the body of a here-document.
fn mark_document(spans: &mut Spans, at: usize, text: &str) {
    everywhere(spans, at, text);
    if json::mark(spans, at, text) {
        return;
    }
    code::mark(spans, at, text);
    let mut offset = 0;
    // Lines of a value that goes on: to the quote that closes it, or while they are indented.
    let mut open: Option<Open> = None;
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end_matches(['\n', '\r']);
        match open.take() {
            Some(Open::Quote(quote)) => {
                let end = bare.find(quote);
                spans.hide(at + offset, end.map_or(bare.len(), |end| end + 1));
                open = end.is_none().then_some(Open::Quote(quote));
            }
            Some(Open::Block(indent)) if bare.trim().is_empty() || indented(bare) > indent => {
                spans.hide(at + offset + indented(bare), bare.trim().len());
                open = Some(Open::Block(indent));
            }
            _ => open = mark_line(spans, at + offset, bare),
        }
        offset += line.len();
    }
}

/// How a value goes on in the next lines.
enum Open {
    Quote(char),
    /// A YAML block whose key is indented so far.
    Block(usize),
}

fn indented(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// `NAME=value`, `name: value`, or any other line.
fn mark_line(spans: &mut Spans, at: usize, line: &str) -> Option<Open> {
    let start = indented(line);
    let text = line.trim_start();
    if text.starts_with('#') {
        sentence::sentence(spans, at, line);
        return None;
    }
    let name_at = text.strip_prefix("export ").map_or(start, |_| start + "export ".len());
    let assigned = line.get(name_at..).and_then(|text| text.split_once('='));
    if let Some((name, value)) = assigned.filter(|(name, _)| names::is_name(name.trim_end())) {
        let name = name.trim_end();
        if hides(name, value) {
            let value_at = line.len() - value.trim_start().len();
            spans.hide(at + value_at, line.len() - value_at);
            let quote = value.trim_start().chars().next().filter(|c| matches!(c, '"' | '\''))?;
            let closed = value.trim_start().get(1..).is_some_and(|rest| rest.contains(quote));
            return (!closed).then_some(Open::Quote(quote));
        }
        if !value.contains(char::is_whitespace) {
            command::pairs(spans, at, line);
        }
    }
    let block = text
        .trim_start_matches("- ")
        .split_once(':')
        .is_some_and(|(name, value)| is_secret_name(name) && value.trim().starts_with(['|', '>']));
    if block {
        return Some(Open::Block(start));
    }
    if !sentence::header(spans, at, line) && !json::mark(spans, at, line) {
        sentence::sentence(spans, at, line);
    }
    None
}
