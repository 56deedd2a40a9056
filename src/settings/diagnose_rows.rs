//! Parses `[[diagnose]]`: rows for the catalogue of failures.
//!
//! Checks keys, types and names. Whether a pattern compiles and an example matches is checked
//! where the catalogue is built (`diagnose::Catalogue::with`).

use serde::Deserialize;

use super::document::{Document, Entry};
use super::table::Allowed;
use super::{Sourced, value};
use diagnose::{Domain, Role, Row, Stream};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};
use verdict::{Owner, Retry};

/// The keys of a row.
#[rustfmt::skip]
pub(super) const KEYS: &[&str] = &[
    "id", "cause", "remedy", "fragments", "patterns", "except", "role", "domain", "owner", "retry",
    "stream", "weak", "first_only", "clears", "leads_to", "raised_in", "matches", "differs",
];

pub(super) const ROLES: &[&str] = &["root", "cascade", "confirmation", "context"];
pub(super) const DOMAINS: &[&str] = &["user", "config", "env", "net", "storage", "gpu", "sched"];
pub(super) const OWNERS: &[&str] =
    &["code", "configuration", "image", "node", "fabric", "platform"];
pub(super) const RETRIES: &[&str] = &["never", "same-nodes", "other-node", "wait"];
pub(super) const STREAMS: &[&str] = &["log", "kernel", "scheduler", "event", "exit"];

/// One `[[diagnose]]`.
pub(super) fn row(document: Document<'_>, section: Entry<'_>) -> Result<Sourced<Row>, Refusal> {
    let mut row = Row {
        id: String::new(),
        role: Role::Root,
        domain: Domain::User,
        owner: Owner::Code,
        // A row that only names a failure takes no restart away.
        retry: Retry::SameNodes,
        stream: Stream::Log,
        weak: false,
        first_only: false,
        last_resort: false,
        fragments: Vec::new(),
        patterns: Vec::new(),
        except: Vec::new(),
        clears: Vec::new(),
        leads_to: Vec::new(),
        raised_in: Vec::new(),
        versions: Vec::new(),
        waits: false,
        cause: Text::same(""),
        remedy: Text::same(""),
        matches: Vec::new(),
        differs: Vec::new(),
    };
    for entry in document.entries(document.table(section)?) {
        match entry.key {
            "id" => row.id = id(document, entry)?,
            "cause" => row.cause = both(document, entry)?,
            "remedy" => row.remedy = both(document, entry)?,
            "fragments" => row.fragments = document.texts_of(entry)?,
            "patterns" => row.patterns = document.texts_of(entry)?,
            "except" => row.except = document.texts_of(entry)?,
            "clears" => row.clears = document.texts_of(entry)?,
            "leads_to" => row.leads_to = document.texts_of(entry)?,
            "raised_in" => row.raised_in = document.texts_of(entry)?,
            "matches" => row.matches = document.texts_of(entry)?,
            "differs" => row.differs = document.texts_of(entry)?,
            "role" => row.role = one_of(document, entry, ROLES)?,
            "domain" => row.domain = one_of(document, entry, DOMAINS)?,
            "owner" => row.owner = one_of(document, entry, OWNERS)?,
            "retry" => row.retry = one_of(document, entry, RETRIES)?,
            "stream" => row.stream = one_of(document, entry, STREAMS)?,
            "weak" => row.weak = truth(document, entry)?,
            "first_only" => row.first_only = truth(document, entry)?,
            _ => return Err(document.unknown_key(entry, "[[diagnose]]", KEYS)),
        }
    }
    let missing = [
        ("id", row.id.is_empty()),
        ("cause", row.cause.en.is_empty()),
        ("remedy", row.remedy.en.is_empty()),
    ];
    if let Some((key, _)) = missing.iter().find(|(_, missing)| *missing) {
        return Err(document.refuse(
            section.line,
            text!("[[diagnose]] without `{key}`", "[[diagnose]] 缺少 `{key}`"),
            text!(
                "for example id = \"nan_loss\", fragments = [\"loss is nan\"], cause = \"The loss is NaN.\", remedy = \"Lower the learning rate.\"",
                "例如 id = \"nan_loss\"，fragments = [\"loss is nan\"]，cause = \"loss 为 NaN。\"，remedy = \"请降低学习率。\""
            ),
        ));
    }
    Ok(Sourced::new(row, document.source(section.line)))
}

/// A name that is no verdict's id, since both may follow `--retry-on` and `explain`.
pub(super) fn id(document: Document<'_>, entry: Entry<'_>) -> Result<String, Refusal> {
    const LONGEST: usize = 64;
    let id = document.name_of(entry)?;
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_plain = id.len() <= LONGEST
        && id.starts_with(|c: char| c.is_ascii_alphabetic())
        && id.chars().all(is_letter);
    if !is_plain {
        return Err(document.wrong_type(
            entry,
            text!(
                "a name of at most {LONGEST} letters, digits, _, - and ., which begins with a letter",
                "以字母开头的名称，只含字母、数字、_、- 和 .，最长 {LONGEST} 个字符"
            ),
        ));
    }
    if id.parse::<Id>().is_ok() {
        return Err(document.wrong_type(
            entry,
            text!(
                "a name of its own: {id} is an id that ranklaunch explain {id} explains already",
                "不与已有 ID 重复的名称：{id} 已有含义，见 ranklaunch explain {id}"
            ),
        ));
    }
    Ok(id)
}

/// `{ en = "…", zh = "…" }`, or one text for both languages.
pub(super) fn both(document: Document<'_>, entry: Entry<'_>) -> Result<Text, Refusal> {
    let Some(table) = entry.value.as_table() else {
        return document.name_of(entry).map(Text::same);
    };
    let (mut en, mut zh) = (None, None);
    for language in document.entries(table) {
        match language.key {
            "en" => en = Some(document.name_of(language)?),
            "zh" => zh = Some(document.name_of(language)?),
            _ => return Err(document.unknown_key(language, entry.key, &["en", "zh"])),
        }
    }
    match (en, zh) {
        (Some(en), Some(zh)) => Ok(Text::new(en, zh)),
        (Some(one), None) | (None, Some(one)) => Ok(Text::same(one)),
        (None, None) => Err(document.wrong_type(
            entry,
            text!("text, or {{ en = \"…\", zh = \"…\" }}", "文本，或 {{ en = \"…\", zh = \"…\" }}"),
        )),
    }
}

pub(super) fn one_of<'a, T: Deserialize<'a>>(
    document: Document<'_>,
    entry: Entry<'a>,
    names: &'static [&'static str],
) -> Result<T, Refusal> {
    let found = entry.value.as_str().and_then(|text| value::one_of(text, names));
    found.ok_or_else(|| document.wrong_type(entry, Allowed::OneOf(names).text()))
}

pub(super) fn truth(document: Document<'_>, entry: Entry<'_>) -> Result<bool, Refusal> {
    let wanted = || text!("true or false", "true 或 false");
    entry.value.as_bool().ok_or_else(|| document.wrong_type(entry, wanted()))
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::super::platform::spelled;
    use super::*;
    use diagnose::catalogue;

    /// Each name is the one that the catalogue of the program uses.
    #[test]
    fn row_names_match_the_catalogue() {
        fn are_names<T: DeserializeOwned>(names: &[&str]) -> bool {
            names.iter().all(|name| value::named::<T>(name).is_some())
        }
        assert!(are_names::<Role>(ROLES) && are_names::<Domain>(DOMAINS));
        assert!(are_names::<Owner>(OWNERS) && are_names::<Retry>(RETRIES));
        assert!(are_names::<Stream>(STREAMS));
        for row in catalogue().rows() {
            assert!(ROLES.contains(&&*spelled(row.role)), "{}", row.id);
            assert!(DOMAINS.contains(&&*spelled(row.domain)), "{}", row.id);
            assert!(OWNERS.contains(&&*spelled(row.owner)), "{}", row.id);
            assert!(RETRIES.contains(&&*spelled(row.retry)), "{}", row.id);
            assert!(STREAMS.contains(&&*spelled(row.stream)), "{}", row.id);
            // Otherwise `--retry-on` and `explain` could not tell the two apart.
            assert!(row.id.parse::<Id>().is_err(), "{} is a verdict's id", row.id);
        }
    }
}
