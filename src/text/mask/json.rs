//! Finds secrets in JSON and similar forms: Python dictionaries, Hydra's `{a:b}`, and documents
//! inside a string of another document.
//!
//! Parsed leniently and in place, so that everything else stays unchanged.

use std::ops::Range;

use super::command::CommandReader;
use super::names::{hides, is_secret_name};
use super::spans::{Parts, ReadAs};

/// Deeper than any document; deeper levels are read as plain text.
const DEEPEST: usize = 64;

enum Node {
    /// A string, without its quotes.
    Text(Range<usize>),
    /// A number, a word.
    Bare(Range<usize>),
    List(Vec<Node>),
    Map(Vec<(Range<usize>, Node)>),
}

/// The strings, numbers and words of a document; None if the text is no document.
pub(super) fn parts(text: &str) -> Option<Parts> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let mut parser = Parser { text, at: 0 };
    let node = parser.node(0)?;
    parser.space();
    if parser.at < text.len() {
        return None;
    }
    let mut document = Document { text, parts: Parts::default() };
    document.node(&node);
    Some(document.parts)
}

struct Document<'t> {
    text: &'t str,
    parts: Parts,
}

impl<'t> Document<'t> {
    fn get(&self, part: &Range<usize>) -> &'t str {
        self.text.get(part.clone()).unwrap_or_default()
    }

    fn node(&mut self, node: &Node) {
        match node {
            Node::Text(part) | Node::Bare(part) => {
                self.parts.push(part.start, part.len(), ReadAs::EscapedValue);
            }
            Node::List(items) => self.list(items),
            Node::Map(entries) => self.map(entries),
        }
    }

    /// A list of words may be a command line: `["--hf_token", "…"]`.
    fn list(&mut self, items: &[Node]) {
        let mut words = CommandReader::default();
        for item in items {
            match item {
                Node::Text(part) | Node::Bare(part) => {
                    let word = self.get(part);
                    words.word(&mut self.parts, part.start, word);
                }
                other => {
                    words.end();
                    self.node(other);
                }
            }
        }
    }

    fn map(&mut self, entries: &[(Range<usize>, Node)]) {
        // {"name": "HF_TOKEN", "value": "…"}
        let names = entries.iter().filter_map(|(key, node)| match node {
            Node::Text(part) | Node::Bare(part)
                if ["name", "variable", "key", "header"].contains(&self.get(key)) =>
            {
                Some(self.get(part))
            }
            _ => None,
        });
        let has_value = entries.iter().any(|(key, _)| self.get(key) == "value");
        let named = names.into_iter().find(|name| has_value && is_secret_name(name));
        for (key, node) in entries {
            let key = self.get(key);
            match named {
                Some(name) if key == "value" => self.all(name, node),
                // The name of a secret beside its value is no secret.
                Some(_) if key == "key" => {}
                _ if is_secret_name(key) => self.all(key, node),
                _ => self.node(node),
            }
        }
    }

    /// Marks everything under a secret name.
    fn all(&mut self, name: &str, node: &Node) {
        match node {
            Node::Text(part) | Node::Bare(part) => {
                if hides(name, self.get(part)) {
                    self.parts.push(part.start, part.len(), ReadAs::Secret);
                }
            }
            Node::List(items) => items.iter().for_each(|item| self.all(name, item)),
            Node::Map(entries) => entries.iter().for_each(|(_, node)| self.all(name, node)),
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn space(&mut self) {
        let rest = self.rest();
        // Escaped line ends between the values of a document in a string.
        let mut left = rest.trim_start();
        while let Some(more) = ["\\n", "\\r", "\\t"].iter().find_map(|e| left.strip_prefix(e)) {
            left = more.trim_start();
        }
        self.at += rest.len() - left.len();
    }

    fn takes(&mut self, c: char) -> bool {
        self.space();
        let found = self.rest().starts_with(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn node(&mut self, depth: usize) -> Option<Node> {
        if depth > DEEPEST {
            return None;
        }
        if self.takes('[') {
            let mut items = Vec::new();
            while !self.takes(']') {
                items.push(self.node(depth + 1)?);
                if !self.takes(',') && !self.rest().starts_with(']') {
                    return None;
                }
            }
            return Some(Node::List(items));
        }
        if self.takes('{') {
            let mut entries = Vec::new();
            while !self.takes('}') {
                self.space();
                let key = self.text().or_else(|| self.bare(true))?;
                // A set: {a, b}.
                let node =
                    if self.takes(':') { self.node(depth + 1)? } else { Node::Bare(key.clone()) };
                entries.push((key, node));
                if !self.takes(',') && !self.rest().starts_with('}') {
                    return None;
                }
            }
            return Some(Node::Map(entries));
        }
        self.space();
        self.text().map(Node::Text).or_else(|| self.bare(false).map(Node::Bare))
    }

    /// A quoted string; in a document inside a string every quote has its backslashes.
    fn text(&mut self) -> Option<Range<usize>> {
        let rest = self.rest();
        let escapes = rest.len() - rest.trim_start_matches('\\').len();
        let quote = rest.get(escapes..)?.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let start = self.at + escapes + 1;
        let mut slashes = 0;
        for (at, c) in self.text.get(start..)?.char_indices() {
            let ends = if escapes == 0 { slashes % 2 == 0 } else { slashes == escapes };
            match c {
                '\\' => slashes += 1,
                c if c == quote && ends => {
                    self.at = start + at + 1;
                    return Some(start..start + at - escapes);
                }
                _ => slashes = 0,
            }
        }
        None
    }

    fn bare(&mut self, is_key: bool) -> Option<Range<usize>> {
        let rest = self.rest();
        let ends = |c: char| ",}]\n\"".contains(c) || (is_key && (c == ':' || c.is_whitespace()));
        let end = rest.find(ends).unwrap_or(rest.len());
        let length = rest.get(..end)?.trim_end().len();
        let start = self.at;
        self.at += end;
        (length > 0).then_some(start..start + length)
    }
}
