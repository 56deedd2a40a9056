//! Parses the tables of a profile that depend on a size or a task: `[layout.heads]`,
//! `[[select]]` and `[[job.args_if]]`, whose conditions are about the solved sizes: `world_size > 1`.
//!
//! A condition is a name, a comparison and a whole number, nothing else: a profile is no program.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use toml::de::DeTable;

use super::document::{Document, Entry};
use super::{ArgumentsIf, HeadsTable, Select};
use text::text;
use verdict::Refusal;

/// A size of a solved layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedSize {
    WorldSize,
    Nnodes,
    NprocPerNode,
    UlyssesSize,
    RingSize,
}

/// `world_size > 1`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    size: PlannedSize,
    /// A sign of [`COMPARISONS`].
    sign: &'static str,
    number: u32,
}

/// The names of the sizes; placeholders have the same names.
const SIZES: [(&str, PlannedSize); 5] = [
    ("world_size", PlannedSize::WorldSize),
    ("nnodes", PlannedSize::Nnodes),
    ("nproc_per_node", PlannedSize::NprocPerNode),
    ("ulysses_size", PlannedSize::UlyssesSize),
    ("ring_size", PlannedSize::RingSize),
];

type Comparison = fn(&u32, &u32) -> bool;

/// The longer signs first, since they begin with the shorter ones; the two signs of equality last.
const COMPARISONS: [(&str, Comparison); 7] = [
    ("<=", PartialOrd::le),
    (">=", PartialOrd::ge),
    ("!=", PartialEq::ne),
    ("<", PartialOrd::lt),
    (">", PartialOrd::gt),
    ("==", PartialEq::eq),
    ("=", PartialEq::eq),
];

impl Condition {
    /// None if the text is no condition.
    pub(super) fn read(text: &str) -> Option<Condition> {
        let text = text.trim();
        let at = text.find(['<', '>', '=', '!'])?;
        let (name, rest) = text.split_at(at);
        let size = SIZES.iter().find(|(known, _)| *known == name.trim())?.1;
        let (sign, _) = COMPARISONS.iter().find(|(sign, _)| rest.starts_with(sign))?;
        let number = rest.strip_prefix(sign)?.trim();
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse().ok().filter(|_| is_number)?;
        let sign = if *sign == "==" { "=" } else { sign };
        Some(Condition { size, sign, number })
    }

    pub fn size(&self) -> PlannedSize {
        self.size
    }

    /// Whether the condition holds for the size `value`.
    pub fn holds(&self, value: u32) -> bool {
        let row = COMPARISONS.iter().find(|(sign, _)| *sign == self.sign);
        row.is_some_and(|(_, holds)| holds(&value, &self.number))
    }
}

impl PlannedSize {
    pub fn name(self) -> &'static str {
        SIZES.iter().find(|(_, size)| *size == self).map_or("", |(name, _)| name)
    }
}

impl fmt::Display for PlannedSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} {}", self.size, self.sign, self.number)
    }
}

/// The placeholders of every plan. A `[[select]]` must not use these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placeholder {
    Size(PlannedSize),
    NodeRank,
    /// Known only at the launch, as is the timestamp.
    RunId,
    Timestamp,
}

impl Placeholder {
    pub fn all() -> impl Iterator<Item = Placeholder> {
        let sizes = SIZES.into_iter().map(|(_, size)| Placeholder::Size(size));
        sizes.chain([Placeholder::NodeRank, Placeholder::RunId, Placeholder::Timestamp])
    }

    pub fn name(self) -> &'static str {
        match self {
            Placeholder::Size(size) => size.name(),
            Placeholder::NodeRank => "node_rank",
            Placeholder::RunId => "run_id",
            Placeholder::Timestamp => "timestamp",
        }
    }
}

/// `[layout.heads]`: a script argument, and the heads for each of its values.
pub(super) fn heads_table(
    document: Document<'_>,
    section: Entry<'_>,
    table: &DeTable<'_>,
) -> Result<HeadsTable, Refusal> {
    let mut argument = None;
    let mut default = None;
    let mut heads = BTreeMap::new();
    for entry in document.entries(table) {
        match entry.key {
            "argument" => argument = Some(document.name_of(entry)?),
            "default" => default = Some((document.name_of(entry)?, entry)),
            "values" => {
                for value in document.entries(document.table(entry)?) {
                    let number = u32::try_from(document.number_of(value)?).ok().filter(|n| *n > 0);
                    let number = number.ok_or_else(|| {
                        document.wrong_type(
                            value,
                            text!("a number of heads, 1 or more", "不小于 1 的头数"),
                        )
                    })?;
                    heads.insert(value.key.to_owned(), number);
                }
            }
            _ => {
                return Err(document.unknown_key(
                    entry,
                    "[layout.heads]",
                    &["argument", "default", "values"],
                ));
            }
        }
    }
    let (Some(argument), false) = (argument, heads.is_empty()) else {
        return Err(document.refuse(
            section.line,
            text!(
                "[layout.heads] needs `argument` and `values`",
                "[layout.heads] 需要 `argument` 和 `values`"
            ),
            text!(
                "for example argument = \"--task\", values = {{ \"t2v-A14B\" = 40 }}",
                "例如 argument = \"--task\"，values = {{ \"t2v-A14B\" = 40 }}"
            ),
        ));
    };
    if let Some((default, entry)) = &default
        && !heads.contains_key(default)
    {
        let known: Vec<&str> = heads.keys().map(String::as_str).collect();
        let known = known.join(", ");
        return Err(
            document.wrong_type(*entry, text!("one of the values: {known}", "其中一个值：{known}"))
        );
    }
    let default = default.map(|(default, _)| default);
    Ok(HeadsTable { argument, heads, default, source: document.source(section.line) })
}

/// Every number of GPUs without a row of its own.
const ANY: &str = "*";

/// One `[[select]]`: a number of GPUs and the values of placeholders.
pub(super) fn select(document: Document<'_>, section: Entry<'_>) -> Result<Select, Refusal> {
    let mut total_gpus = None;
    let mut values = BTreeMap::new();
    let mut line = section.line;
    for entry in document.entries(document.table(section)?) {
        match entry.key {
            "total_gpus" => {
                let number = document.number_of(entry).ok();
                let number = number.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
                total_gpus = match (number, entry.value.as_str()) {
                    (None, Some(ANY)) => Some(None),
                    (None, _) => {
                        return Err(document.wrong_type(
                            entry,
                            text!(
                                "a number of GPUs, 1 or more, or \"{ANY}\" for every number without a row",
                                "不小于 1 的 GPU 数，或用 \"{ANY}\" 表示其余所有数量"
                            ),
                        ));
                    }
                    (number, _) => Some(number),
                };
                line = entry.line;
            }
            "values" => {
                for value in document.entries(document.table(entry)?) {
                    placeholder_name(document, value)?;
                    values.insert(value.key.to_owned(), document.text_or_number_of(value)?);
                }
            }
            _ => return Err(document.unknown_key(entry, "[[select]]", &["total_gpus", "values"])),
        }
    }
    let Some(total_gpus) = total_gpus else {
        return Err(document.refuse(
            line,
            text!("[[select]] without `total_gpus`", "[[select]] 缺少 `total_gpus`"),
            text!("for example total_gpus = 16", "例如 total_gpus = 16"),
        ));
    };
    Ok(Select { total_gpus, values, source: document.source(line) })
}

/// One `[[job.args_if]]`: arguments and their condition.
pub(super) fn args_if(document: Document<'_>, section: Entry<'_>) -> Result<ArgumentsIf, Refusal> {
    let mut when = None;
    let mut args = Vec::new();
    for entry in document.entries(document.table(section)?) {
        match entry.key {
            "when" => {
                let condition = Condition::read(&document.text_of(entry)?);
                when = Some(condition.ok_or_else(|| {
                    let names = SIZES.map(|(name, _)| name).join(", ");
                    document.wrong_type(
                        entry,
                        text!(
                            "a condition such as \"world_size > 1\": one of {names}, then =, !=, <, <=, > or >=, then a whole number",
                            "条件，例如 \"world_size > 1\"：依次为 {names} 之一，=、!=、<、<=、> 或 >=，以及整数"
                        ),
                    )
                })?);
            }
            "args" => {
                args = document.texts_of(entry)?.into_iter().map(OsString::from).collect();
            }
            _ => return Err(document.unknown_key(entry, "[[job.args_if]]", &["when", "args"])),
        }
    }
    let (Some(when), false) = (when, args.is_empty()) else {
        return Err(document.refuse(
            section.line,
            text!(
                "[[job.args_if]] needs `when` and `args`",
                "[[job.args_if]] 需要 `when` 和 `args`"
            ),
            text!(
                "for example when = \"world_size > 1\", args = [\"--dit_fsdp\"]",
                "例如 when = \"world_size > 1\"，args = [\"--dit_fsdp\"]"
            ),
        ));
    };
    Ok(ArgumentsIf { when, args, source: document.source(section.line) })
}

/// A valid placeholder name that is not one of ours.
fn placeholder_name(document: Document<'_>, entry: Entry<'_>) -> Result<(), Refusal> {
    let letters = entry.key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let problem = if Placeholder::all().any(|taken| taken.name() == entry.key) {
        text!("this name is a placeholder already", "该名称已是占位符")
    } else if entry.key.is_empty() || !letters {
        text!("a placeholder has letters, digits and _", "占位符只能含字母、数字和 _")
    } else {
        return Ok(());
    };
    Err(document.refuse_key(entry, "values of [[select]]", problem))
}

/// A name that only one of the two maps has.
pub(super) fn unshared<'a>(
    one: &'a BTreeMap<String, String>,
    other: &'a BTreeMap<String, String>,
) -> Option<&'a str> {
    let lone = |a: &'a BTreeMap<String, String>, b: &BTreeMap<String, String>| {
        a.keys().find(|name| !b.contains_key(*name))
    };
    lone(one, other).or_else(|| lone(other, one)).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_has_size_comparison_and_number() {
        // Text, as it is shown, and whether it holds for 1, 2, 3.
        let table = [
            ("world_size > 1", "world_size > 1", [false, true, true]),
            ("nnodes=2", "nnodes = 2", [false, true, false]),
            (" nproc_per_node == 2 ", "nproc_per_node = 2", [false, true, false]),
            ("ulysses_size!=2", "ulysses_size != 2", [true, false, true]),
            ("ring_size <=2", "ring_size <= 2", [true, true, false]),
            ("world_size>= 2", "world_size >= 2", [false, true, true]),
            ("world_size < 2", "world_size < 2", [true, false, false]),
        ];
        for (text, shown, holds) in table {
            let condition = Condition::read(text).expect(text);
            assert_eq!(condition.to_string(), shown);
            assert_eq!([1, 2, 3].map(|value| condition.holds(value)), holds, "{text}");
        }
        for text in [
            "",
            "world_size",
            "> 1",
            "world_size >",
            "world_size > 1.5",
            "world > 1",
            "world_size > -1",
            "world_size > +1",
            "world_size => 1",
            "world_size > 1 && nnodes = 1",
            "world_size > 99999999999",
            "world_size <> 1",
        ] {
            assert_eq!(Condition::read(text), None, "{text}");
        }
    }
}
