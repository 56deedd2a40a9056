//! Loads the explanations from `text/*.toml`, one file per family of ids.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::Id;
use text::lang::{Text, spaced};

/// The explanation of an id or an exit code.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explanation {
    /// The meaning, in one line.
    pub what: Text,
    /// The consequence for the job.
    pub why: Text,
    /// The fix.
    pub mend: Text,
    /// The override, or the reason why there is none.
    #[serde(default = "nothing")]
    pub off: Text,
}

fn nothing() -> Text {
    Text::same("")
}

/// `text/` as build.rs has deflated it.
static DEFLATED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/explanations.zz"));

/// The files by name.
static FILES: LazyLock<Vec<(String, String)>> =
    LazyLock::new(|| embed::files(DEFLATED).unwrap_or_default());

/// The file of the entries without an `off` of their own.
const OVERRIDES: &str = "overrides.toml";

/// The entry for every setting with an invalid value.
const ANY_SETTING: &str = "settings.*";

static ENTRIES: LazyLock<BTreeMap<String, Explanation>> = LazyLock::new(|| {
    type Entries = BTreeMap<String, Explanation>;
    let texts = sources().filter(|(name, _)| *name != OVERRIDES);
    texts.flat_map(|(_, text)| toml::from_str::<Entries>(text).unwrap_or_default()).collect()
});

static OFF: LazyLock<BTreeMap<String, Text>> = LazyLock::new(|| {
    let text = sources().find(|(name, _)| *name == OVERRIDES).map_or("", |(_, text)| text);
    toml::from_str(text).unwrap_or_default()
});

/// The texts of the files.
pub fn sources() -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES.iter().map(|(name, text)| (name.as_str(), text.as_str()))
}

/// The first of these keys that has an entry.
pub(super) fn entry(keys: &[&str]) -> Explanation {
    keys.iter().find_map(|key| ENTRIES.get(*key)).cloned().unwrap_or_else(empty)
}

/// The result for an id without an entry, which a test forbids.
fn empty() -> Explanation {
    Explanation { what: nothing(), why: nothing(), mend: nothing(), off: nothing() }
}

/// The explanation that `explain ID` shows.
pub fn explanation(id: Id) -> Explanation {
    let own = ENTRIES.get(id.as_str()).cloned();
    let mut found = own.or_else(|| of_form(id)).unwrap_or_else(empty);
    if found.off.en.is_empty() {
        found.off = usual_off_of(id);
    }
    found
}

/// The explanation for a setting with an invalid value: generated from the table of settings.
fn of_form(id: Id) -> Option<Explanation> {
    let form = settings::forms().find(|form| form.id == id)?;
    let Explanation { what, why, mend, off } = ENTRIES.get(ANY_SETTING)?;
    let ways: Vec<&str> =
        [&form.flag, &form.variable, &form.key].into_iter().flatten().map(String::as_str).collect();
    let fill = |text: &Text| {
        let one = |text: &str, allowed: &str, between: &str| {
            text.replace("{name}", &form.name)
                .replace("{allowed}", allowed)
                .replace("{ways}", &ways.join(between))
        };
        let Text { en, zh } = &form.allowed;
        Text::new(one(&text.en, en, ", "), one(&text.zh, &spaced(zh), "、"))
    };
    Some(Explanation { what: fill(what), why: fill(why), mend: fill(mend), off: fill(off) })
}

/// The usual override of this kind of id. A refusal has its own.
fn usual_off_of(id: Id) -> Text {
    let kind = id.kinds().first().map_or("", |kind| kind.as_str());
    let check = id.check().unwrap_or(id).as_str();
    usual_off(kind, "{check}", check)
}

/// The usual override of a kind, with `name` filled in; empty if there is none.
pub(super) fn usual_off(kind: &str, name: &str, value: &str) -> Text {
    let Some(text) = OFF.get(kind) else { return nothing() };
    Text::new(text.en.replace(name, value), text.zh.replace(name, value))
}
