//! Shows the explanations of `ranklaunch explain`, as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::diagnosis_view;
use crate::findings::{Exit, ExitCode, Explanation, Family, Id, IdKind, explanation};
use diagnose::Row;
use text::columns::{fold, labelled, padded};
use text::lang::{Lang, Text};
use text::text;

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
pub fn text(subjects: &[Subject<'_>], lang: Lang, width: Option<usize>) -> String {
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
pub fn json(subjects: &[Subject<'_>], lang: Lang) -> Value {
    let explained: Vec<Value> = subjects.iter().map(|subject| one(*subject, lang)).collect();
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

fn one(subject: Subject<'_>, lang: Lang) -> Value {
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
