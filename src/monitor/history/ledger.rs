//! The use of the time of a run.

use serde::Serialize;

use super::journal::is_well;
use super::moment::Millis;
use super::types::{Attempt, NodeHistory};

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
    /// All ranks ran, in the last attempt.
    pub computing: u64,
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
struct Run {
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
    let mut at = lead.began;
    let last = lead.attempts.iter().rposition(|attempt| run(lead, attempt).is_some());
    for (number, attempt) in lead.attempts.iter().enumerate() {
        let Some(Run { from, to }) = run(lead, attempt) else { continue };
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
        let stood = stood(lead, from, to).min(ran);
        ledger.standing += stood;
        let is_last = Some(number) == last;
        let share = if is_last { &mut ledger.computing } else { &mut ledger.lost };
        *share += ran - stood;
        at = to;
    }
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
fn run(node: &NodeHistory, attempt: &Attempt) -> Option<Run> {
    let ranks = || node.ranks.iter().filter(|rank| rank.attempt == attempt.number);
    let from = ranks().filter_map(|rank| rank.began).max()?;
    let running = ranks().any(|rank| rank.ended.is_none());
    let last = ranks().filter_map(|rank| rank.ended).max().filter(|_| !running);
    let well = attempt.verdict.as_ref().is_some_and(is_well);
    let to = attempt.stopping.filter(|_| !well).or(last).or(attempt.ended).unwrap_or(node.ended);
    Some(Run { from, to: to.max(from) })
}

/// Time spent waiting for other nodes before `until`.
fn waited(node: &NodeHistory, until: Millis) -> u64 {
    let phases =
        node.phases.iter().filter(|phase| ["muster", "wait"].contains(&phase.name.as_str()));
    let before = phases.filter(|phase| phase.from < until);
    let times = before.map(|phase| phase.to.min(until).saturating_sub(phase.from));
    times.fold(0, u64::saturating_add)
}

fn stood(node: &NodeHistory, from: Millis, to: Millis) -> u64 {
    let hangs = node.findings.iter().filter(|one| one.kind == "hang");
    let times = hangs.map(|one| {
        let until = one.until.unwrap_or(to).min(to);
        until.saturating_sub(one.at.max(from))
    });
    times.fold(0, u64::saturating_add)
}
