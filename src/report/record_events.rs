//! The events of agent.jsonl that describe a run without its run.json: checks, plans and verdicts,
//! in both languages.
//!
//! Takes facts, plans and records; gives JSON without secrets, which [`monitor::history`] reads.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::both_languages::document;
use super::check_view;
use super::ending::Ending;
use super::files::{RunRecord, ending_json};
use super::plan_json;
use node::observe::Facts;
use plan::Plan;
use preflight::check::Check;
use text::lang::Lang;

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
    let checks: Vec<Value> = checks
        .iter()
        .map(|check| {
            json!({
                "id": check.id,
                "severity": check.severity,
                "text": check.text,
                "hint": check.hint,
            })
        })
        .collect();
    json!({
        "message": "checked",
        "host": facts.hostname,
        "versions": versions,
        "environment": check_view::environment(facts),
        "checks": checks,
    })
}

/// The plan that an attempt will start.
pub fn planned(plan: &Plan, run_id: &str, attempt: u32, lang: Lang, shim: &Path) -> Value {
    let mut shown = document(|lang| plan_json::json(plan, lang, shim));
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
        "lang": lang,
        "plan": shown,
    })
}

/// The end of an attempt: run.json without the plan, and the last lines of the failed rank.
pub fn ended(record: &RunRecord, last_lines: &[String]) -> Value {
    let mut shown = document(|lang| record.document(lang));
    if let Some(shown) = shown.as_object_mut() {
        shown.remove("plan");
        shown.remove("logs");
        shown.insert("last_lines".to_owned(), last_lines.into());
    }
    json!({ "message": "ended", "record": shown })
}

/// A launch that ended without a further attempt.
pub fn refused(ending: &Ending, exit_code: i32) -> Value {
    let verdict = document(|lang| ending_json(ending, lang));
    json!({ "message": "refused", "exit_code": exit_code, "verdict": verdict })
}
