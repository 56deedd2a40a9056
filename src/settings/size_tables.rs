//! Parses the tables of a profile that depend on a size or a task: `[layout.heads]`,
//! `[[select]]` and `[[job.args_if]]`.

use std::collections::BTreeMap;
use std::ffi::OsString;

use toml::de::DeTable;

use super::condition::{Condition, Placeholder, SIZES};
use super::document::{Document, Entry};
use super::{ArgumentsIf, HeadsTable, Select};
use text::text;
use verdict::Refusal;

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
