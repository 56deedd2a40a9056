//! The contents of run.json, and the event of the journal that holds the same in both languages: values of documents
//! that may be anything, of which a value that is not understood is missing.

use std::collections::BTreeSet;

use serde_json::Value;
use time::{Date, Month, Time};

use super::tracks::Millis;
use super::{
    Attempt, Cause, CheckRow, DecisionRow, Finding, NodeHistory, PlanRecord, RankLife, Verdict,
    Words,
};
use text::lang::{Lang, Text};
use text::order::InOrder;
use text::text;

/// Adds a record to its attempt.
pub(super) fn add(history: &mut NodeHistory, record: &Value) {
    let wanted = number(&record["attempt"]).unwrap_or_default();
    if history.run_id.is_empty() {
        history.run_id = text(&record["run_id"]);
    }
    let attempt = attempt_of(history, wanted);
    let began = record["started"].as_str().and_then(moment);
    attempt.began = began.filter(|_| attempt.began == 0).unwrap_or(attempt.began);
    attempt.ended = attempt.ended.or_else(|| record["ended"].as_str().and_then(moment));
    attempt.exit_code = attempt.exit_code.or_else(|| code(&record["exit_code"]));
    if attempt.verdict.is_none() && record["verdict"].is_object() {
        attempt.verdict = Some(verdict(&record["verdict"]));
    }
    if attempt.cause.is_none() && record["cause"].is_object() {
        attempt.cause = Some(cause(&record["cause"]));
    }
    let lines = items(&record["last_lines"]);
    if !lines.is_empty() {
        attempt.last_lines = lines.iter().map(text).collect();
    }
    let ended = attempt.ended;
    history.exit_code = code(&record["exit_code"]).or(history.exit_code);
    history.ended = ended.unwrap_or_default().max(history.ended);
    if record["plan"].is_object() && history.plan.decisions.is_empty() {
        history.plan = plan(&record["plan"]);
        let member = &record["plan"]["membership"];
        history.members = number(&member["nnodes"]).unwrap_or_default();
        history.node = number(&member["node_rank"]).unwrap_or_default();
    }
    for one in items(&record["outcome"]["ranks"]) {
        let Some(rank) = number(&one["rank"]) else { continue };
        let life = life_of(history, wanted, rank);
        life.local = life.local.or_else(|| number(&one["local_rank"]));
        life.pid = life.pid.or_else(|| number(&one["pid"]));
        life.ended = life.ended.or_else(|| one["at"].as_str().and_then(moment));
        life.code = life.code.or_else(|| code(&one["end"]["code"]));
        life.signal = life.signal.or_else(|| code(&one["end"]["signal"]));
    }
    for (owner, one) in record["logs"]["owners"].as_object().into_iter().flatten() {
        let rank = owner.strip_prefix("rank ").and_then(|rank| rank.parse().ok());
        let Some(rank) = rank else { continue };
        let life = life_of(history, wanted, rank);
        life.lines = one["lines"].as_u64();
        life.bytes = one["bytes"].as_u64();
        let lost = ["dropped_file_bytes", "truncated_bytes", "removed_file_bytes"];
        life.dropped =
            lost.iter().filter_map(|name| one[name].as_u64()).fold(0, u64::saturating_add);
    }
    if history.findings.iter().all(|one| one.kind != "hang") {
        history.findings.extend(items(&record["hang"]).iter().filter_map(hang));
    }
    if let Some(links) = links(record, ended.unwrap_or_default())
        && history.findings.iter().all(|one| one.kind != "links")
    {
        history.findings.push(links);
    }
}

/// The error counters of HCAs that grew.
fn links(record: &Value, at: u64) -> Option<Finding> {
    let grown: Vec<String> = items(&record["link_errors"])
        .iter()
        .map(|one| {
            let (port, counter) = (text(&one["port"]), text(&one["counter"]));
            format!("{port} {counter} +{}", text(&one["by"]))
        })
        .collect();
    if grown.is_empty() {
        return None;
    }
    let list = grown.join(", ");
    let said = text!("link errors since the start: {list}", "启动以来新增的链路错误：{list}");
    Some(Finding::new("links", at, Words::Both(said)))
}

/// An element of `hang`.
pub(super) fn hang(one: &Value) -> Option<Finding> {
    let at = one["at"].as_str().and_then(moment)?;
    let after = one["after_s"].as_u64().unwrap_or_default();
    let culprits = items(&one["culprits"]);
    let first = culprits.first();
    let said: Vec<Words> = culprits.iter().map(|one| words(&one["text"])).collect();
    let list = |lang| said.iter().map(|one| one.get(lang)).collect::<Vec<_>>();
    let (en, zh) = (list(Lang::En).join("; "), list(Lang::Zh).join("；"));
    let stands = match culprits.is_empty() {
        false => text!("no progress for {after} s: {en}", "{after} 秒没有进展：{zh}"),
        true => text!("no progress for {after} s", "{after} 秒没有进展"),
    };
    // The time since which nothing moved.
    let since = at.saturating_sub(after.saturating_mul(1000));
    Some(Finding {
        rank: first.and_then(|one| number(&one["rank"])),
        culprits: culprits.iter().filter_map(|one| number(&one["rank"])).collect(),
        is_grave: true,
        hint: first.map(|one| words(&one["hint"])).unwrap_or_default(),
        ..Finding::new("hang", since, Words::Both(stands))
    })
}

/// A rank that was at work while others waited for it: the document is that of a hang.
pub(super) fn held_up(one: &Value) -> Option<Finding> {
    let finding = hang(one)?;
    let after = one["after_s"].as_u64().unwrap_or_default();
    let first = items(&one["culprits"]).first().map(|one| words(&one["text"])).unwrap_or_default();
    let (en, zh) = (first.get(Lang::En), first.get(Lang::Zh));
    let said = text!("others have waited {after} s: {en}", "其他 rank 已等待 {after} 秒：{zh}");
    let (kind, text) = ("slow".to_owned(), Words::Both(said));
    Some(Finding { kind, is_grave: false, text, ..finding })
}

pub(super) fn verdict(one: &Value) -> Verdict {
    Verdict {
        class: text(&one["class"]),
        id: text(&one["id"]),
        node: number(&one["node"]),
        rank: number(&one["rank"]),
        text: words(&one["text"]),
        hint: words(&one["hint"]),
    }
}

fn cause(one: &Value) -> Cause {
    let victims = items(&one["victims"]).iter().map(|one| {
        let (ranks, said) = (ranks(&one["ranks"]), words(&one["text"]));
        let (en, zh) = (said.get(Lang::En), said.get(Lang::Zh));
        let noun = noun(&one["ranks"]);
        text!("{noun} {ranks} failed as a consequence: {en}", "rank {ranks} 因此失败：{zh}")
    });
    let also = items(&one["also"]).iter().map(|one| {
        let said = words(&one["text"]);
        let (en, zh) = (said.get(Lang::En), said.get(Lang::Zh));
        let id = text(&one["id"]);
        text!("and, independent of it: {en} ({id})", "另有与之无关的原因：{zh}（{id}）")
    });
    let missing = Some(ranks(&one["missing_ranks"])).filter(|ranks| !ranks.is_empty());
    let missing = missing.map(|ranks| {
        let noun = noun(&one["missing_ranks"]);
        text!(
            "{noun} {ranks} did not reach what the others waited for",
            "rank {ranks} 未到达其他 rank 等待之处"
        )
    });
    let others: Vec<Text> = missing.into_iter().chain(victims).chain(also).collect();
    Cause {
        id: text(&one["id"]),
        node: number(&one["node"]),
        rank: number(&one["rank"]),
        confidence: text(&one["confidence"]),
        text: words(&one["text"]),
        remedy: words(&one["remedy"]),
        log: text(&one["log"]),
        line: one["line"].as_u64().unwrap_or_default(),
        evidence: text(&one["evidence"]),
        frame: text(&one["frame"]),
        others: others.into_iter().map(Words::Both).collect(),
    }
}

fn noun(list: &Value) -> &'static str {
    if items(list).len() == 1 { "rank" } else { "ranks" }
}

fn ranks(list: &Value) -> String {
    let ranks: Vec<u32> = items(list).iter().filter_map(number).collect();
    text::ranges::listed(ranks, '–')
}

/// The attempt with this number, added if it is new.
pub(super) fn attempt_of(history: &mut NodeHistory, wanted: u32) -> &mut Attempt {
    let known = history.attempts.iter().position(|attempt| attempt.number == wanted);
    let at = known.unwrap_or_else(|| {
        history.attempts.push(Attempt { number: wanted, ..Attempt::default() });
        history.attempts.len() - 1
    });
    &mut history.attempts[at]
}

/// The rank of this attempt, added if it is new.
pub(super) fn life_of(history: &mut NodeHistory, attempt: u32, rank: u32) -> &mut RankLife {
    let is_it = |life: &RankLife| life.attempt == attempt && life.rank == rank;
    let known = history.ranks.iter().rposition(is_it);
    let at = known.unwrap_or_else(|| {
        history.ranks.push(RankLife { attempt, rank, ..RankLife::default() });
        history.ranks.len() - 1
    });
    &mut history.ranks[at]
}

pub(super) fn plan(document: &Value) -> PlanRecord {
    let is_used = |gpu: &&Value| gpu["selected"] == true;
    let gpus = items(&document["gpus"]).iter().filter(is_used).count();
    PlanRecord {
        engine: text(&document["engine"]),
        world_size: number(&document["world_size"]).unwrap_or_default(),
        gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
        decisions: items(&document["decisions"])
            .iter()
            .map(|one| DecisionRow {
                what: text(&one["what"]),
                value: text(&one["value"]),
                because: words(&one["because"]),
                source: text(&one["source"]),
            })
            .collect(),
        warnings: items(&document["warnings"]).iter().map(|one| row(one, "warn")).collect(),
        env: pairs(&document["env"]).collect(),
        argv: items(&document["argv"]).iter().map(text).collect(),
    }
}

/// NVML's numbers of the GPUs that the ranks of this launcher use.
pub(super) fn own_gpus(document: &Value, task: Option<u32>) -> BTreeSet<u32> {
    let is_own = |gpu: &&Value| {
        gpu["selected"] == true && (task.is_none() || number(&gpu["local_rank"]) == task)
    };
    let gpus = items(&document["gpus"]).iter().filter(is_own);
    gpus.filter_map(|gpu| number(&gpu["index"])).in_set()
}

/// A check, or a warning, which has no severity of its own.
pub(super) fn row(one: &Value, severity: &str) -> CheckRow {
    CheckRow {
        id: text(&one["id"]),
        severity: one["severity"].as_str().unwrap_or(severity).to_owned(),
        text: words(&one["text"]),
        hint: words(&one["hint"]),
    }
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
    }
}

pub(super) fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}

pub(super) fn code(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|number| i32::try_from(number).ok())
}

/// A sentence: `"…"`, or `{"en": "…", "zh": "…"}`.
pub(super) fn words(value: &Value) -> Words {
    match (value["en"].as_str(), value["zh"].as_str()) {
        (Some(en), Some(zh)) => Words::Both(Text::new(en.to_owned(), zh.to_owned())),
        _ => Words::One(text(value)),
    }
}

pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Keys and values as text.
pub(super) fn pairs(value: &Value) -> impl Iterator<Item = (String, String)> + '_ {
    let entries = value.as_object().into_iter().flatten();
    entries.filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), text(value)))
}

/// `2026-11-23T18:00:02.697792Z`
pub(super) fn moment(stamp: &str) -> Option<Millis> {
    let stamp = stamp.strip_suffix('Z')?;
    let (date, clock) = stamp.split_once('T')?;
    let mut date = date.splitn(3, '-');
    let mut next = || date.next();
    let (year, month, day) = (next()?.parse().ok()?, next()?.parse::<u8>().ok()?, next()?);
    let date = Date::from_calendar_date(year, Month::try_from(month).ok()?, day.parse().ok()?);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut clock = clock.splitn(3, ':');
    let mut next = || clock.next()?.parse::<u8>().ok();
    let time = Time::from_hms(next()?, next()?, next()?).ok()?;
    let digits = fraction.get(..fraction.len().min(3))?;
    let scale = [1000, 100, 10, 1].get(digits.len())?;
    let millis = u64::from(digits.parse::<u16>().ok()?) * scale;
    let seconds = date.ok()?.with_time(time).assume_utc().unix_timestamp();
    Some(u64::try_from(seconds).ok()?.saturating_mul(1000).saturating_add(millis))
}

/// `16.1s`, `58.8ms`, `29.2µs`, `100ns` of `tracing`, in milliseconds.
pub(super) fn span(text: &str) -> Option<f64> {
    let at = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    let (number, unit) = text.split_at_checked(at)?;
    let scale = match unit {
        "ns" => 1e-6,
        "µs" => 1e-3,
        "ms" => 1.0,
        "s" => 1000.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * scale)
}
