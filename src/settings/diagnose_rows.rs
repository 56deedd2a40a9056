//! Parses `[[diagnose]]`: rows for the catalogue of failures.
//!
//! Checks keys, types and names. Whether a pattern compiles and an example matches is checked
//! where the catalogue is built (`diagnose::Catalogue::with`).

use super::Sourced;
use super::document::{Document, Entry};
use diagnose::{Domain, Role, Row, Stream};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};
use verdict::{Owner, Retry};

/// The keys of a row.
pub(super) const KEYS: &[&str] = &[
    "id",
    "cause",
    "remedy",
    "fragments",
    "patterns",
    "except",
    "role",
    "domain",
    "owner",
    "retry",
    "stream",
    "weak",
    "first_only",
    "clears",
    "leads_to",
    "raised_in",
    "matches",
    "differs",
];

pub(super) const ROLES: &[(&str, Role)] = &[
    ("root", Role::Root),
    ("cascade", Role::Cascade),
    ("confirmation", Role::Confirmation),
    ("context", Role::Context),
];

pub(super) const DOMAINS: &[(&str, Domain)] = &[
    ("user", Domain::User),
    ("config", Domain::Config),
    ("env", Domain::Env),
    ("net", Domain::Net),
    ("storage", Domain::Storage),
    ("gpu", Domain::Gpu),
    ("sched", Domain::Sched),
];

pub(super) const OWNERS: &[(&str, Owner)] = &[
    ("code", Owner::Code),
    ("configuration", Owner::Configuration),
    ("image", Owner::Image),
    ("node", Owner::Node),
    ("fabric", Owner::Fabric),
    ("platform", Owner::Platform),
];

pub(super) const RETRIES: &[(&str, Retry)] = &[
    ("never", Retry::Never),
    ("same-nodes", Retry::SameNodes),
    ("other-node", Retry::OtherNode),
    ("wait", Retry::Wait),
];

pub(super) const STREAMS: &[(&str, Stream)] = &[
    ("log", Stream::Log),
    ("kernel", Stream::Kernel),
    ("scheduler", Stream::Scheduler),
    ("event", Stream::Event),
    ("exit", Stream::Exit),
];

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
            _ => {
                let known: Vec<String> = KEYS.iter().map(|key| (*key).to_owned()).collect();
                return Err(document.unknown_key(entry, "[[diagnose]]", &known));
            }
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
            _ => {
                let (known, inside) = (["en", "zh"].map(str::to_owned), entry.key);
                return Err(document.unknown_key(language, inside, &known));
            }
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

pub(super) fn one_of<T: Copy>(
    document: Document<'_>,
    entry: Entry<'_>,
    names: &[(&str, T)],
) -> Result<T, Refusal> {
    let found = entry
        .value
        .as_str()
        .and_then(|text| names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value));
    found.ok_or_else(|| {
        let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        let (last, others) = all.split_last().unwrap_or((&"", &[]));
        let (en, zh) = (others.join(", "), others.join("、"));
        document.wrong_type(entry, text!("{en} or {last}", "{zh} 或 {last}"))
    })
}

pub(super) fn truth(document: Document<'_>, entry: Entry<'_>) -> Result<bool, Refusal> {
    let wanted = || text!("true or false", "true 或 false");
    entry.value.as_bool().ok_or_else(|| document.wrong_type(entry, wanted()))
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;
    use diagnose::catalogue;

    /// Each name is the one that the catalogue of the program uses.
    #[test]
    fn row_names_match_the_catalogue() {
        fn spelled<T: Serialize>(names: &[(&str, T)]) -> bool {
            names.iter().all(|(name, value)| serde_json::to_value(value).expect("a name") == *name)
        }
        assert!(spelled(ROLES) && spelled(DOMAINS) && spelled(OWNERS));
        assert!(spelled(RETRIES) && spelled(STREAMS));
        for row in catalogue().rows() {
            assert!(ROLES.iter().any(|(_, value)| *value == row.role), "{}", row.id);
            assert!(DOMAINS.iter().any(|(_, value)| *value == row.domain), "{}", row.id);
            assert!(OWNERS.iter().any(|(_, value)| *value == row.owner), "{}", row.id);
            assert!(RETRIES.iter().any(|(_, value)| *value == row.retry), "{}", row.id);
            assert!(STREAMS.iter().any(|(_, value)| *value == row.stream), "{}", row.id);
            // Otherwise `--retry-on` and `explain` could not tell the two apart.
            assert!(row.id.parse::<Id>().is_err(), "{} is a verdict's id", row.id);
        }
    }
}
