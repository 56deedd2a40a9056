//! A TOML file with the line of every key, and typed access that refuses by name and line.
//!
//! Takes the file's text; gives tables and values. Knows TOML, not settings.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Source;
use super::layer::FileLayer;
use super::refuse::{suggest, usage};
use text::lang::{Text, spaced};
use text::letters::{meant, meant_in_syntax, named};
use text::nearest::nearest;
use text::order::Ordered;
use text::text;
use verdict::Refusal;

/// A text and the name of its file, for lines and messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Document<'a> {
    pub(super) layer: FileLayer,
    /// The name that is shown before `:line`.
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

/// What a profile looks like, for whoever wrote something else.
fn shape() -> Text {
    text!(
        "write text in quotes and lists in [ ]; config/reference.toml shows every key",
        "文本需加引号，列表写在 [ ] 中；config/reference.toml 列出全部键"
    )
}

/// A key with its line and value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) key: &'a str,
    pub(super) line: usize,
    pub(super) value: &'a DeValue<'a>,
}

impl<'a> Document<'a> {
    pub(super) fn parse(self) -> Result<DeTable<'a>, Refusal> {
        DeTable::parse(self.text).map(Spanned::into_inner).map_err(|error| {
            let line = self.line(error.span().map_or(0, |span| span.start));
            let (file, message) = (self.file, error.message().replace('\n', ", "));
            let what = text!(
                "{file}:{line}: not TOML: {message}",
                "{file}:{line}: 不是合法的 TOML：{message}"
            );
            let Text { en, zh } = &what;
            let (text, hint) = match self.unmeant(line) {
                None => (what, shape()),
                Some((column, letter, sign)) => (
                    text!(
                        "{en}, at `{letter}` in column {column}",
                        "{zh}，位于第 {column} 列的 `{letter}`"
                    ),
                    // Of letters that are not Chinese the refusal says so itself.
                    match meant(letter) {
                        Some(_) => shape(),
                        None => {
                            let (named, Text { en, zh }) = (named(letter), shape());
                            text!(
                                "{en}; {named} is not a plain {sign}",
                                "{zh}；其中的 {named} 不是半角 {sign}"
                            )
                        }
                    },
                ),
            };
            usage(self.layer.id(), text, hint)
        })
    }

    /// The first letter of a line, outside of strings and comments, that only looks like a letter of TOML: its
    /// 1-based column, and the letter that is meant.
    fn unmeant(self, line: usize) -> Option<(usize, char, char)> {
        let mut quote = None;
        for (letter, column) in self.text.lines().nth(line.checked_sub(1)?)?.chars().zip(1..) {
            match (quote, letter) {
                (None, '#') => return None,
                (None, '"' | '\'') => quote = Some(letter),
                (None, _) => {
                    if let Some(sign) = meant_in_syntax(letter) {
                        return Some((column, letter, sign));
                    }
                }
                (Some(open), _) if open == letter => quote = None,
                _ => {}
            }
        }
        None
    }

    /// The 1-based line of a byte offset.
    pub(super) fn line(self, offset: usize) -> usize {
        let before = self.text.as_bytes().iter().take(offset);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    pub(super) fn source(self, line: usize) -> Source {
        self.layer.source(self.file, line)
    }

    /// The entries of a table in the order of the file.
    pub(super) fn entries(self, table: &'a DeTable<'a>) -> Vec<Entry<'a>> {
        let mut entries: Vec<Entry<'a>> = table
            .iter()
            .map(|(key, value)| Entry {
                key: key.get_ref(),
                line: self.line(key.span().start),
                value: value.get_ref(),
            })
            .collect();
        entries.order_by_key(|entry| entry.line);
        entries
    }

    /// The refusal of an unknown key. `inside` is the section, such as `[job]`; `known` are the
    /// valid keys.
    pub(super) fn unknown_key(
        self,
        entry: Entry<'_>,
        inside: &str,
        known: &[impl AsRef<str>],
    ) -> Refusal {
        let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
        let near = nearest(entry.key, known.iter().copied());
        self.refuse_key(entry, inside, suggest(near, &known.join(", ")))
    }

    pub(super) fn refuse_key(self, entry: Entry<'_>, inside: &str, hint: Text) -> Refusal {
        let (file, line, key) = (self.file, entry.line, entry.key.escape_debug());
        let text = text!(
            "{file}:{line}: {inside} has no key `{key}`",
            "{file}:{line}: {inside} 中没有键 `{key}`"
        );
        usage(self.layer.id(), text, hint)
    }

    /// A refusal that names a line.
    pub(super) fn refuse(self, line: usize, problem: Text, hint: Text) -> Refusal {
        let file = self.file;
        let text = Text::new(
            format!("{file}:{line}: {}", problem.en),
            format!("{file}:{line}: {}", problem.zh),
        );
        usage(self.layer.id(), text, hint)
    }

    /// The refusal of a value of the wrong TOML type.
    pub(super) fn wrong_type(self, entry: Entry<'_>, wanted: Text) -> Refusal {
        let (key, found) = (entry.key.escape_debug(), shown(entry.value));
        let (en, zh) = (&wanted.en, spaced(&wanted.zh));
        self.refuse(
            entry.line,
            text!("`{key}` is {found}, but must be {en}", "`{key}` 的值为 {found}，应为{zh}"),
            text!(
                "config/reference.toml shows every key with its type",
                "config/reference.toml 列出全部键及其类型"
            ),
        )
    }

    pub(super) fn table(self, entry: Entry<'a>) -> Result<&'a DeTable<'a>, Refusal> {
        entry.value.as_table().ok_or_else(|| {
            let key = entry.key;
            self.wrong_type(entry, text!("a table: [{key}]", "表：[{key}]"))
        })
    }

    /// The items of a list, each with its line.
    pub(super) fn items(self, entry: Entry<'a>) -> Result<Vec<Entry<'a>>, Refusal> {
        let list = entry.value.as_array();
        let list = list.ok_or_else(|| self.wrong_type(entry, text!("a list", "列表")))?;
        let item = |item: &'a Spanned<DeValue<'a>>| {
            let line = self.line(item.span().start);
            Entry { line, value: item.get_ref(), ..entry }
        };
        Ok(list.iter().map(item).collect())
    }

    /// Text for an argument or a path: may be empty, but has no NUL, which arguments cannot
    /// contain.
    pub(super) fn text_of(self, entry: Entry<'_>) -> Result<String, Refusal> {
        match entry.value.as_str() {
            Some(text) if !text.contains('\0') => Ok(text.to_owned()),
            Some(_) => Err(self.wrong_type(entry, text!("text without NUL", "不含 NUL 的文本"))),
            None => Err(self.wrong_type(entry, text!("text in quotes", "带引号的文本"))),
        }
    }

    /// Text that is not empty.
    pub(super) fn name_of(self, entry: Entry<'_>) -> Result<String, Refusal> {
        let name = self.text_of(entry)?;
        if name.is_empty() {
            return Err(self.wrong_type(entry, text!("text that is not empty", "非空文本")));
        }
        Ok(name)
    }

    /// A list of texts.
    pub(super) fn texts_of(self, entry: Entry<'a>) -> Result<Vec<String>, Refusal> {
        let wanted =
            || text!("a list of texts, such as [\"a\", \"b\"]", "文本列表，例如 [\"a\", \"b\"]");
        let items = self.items(entry).map_err(|_| self.wrong_type(entry, wanted()))?;
        let text = |item: Entry<'_>| match item.value.as_str() {
            Some(_) => self.text_of(item),
            None => Err(self.wrong_type(item, wanted())),
        };
        items.into_iter().map(text).collect()
    }

    /// A whole number. Its range depends on the key.
    pub(super) fn number_of(self, entry: Entry<'_>) -> Result<i64, Refusal> {
        let is_quoted =
            || entry.value.as_str().is_some_and(|text| text.trim().parse::<i64>().is_ok());
        integer(entry.value).ok_or_else(|| {
            let wanted = match is_quoted() {
                true => text!("a whole number without quotes", "不带引号的整数"),
                false => text!("a whole number", "整数"),
            };
            self.wrong_type(entry, wanted)
        })
    }

    /// Text, or a whole number as text.
    pub(super) fn text_or_number_of(self, entry: Entry<'_>) -> Result<String, Refusal> {
        match integer(entry.value) {
            Some(number) => Ok(number.to_string()),
            None if entry.value.is_str() => self.text_of(entry),
            None => Err(self.wrong_type(
                entry,
                text!("text in quotes or a whole number", "带引号的文本或整数"),
            )),
        }
    }
}

pub(super) fn integer(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// A value for a message.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => super::refuse::quoted(text.as_ref().as_ref()),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(date) => date.to_string(),
        DeValue::Array(_) => "[…]".to_owned(),
        DeValue::Table(_) => "{…}".to_owned(),
    }
}
