//! The diagnosis of a job's end from its logs, for people and for programs: `ranklaunch explain LOG…`.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::closing::{missing, others};
use diagnose::{Catalogue, Cause, Diagnosis, Evidence, Role, Row, Scanned, filled};
use text::columns::{fold, labelled};
use text::escape::{data, printable, property};
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
    pub verdicts: &'a [Said],
    /// Why launchers of the run have no verdict.
    pub unended: &'a [Text],
    /// The standstills of the job.
    pub standstills: &'a [Text],
}

/// The verdict of a run, as its closing block said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// A line for each statement.
    pub words: Text,
    /// The id of the cause that it names.
    pub cause: Option<String>,
    pub failed: bool,
    /// The file that has it.
    pub file: String,
    pub exit_code: i64,
    /// `node-0`
    pub launcher: String,
    /// Verdicts of two launchers with the same key are one.
    pub key: String,
    /// The other launchers that said the same, with their exit codes.
    pub also: Vec<(String, i64)>,
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

impl Said {
    /// `, as in node-1 (exit code 143)`
    fn others(&self) -> Text {
        const SHOWN: usize = 8;
        let list = |of: fn(&str, i64) -> String, by: &str| {
            let each = self.also.iter().take(SHOWN).map(|(name, code)| of(name, *code));
            let more = if self.also.len() > SHOWN { ", …" } else { "" };
            format!("{}{more}", each.collect::<Vec<_>>().join(by))
        };
        let en = list(|name, code| format!("{name} (exit code {code})"), ", ");
        let zh = list(|name, code| format!("{name}（退出码 {code}）"), "、");
        match self.also.is_empty() {
            true => Text::same(""),
            false => text!("; the same in {en}", "；{zh} 相同"),
        }
    }
}

impl<'a> View<'a> {
    /// The verdict of the run, if known, word for word; it comes first. Ends in the heading of what follows.
    pub fn verdicts(self, lang: Lang, width: Option<usize>) -> String {
        let mut out = Writer { out: String::new(), view: self, lang, width };
        for said in self.verdicts {
            let (first, rest) =
                said.words.get(lang).split_once('\n').unwrap_or((said.words.get(lang), ""));
            let style = if said.failed { Style::Fail } else { Style::Good };
            let _ = writeln!(out.out, "{}", paint(style, &printable(first)));
            for line in rest.lines() {
                let _ = writeln!(out.out, "{}", printable(line));
            }
            let Text { en, zh } = said.others();
            let file = &said.file;
            let line = text!("   recorded in {file}{en}", "   记录于 {file}{zh}");
            let _ = writeln!(out.out, "{}", printable(line.get(lang)));
        }
        for one in self.unended {
            out.painted(Style::Title, &text!("verdict", "结论"), one.get(lang));
        }
        for one in self.standstills {
            out.painted(Style::Title, &text!("standstill", "卡死"), one.get(lang));
        }
        if let Some(heading) = self.heading() {
            let _ = writeln!(out.out, "\n{}", heading.get(lang));
        }
        out.out
    }

    /// How the cause that is found now stands to the verdict of the run.
    fn heading(self) -> Option<Text> {
        let said = self.verdicts.first()?;
        let found = self.diagnosis.cause.as_ref().map(|cause| &cause.why.id);
        Some(match (&said.cause, found) {
            (Some(said), Some(found)) if said == found => {
                text!("The logs, read again, show the same:", "重新读取日志，结论相同：")
            }
            (Some(said), Some(found)) => text!(
                "The logs, read again, show {found}, but the run named {said}, with what it saw of the processes:",
                "重新读取日志看到的是 {found}，而运行当时结合进程的情况给出的是 {said}："
            ),
            (None, Some(_)) if said.failed => text!(
                "The run named no cause in its output; the logs, read again, show this:",
                "运行当时未在输出中找到原因；重新读取日志看到的是："
            ),
            (_, _) => text!("In the logs, read again:", "重新读取日志："),
        })
    }

    /// The contradiction between the verdict of the run and the cause that is found now, for programs.
    fn contradiction(self) -> Option<Text> {
        let said = self.verdicts.first()?.cause.as_ref()?;
        let found = &self.diagnosis.cause.as_ref()?.why.id;
        (said != found).then(|| self.heading()).flatten()
    }

    /// The cause in the first line, the remedy in the second. `width`: columns of the terminal.
    pub fn text(self, lang: Lang, width: Option<usize>) -> String {
        let mut out = Writer { out: String::new(), view: self, lang, width };
        match &self.diagnosis.cause {
            Some(cause) => {
                out.cause(cause);
                for other in &self.diagnosis.also {
                    let heading = text!("and, independent of it:", "另有与之无关的原因：");
                    let _ = writeln!(out.out, "\n{}", heading.get(lang));
                    out.cause(other);
                }
            }
            None => out.unknown(),
        }
        if let Some(needed) = &self.diagnosis.needed {
            out.line(&text!("more", "还需"), needed.get(lang));
        }
        out.reading();
        out.out
    }

    /// The notes and the unread files, for an input that has other files but no logs.
    pub fn reading(self, lang: Lang, width: Option<usize>) -> String {
        let mut out = Writer { out: String::new(), view: self, lang, width };
        out.reading();
        out.out
    }

    fn victims(self) -> &'a [Victims] {
        self.diagnosis.cause.as_ref().map_or(&[], |cause| &cause.why.victims)
    }

    /// `train.log:17`
    fn place(self, evidence: &Evidence) -> String {
        format!("{}:{}", self.name(evidence), evidence.first.line)
    }

    fn name(self, evidence: &Evidence) -> &'a str {
        self.logs.get(evidence.first.log).map_or("", |log| log.origin.name.as_str())
    }

    /// `{"schema": 1, "cause": {…}|null, "findings": […]}` and the other known facts.
    pub fn json(self, lang: Lang) -> Value {
        let diagnosis = self.diagnosis;
        let cause = diagnosis.cause.as_ref();
        let confidence = cause.map_or(Confidence::Unknown, |cause| cause.why.confidence);
        let victims = self.victims().iter().map(|one| json!({ "ranks": one.ranks, "id": one.id }));
        let error = |name: &str| {
            let unread = self.unread.iter().find(|unread| unread.name == name)?;
            Some(unread.error.get(lang))
        };
        let read = self.logs.iter().map(|log| {
            let name = &log.origin.name;
            json!({ "name": name, "lines": log.lines, "bytes": log.bytes, "error": error(name) })
        });
        let is_read = |name: &str| self.logs.iter().any(|log| log.origin.name == name);
        let unread = self.unread.iter().filter(|unread| !is_read(&unread.name)).map(|unread| {
            let error = unread.error.get(lang);
            json!({ "name": unread.name, "lines": 0, "bytes": 0, "error": error })
        });
        let logs: Vec<Value> = read.chain(unread).collect();
        let contradiction = self.contradiction();
        let notes =
            contradiction.iter().chain(self.unended).chain(self.notes).map(|note| note.get(lang));
        let notes: Vec<&str> = notes.collect();
        let said = self.verdicts.iter().map(|said| &said.words).chain(self.standstills);
        let last_lines: Vec<Value> = self
            .logs
            .iter()
            .filter(|_| diagnosis.cause.is_none() && diagnosis.failed)
            .map(|log| json!({ "name": log.origin.name, "lines": log.last_lines(LAST_LINES) }))
            .collect();
        json!({
            "schema": 1,
            "failed": diagnosis.failed,
            "confidence": confidence,
            "cause": cause.map(|cause| self.cause_json(cause, lang)),
            "also": diagnosis.also.iter().map(|cause| self.cause_json(cause, lang)).collect::<Vec<_>>(),
            "victims": victims.collect::<Vec<_>>(),
            "findings": diagnosis.findings.iter().filter_map(|one| self.finding(one)).collect::<Vec<_>>(),
            "needed": diagnosis.needed.as_ref().map(|needed| needed.get(lang)),
            "last_lines": last_lines,
            "logs": logs,
            "notes": notes,
            "verdicts": said.map(|words| words.get(lang)).collect::<Vec<_>>(),
        })
    }

    fn cause_json(self, cause: &Cause, lang: Lang) -> Value {
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
            "log": self.name(&cause.evidence),
            "line": cause.evidence.first.line,
            "evidence": cause.evidence.text,
            "frame": cause.frame.as_ref().map(ToString::to_string),
            "path": cause.frame.as_ref().map(|frame| &frame.path),
            "function": cause.frame.as_ref().map(|frame| &frame.function),
            "missing_ranks": why.missing,
        })
    }

    fn finding(self, one: &Evidence) -> Option<Value> {
        let row = self.catalogue.row(one.row)?;
        Some(json!({
            "id": row.id,
            "role": row.role,
            "rank": one.rank,
            "node": one.node,
            "log": self.name(one),
            "line": one.first.line,
            "offset": one.first.offset,
            "count": one.count,
            "text": one.text,
        }))
    }

    /// Workflow commands, one per cause.
    pub fn github(self, lang: Lang) -> String {
        let mut out = String::new();
        let causes = self.diagnosis.cause.iter().chain(&self.diagnosis.also);
        for cause in causes {
            let (id, text) = (property(&cause.why.id), cause.why.text.get(lang));
            let message = data(&format!("{text}\n{}", cause.why.remedy.get(lang)));
            // Standard input has no file in which the line could be shown.
            let place = match self.name(&cause.evidence) {
                "-" => String::new(),
                file => format!("file={},line={},", property(file), cause.evidence.first.line),
            };
            let _ = writeln!(out, "::error {place}title={id}::{message}");
        }
        if self.diagnosis.cause.is_none() && self.diagnosis.failed {
            let words = text!("the cause is not visible in these logs", "日志中看不到原因");
            let _ = match self.verdicts.first() {
                Some(said) => {
                    writeln!(out, "::error title=verdict::{}", data(said.words.get(lang)))
                }
                None => writeln!(out, "::warning title=unknown::{}", data(words.get(lang))),
            };
        }
        out
    }
}

/// The text for people.
struct Writer<'a> {
    out: String,
    view: View<'a>,
    lang: Lang,
    width: Option<usize>,
}

impl Writer<'_> {
    fn line(&mut self, label: &Text, words: &str) {
        labelled(&mut self.out, 0, label.get(self.lang), words, self.width);
    }

    fn painted(&mut self, style: Style, label: &Text, words: &str) {
        labelled(&mut self.out, 0, &paint(style, label.get(self.lang)), words, self.width);
    }

    fn cause(&mut self, cause: &Cause) {
        let (view, lang) = (self.view, self.lang);
        let why = &cause.why;
        let (what, id) = (why.text.get(lang), &why.id);
        let sure = why.confidence.words();
        let sure = sure.get(lang);
        let first = match lang {
            Lang::En => format!("{what} ({id}, {sure})"),
            Lang::Zh => format!("{what}（{id}，{sure}）"),
        };
        self.painted(Style::Fail, &text!("cause", "原因"), &first);
        self.painted(Style::Info, &text!("remedy", "处理"), why.remedy.get(lang));
        let mut line = |label: Text, words: &str| self.line(&label, words);
        if let Some(rank) = why.rank {
            line(text!("rank", "rank"), &rank.to_string());
        }
        if !why.missing.is_empty() {
            let words = missing(&why.missing);
            line(text!("missing", "缺席"), words.get(lang));
        }
        if let Some(node) = &cause.node {
            line(text!("node", "节点"), &node.to_string());
        }
        if let Some(frame) = &cause.frame {
            let function = &frame.function;
            let words = format!("{}:{} {function}", frame.path, frame.line);
            line(text!("frame", "代码"), words.trim_end());
        }
        line(text!("evidence", "依据"), &view.place(&cause.evidence));
        line(text!("", ""), &cause.evidence.text);
        for victims in view.victims() {
            let words = others(&victims.ranks, victims.id == why.id, &victims.text);
            line(text!("others", "其他"), words.get(lang));
        }
        line(text!("retry", "重试"), why.retry.words().get(lang));
        line(text!("lies in", "归因"), why.owner.words().get(lang));
    }

    fn unknown(&mut self) {
        let (view, lang) = (self.view, self.lang);
        let failed = view.diagnosis.failed;
        let (is_told, has_findings) =
            (!view.verdicts.is_empty(), !view.diagnosis.findings.is_empty());
        let what = match failed {
            true if has_findings => text!(
                "not visible in these logs: they hold only consequences",
                "日志中看不到原因：其中只有后果"
            ),
            true => text!(
                "not visible in these logs: no line here is a failure that ranklaunch knows",
                "日志中看不到原因：其中没有 ranklaunch 认识的失败"
            ),
            false if is_told => text!(
                "none: no line here is a failure that ranklaunch knows",
                "无：其中没有 ranklaunch 认识的失败"
            ),
            false if view.diagnosis.done => text!(
                "none: a line says that the job ended well, and no line here is a failure that ranklaunch knows",
                "无：日志表明任务正常结束，其中没有 ranklaunch 认识的失败"
            ),
            false => text!(
                "unknown: no line here is a failure that ranklaunch knows, and none says that the job ended well",
                "未知：其中没有 ranklaunch 认识的失败，也没有任务正常结束的迹象"
            ),
        };
        let remedy = match failed {
            true => text!(
                "read the logs of the other ranks and nodes, and the events of the platform (kubectl describe pod, sacct, dmesg)",
                "请查看其他 rank 与节点的日志，以及平台事件（kubectl describe pod、sacct、dmesg）"
            ),
            false => text!(
                "where it did fail, read the logs of the other ranks and nodes, and the events of the platform",
                "若任务确实失败，请查看其他 rank 与节点的日志，以及平台事件"
            ),
        };
        self.painted(Style::Title, &text!("cause", "原因"), what.get(lang));
        if failed || !is_told {
            self.painted(Style::Info, &text!("remedy", "处理"), remedy.get(lang));
        }
        let findings = &view.diagnosis.findings;
        if !findings.is_empty() {
            let heading = text!("seen, and no cause:", "看到但不是原因的内容：");
            let _ = writeln!(self.out, "{}", heading.get(lang));
        }
        for one in findings.iter().take(MOST_FINDINGS) {
            let Some(row) = view.catalogue.row(one.row) else { continue };
            let (place, id, text) = (view.place(one), &row.id, &one.text);
            fold(&mut self.out, &format!("  {place} {id}: {text}"), 4, self.width);
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
            let _ = writeln!(self.out, "{}\n  {}", heading.get(lang), lines.join("\n  "));
        }
    }

    /// Appends the notes and the files that were not read.
    fn reading(&mut self) {
        let (view, lang) = (self.view, self.lang);
        for note in view.notes {
            self.line(&text!("note", "说明"), note.get(lang));
        }
        let label = text!("not read", "未读完");
        for Unread { name, error } in view.unread.iter().take(MOST_UNREAD) {
            self.line(&label, error.about(name).get(lang));
        }
        let more = view.unread.len().saturating_sub(MOST_UNREAD);
        if more > 0 {
            self.line(&label, text!("{more} more", "另有 {more} 个").get(lang));
        }
    }
}

/// A row of the catalogue, as `ranklaunch explain ID` shows it. Placeholders for quoted values stay open.
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
    line(text!("what", "含义"), filled(&row.cause, &[]).get(lang));
    line(text!("mend", "处理"), filled(&row.remedy, &[]).get(lang));
    if row.role == Role::Root {
        line(text!("retry", "重试"), row.retry.words().get(lang));
        line(text!("lies in", "归因"), row.owner.words().get(lang));
    }
    out
}

pub(crate) fn row_json(row: &Row, lang: Lang) -> Value {
    json!({
        "id": row.id,
        "kinds": ["failure"],
        "role": row.role,
        "owner": row.owner,
        "retry": row.retry,
        "what": filled(&row.cause, &[]).get(lang),
        "mend": filled(&row.remedy, &[]).get(lang),
    })
}
