//! The documents of a run: run.json, the termination message, and the events of agent.jsonl that describe a run without
//! its run.json: checks, plans and verdicts, in both languages.
//!
//! Takes facts, plans and records; gives JSON without secrets, which [`monitor::history`] reads.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::both_languages::{both_languages, one_language};
use super::closing::cause_json;
use super::ending::Ending;
use super::saved::Saved;
use super::{check_view, plan_forms};
use diagnose::Survived;
use linux::deadline::io_with_deadline;
use linux::host::Host;
use monitor::status::NoticeStatus;
use node::observe::{Facts, Growth, OomKills, OomPlace};
use plan::Plan;
use preflight::check::Check;
use text::lang::{Lang, Text};
use verdict::outcome::Outcome;

/// Time limit for writing one small file.
pub const ANSWER: Duration = Duration::from_secs(3);

/// Kubernetes truncates the message to this length and keeps its end, which would break JSON.
const TERMINATION_LIMIT: usize = 4096;

/// The content of run.json.
#[derive(Debug)]
pub struct RunRecord {
    pub run_id: String,
    pub attempt: u32,
    /// Rank of this node.
    pub node: u32,
    /// The node of each seat; empty: each node has the seat of its number.
    pub seats: Vec<u32>,
    pub started: SystemTime,
    pub ended: SystemTime,
    /// The plan as `plan --format json` shows it; null when there was none.
    pub plan: Value,
    pub outcome: Option<Outcome>,
    pub ending: Ending,
    /// The verdict as the closing block has it.
    pub closing: Text,
    /// What a job that did not end by itself has saved; None: nobody looked.
    pub saved: Option<Saved>,
    /// The notice before the end.
    pub notice: Option<NoticeStatus>,
    /// Out-of-memory kills in this container.
    pub oom: Option<OomKills>,
    /// The program's exit code, remapped.
    pub exit_code: i32,
    /// The summary of the logs.
    pub logs: Value,
    /// Error counters of HCAs that grew while the job ran.
    pub link_errors: Vec<Growth>,
    /// Problems in the logs of this node that look like a cause but are not.
    pub survived: Vec<Survived>,
    /// Standstills of the job, for people of both languages.
    pub hangs: Vec<Value>,
    pub lang: Lang,
}

impl RunRecord {
    /// The text of the file.
    ///
    /// # Errors
    /// When serialisation fails.
    pub fn render(&self) -> io::Result<Vec<u8>> {
        pretty(&self.document(self.lang))
    }

    /// The document in this language.
    pub(super) fn document(&self, lang: Lang) -> Value {
        json!({
            "schema": 1,
            "run_id": self.run_id,
            "attempt": self.attempt,
            "seats": seats_json(&self.seats),
            "started": stamp(self.started),
            "ended": stamp(self.ended),
            "exit_code": self.exit_code,
            "verdict": ending_json(&self.ending, lang),
            // In both languages, since `explain` may be asked in the other one.
            "closing": self.closing,
            "cause": cause_json(&self.ending, self.node, lang),
            "saved": self.saved,
            "notice": self.notice.as_ref().map(|notice| notice_json(notice, lang)),
            "outcome": self.outcome.as_ref().map(outcome_json),
            "oom": self.oom.map(oom_json),
            "plan": self.plan,
            "logs": self.logs,
            "link_errors": self.link_errors,
            "survived": self.survived,
            "hang": self.hangs.iter().map(|one| one_language(one, lang)).collect::<Vec<_>>(),
        })
    }
}

/// None: each node has the seat of its number.
fn seats_json(seats: &[u32]) -> Option<Vec<Value>> {
    let of = |(seat, node): (u32, &u32)| json!({ "seat": seat, "node": node });
    (!seats.is_empty()).then(|| (0..).zip(seats).map(of).collect())
}

fn notice_json(notice: &NoticeStatus, lang: Lang) -> Value {
    json!({
        "source": notice.source,
        "reason": notice.reason.get(lang),
        "node": notice.node,
        "heard": at_ms(notice.heard_ms),
        "deadline": notice.deadline_ms.map(at_ms),
    })
}

/// run.json with another verdict, and with the notice that led to it.
///
/// # Errors
/// When `run` is not a run.json.
pub fn amended(
    run: &[u8],
    ending: &Ending,
    closing: &Text,
    exit_code: i32,
    (notice, lang): (Option<&NoticeStatus>, Lang),
) -> io::Result<Vec<u8>> {
    let mut run: Map<String, Value> = serde_json::from_slice(run)?;
    run.insert("exit_code".to_owned(), exit_code.into());
    run.insert("verdict".to_owned(), ending_json(ending, lang));
    run.insert("closing".to_owned(), json!(closing));
    if let Some(notice) = notice {
        run.insert("notice".to_owned(), notice_json(notice, lang));
    }
    pretty(&run.into())
}

fn pretty(document: &Value) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(document)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn at_ms(ms: u64) -> String {
    stamp(SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
}

/// UTC, RFC 3339.
pub fn stamp(at: SystemTime) -> String {
    OffsetDateTime::from(at).format(&Rfc3339).unwrap_or_default()
}

fn outcome_json(outcome: &Outcome) -> Value {
    let ranks: Vec<Value> = outcome
        .ranks
        .iter()
        .map(|rank| {
            json!({
                "rank": rank.id.global,
                "local_rank": rank.id.local,
                "pid": rank.pid,
                "end": rank.end,
                "at": stamp(rank.at),
            })
        })
        .collect();
    json!({
        "first_failure": outcome.first_failure,
        "engine": outcome.engine,
        "ranks": ranks,
        "unkillable": outcome.survivors.iter().map(|left| left.pid).collect::<Vec<_>>(),
    })
}

fn oom_json(kills: OomKills) -> Value {
    let (limit, peak) = match kills.place {
        OomPlace::Limit { limit, peak } => (Some(limit), peak),
        _ => (None, None),
    };
    json!({
        "processes": kills.processes,
        "limit_bytes": limit,
        "peak_bytes": peak,
    })
}

pub(super) fn ending_json(ending: &Ending, lang: Lang) -> Value {
    json!({
        "class": ending.class,
        "id": ending.id,
        "code": ending.code,
        "node": ending.node,
        "rank": ending.rank,
        "text": ending.text.get(lang),
        "hint": ending.hint.get(lang),
    })
}

/// One JSON line of at most 4096 bytes; a long text is cut, never the structure.
fn termination_message(ending: &Ending, node: Option<u32>, exit_code: i32, lang: Lang) -> String {
    let (cause, text, hint) = match &ending.why {
        Some(why) => (why.id.as_str(), &why.text, &why.remedy),
        None => (ending.id.as_str(), &ending.text, &ending.hint),
    };
    let (mut text, mut hint) = (text.get(lang).to_owned(), hint.get(lang).to_owned());
    loop {
        let line = json!({
            "class": ending.class,
            "code": exit_code,
            "cause": cause,
            "verdict": ending.id,
            "node": ending.node.or(node),
            "rank": ending.culprit(),
            "text": text,
            "hint": hint,
        })
        .to_string();
        if line.len() <= TERMINATION_LIMIT {
            return line;
        }
        let longer = if text.len() >= hint.len() { &mut text } else { &mut hint };
        let keep = longer.len() * 3 / 4;
        let cut = (0..=keep).rev().find(|&at| longer.is_char_boundary(at)).unwrap_or(0);
        longer.truncate(cut);
    }
}

/// Kubernetes' default path of the termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Writes the termination message to `path`, or to the default path if that file exists; never
/// creates the default. `timeout`: usually [`ANSWER`].
pub fn announce(
    timeout: Duration,
    path: Option<&Path>,
    host: &Host,
    ending: &Ending,
    node: Option<u32>,
    exit_code: i32,
    lang: Lang,
) -> io::Result<()> {
    let path = match path {
        Some(path) => path.to_owned(),
        None if host.is_live() && Path::new(TERMINATION_LOG).exists() => TERMINATION_LOG.into(),
        None => return Ok(()),
    };
    let message = termination_message(ending, node, exit_code, lang);
    io_with_deadline(timeout, move || std::fs::write(path, message))
}

/// Facts and checks of the node, before anything was agreed.
pub fn checked(facts: &Facts, kernel: Option<&str>, checks: &[Check]) -> Value {
    let gpus = &facts.gpus;
    let torch = facts.python.torch.as_ref();
    let named = gpus.gpus.first().and_then(|gpu| gpu.name.clone());
    let versions: Map<String, Value> = [
        ("ranklaunch", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("python", facts.python.version.clone()),
        ("torch", torch.map(|torch| torch.version.clone())),
        ("cuda", torch.and_then(|torch| torch.cuda.clone())),
        ("nccl", torch.and_then(|torch| torch.nccl.clone())),
        ("driver", gpus.driver_version.clone()),
        ("gpu", named),
        ("kernel", kernel.map(str::to_owned)),
        ("script", facts.state.script.as_ref().and_then(|script| script.digest.clone())),
    ]
    .into_iter()
    .filter_map(|(name, version)| Some((name.to_owned(), Value::from(version?))))
    .collect();
    json!({
        "message": "checked",
        "host": facts.hostname,
        "versions": versions,
        "environment": check_view::environment(facts),
        "checks": checks.iter().map(check_view::row).collect::<Vec<_>>(),
    })
}

/// The plan that an attempt will start.
pub fn planned(
    plan: &Plan,
    (run_id, attempt, seats): (&str, u32, &[u32]),
    lang: Lang,
    shim: &Path,
) -> Value {
    let mut shown = both_languages(|lang| plan_forms::json(plan, lang, shim));
    if let Some(shown) = shown.as_object_mut() {
        // This is the same command as `argv`, and no reader of this event uses it.
        shown.remove("exec_argv");
        shown.remove("env_remove");
    }
    let member = &plan.membership;
    json!({
        "message": "planned",
        "run_id": run_id,
        "attempt": attempt,
        "node": member.node_rank,
        "task": member.task.as_ref().map(|task| task.local),
        "members": member.members(),
        "seats": seats_json(seats),
        "lang": lang,
        "plan": shown,
    })
}

/// The end of an attempt: run.json without the plan, and the last lines of the failed rank.
pub fn ended(record: &RunRecord, last_lines: &[String]) -> Value {
    let mut shown = both_languages(|lang| record.document(lang));
    if let Some(shown) = shown.as_object_mut() {
        shown.remove("plan");
        shown.remove("logs");
        shown.insert("last_lines".to_owned(), last_lines.into());
    }
    json!({ "message": "ended", "record": shown })
}

/// A launch that ended without a further attempt. `closing`: its last words on the console.
pub fn refused(ending: &Ending, closing: &Text, exit_code: i32) -> Value {
    let verdict = both_languages(|lang| ending_json(ending, lang));
    json!({ "message": "refused", "exit_code": exit_code, "verdict": verdict, "closing": closing })
}

#[cfg(test)]
mod tests {
    use super::*;
    use verdict::{Class, Id};

    #[test]
    fn termination_message_is_valid_json_within_limit() {
        let ending = Ending {
            code: 7,
            class: Class::Script,
            id: Id::RankExit,
            rank: Some(3),
            node: None,
            text: Text::same("长\u{1}".repeat(5000)),
            hint: Text::same("short"),
            why: None,
            consequence: false,
        };
        let line = termination_message(&ending, Some(1), 7, Lang::Zh);
        assert!(line.len() <= TERMINATION_LIMIT, "{}", line.len());
        let value: Value = serde_json::from_str(&line).expect("it is JSON");
        assert_eq!((value["rank"].as_u64(), value["hint"].as_str()), (Some(3), Some("short")));
        assert!(value["text"].as_str().is_some_and(|text| text.len() > 500));
    }
}
