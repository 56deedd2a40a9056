//! Explains ids and exit codes for `ranklaunch explain`: meaning, consequence, fix and override.
//!
//! Owns the explanations, which are data: `text/*.toml`, one file per family of ids, parsed on
//! request. Takes an [`Id`] or an exit code; gives an [`Explanation`] in both languages. The
//! table of ids with exit codes and severities is in [`verdict`], and the explanations
//! take them from there. Judges nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::diagnosis_view;
use diagnose::Row;
use linux::sys::signal_name;
use text::columns::{fold, labelled, padded};
use text::lang::{Lang, Text, spaced};
use text::text;
use verdict::Verdict;

pub use verdict::{Exit, Family, Id, IdKind, Use};

/// An exit code as a shell shows it, 0 to 255.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExitCode(u8);

/// Codes above this are 128 plus a signal.
const SIGNALS: u8 = 128;
/// The highest signal of Linux.
const LAST_SIGNAL: u8 = 64;

/// The text is not an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoCode;

impl FromStr for ExitCode {
    type Err = NoCode;

    /// `86`, `137` or `128+9`.
    fn from_str(word: &str) -> Result<ExitCode, NoCode> {
        let number = |text: &str| text.parse::<u8>().map_err(|_| NoCode);
        match word.split_once('+') {
            Some(("128", signal)) => {
                let signal = number(signal)?;
                (1..=LAST_SIGNAL)
                    .contains(&signal)
                    .then(|| ExitCode(SIGNALS + signal))
                    .ok_or(NoCode)
            }
            _ => number(word).map(ExitCode),
        }
    }
}

impl ExitCode {
    /// The codes that this program defines, in order.
    pub fn all() -> Vec<ExitCode> {
        let fixed = [0, 1, 126, 127, 130, 137, 143];
        let verdicts = Verdict::ALL.iter().filter_map(|one| u8::try_from(one.code()).ok());
        let mut all: Vec<ExitCode> = fixed.into_iter().chain(verdicts).map(ExitCode).collect();
        all.sort_unstable();
        all
    }

    pub fn number(self) -> i32 {
        self.0.into()
    }

    /// The verdict with this code, which `[exit]` of a profile can remap.
    pub fn verdict(self) -> Option<Verdict> {
        Verdict::ALL.iter().copied().find(|verdict| verdict.code() == self.number())
    }

    fn signal(self) -> Option<i32> {
        self.0
            .checked_sub(SIGNALS)
            .filter(|signal| (1..=LAST_SIGNAL).contains(signal))
            .map(i32::from)
    }

    pub fn explanation(self) -> Explanation {
        let number = self.number().to_string();
        let signal = self.signal().map(signal_name);
        let else_key = if signal.is_some() { "128+n" } else { "own" };
        let mut found = entry(&[&number, else_key]);
        if found.off.en.is_empty() {
            let kind = if self.verdict().is_some() { "code" } else { "other-code" };
            found.off = usual_off(kind, "{code}", &number);
        }
        let signal = signal.unwrap_or_default();
        let fill = |text: Text| {
            let one = |text: &str| text.replace("{code}", &number).replace("{signal}", &signal);
            Text::new(one(&text.en), one(&text.zh))
        };
        let Explanation { what, why, mend, off } = found;
        Explanation { what: fill(what), why: fill(why), mend: fill(mend), off }
    }

    /// The ids with this code. Ids that take over the code of a rank or an engine are listed
    /// only for codes without an id of their own.
    pub fn ids(self) -> Vec<Id> {
        let is = |exit: &Exit| match exit {
            Exit::Verdict(verdict) => verdict.code() == self.number(),
            Exit::Code(code) => *code == self.number(),
            Exit::NotExecuted => matches!(self.0, 126 | 127),
            Exit::Signal => self.signal().is_some(),
            Exit::Own => false,
        };
        let with = |is: &dyn Fn(&Exit) -> bool| -> Vec<Id> {
            Id::ALL.iter().copied().filter(|id| id.codes().iter().any(is)).collect()
        };
        let found = with(&is);
        let is_own = found.is_empty() && self.verdict().is_none();
        if is_own { with(&|exit| *exit == Exit::Own) } else { found }
    }
}

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
fn entry(keys: &[&str]) -> Explanation {
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
fn usual_off(kind: &str, name: &str, value: &str) -> Text {
    let Some(text) = OFF.get(kind) else { return nothing() };
    Text::new(text.en.replace(name, value), text.zh.replace(name, value))
}

/// The subject of an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    Id(Id),
    Code(ExitCode),
    /// A failure that logs reveal.
    Failure(&'a Row),
}

/// `gpu.count: check, exit code 80, default fail`
fn id_title(id: Id) -> Text {
    nature(id).about(id)
}

fn code_title(code: ExitCode) -> Text {
    let code = code.number();
    text!("exit code {code}", "退出码 {code}")
}

/// `refusal, warning; exit code 65`
fn nature(id: Id) -> Text {
    let kinds = joined(id.kinds().into_iter().map(IdKind::words), ", ", "、");
    let mut en = kinds.en.into_owned();
    let mut zh = kinds.zh.into_owned();
    let codes = id.codes();
    if !codes.is_empty() {
        let codes = joined(codes.into_iter().map(Exit::words), ", ", "、");
        let _ = write!(en, "; exit code {}", codes.en);
        let _ = write!(zh, "；退出码 {}", codes.zh);
    }
    if let Some(usual) = id.usual() {
        let Text { en: usual, zh: usual_zh } = usual.words();
        let _ = write!(en, "; default {usual}");
        let _ = write!(zh, "；默认 {usual_zh}");
    }
    Text::new(en, zh)
}

fn joined(all: impl Iterator<Item = Text>, between: &str, between_zh: &str) -> Text {
    let all: Vec<Text> = all.collect();
    let of = |lang: Lang, between: &str| {
        all.iter().map(|text| text.get(lang)).collect::<Vec<_>>().join(between)
    };
    Text::new(of(Lang::En, between), of(Lang::Zh, between_zh))
}

/// One block per subject. `width`: columns of the terminal.
pub fn explained_text(subjects: &[Subject<'_>], lang: Lang, width: Option<usize>) -> String {
    let mut out = String::new();
    for (index, subject) in subjects.iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let (explanation, title) = match subject {
            Subject::Id(id) => (explanation(*id), id_title(*id)),
            Subject::Code(code) => (code.explanation(), code_title(*code)),
            Subject::Failure(row) => {
                out.push_str(&diagnosis_view::row_text(row, lang, width));
                continue;
            }
        };
        let Explanation { what, why, mend, off } = explanation;
        fold(&mut out, title.get(lang), 2, width);
        let mut line = |label: &Text, words: &str| {
            labelled(&mut out, 2, label.get(lang), words, width);
        };
        line(&text!("what", "含义"), what.get(lang));
        line(&text!("why", "影响"), why.get(lang));
        line(&text!("mend", "处理"), mend.get(lang));
        line(&text!("override", "关闭"), off.get(lang));
        if let Subject::Code(code) = subject {
            let ids: Vec<&str> = code.ids().into_iter().map(Id::as_str).collect();
            if !ids.is_empty() {
                line(&text!("ids", "ID"), &ids.join(", "));
            }
        }
    }
    out
}

/// Every id with its one line, family by family, and the exit codes.
pub fn list(lang: Lang, width: Option<usize>) -> String {
    let wide = Id::ALL.iter().map(|id| id.as_str().len()).max().unwrap_or(0) + 2;
    let mut out = String::new();
    let line = |out: &mut String, name: &str, what: &Text| {
        fold(out, &format!("  {}{}", padded(name, wide), what.get(lang)), 2 + wide, width);
    };
    for family in Family::ALL {
        let _ = writeln!(out, "{}", family.title().get(lang));
        for id in family.ids() {
            line(&mut out, id.as_str(), &explanation(id).what);
        }
        out.push('\n');
    }
    let _ = writeln!(out, "{}", text!("Exit codes", "退出码").get(lang));
    for code in ExitCode::all() {
        line(&mut out, &code.number().to_string(), &code.explanation().what);
    }
    out
}

/// `{"schema": 1, "explained": […]}`
pub fn explained_json(subjects: &[Subject<'_>], lang: Lang) -> Value {
    let explained: Vec<Value> =
        subjects.iter().map(|subject| subject_json(*subject, lang)).collect();
    json!({ "schema": 1, "explained": explained })
}

/// The code as a number, if it is numeric.
fn exit_json(exit: Exit) -> Value {
    match exit {
        Exit::Verdict(verdict) => json!(verdict.code()),
        Exit::Code(code) => json!(code),
        Exit::Own => json!("own"),
        Exit::Signal => json!("128+signal"),
        Exit::NotExecuted => json!("126|127"),
    }
}

fn subject_json(subject: Subject<'_>, lang: Lang) -> Value {
    let mut out = Map::new();
    let explanation = match subject {
        Subject::Failure(row) => return diagnosis_view::row_json(row, lang),
        Subject::Id(id) => {
            let kinds: Vec<&str> = id.kinds().into_iter().map(IdKind::as_str).collect();
            let codes: Vec<Value> = id.codes().into_iter().map(exit_json).collect();
            out.insert("id".to_owned(), json!(id));
            out.insert("kinds".to_owned(), json!(kinds));
            out.insert("exit_codes".to_owned(), json!(codes));
            if let Some(usual) = id.usual() {
                out.insert("default_severity".to_owned(), json!(usual.as_str()));
                if let Some(place) = usual.fails_where() {
                    out.insert("fails_where".to_owned(), json!(place.get(lang)));
                }
            }
            explanation(id)
        }
        Subject::Code(code) => {
            out.insert("exit_code".to_owned(), json!(code.number()));
            out.insert("ids".to_owned(), json!(code.ids()));
            code.explanation()
        }
    };
    let Explanation { what, why, mend, off } = explanation;
    for (key, text) in [("what", what), ("why", why), ("mend", mend), ("override", off)] {
        out.insert(key.to_owned(), json!(text.get(lang)));
    }
    Value::Object(out)
}
