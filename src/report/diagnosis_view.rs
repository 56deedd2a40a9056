//! The diagnosis of a job's end from its logs, for people and for programs: `ranklaunch explain LOG…`.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::why_view;
use diagnose::{Catalogue, Cause, Diagnosis, Evidence, Role, Row, Scanned, filled};
use text::annotations::{data, property};
use text::columns::{fold, labelled};
use text::lang::{Lang, Text};
use text::style::{Style, paint};
use text::text;
use verdict::{Confidence, Id, Refusal, Victims};

/// Maximum number of log lines that are shown if nothing explains the end.
const LAST_LINES: usize = 20;
/// Maximum number of pieces of evidence that are shown beside the cause.
const MOST_FINDINGS: usize = 12;
/// Maximum number of logs that are named because they could not be read.
const MOST_UNREAD: usize = 5;

/// A diagnosis with the data for its text.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub catalogue: &'a Catalogue,
    pub diagnosis: &'a Diagnosis,
    pub logs: &'a [Scanned],
    pub unread: &'a [Unread],
    /// Notes on input that was left out on purpose.
    pub notes: &'a [Text],
    /// Verdicts of ranklaunch on the run when it ended.
    pub verdicts: &'a [Text],
}

impl<'a> View<'a> {
    fn victims(self) -> &'a [Victims] {
        self.diagnosis.cause.as_ref().map_or(&[], |cause| &cause.why.victims)
    }
}

/// A log that could not be read, or not to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    pub name: String,
    pub error: Text,
}

impl Unread {
    /// The refusal if nothing else can be read.
    pub fn refusal(&self) -> Refusal {
        Refusal::new(
            Id::ExplainLog,
            self.error.about(&self.name),
            text!(
                "name logs that can be read, or - for standard input",
                "请指定可读取的日志，或用 - 表示标准输入"
            ),
        )
    }
}

/// The verdict of the run, if known; it comes first.
pub fn verdicts(view: View<'_>, lang: Lang, width: Option<usize>) -> String {
    let mut out = String::new();
    for verdict in view.verdicts {
        push(
            &mut out,
            &painted(Style::Title, text!("verdict", "结论")),
            verdict.get(lang),
            lang,
            width,
        );
    }
    out
}

/// The cause in the first line, the remedy in the second. `width`: columns of the terminal.
pub fn text(view: View<'_>, lang: Lang, width: Option<usize>) -> String {
    let mut out = String::new();
    match &view.diagnosis.cause {
        Some(cause) => {
            push_cause(&mut out, view, cause, lang, width);
            for other in &view.diagnosis.also {
                out.push('\n');
                let heading = text!("and, independent of it:", "另有与之无关的原因：");
                let _ = writeln!(out, "{}", heading.get(lang));
                push_cause(&mut out, view, other, lang, width);
            }
        }
        None => push_unknown(&mut out, view, lang, width),
    }
    push_reading(&mut out, view, lang, width);
    out
}

fn push(out: &mut String, label: &Text, words: &str, lang: Lang, width: Option<usize>) {
    labelled(out, 0, label.get(lang), words, width);
}

fn painted(style: Style, label: Text) -> Text {
    Text::new(paint(style, &label.en), paint(style, &label.zh))
}

fn push_cause(out: &mut String, view: View<'_>, cause: &Cause, lang: Lang, width: Option<usize>) {
    let why = &cause.why;
    let (what, id) = (why.text.get(lang), &why.id);
    let sure = why.confidence.words();
    let sure = sure.get(lang);
    let first = match lang {
        Lang::En => format!("{what} ({id}, {sure})"),
        Lang::Zh => format!("{what}（{id}，{sure}）"),
    };
    let mut line = |label: Text, words: &str| push(out, &label, words, lang, width);
    line(painted(Style::Fail, text!("cause", "原因")), &first);
    line(painted(Style::Info, text!("remedy", "处理")), why.remedy.get(lang));
    if let Some(rank) = why.rank {
        line(text!("rank", "rank"), &rank.to_string());
    }
    if !why.missing.is_empty() {
        let words = why_view::missing(&why.missing);
        line(text!("missing", "缺席"), words.get(lang));
    }
    if let Some(node) = &cause.node {
        line(text!("node", "节点"), &node.to_string());
    }
    if let Some(frame) = &cause.frame {
        let function = &frame.function;
        let words = if function.is_empty() {
            Text::same(format!("{}:{}", frame.path, frame.line))
        } else {
            Text::same(format!("{}:{} {function}", frame.path, frame.line))
        };
        line(text!("frame", "代码"), words.get(lang));
    }
    line(text!("evidence", "依据"), &place(view, &cause.evidence));
    line(text!("", ""), &cause.evidence.text);
    for victims in view.victims() {
        let words = why_view::others(&victims.ranks, victims.id == why.id, &victims.text);
        line(text!("others", "其他"), words.get(lang));
    }
    line(text!("retry", "重试"), why.retry.words().get(lang));
    line(text!("lies in", "归因"), why.owner.words().get(lang));
}

fn push_unknown(out: &mut String, view: View<'_>, lang: Lang, width: Option<usize>) {
    let failed = view.diagnosis.failed;
    let (what, remedy) = if failed {
        (
            text!(
                "not visible in these logs: they hold only consequences",
                "日志中看不到原因：其中只有后果"
            ),
            text!(
                "read the logs of the other ranks and nodes, and the events of the platform (kubectl describe pod, sacct, dmesg)",
                "请查看其他 rank 与节点的日志，以及平台事件（kubectl describe pod、sacct、dmesg）"
            ),
        )
    } else {
        let what = if view.diagnosis.done {
            text!(
                "none: nothing in these logs says that the job failed",
                "无：日志中没有任务失败的迹象"
            )
        } else {
            text!(
                "unknown: no line here is a failure that ranklaunch knows, and none says that the job ended well",
                "未知：其中没有 ranklaunch 认识的失败，也没有任务正常结束的迹象"
            )
        };
        let remedy = text!(
            "where it did fail, read the logs of the other ranks and nodes, and the events of the platform",
            "若任务确实失败，请查看其他 rank 与节点的日志，以及平台事件"
        );
        (what, remedy)
    };
    let (cause, advice) = (text!("cause", "原因"), text!("remedy", "处理"));
    push(out, &painted(Style::Title, cause), what.get(lang), lang, width);
    push(out, &painted(Style::Info, advice), remedy.get(lang), lang, width);
    let shown = shown(view.diagnosis);
    if !shown.is_empty() {
        let heading = text!("seen, and no cause:", "看到但不是原因的内容：");
        let _ = writeln!(out, "{}", heading.get(lang));
        for one in shown {
            let Some(row) = view.catalogue.row(one.row) else { continue };
            let (place, id, text) = (place(view, one), &row.id, &one.text);
            fold(out, &format!("  {place} {id}: {text}"), 4, width);
        }
    }
    if !failed {
        return;
    }
    for log in view.logs {
        let lines = log.last_lines(LAST_LINES);
        if lines.is_empty() {
            continue;
        }
        let name = &log.origin.name;
        let heading = text!("the last lines of {name}:", "{name} 的最后几行：");
        let _ = writeln!(out, "{}", heading.get(lang));
        for line in lines {
            let _ = writeln!(out, "  {line}");
        }
    }
}

/// The notes and the unread files, for an input that has other files but no logs.
pub fn reading(view: View<'_>, lang: Lang, width: Option<usize>) -> String {
    let mut out = String::new();
    push_reading(&mut out, view, lang, width);
    out
}

/// Appends the notes and the files that were not read.
fn push_reading(out: &mut String, view: View<'_>, lang: Lang, width: Option<usize>) {
    for note in view.notes {
        push(out, &text!("note", "说明"), note.get(lang), lang, width);
    }
    let label = text!("not read", "未读完");
    for Unread { name, error } in view.unread.iter().take(MOST_UNREAD) {
        push(out, &label, error.about(name).get(lang), lang, width);
    }
    let more = view.unread.len().saturating_sub(MOST_UNREAD);
    if more > 0 {
        push(out, &label, text!("{more} more", "另有 {more} 个").get(lang), lang, width);
    }
}

/// The evidence that people see if there is no cause.
fn shown(diagnosis: &Diagnosis) -> Vec<&Evidence> {
    diagnosis.findings.iter().take(MOST_FINDINGS).collect()
}

/// `train.log:17`
fn place(view: View<'_>, evidence: &Evidence) -> String {
    format!("{}:{}", name(view, evidence), evidence.first.line)
}

fn name<'a>(view: View<'a>, evidence: &Evidence) -> &'a str {
    view.logs.get(evidence.first.log).map_or("", |log| log.origin.name.as_str())
}

/// `{"schema": 1, "cause": {…}|null, "findings": […]}` and the other known facts.
pub fn json(view: View<'_>, lang: Lang) -> Value {
    let diagnosis = view.diagnosis;
    let cause = diagnosis.cause.as_ref();
    let confidence = cause.map_or(Confidence::Unknown, |cause| cause.why.confidence);
    let victims = view.victims().iter().map(|one| json!({ "ranks": one.ranks, "id": one.id }));
    let error = |name: &str| {
        let unread = view.unread.iter().find(|unread| unread.name == name)?;
        Some(unread.error.get(lang))
    };
    let read = view.logs.iter().map(|log| {
        let name = &log.origin.name;
        json!({ "name": name, "lines": log.lines, "bytes": log.bytes, "error": error(name) })
    });
    let is_read = |name: &str| view.logs.iter().any(|log| log.origin.name == name);
    let unread = view.unread.iter().filter(|unread| !is_read(&unread.name)).map(|unread| {
        let error = unread.error.get(lang);
        json!({ "name": unread.name, "lines": 0, "bytes": 0, "error": error })
    });
    let logs: Vec<Value> = read.chain(unread).collect();
    let notes: Vec<&str> = view.notes.iter().map(|note| note.get(lang)).collect();
    let last_lines: Vec<Value> = view
        .logs
        .iter()
        .filter(|_| diagnosis.cause.is_none() && diagnosis.failed)
        .map(|log| json!({ "name": log.origin.name, "lines": log.last_lines(LAST_LINES) }))
        .collect();
    json!({
        "schema": 1,
        "failed": diagnosis.failed,
        "confidence": confidence,
        "cause": cause.map(|cause| cause_json(view, cause, lang)),
        "also": diagnosis.also.iter().map(|cause| cause_json(view, cause, lang)).collect::<Vec<_>>(),
        "victims": victims.collect::<Vec<_>>(),
        "findings": diagnosis.findings.iter().filter_map(|one| finding(view, one)).collect::<Vec<_>>(),
        "last_lines": last_lines,
        "logs": logs,
        "notes": notes,
        "verdicts": view.verdicts.iter().map(|verdict| verdict.get(lang)).collect::<Vec<_>>(),
    })
}

fn cause_json(view: View<'_>, cause: &Cause, lang: Lang) -> Value {
    let why = &cause.why;
    json!({
        "id": why.id,
        "rank": why.rank,
        "node": cause.node,
        "confidence": why.confidence,
        "text": why.text.get(lang),
        "remedy": why.remedy.get(lang),
        "owner": why.owner,
        "retry": why.retry,
        "log": name(view, &cause.evidence),
        "line": cause.evidence.first.line,
        "evidence": cause.evidence.text,
        "frame": cause.frame.as_ref().map(ToString::to_string),
        "path": cause.frame.as_ref().map(|frame| &frame.path),
        "function": cause.frame.as_ref().map(|frame| &frame.function),
        "missing_ranks": why.missing,
    })
}

fn finding(view: View<'_>, one: &Evidence) -> Option<Value> {
    let row = view.catalogue.row(one.row)?;
    Some(json!({
        "id": row.id,
        "role": row.role,
        "rank": one.rank,
        "node": one.node,
        "log": name(view, one),
        "line": one.first.line,
        "offset": one.first.offset,
        "count": one.count,
        "text": one.text,
    }))
}

/// Workflow commands, one per cause.
pub fn github(view: View<'_>, lang: Lang) -> String {
    let mut out = String::new();
    let causes = view.diagnosis.cause.iter().chain(&view.diagnosis.also);
    for cause in causes {
        let (id, text) = (property(&cause.why.id), cause.why.text.get(lang));
        let message = data(&format!("{text}\n{}", cause.why.remedy.get(lang)));
        // Standard input has no file in which the line could be shown.
        let place = match name(view, &cause.evidence) {
            "-" => String::new(),
            file => format!("file={},line={},", property(file), cause.evidence.first.line),
        };
        let _ = writeln!(out, "::error {place}title={id}::{message}");
    }
    if view.diagnosis.cause.is_none() && view.diagnosis.failed {
        let words = text!("the cause is not visible in these logs", "日志中看不到原因");
        let _ = writeln!(out, "::warning title=unknown::{}", data(words.get(lang)));
    }
    out
}

/// A row of the catalogue, as `ranklaunch explain ID` shows it.
pub(crate) fn row_text(row: &Row, lang: Lang, width: Option<usize>) -> String {
    let mut out = String::new();
    let id = &row.id;
    let nature = match row.role {
        Role::Root => text!("{id}: a cause that logs show", "{id}：日志中可见的原因"),
        Role::Cascade => text!("{id}: a consequence, never a cause", "{id}：后果，不是原因"),
        Role::Confirmation => text!("{id}: confirms a cause", "{id}：用于佐证原因"),
        Role::Context => text!("{id}: never a cause", "{id}：不是原因"),
    };
    fold(&mut out, nature.get(lang), 2, width);
    let mut line = |label: Text, words: &str| {
        labelled(&mut out, 2, label.get(lang), words, width);
    };
    line(text!("what", "含义"), described(&row.cause).get(lang));
    line(text!("mend", "处理"), described(&row.remedy).get(lang));
    if row.role == Role::Root {
        line(text!("retry", "重试"), row.retry.words().get(lang));
        line(text!("lies in", "归因"), row.owner.words().get(lang));
    }
    out
}

pub(crate) fn row_json(row: &Row, lang: Lang) -> Value {
    let mut out = Map::new();
    out.insert("id".to_owned(), json!(row.id));
    out.insert("kinds".to_owned(), json!(["failure"]));
    out.insert("role".to_owned(), json!(row.role));
    out.insert("owner".to_owned(), json!(row.owner));
    out.insert("retry".to_owned(), json!(row.retry));
    out.insert("what".to_owned(), json!(described(&row.cause).get(lang)));
    out.insert("mend".to_owned(), json!(described(&row.remedy).get(lang)));
    Value::Object(out)
}

/// The text of a row without a log: placeholders for quoted values stay open.
fn described(text: &Text) -> Text {
    filled(text, &[])
}
