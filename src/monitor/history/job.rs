//! The histories of all launchers of a job as one: the use of its time, and the differences to another job.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::tracks::Millis;
use super::{Attempt, NodeHistory, Verdict};
use crate::steps::{Life, goodput, stood};
use text::lang::Lang;
use text::order::{InOrder, Ordered};
use verdict::{Class, Id};

/// A job, from the launchers whose files are known.
#[derive(Debug, Clone, PartialEq)]
pub struct JobHistory {
    /// The launchers in their order; not empty.
    nodes: Vec<NodeHistory>,
    pub ledger: Ledger,
}

impl JobHistory {
    /// None without any launcher. If there are two histories of one launcher, the longer one
    /// counts.
    pub fn of(mut nodes: Vec<NodeHistory>) -> Option<JobHistory> {
        // Another node may send anything; no time of a run goes backwards.
        nodes.iter_mut().for_each(|node| node.ended = node.ended.max(node.began));
        nodes.order_by_key(|node| (node.node, node.task, std::cmp::Reverse(node.ended)));
        nodes.dedup_by_key(|node| (node.node, node.task));
        // The files of a resumed job may mix several runs; the newest run counts.
        let ledger = ledger(nodes.first()?, &nodes);
        Some(JobHistory { nodes, ledger })
    }

    pub fn nodes(&self) -> &[NodeHistory] {
        &self.nodes
    }

    /// The first launcher: node 0 if it is known.
    pub fn lead(&self) -> &NodeHistory {
        // The list is not empty.
        &self.nodes[0]
    }

    /// The launcher that says most about the end, and its last attempt: the launcher on the node of
    /// the cause.
    pub fn end(&self) -> Option<(&NodeHistory, &Attempt)> {
        let ended = || {
            self.nodes.iter().filter_map(|node| {
                let attempt = node.last_attempt()?;
                attempt.verdict.as_ref().map(|verdict| (node, attempt, verdict))
            })
        };
        let newest = ended().map(|(_, attempt, _)| attempt.number).max()?;
        let (node, attempt, _) = ended().max_by_key(|(node, attempt, verdict)| {
            let cause = attempt.cause.as_ref();
            let at = cause.and_then(|cause| cause.node).or(verdict.node);
            (
                attempt.number == newest,
                cause.is_some(),
                at == Some(node.node),
                // A node that was stopped because of another one knows less.
                verdict.id != Id::NodeOther.as_str(),
                std::cmp::Reverse(node.node),
            )
        })?;
        Some((node, attempt))
    }

    /// Number of launchers without any known file.
    pub fn missing(&self) -> u32 {
        let members = self.nodes.iter().map(|node| node.members).max().unwrap_or(0);
        members.saturating_sub(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX))
    }

    pub fn began(&self) -> Millis {
        self.nodes.iter().map(|node| node.began).min().unwrap_or(0)
    }

    pub fn ended(&self) -> Millis {
        self.nodes.iter().map(|node| node.ended).max().unwrap_or(0)
    }

    /// Ranks of the largest attempt.
    pub fn ranks(&self) -> usize {
        let planned = self.lead().plan.world_size as usize;
        let known: BTreeSet<u32> =
            self.nodes.iter().flat_map(|node| node.ranks.iter().map(|rank| rank.rank)).in_set();
        planned.max(known.len())
    }

    /// Reduces each quantity over time to at most `points` values.
    pub fn thin(&mut self, points: usize) {
        self.nodes.iter_mut().for_each(|node| node.samples.thin(points));
    }
}

/// Milliseconds of one launcher; their sum is `total`. The GPU-hours and the energy cover all
/// launchers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Ledger {
    pub total: u64,
    /// Before the ranks of the first attempt ran: reading the node, ending leftovers, starting the
    /// engine.
    pub preparing: u64,
    /// The part of that time spent waiting for other nodes.
    pub waiting: u64,
    /// All ranks lived, in the last attempt.
    pub computing: u64,
    /// The part of `computing` and `lost` whose steps count; None where no step is known.
    pub goodput: Option<u64>,
    /// Time in attempts that were repeated. The part that a checkpoint saved is unknown.
    pub lost: u64,
    /// All ranks ran, and nothing moved.
    pub standing: u64,
    /// From the end of an attempt until all ranks of the next one ran.
    pub restarting: u64,
    /// From the first failure, or the stop, or the last end of a rank, to the end.
    pub ending: u64,
    /// GPUs of all nodes.
    pub gpus: u32,
    pub gpu_hours: f64,
    pub gpu_hours_computing: f64,
    pub energy_wh: Option<f64>,
    /// The part of the energy that is power over time, not measured.
    pub energy_estimated_wh: f64,
}

/// Start and end of the time in which all ranks of an attempt ran.
struct Ran {
    from: Millis,
    to: Millis,
}

/// The ledger by the times of `lead`.
pub(super) fn ledger(lead: &NodeHistory, all: &[NodeHistory]) -> Ledger {
    let mut ledger = Ledger {
        total: lead.ended.saturating_sub(lead.began),
        gpus: all.iter().fold(0, |sum, node| sum.saturating_add(node.plan.gpus)),
        ..Ledger::default()
    };
    let standstills = standstills(lead);
    // The launcher of rank 0 knows the steps.
    let steps = all.iter().map(|node| &node.steps).find(|steps| !steps.is_empty());
    let mut lives = Vec::new();
    let mut at = lead.began;
    let last = lead.attempts.iter().rposition(|attempt| run(lead, attempt).is_some());
    for (number, attempt) in lead.attempts.iter().enumerate() {
        let Some(Ran { from, to }) = run(lead, attempt) else { continue };
        let (from, to) = (from.clamp(at, lead.ended), to.clamp(at, lead.ended));
        let before = from.saturating_sub(at);
        let is_first = ledger.preparing + ledger.waiting + ledger.restarting + ledger.lost == 0
            && at == lead.began;
        if is_first {
            ledger.waiting = waited(lead, from).min(before);
            ledger.preparing = before - ledger.waiting;
        } else {
            ledger.restarting += before;
        }
        let ran = to.saturating_sub(from);
        let stood = stood(&standstills, from, to);
        ledger.standing += stood;
        let is_last = Some(number) == last;
        let share = if is_last { &mut ledger.computing } else { &mut ledger.lost };
        *share += ran - stood;
        at = to;
        let of_attempt =
            steps.and_then(|steps| steps.iter().find(|steps| steps.attempt == attempt.number));
        lives.extend(of_attempt.map(|steps| Life { from, to, steps }));
    }
    ledger.goodput = goodput(&lives, &standstills);
    let rest = lead.ended.saturating_sub(at);
    if last.is_some() {
        ledger.ending = rest;
    } else {
        ledger.waiting = waited(lead, lead.ended).min(rest);
        ledger.preparing = rest - ledger.waiting;
    }
    let hours = |millis: u64| f64::from(ledger.gpus) * millis as f64 / 3_600_000.0;
    (ledger.gpu_hours, ledger.gpu_hours_computing) = (hours(ledger.total), hours(ledger.computing));
    let joules: Vec<f64> = all.iter().filter_map(|node| node.energy_joules).collect();
    ledger.energy_wh = (!joules.is_empty()).then(|| joules.iter().sum::<f64>() / 3600.0);
    ledger.energy_estimated_wh =
        all.iter().map(|node| node.energy_estimated_joules).sum::<f64>() / 3600.0;
    ledger
}

/// The time from the start of the last rank to the first sign of the end; None if no rank ran.
fn run(node: &NodeHistory, attempt: &Attempt) -> Option<Ran> {
    let ranks = || node.ranks.iter().filter(|rank| rank.attempt == attempt.number);
    let from = ranks().filter_map(|rank| rank.began).max()?;
    let running = ranks().any(|rank| rank.ended.is_none());
    let last = ranks().filter_map(|rank| rank.ended).max().filter(|_| !running);
    let well = attempt.verdict.as_ref().is_some_and(is_well);
    let to = attempt.stopping.filter(|_| !well).or(last).or(attempt.ended).unwrap_or(node.ended);
    Some(Ran { from, to: to.max(from) })
}

/// Time spent waiting for other nodes before `until`.
fn waited(node: &NodeHistory, until: Millis) -> u64 {
    let phases =
        node.phases.iter().filter(|phase| ["muster", "wait"].contains(&phase.name.as_str()));
    let before = phases.filter(|phase| phase.from < until);
    let times = before.map(|phase| phase.to.min(until).saturating_sub(phase.from));
    times.fold(0, u64::saturating_add)
}

/// Whether an attempt with this end did its work.
fn is_well(verdict: &Verdict) -> bool {
    serde_json::to_value(Class::Done).is_ok_and(|done| done == verdict.class.as_str())
}

fn standstills(node: &NodeHistory) -> Vec<(Millis, Millis)> {
    let hangs = node.findings.iter().filter(|one| one.kind == "hang");
    hangs.map(|one| (one.at, one.until.unwrap_or(node.ended))).collect()
}

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
    let keys: BTreeSet<_> = a.keys().chain(b.keys()).in_set();
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
        _ => return a != b,
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
    if let Some(goodput) = ledger.goodput {
        add(Part::Timings, "goodput", goodput.to_string());
    }
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
