//! Hides secrets in everything that is printed, stored or sent.
//!
//! Takes names, values, argument lists and files; gives text to show. Each file reads one form:
//! [`names`] decides which names hide their values, [`command`] reads the words of a command,
//! [`crate::shell`] a script, [`mod@json`] a document, [`assigned`] URLs, pairs and program text, [`sentence`]
//! the rest. They only mark parts of the text ([`spans`]), and nothing else is changed. Forms can
//! contain each other: a command line may hold a document, and a document a command line. So the
//! recursion is here, not in the readers. In doubt a value is hidden, since a leaked key costs more than a hidden
//! word. The output of ranks is not masked.

mod assigned;
mod command;
mod json;
mod names;
mod sentence;
mod spans;

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};

use serde_json::Value;

use crate::shell::{self, Token, TokenKind};
use command::{CommandReader, is_command_line, push_parts};
pub(crate) use names::is_secret_name;
use names::{hides, is_name};
pub use spans::MASK;
use spans::{Parts, ReadAs, Spans};

/// Nested substitutions that are followed.
const DEEPEST: usize = 16;

/// The value as it may be shown under this name. The value of a variable may be a command line,
/// and is read as one.
pub fn mask_value(name: &str, value: &OsStr) -> OsString {
    let text = value.to_string_lossy();
    if hides(name, &text) {
        return MASK.into();
    }
    let mut spans = Spans::default();
    whole(&mut spans, &text);
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
            whole(&mut spans, &text);
        } else {
            let mut parts = Parts::default();
            reader.word(&mut parts, 0, &text);
            read_on(&mut spans, 0, &text, parts, 0);
        }
        masked.push(shown(spans, &text, arg));
    }
    masked
}

/// A configuration file as it may be stored: a document, or lines of `NAME=value` and `name:
/// value`.
pub fn mask_file(text: &str) -> String {
    let mut spans = Spans::default();
    document(&mut spans, 0, text);
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
            value(&mut spans, 0, text);
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

/// A text on its own: a variable's value, a process's title.
fn whole(spans: &mut Spans, text: &str) {
    if text.contains(char::is_whitespace) && !text.contains('\n') {
        // `HF_TOKEN=a b` is one assignment, spaces or not.
        let assigned = text.split_once('=').filter(|(name, _)| is_name(name));
        if let Some((name, value)) = assigned.filter(|(name, value)| hides(name, value)) {
            spans.hide(name.len() + 1, value.len());
            return;
        }
        if !json(spans, 0, text) && !sentence::header(spans, 0, text) {
            script(spans, 0, text, 0);
        }
        everywhere(spans, 0, text);
    } else {
        let mut parts = Parts::default();
        CommandReader::default().word(&mut parts, 0, text);
        read_on(spans, 0, text, parts, 0);
    }
}

/// Marks the secrets in the parts of a text that begins at `at`. `depth` is the depth of the script
/// in which the text is a word, or 0.
fn read_on(spans: &mut Spans, at: usize, text: &str, parts: Parts, depth: usize) {
    for (range, read_as) in parts {
        let (at, text) = (at + range.start, text.get(range).unwrap_or_default());
        match read_as {
            ReadAs::Secret => spans.hide(at, text.len()),
            ReadAs::Value => value(spans, at, text),
            ReadAs::EscapedValue => {
                // Escaped line ends end a word; every byte keeps its position.
                let text = text.replace("\\n", " \n").replace("\\r", "  ").replace("\\t", "  ");
                value(spans, at, &text);
            }
            ReadAs::Word => plain(spans, at, text),
            ReadAs::Pairs => assigned::pairs(spans, at, text),
            ReadAs::Script => script(spans, at, text, depth + 1),
            ReadAs::Code => assigned::code(spans, at, text),
        }
    }
}

/// Marks the secrets of a document; false if the text is no document.
fn json(spans: &mut Spans, at: usize, text: &str) -> bool {
    let Some(parts) = json::parts(text) else { return false };
    read_on(spans, at, text, parts, 0);
    true
}

/// A command line, at a depth of command lines in command lines.
fn script(spans: &mut Spans, at: usize, text: &str, depth: usize) {
    if depth > DEEPEST {
        spans.hide(at, text.len());
        return;
    }
    // Code for another program (`python - <<E`, `jq`), and text hidden by quotes.
    assigned::code(spans, at, text);
    everywhere(spans, at, text);
    let mut reader = CommandReader::default();
    let tokens = shell::tokens(text);
    for (number, token) in tokens.iter().enumerate() {
        match token.kind {
            TokenKind::Word => {
                let mut parts = Parts::default();
                let before = number.checked_sub(1).and_then(|before| tokens.get(before));
                if is_of_redirection(before, token, tokens.get(number + 1)) {
                    push_parts(&mut parts, 0, token.text);
                } else {
                    reader.raw(&mut parts, 0, token.text);
                }
                read_on(spans, at + token.at, token.text, parts, depth);
            }
            TokenKind::Redirection => {}
            TokenKind::Control => reader.end(),
            TokenKind::Comment | TokenKind::Document => {
                document(spans, at + token.at, token.text);
            }
        }
    }
}

/// Whether a word is the number or the file of a redirection, which the command does not get: `2>&1`, `> FILE`.
fn is_of_redirection(before: Option<&Token>, word: &Token, after: Option<&Token>) -> bool {
    let redirects = |token: &&Token| token.kind == TokenKind::Redirection;
    let is_number = word.text.bytes().all(|byte| byte.is_ascii_digit());
    let follows = after.filter(redirects).is_some_and(|it| it.at == word.at + word.text.len());
    // The text of `<<<` may be a secret as well as a word of the command.
    before.filter(redirects).is_some_and(|it| it.text != "<<<") || (is_number && follows)
}

/// One value whose name is no secret: a document, a command line, a header, a URL, a sentence.
fn value(spans: &mut Spans, at: usize, text: &str) {
    if !json(spans, at, text) {
        if text.contains('\n') {
            if is_command_line(text) {
                script(spans, at, text, 1);
            } else {
                document(spans, at, text);
            }
        } else if text.contains(char::is_whitespace) {
            if sentence::header(spans, at, text) {
            } else if is_command_line(text) {
                script(spans, at, text, 1);
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
    assigned::pairs(spans, at, word);
    assigned::user(spans, at, word);
    everywhere(spans, at, word);
}

/// Marks secrets that are recognisable in any context.
fn everywhere(spans: &mut Spans, at: usize, text: &str) {
    assigned::urls(spans, at, text);
    sentence::shapes(spans, at, text);
}

/// A file, or the body of a here-document.
fn document(spans: &mut Spans, at: usize, text: &str) {
    everywhere(spans, at, text);
    if json(spans, at, text) {
        return;
    }
    assigned::code(spans, at, text);
    let mut offset = 0;
    // Lines of a multi-line value: up to the closing quote, or while they are indented.
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

/// Form in which a value continues in the next lines.
enum Open {
    Quote(char),
    /// A YAML block; the indentation of its key.
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
    if let Some((name, value)) = assigned.filter(|(name, _)| is_name(name.trim_end())) {
        let name = name.trim_end();
        if hides(name, value) {
            let value_at = line.len() - value.trim_start().len();
            spans.hide(at + value_at, line.len() - value_at);
            let quote = value.trim_start().chars().next().filter(|c| matches!(c, '"' | '\''))?;
            let closed = value.trim_start().get(1..).is_some_and(|rest| rest.contains(quote));
            return (!closed).then_some(Open::Quote(quote));
        }
        if !value.contains(char::is_whitespace) {
            assigned::pairs(spans, at, line);
        }
    }
    let block = text
        .trim_start_matches("- ")
        .split_once(':')
        .is_some_and(|(name, value)| is_secret_name(name) && value.trim().starts_with(['|', '>']));
    if block {
        return Some(Open::Block(start));
    }
    if !sentence::header(spans, at, line) && !json(spans, at, line) {
        sentence::sentence(spans, at, line);
    }
    None
}
