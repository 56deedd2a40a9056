//! Differences between two runs, for people and for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};

use monitor::history::{Difference, JobHistory, Part};
use text::columns::table;
use text::lang::{Lang, Text};
use text::text;

/// A longer value is cut: a command line, a variable with many paths.
const WIDEST: usize = 60;

fn title(part: Part) -> Text {
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
pub fn text(
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
            let _ = writeln!(out, "\n{}", title(one.part).get(lang));
            part = Some(one.part);
        }
        let is_time = one.part == Part::Timings;
        let same = common_start(one);
        let shown = |value: &Option<String>| match value {
            None => "–".to_owned(),
            Some(value) if is_time => seconds(value),
            Some(value) => cut(value, same),
        };
        rows.push(vec![one.what.clone(), shown(&one.first), shown(&one.second)]);
    }
    table(&mut out, rows);
    out
}

/// Both runs, and each difference with its unshortened values.
pub fn json((first, second): (&JobHistory, &JobHistory), differences: &[Difference]) -> Value {
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
fn cut(value: &str, same: usize) -> String {
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
