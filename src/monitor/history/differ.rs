//! The differences between two runs.

use std::collections::{BTreeMap, BTreeSet};

use super::job::JobHistory;
use text::lang::Lang;

/// A part of what is compared, in the order of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Outcome,
    Versions,
    Plan,
    /// Variables for the ranks.
    Settings,
    Command,
    Checks,
    /// Milliseconds.
    Timings,
    /// Means of all GPUs and ranks.
    Use,
}

/// A value that differs between the runs. None if the run has no such value.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    pub part: Part,
    pub what: String,
    pub first: Option<String>,
    pub second: Option<String>,
}

/// Times that differ by less are the same.
const SAME_MS: u64 = 500;
/// Measured values that differ by less than this part of the larger one are the same.
const SAME_PART: u64 = 10;

type Things = BTreeMap<(Part, String), String>;

/// All differences, in the order of the parts.
pub fn differences(first: &JobHistory, second: &JobHistory, lang: Lang) -> Vec<Difference> {
    let (a, b) = (things(first, lang), things(second, lang));
    let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
    keys.into_iter()
        .filter(|key| differ(key.0, a.get(*key), b.get(*key)))
        .map(|key| Difference {
            part: key.0,
            what: key.1.clone(),
            first: a.get(key).cloned(),
            second: b.get(key).cloned(),
        })
        .collect()
}

fn differ(part: Part, a: Option<&String>, b: Option<&String>) -> bool {
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<u64>().ok());
    let least = match part {
        Part::Timings => SAME_MS,
        Part::Use => 0,
        Part::Outcome
        | Part::Versions
        | Part::Plan
        | Part::Settings
        | Part::Command
        | Part::Checks => return a != b,
    };
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a.abs_diff(b) > least.max(a.max(b) / SAME_PART),
        _ => a != b,
    }
}

/// Values that belong to one launcher or one attempt, so they differ between any two runs.
const OWN: [&str; 4] = ["run_id", "timestamp", "node_rank", "RANK"];

fn things(job: &JobHistory, lang: Lang) -> Things {
    let mut things = Things::new();
    let mut add = |part, what: &str, value: String| {
        if !value.is_empty() {
            things.insert((part, what.to_owned()), value);
        }
    };
    let lead = job.lead();
    if let Some((_, attempt)) = job.end() {
        let verdict = attempt.verdict.clone().unwrap_or_default();
        add(Part::Outcome, "verdict", verdict.id);
        add(Part::Outcome, "text", verdict.text.get(lang).to_owned());
        if let Some(cause) = &attempt.cause {
            add(Part::Outcome, "cause", cause.id.clone());
            add(Part::Outcome, "evidence", cause.evidence.clone());
            add(Part::Outcome, "frame", cause.frame.clone());
        }
    }
    if let Some(code) = lead.exit_code {
        add(Part::Outcome, "exit_code", code.to_string());
    }
    if lead.cut_off {
        add(Part::Outcome, "cut_off", "true".to_owned());
    }
    add(Part::Outcome, "attempts", lead.attempts.len().to_string());
    for (name, version) in &lead.versions {
        add(Part::Versions, name, version.clone());
    }
    // A node with other versions than the first one.
    for node in job.nodes().iter().skip(1) {
        let other = node.versions.iter().filter(|(name, version)| {
            *name != "kernel" && lead.versions.get(*name).is_some_and(|lead| lead != *version)
        });
        for (name, version) in other {
            add(Part::Versions, &format!("{name} (node {})", node.node), version.clone());
        }
    }
    let plan = &lead.plan;
    for one in plan.decisions.iter().filter(|one| !OWN.contains(&one.what.as_str())) {
        add(Part::Plan, &one.what, one.value.clone());
    }
    add(Part::Plan, "engine", plan.engine.clone());
    add(Part::Plan, "nodes", lead.members.to_string());
    add(Part::Plan, "gpus", plan.gpus.to_string());
    // A variable set for the ranks wins over the container's.
    let variables = lead.environment.iter().chain(&plan.env);
    for (name, value) in variables.filter(|(name, _)| !OWN.contains(&name.as_str())) {
        add(Part::Settings, name, value.clone());
    }
    add(Part::Command, "argv", plan.argv.join(" "));
    for node in job.nodes() {
        for check in &node.checks {
            let is_sound = ["ok", "info"].contains(&check.severity.as_str());
            let what = format!("{} (node {})", check.id, node.node);
            if !is_sound {
                add(Part::Checks, &what, check.severity.clone());
            }
        }
    }
    let ledger = &job.ledger;
    for (name, value) in [
        ("total", ledger.total),
        ("preparing", ledger.preparing),
        ("waiting", ledger.waiting),
        ("computing", ledger.computing),
        ("lost", ledger.lost),
        ("standing", ledger.standing),
        ("restarting", ledger.restarting),
        ("ending", ledger.ending),
    ] {
        add(Part::Timings, name, value.to_string());
    }
    for (what, unit, value) in averages(job) {
        add(Part::Use, &format!("{what} ({unit})"), value.to_string());
    }
    things
}

/// The means of all GPUs, and of all ranks.
fn averages(job: &JobHistory) -> Vec<(&'static str, &'static str, u64)> {
    let mut found = Vec::new();
    for (what, unit, of, name) in [
        ("gpu_utilisation", "%", "gpu", "utilisation"),
        ("gpu_memory", "MiB", "gpu", "memory"),
        ("gpu_power", "W", "gpu", "power"),
        ("rank_cpu", "%", "rank", "cpu"),
        ("rank_memory", "MiB", "rank", "memory"),
    ] {
        let tracks = job.nodes().iter().flat_map(|node| &node.samples.tracks);
        let means: Vec<u64> = tracks
            .filter(|track| track.of == of && track.what == name)
            .map(|track| u64::from(if name == "memory" { track.most } else { track.mean }))
            .collect();
        let sum: u64 = means.iter().sum();
        if let Some(mean) = sum.checked_div(means.len() as u64) {
            found.push((what, unit, mean));
        }
    }
    found
}
