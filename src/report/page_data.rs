//! The document that the page of a run shows.
//!
//! Takes a [`JobHistory`]; gives one JSON value. Times are milliseconds since the run began. Rows
//! that several nodes share appear once, since a job may have a thousand ranks.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use monitor::history::{Attempt, CheckRow, Finding, JobHistory, NodeHistory, RankLife};

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
pub(super) fn data(job: &JobHistory, whole: bool) -> Value {
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
    all.sort_by_key(|&(node, one)| (!one.is_grave, one.at, one.kind.as_str(), node.node));
    all.dedup_by_key(|&mut (_, one)| (one.at, one.kind.as_str(), &one.text, one.rank));
    all.truncate(MOST_FINDINGS);
    all.sort_by_key(|&(_, one)| one.at);
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
