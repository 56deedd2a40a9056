//! The page of a run: report.html.
//!
//! Takes a [`JobHistory`]; gives one file that contains everything and requests nothing. Its script
//! draws it from a document in the file. The content of logs is text in that document, never markup.
//! Times of the document are milliseconds since the run began. Rows that several nodes share appear
//! once, since a job may have a thousand ranks.
//! Also shows the differences between two runs, for people and for programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::LazyLock;

use serde_json::{Value, json};

use linux::random;
use monitor::history::{
    Attempt, CheckRow, Difference, Finding, JobHistory, NodeHistory, Part, RankLife,
};
use text::columns::table;
use text::lang::{Lang, Text};
use text::order::Ordered;
use text::text;

/// The files of `page/`, as build.rs has deflated them.
static DEFLATED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/page.zz"));
static FILES: LazyLock<BTreeMap<String, String>> =
    LazyLock::new(|| embed::files(DEFLATED).unwrap_or_default().into_iter().collect());

/// One file of `page/`, by its name.
fn file(name: &str) -> &'static str {
    FILES.get(name).map_or("", String::as_str)
}

/// Maximum bytes of a page of up to a thousand ranks; in proportion for more ranks.
const LARGEST: usize = 2_000_000;
/// Number of values of each quantity over time, while the page is small enough.
pub const MOST_POINTS: usize = 240;

/// The page of a job, or of one of its nodes.
pub fn page(mut job: JobHistory, whole: bool) -> String {
    let largest = LARGEST.max(job.ranks().saturating_mul(LARGEST / 1000));
    let mut points = MOST_POINTS;
    loop {
        let page = render(&job, whole);
        if page.len() <= largest || points == 0 {
            return page;
        }
        // Buckets are joined in pairs, so half of them is the next size.
        points /= 2;
        job.thin(points);
    }
}

fn render(job: &JobHistory, whole: bool) -> String {
    let lead = job.lead();
    // Only the scripts of this page run, whatever else may get into it; without random bytes no
    // script runs.
    let nonce = random::hex::<16>().unwrap_or_default();
    let document = embedded(&data(job, whole).to_string());
    let lang = match lead.lang {
        Lang::En => "en",
        Lang::Zh => "zh",
    };
    let (name, node) = (name(lead), lead.node);
    let title = match whole {
        true => Text::same(name),
        false => text!("{name} · node {node}", "{name} · 节点 {node}"),
    };
    let parts = [
        ("{{lang}}", lang),
        ("{{nonce}}", &nonce),
        ("{{title}}", &escaped(title.get(lead.lang))),
        ("{{plain}}", &plain(job)),
        ("{{style}}", file("style.css")),
        ("{{words}}", file("words.js")),
        ("{{draw}}", file("draw.js")),
        ("{{timeline}}", file("timeline.js")),
        ("{{script}}", file("script.js")),
        ("{{data}}", &document),
    ];
    let mut page = String::with_capacity(document.len() + 64 * 1024);
    let mut rest = file("frame.html");
    // All placeholders are replaced in one pass, so that no value is searched for the next one.
    while let Some(at) = rest.find("{{") {
        let (before, from) = rest.split_at(at);
        page.push_str(before);
        let part = parts.iter().find_map(|(name, value)| Some((from.strip_prefix(name)?, value)));
        match part {
            Some((after, value)) => {
                page.push_str(value);
                rest = after;
            }
            None => {
                page.push_str("{{");
                rest = from.get(2..).unwrap_or_default();
            }
        }
    }
    page.push_str(rest);
    page
}

/// What a person calls the run: its program and profile, else its id.
fn name(node: &NodeHistory) -> String {
    match (node.program.as_str(), node.profile.as_str()) {
        ("", _) => node.run_id.clone(),
        (program, "") => program.to_owned(),
        (program, profile) => format!("{program} · {profile}"),
    }
}

/// Attempts, and the ranks that these failed or stood still for.
fn at_fault(job: &JobHistory) -> BTreeSet<(u32, u32)> {
    let mut guilty = BTreeSet::new();
    for node in job.nodes() {
        for (at, attempt) in node.attempts.iter().enumerate() {
            let cause = attempt.cause.as_ref().and_then(|cause| cause.rank);
            let failed = attempt.verdict.as_ref().and_then(|verdict| verdict.rank);
            guilty.extend(cause.or(failed).map(|rank| (attempt.number, rank)));
            let next = node.attempts.get(at + 1).map_or(u64::MAX, |next| next.began);
            let within = |one: &&Finding| (attempt.began..next).contains(&one.at);
            let ranks = node.findings.iter().filter(within).flat_map(|one| &one.culprits);
            guilty.extend(ranks.map(|rank| (attempt.number, *rank)));
        }
    }
    guilty
}

/// The verdict for a reader without scripts.
fn plain(job: &JobHistory) -> String {
    let lang = job.lead().lang;
    let Some((_, attempt)) = job.end() else {
        let unknown = text!("no verdict was written", "没有写入结论");
        return escaped(unknown.get(lang));
    };
    let mut plain = String::new();
    let verdict = attempt.verdict.as_ref().map(|verdict| verdict.text.get(lang));
    let cause = attempt.cause.as_ref();
    let said = [
        cause.map(|cause| cause.text.get(lang)),
        cause.map(|cause| cause.remedy.get(lang)),
        verdict,
        cause.map(|cause| cause.evidence.as_str()),
    ];
    for one in said.into_iter().flatten().filter(|one| !one.is_empty()) {
        let _ = write!(plain, "<p>{}</p>", escaped(one));
    }
    plain
}

/// Text as HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{2028}' | '\u{2029}' => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

/// JSON inside a script element. These letters occur only in its strings, where an escape has the
/// same meaning; so nothing ends the element or begins another.
fn embedded(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + json.len() / 32);
    for letter in json.chars() {
        match letter {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            letter => out.push(letter),
        }
    }
    out
}

/// With more nodes, the checks that passed are only counted.
const NODES_IN_FULL: usize = 8;
/// Maximum number of rows of findings; the grave ones come first.
const MOST_FINDINGS: usize = 300;
/// Maximum number of lines of the failed rank.
const LAST_LINES: usize = 40;
/// Maximum length of a shown line; a log may have lines of megabytes.
const LONGEST_LINE: usize = 2000;

/// Rows without duplicates, and their numbers.
#[derive(Default)]
struct Rows {
    known: BTreeMap<String, usize>,
    rows: Vec<Value>,
}

impl Rows {
    fn number(&mut self, row: Value) -> usize {
        let next = self.rows.len();
        let number = *self.known.entry(row.to_string()).or_insert(next);
        if number == next {
            self.rows.push(row);
        }
        number
    }
}

/// `whole`: the page is of the job, not of one node.
fn data(job: &JobHistory, whole: bool) -> Value {
    let began = job.began();
    let since = |at: u64| at.saturating_sub(began);
    let lead = job.lead();
    let mut checks = Rows::default();
    let mut decisions = Rows::default();
    let planned: Vec<usize> =
        lead.plan.decisions.iter().map(|one| decisions.number(json!(one))).collect();
    let in_full = job.nodes().len() <= NODES_IN_FULL;
    let nodes: Vec<Value> = job
        .nodes()
        .iter()
        .map(|node| {
            let (numbers, passed) = checks_of(node, &mut checks, in_full);
            let others = node.plan.decisions.iter().map(|one| decisions.number(json!(one)));
            // A decision that every node makes for itself does not count as a difference.
            let differs: Vec<usize> = others.filter(|one| !planned.contains(one)).collect();
            json!({
                "node": node.node,
                "task": node.task,
                "host": node.host,
                "began": since(node.began),
                "ended": since(node.ended),
                "cut_off": node.cut_off,
                "exit_code": node.exit_code,
                "versions": node.versions,
                "phases": node.phases.iter()
                    .map(|one| json!([one.name, since(one.from), since(one.to)]))
                    .collect::<Vec<_>>(),
                "attempts": node.attempts.iter().map(|one| attempt(one, since)).collect::<Vec<_>>(),
                "ranks": node.ranks.iter().map(|one| rank(one, since)).collect::<Vec<_>>(),
                "checks": numbers,
                "passed": passed,
                "decisions": differs,
                "samples": {
                    "began": since(node.samples.began),
                    "every": node.samples.every,
                    "tracks": node.samples.tracks.iter()
                        .map(|one| json!([
                            one.of, one.number, one.what, one.mean, one.most, one.values,
                        ]))
                        .collect::<Vec<_>>(),
                },
                "notes": node.notes,
            })
        })
        .collect();
    let findings: Vec<Value> = findings(job)
        .into_iter()
        .map(|(node, one)| {
            json!({
                "node": node.node,
                "kind": one.kind,
                "at": since(one.at),
                "until": one.until.map(since),
                "rank": one.rank,
                "grave": one.is_grave,
                "text": one.text,
                "hint": one.hint,
            })
        })
        .collect();
    json!({
        "schema": 1,
        "whole": whole,
        "lang": lead.lang,
        "run_id": lead.run_id,
        "program": lead.program,
        "profile": lead.profile,
        "at_fault": at_fault(job),
        "began": began,
        "ended": since(job.ended()),
        "members": lead.members,
        "missing": job.missing(),
        "end": end(job),
        "ledger": job.ledger,
        "engine": lead.plan.engine,
        "world_size": lead.plan.world_size,
        "plan": planned,
        "decisions": decisions.rows,
        "warnings": lead.plan.warnings,
        "argv": lead.plan.argv,
        "env": lead.plan.env,
        "environment": lead.environment,
        "checks": checks.rows,
        "findings": findings,
        "nodes": nodes,
    })
}

/// The findings, by time. The journal of every node contains each standstill of the job.
fn findings(job: &JobHistory) -> Vec<(&NodeHistory, &Finding)> {
    let nodes = job.nodes().iter();
    let mut all: Vec<_> =
        nodes.flat_map(|node| node.findings.iter().map(move |one| (node, one))).collect();
    all.order_by_key(|&(node, one)| (!one.is_grave, one.at, one.kind.as_str(), node.node));
    all.dedup_by_key(|&mut (_, one)| (one.at, one.kind.as_str(), &one.text, one.rank));
    all.truncate(MOST_FINDINGS);
    all.order_by_key(|&(_, one)| one.at);
    all
}

/// The end of the job, from the node that knows most about it.
fn end(job: &JobHistory) -> Value {
    let Some((node, attempt)) = job.end() else { return Value::Null };
    let start = attempt.last_lines.len().saturating_sub(LAST_LINES);
    let last: Vec<String> =
        attempt.last_lines.get(start..).unwrap_or_default().iter().map(|line| cut(line)).collect();
    let excerpt = attempt.excerpt.as_ref().map(|one| {
        let lines: Vec<String> = one.lines.iter().map(|line| cut(line)).collect();
        json!({ "log": one.log, "first": one.first, "shown": one.shown, "lines": lines })
    });
    json!({
        "node": node.node,
        "host": node.host,
        "attempt": attempt.number,
        "exit_code": attempt.exit_code,
        "verdict": attempt.verdict,
        "cause": attempt.cause,
        "last_lines": last,
        "excerpt": excerpt,
    })
}

fn cut(line: &str) -> String {
    let end = (0..=LONGEST_LINE).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
    match line.get(..end) {
        Some(start) if line.len() > LONGEST_LINE => format!("{start}…"),
        _ => line.to_owned(),
    }
}

fn attempt(one: &Attempt, since: impl Fn(u64) -> u64) -> Value {
    let verdict = one.verdict.as_ref();
    json!({
        "number": one.number,
        "began": since(one.began),
        "stopping": one.stopping.map(&since),
        "ended": one.ended.map(&since),
        "exit_code": one.exit_code,
        "id": verdict.map(|verdict| &verdict.id),
        "class": verdict.map(|verdict| &verdict.class),
        "text": verdict.map(|verdict| &verdict.text),
        "cause": one.cause.as_ref().map(|cause| &cause.id),
    })
}

/// A list instead of an object, since there are many.
fn rank(one: &RankLife, since: impl Fn(u64) -> u64) -> Value {
    json!([
        one.attempt,
        one.rank,
        one.local,
        one.pid,
        one.began.map(&since),
        one.ended.map(&since),
        one.code,
        one.signal,
        one.lines,
        one.bytes,
        one.dropped,
    ])
}

/// The numbers of the rows, and the number of passed checks that have no row.
fn checks_of(node: &NodeHistory, rows: &mut Rows, in_full: bool) -> (Vec<usize>, usize) {
    let is_shown = |one: &&CheckRow| in_full || one.severity != "ok";
    let shown = node.checks.iter().filter(is_shown);
    let numbers: Vec<usize> = shown.map(|one| rows.number(json!(one))).collect();
    let left_out = node.checks.len() - numbers.len();
    (numbers, left_out)
}

/// A longer value is cut: a command line, a variable with many paths.
const WIDEST: usize = 60;

fn part_title(part: Part) -> Text {
    match part {
        Part::Outcome => text!("outcome", "结果"),
        Part::Versions => text!("versions", "版本"),
        Part::Plan => text!("plan", "计划"),
        Part::Settings => text!("variables of the ranks", "rank 的环境变量"),
        Part::Command => text!("command", "命令"),
        Part::Checks => text!("checks", "检查"),
        Part::Timings => text!("time", "时间"),
        Part::Use => text!("utilisation, on average", "平均利用率"),
    }
}

/// A table per part.
pub fn differences_text(
    (first, second): (&JobHistory, &JobHistory),
    differences: &[Difference],
    lang: Lang,
) -> String {
    let (a, b) = (&first.lead().run_id, &second.lead().run_id);
    let mut out = String::new();
    let _ = writeln!(out, "A  {a}\nB  {b}");
    if differences.is_empty() {
        let same = text!(
            "no difference in outcome, versions, plan, variables, command, checks and times",
            "结果、版本、计划、环境变量、命令、检查与时间均无差异"
        );
        let _ = writeln!(out, "\n{}", same.get(lang));
        return out;
    }
    let mut part = None;
    let mut rows: Vec<Vec<String>> = Vec::new();
    for one in differences {
        if part != Some(one.part) {
            table(&mut out, std::mem::take(&mut rows));
            let _ = writeln!(out, "\n{}", part_title(one.part).get(lang));
            part = Some(one.part);
        }
        let is_time = one.part == Part::Timings;
        let same = common_start(one);
        let shown = |value: &Option<String>| match value {
            None => "–".to_owned(),
            Some(value) if is_time => seconds(value),
            Some(value) => cut_near(value, same),
        };
        rows.push(vec![one.what.clone(), shown(&one.first), shown(&one.second)]);
    }
    table(&mut out, rows);
    out
}

/// Both runs, and each difference with its unshortened values.
pub fn differences_json(
    (first, second): (&JobHistory, &JobHistory),
    differences: &[Difference],
) -> Value {
    let run = |job: &JobHistory| {
        let lead = job.lead();
        json!({
            "run_id": lead.run_id,
            "nodes": job.nodes().len(),
            "missing_nodes": job.missing(),
            "exit_code": lead.exit_code,
            "cut_off": lead.cut_off,
            "ledger": job.ledger,
        })
    };
    json!({
        "schema": 1,
        "first": run(first),
        "second": run(second),
        "differences": differences,
    })
}

fn seconds(millis: &str) -> String {
    match millis.parse::<u64>() {
        Ok(millis) => format!("{}.{} s", millis / 1000, millis % 1000 / 100),
        Err(_) => millis.to_owned(),
    }
}

/// Number of letters that both values have in common at the beginning.
fn common_start(one: &Difference) -> usize {
    let (first, second) = (one.first.as_deref(), one.second.as_deref());
    let pairs = first.unwrap_or_default().chars().zip(second.unwrap_or_default().chars());
    pairs.take_while(|(a, b)| a == b).count()
}

/// A part of a long value that begins a little before the difference from the other one.
fn cut_near(value: &str, same: usize) -> String {
    const BEFORE: usize = 12;
    let value = value.replace(['\n', '\t'], " ");
    let count = value.chars().count();
    if count <= WIDEST {
        return value;
    }
    let from = same.saturating_sub(BEFORE);
    let start = if from > 0 { "…" } else { "" };
    let end = if count - from > WIDEST { "…" } else { "" };
    let part: String = value.chars().skip(from).take(WIDEST).collect();
    format!("{start}{part}{end}")
}

#[cfg(test)]
mod tests;
