//! Values of a script's variables, as far as they are known without running it.
//!
//! Takes assignments in their order; gives the words into which a shell would expand a word, each with the text that
//! stands for it in a script and, where all of it is known, its value. A variable that is assigned in a branch or a
//! loop has no known value. Runs nothing.

use std::collections::BTreeMap;

use text::shell::{self, Part, PartKind, TokenKind, parts};

use crate::shell::is_name;
use crate::words::quoted;

/// Expansions that are followed in one word.
const DEEPEST: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Values {
    known: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// The text after `NAME=`, with its quotes.
    Scalar(String),
    /// The items, with their quotes.
    Array(Vec<String>),
    Unknown,
}

/// One word after expansion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expanded {
    /// The word as a script writes it.
    pub(crate) source: String,
    /// What a program gets; None if only a running shell knows.
    pub(crate) value: Option<String>,
    /// May be any number of words.
    pub(crate) several: bool,
}

impl Expanded {
    /// The word as a person writes it: without quotes that it does not need.
    pub(crate) fn tidy(&self) -> String {
        match &self.value {
            Some(value) if !self.source.contains(['$', '`']) => quoted(value),
            _ => self.source.clone(),
        }
    }
}

impl Values {
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.known.insert(name.to_owned(), value);
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.known.get(name)
    }

    /// Values may have changed in a way that cannot be read.
    pub(crate) fn forget(&mut self) {
        self.known.values_mut().for_each(|value| *value = Value::Unknown);
    }

    /// `NAME+=…`
    pub(crate) fn append(&mut self, name: &str, more: Value) {
        let value = match (self.known.remove(name), more) {
            (Some(Value::Scalar(before)), Value::Scalar(more)) => Value::Scalar(before + &more),
            (Some(Value::Array(mut items)), Value::Array(more)) => {
                items.extend(more);
                Value::Array(items)
            }
            _ => Value::Unknown,
        };
        self.set(name, value);
    }

    /// The words of a word with its quotes.
    pub(crate) fn words(&self, word: &str) -> Vec<Expanded> {
        self.words_at(word, DEEPEST)
    }

    fn words_at(&self, word: &str, deep: usize) -> Vec<Expanded> {
        let whole = || {
            let value = self.value_at(word, deep);
            let unquoted = parts(word, false).iter().any(|part| match part.kind {
                PartKind::Parameter | PartKind::Command => true,
                PartKind::Literal => part.text.contains('$'),
                PartKind::Single | PartKind::Double => false,
            });
            let several = word.contains("$@")
                || word.contains("$*")
                || word.contains("[@]")
                || word.contains("{@:")
                || (value.is_none() && unquoted);
            vec![Expanded { source: word.to_owned(), value, several }]
        };
        let Some(deep) = deep.checked_sub(1) else { return whole() };
        let quoted = word.strip_prefix('"').and_then(|word| word.strip_suffix('"'));
        let Some(name) = expanded_name(quoted.unwrap_or(word)) else { return whole() };
        let (name, all) = match name.strip_suffix("[@]").or_else(|| name.strip_suffix("[*]")) {
            Some(name) => (name, true),
            None => (name, false),
        };
        match self.known.get(name) {
            Some(Value::Array(items)) if all => {
                items.iter().flat_map(|item| self.words_at(item, deep)).collect()
            }
            // Without quotes the value is split at blanks.
            Some(Value::Scalar(text)) if quoted.is_none() && !all => {
                let text = unwrapped(text);
                let inner: Vec<_> = shell::tokens(text)
                    .into_iter()
                    .filter(|token| token.kind == TokenKind::Word)
                    .collect();
                // A shell leaves quotes in a value as they are, and splits at IFS.
                let quotes = |text: &str| text.contains(['\'', '"', '\\']);
                let is_split = inner.len() > 1 && self.known.contains_key("IFS");
                if is_split
                    || inner.iter().any(|token| token.unclosed.is_some() || quotes(token.text))
                {
                    return vec![Expanded { source: word.to_owned(), value: None, several: true }];
                }
                let is_option = inner.first().is_some_and(|token| token.text.starts_with('-'));
                if inner.is_empty() || (inner.len() == 1 && !is_option) {
                    return whole();
                }
                inner.iter().flat_map(|token| self.words_at(token.text, deep)).collect()
            }
            _ => whole(),
        }
    }

    /// The value of a word or an assigned text.
    pub(crate) fn value(&self, word: &str) -> Option<String> {
        self.value_at(word, DEEPEST)
    }

    fn value_at(&self, word: &str, deep: usize) -> Option<String> {
        let mut value = String::new();
        for part in parts(word, false) {
            match part.kind {
                PartKind::Single => value.push_str(part.text),
                PartKind::Double => {
                    for part in parts(part.text, true) {
                        value.push_str(&self.part(&part, true, deep)?);
                    }
                }
                _ => value.push_str(&self.part(&part, false, deep)?),
            }
        }
        Some(value)
    }

    fn part(&self, part: &Part<'_>, quoted: bool, deep: usize) -> Option<String> {
        match part.kind {
            PartKind::Literal => self.literal(part.text, quoted, deep),
            PartKind::Parameter => {
                let inside = part.text.strip_prefix("${")?.strip_suffix('}')?;
                if is_name(inside) {
                    return self.variable(inside, deep);
                }
                // A variable of the script itself has its value, not the default.
                let (name, _) = inside.split_once(":-").or_else(|| inside.split_once('-'))?;
                self.variable(name, deep).filter(|value| !value.is_empty())
            }
            PartKind::Command => {
                let inside = part.text.strip_prefix('(')?.strip_suffix(')')?;
                self.number(inside, deep).map(|number| number.to_string())
            }
            PartKind::Single | PartKind::Double => None,
        }
    }

    fn literal(&self, text: &str, quoted: bool, deep: usize) -> Option<String> {
        const MARK: char = '\u{E002}';
        let marked = shell::unquoted(
            &if quoted { format!("\"{text}\"") } else { text.to_owned() },
            MARK,
            &|_| String::new(),
        );
        let mut value = String::new();
        for (at, piece) in marked.split(MARK).enumerate() {
            if at == 0 {
                value.push_str(piece);
                continue;
            }
            let end = piece.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let (name, rest) = piece.split_at(end.unwrap_or(piece.len()));
            if !is_name(name) {
                return None;
            }
            value.push_str(&self.variable(name, deep)?);
            value.push_str(rest);
        }
        Some(value)
    }

    fn variable(&self, name: &str, deep: usize) -> Option<String> {
        match self.known.get(name)? {
            Value::Scalar(text) => self.value_at(text, deep.checked_sub(1)?),
            _ => None,
        }
    }

    /// The result of an arithmetic expression of whole numbers and known variables.
    fn number(&self, text: &str, deep: usize) -> Option<i64> {
        let letters: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
        let mut sum = Sum { values: self, letters: &letters, at: 0, deep };
        let number = sum.terms()?;
        (sum.at == letters.len()).then_some(number)
    }
}

/// `$NAME`, `${NAME}`, `${NAME[@]}`: what is between.
fn expanded_name(word: &str) -> Option<&str> {
    let inside = word.strip_prefix('$')?;
    let inside = match inside.strip_prefix('{') {
        Some(inside) => inside.strip_suffix('}')?,
        None => inside,
    };
    let name = inside.strip_suffix("[@]").or_else(|| inside.strip_suffix("[*]"));
    is_name(name.unwrap_or(inside)).then_some(inside)
}

/// A text without the quotes around all of it.
pub(crate) fn unwrapped(text: &str) -> &str {
    match parts(text, false).as_slice() {
        [one] if matches!(one.kind, PartKind::Single | PartKind::Double) => one.text,
        _ => text,
    }
}

struct Sum<'a> {
    values: &'a Values,
    letters: &'a [char],
    at: usize,
    deep: usize,
}

impl Sum<'_> {
    fn next(&self) -> Option<char> {
        self.letters.get(self.at).copied()
    }

    fn terms(&mut self) -> Option<i64> {
        let mut sum = self.factors()?;
        while let Some(sign @ ('+' | '-')) = self.next() {
            self.at += 1;
            let next = self.factors()?;
            sum = if sign == '+' { sum.checked_add(next)? } else { sum.checked_sub(next)? };
        }
        Some(sum)
    }

    fn factors(&mut self) -> Option<i64> {
        let mut product = self.atom()?;
        while let Some(sign @ ('*' | '/' | '%')) = self.next() {
            self.at += 1;
            let next = self.atom()?;
            product = match sign {
                '*' => product.checked_mul(next)?,
                '/' => product.checked_div(next)?,
                _ => product.checked_rem(next)?,
            };
        }
        Some(product)
    }

    fn atom(&mut self) -> Option<i64> {
        if self.next()? == '(' {
            // Deeper brackets than any script has.
            self.deep = self.deep.checked_sub(1)?;
            self.at += 1;
            let inside = self.terms()?;
            self.at += 1;
            return (self.letters.get(self.at - 1) == Some(&')')).then_some(inside);
        }
        let from = self.at;
        while self.next().is_some_and(|c| c.is_ascii_alphanumeric() || "_${}".contains(c)) {
            self.at += 1;
        }
        let word: String = self.letters.get(from..self.at)?.iter().collect();
        let name = expanded_name(&word).unwrap_or(&word);
        if is_name(name) {
            return self.values.variable(name, self.deep)?.trim().parse().ok();
        }
        word.parse().ok()
    }
}

/// The text of a variable that comes from outside of the script or from a command, followed through the script's own
/// assignments.
pub(crate) fn origin(source: &str, values: &Values) -> String {
    let mut source = source.to_owned();
    for _ in 0..8 {
        let bare = unwrapped(&source).to_owned();
        let inside = bare.strip_prefix('$').map(|name| {
            name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name)
        });
        let name = inside.map(|inside| inside.split([':', '-', '[']).next().unwrap_or(inside));
        match name.and_then(|name| Some((name, values.get(name)?))) {
            // `X=${X:-1}` is about the X from outside.
            Some((name, Value::Scalar(text))) if text.contains(name) => return text.clone(),
            Some((_, Value::Scalar(text))) => source.clone_from(text),
            _ => return bare,
        }
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        let mut values = Values::default();
        for (name, text) in
            [("A", "8"), ("B", "\"$A x\""), ("C", "$((A * (2 + 1)))"), ("D", "$(nproc)")]
        {
            values.set(name, Value::Scalar(text.into()));
        }
        values.set("E", Value::Array(vec!["--a".into(), "\"b c\"".into(), "$A".into()]));
        values
    }

    #[test]
    fn values_are_those_of_bash() {
        for (word, value) in [
            ("$A", Some("8")),
            ("a${A}b\"$B\"", Some("a8b8 x")),
            ("${A:-1}", Some("8")),
            ("${Z:-1}", None),
            ("$C", Some("24")),
            ("$((1 + 2 * 3 - 9 % 4))", Some("6")),
            ("$((1 / 0))", None),
            ("$D", None),
            ("'$A'\\$A", Some("$A$A")),
            ("$1", None),
        ] {
            assert_eq!(values().value(word).as_deref(), value, "{word}");
        }
    }

    #[test]
    fn words_split_as_bash_splits_them() {
        for (word, sources) in [
            ("$B", vec!["$A", "x"]),
            ("\"$B\"", vec!["\"$B\""]),
            ("\"${E[@]}\"", vec!["--a", "\"b c\"", "$A"]),
            ("$D", vec!["$D"]),
            ("\"$@\"", vec!["\"$@\""]),
        ] {
            let words = values().words(word);
            let found: Vec<_> = words.iter().map(|word| word.source.as_str()).collect();
            assert_eq!(found, sources, "{word}");
        }
        assert!(values().words("$D").iter().all(|word| word.several));
        assert!(!values().words("\"$D\"").iter().any(|word| word.several));
    }
}
