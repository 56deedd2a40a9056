//! `ranklaunch explain`: what an id or an exit code means.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::output::{print, refuse, show, terminal_width};
use crate::cli;
use crate::findings::{ExitCode, Id};
use crate::lang::{Lang, Text};
use crate::nearest::nearest;
use crate::report::explain_view::{self, Subject};
use crate::text;
use crate::verdict::Refusal;

/// The exit code.
pub(crate) fn explain(asked: &cli::Explain, lang: Lang) -> i32 {
    let subjects: Result<Vec<Subject>, Refusal> = asked.ids.iter().map(subject).collect();
    let subjects = match subjects {
        Ok(subjects) => subjects,
        Err(refusal) => return refuse(&refusal, lang),
    };
    match (asked.format, subjects.is_empty()) {
        (cli::ReportFormat::Text, true) => show(&explain_view::list(lang, terminal_width())),
        (cli::ReportFormat::Text, false) => {
            show(&explain_view::text(&subjects, lang, terminal_width()));
        }
        (cli::ReportFormat::Json, true) => {
            let all: Vec<Subject> = Id::ALL.iter().copied().map(Subject::Id).collect();
            print(format!("{:#}\n", explain_view::json(&all, lang)));
        }
        (cli::ReportFormat::Json, false) => {
            print(format!("{:#}\n", explain_view::json(&subjects, lang)));
        }
    }
    0
}

fn subject(word: &OsString) -> Result<Subject, Refusal> {
    let known = word.to_str().and_then(|word| {
        let id = word.parse().ok().map(Subject::Id);
        id.or_else(|| word.parse::<ExitCode>().ok().map(Subject::Code))
    });
    known.ok_or_else(|| unknown(word))
}

fn unknown(word: &OsStr) -> Refusal {
    let shown = word.to_string_lossy();
    let shown = shown.escape_debug();
    if word == "-" || Path::new(word).exists() {
        return Refusal::new(
            Id::ExplainUnknown,
            text!(
                "{shown} is a file and no id: this version explains ids and exit codes, and reads no logs",
                "{shown} 是文件而不是 ID：此版本只解释 ID 和退出码，不读取日志"
            ),
            list_hint(),
        );
    }
    let text = text!(
        "`{shown}` is neither an id nor an exit code from 0 to 255",
        "`{shown}` 既不是 ID，也不是 0 到 255 的退出码"
    );
    Refusal::new(Id::ExplainUnknown, text, meant(&word.to_string_lossy()))
}

/// The id that was mistyped, or those of the family that was named.
fn meant(word: &str) -> Text {
    let all = || Id::ALL.iter().map(|id| id.as_str());
    if let Some(near) = nearest(word, all()) {
        return text!("did you mean {near}?", "是否想写 {near}？");
    }
    let word = word.trim_end_matches('.');
    let family: Vec<&str> = all()
        .filter(|id| id.strip_prefix(word).is_some_and(|rest| rest.starts_with('.')))
        .collect();
    if word.is_empty() || family.is_empty() {
        return list_hint();
    }
    let family = family.join(", ");
    text!("there are {family}", "可用的有 {family}")
}

fn list_hint() -> Text {
    text!(
        "ranklaunch explain lists all ids; the id stands in brackets behind the exit code of a message",
        "ranklaunch explain 列出全部 ID；ID 写在消息中退出码之后的括号里"
    )
}
