//! Prints findings as text, as JSON and as annotations of a GitHub workflow.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Finding, LintSeverity, Report};
use text::escape::{data, property};
use text::lang::Lang;
use text::style::{Style, paint};
use text::text;

/// For people: `file:line: importance: text (id)` and a hint; one line if nothing was found.
pub fn plain(report: &Report, lang: Lang) -> String {
    let mut out = String::new();
    for Finding { id, importance, file, line, text, hint } in &report.findings {
        let (word, style) = match importance {
            LintSeverity::Error => (text!("error", "错误"), Style::Fail),
            LintSeverity::Warning => (text!("warning", "警告"), Style::Warn),
            LintSeverity::Info => (text!("info", "说明"), Style::Info),
        };
        let (word, text) = (paint(style, word.get(lang)), text.get(lang));
        let id = paint(Style::Dim, &format!("({id})"));
        let _ = writeln!(out, "{file}:{line}: {word}: {text} {id}");
        let hint = hint.get(lang);
        if !hint.is_empty() {
            let label = paint(Style::Info, text!("hint", "提示").get(lang));
            let _ = writeln!(out, "  {label}{}{hint}", lang.colon());
        }
    }
    let is_clean = report.findings.iter().all(|found| found.importance == LintSeverity::Info);
    if is_clean && report.refused.is_empty() {
        let files = report.files;
        let s = if files == 1 { "" } else { "s" };
        let line = text!("{files} manifest{s}, nothing found", "{files} 个清单，未发现问题");
        let _ = writeln!(out, "{}", line.get(lang));
    }
    out
}

/// `{"schema":1,"findings":[…]}`; unreadable files are in `refused`.
pub fn json(report: &Report, lang: Lang) -> Value {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|found| {
            json!({
                "id": found.id,
                "severity": found.importance,
                "file": found.file,
                "line": found.line,
                "text": found.text.get(lang),
                "hint": found.hint.get(lang),
            })
        })
        .collect();
    let mut out = json!({ "schema": 1, "findings": findings });
    if !report.refused.is_empty() {
        let refused: Vec<Value> = report
            .refused
            .iter()
            .map(|refused| {
                json!({
                    "id": refused.id,
                    "text": refused.text.get(lang),
                    "hint": refused.hint.get(lang),
                })
            })
            .collect();
        if let Value::Object(map) = &mut out {
            map.insert("refused".to_owned(), Value::Array(refused));
        }
    }
    out
}

/// Workflow commands.
pub fn github(report: &Report, lang: Lang) -> String {
    let mut out = String::new();
    for Finding { id, importance, file, line, text, hint } in &report.findings {
        let command = match importance {
            LintSeverity::Error => "error",
            LintSeverity::Warning => "warning",
            LintSeverity::Info => "notice",
        };
        let (file, id) = (property(file), property(id.as_str()));
        let (text, hint) = (text.get(lang), hint.get(lang));
        let message = if hint.is_empty() { text.to_owned() } else { format!("{text}\n{hint}") };
        let _ = writeln!(out, "::{command} file={file},line={line},title={id}::{}", data(&message));
    }
    out
}
