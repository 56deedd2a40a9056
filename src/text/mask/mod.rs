//! Hides secrets in everything that is printed, stored or sent.
//!
//! Takes names, values, argument lists and files; gives text to show. Each file reads one form:
//! [`names`] decides which names hide their values, [`command`] reads the words of a command,
//! [`crate::shell`] a script, [`json`] a document, [`url`] a URL, [`code`] program text, [`sentence`]
//! the rest; [`mark`] combines them. They only mark parts of the text ([`spans`]), and nothing
//! else is changed. In doubt a value is hidden, since a leaked key costs more than a hidden
//! word. The output of ranks is not masked.

mod code;
mod command;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod json;
mod mark;
mod name_words;
mod names;
mod pairs;
mod parts;
mod sentence;
mod spans;
mod url;
mod words;

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};

use serde_json::Value;

use command::CommandReader;
use names::hides;
pub(crate) use names::is_secret_name;
use parts::Parts;
pub use spans::MASK;
use spans::Spans;

/// The value as it may be shown under this name. The value of a variable may be a command line,
/// and is read as one.
pub fn mask_value(name: &str, value: &OsStr) -> OsString {
    let text = value.to_string_lossy();
    if hides(name, &text) {
        return MASK.into();
    }
    let mut spans = Spans::default();
    mark::whole(&mut spans, &text);
    shown(spans, &text, value)
}

/// An argument list as it may be shown: hides `--token X`, `--api-key=X`, `HF_TOKEN=X`, and the
/// same inside an argument that is itself a command line (`bash -c "HF_TOKEN=X python …"`).
///
/// Any other argument with spaces is a sentence, such as a prompt, and is unchanged.
pub fn mask_args(args: &[OsString]) -> Vec<OsString> {
    let mut reader = CommandReader::default();
    let mut masked = Vec::with_capacity(args.len());
    for (at, arg) in args.iter().enumerate() {
        let text = arg.to_string_lossy();
        let mut spans = Spans::default();
        // A process that set its own title has its whole command line in one word.
        if at == 0 && text.contains(char::is_whitespace) {
            mark::whole(&mut spans, &text);
        } else {
            let mut parts = Parts::default();
            reader.word(&mut parts, 0, &text);
            mark::read_on(&mut spans, 0, &text, parts, 0);
        }
        masked.push(shown(spans, &text, arg));
    }
    masked
}

/// A configuration file as it may be stored: a document, or lines of `NAME=value` and `name:
/// value`.
pub fn mask_file(text: &str) -> String {
    let mut spans = Spans::default();
    mark::document(&mut spans, 0, text);
    spans.apply(text)
}

/// Hides values under a secret name: `{"HF_TOKEN": "…"}` and `{"name": "HF_TOKEN", "value":
/// "…"}`; masks the secrets in other texts.
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
            mark::value(&mut spans, 0, text);
            *text = spans.apply(text);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The masked text; invalid UTF-8 is unchanged if nothing is hidden.
fn shown(spans: Spans, text: &str, given: &OsStr) -> OsString {
    let shown = spans.apply(text);
    if shown == text { given.to_owned() } else { shown.into() }
}
