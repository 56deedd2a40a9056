//! Is this node fit for the job: one verdict per check, by id.
//!
//! Takes the facts, what the planner found, and what was tried on the network;
//! gives [`Check`]s in the order of the table of ids, each with its
//! severity and a hint. Pure: what has to be tried, others try before. `run`
//! refuses by the same checks that `check` shows.

mod evidence;
mod finding;
mod gpu_health;
mod gpus;
mod limits;
mod network;
mod nodes;
mod signals;
mod software;
mod storage;

use serde::Serialize;

use crate::lang::Text;
use crate::observe::Facts;
use crate::observe::gpu::FabricState;
use crate::settings::{MusterMode, Rdma};
use crate::verdict::{Id, Refusal, Severity, Usual, Verdict, Warning, Where};

pub use evidence::{Evidence, Nodes, Reach, Tried};
use finding::{Judged, Kind};

/// What one check came to, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// `run` refuses.
    Fail,
    /// `run` goes on and says so.
    Warn,
    /// Worth knowing; nothing to do.
    Info,
    Ok,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub id: Id,
    pub severity: Level,
    pub text: Text,
    /// Empty where there is nothing to do.
    pub hint: Text,
    /// What a failure exits with.
    pub verdict: Verdict,
    /// The planner found it, so it stands among the plan's warnings already.
    pub planned: bool,
}

impl Check {
    /// It says nothing before stale processes were ended, which may hold that memory.
    pub fn is_of_memory_in_use(&self) -> bool {
        self.id == Id::GpuBusy
    }
}

/// Every check, in the order of the table of ids.
fn judges() -> Vec<Judged> {
    let rooms = [
        gpus::JUDGES,
        gpu_health::JUDGES,
        limits::JUDGES,
        storage::JUDGES,
        signals::JUDGES,
        network::JUDGES,
        software::JUDGES,
        nodes::JUDGES,
    ];
    let mut all = rooms.concat();
    all.sort_by_key(|(id, _)| *id);
    all
}

/// The severity of a check where neither the user nor a profile sets one.
fn usual(id: Id, evidence: &Evidence<'_>) -> Severity {
    let Some(Usual::FailWhere(place)) = id.usual() else {
        return id.usual().map_or(Severity::Warn, Usual::severity);
    };
    let fails = match place {
        Where::GpusAreFull => gpus::is_full(evidence),
        Where::RdmaIsRequired => evidence.settings.rdma.value == Rdma::Required,
        Where::MusterIsRequired => evidence.settings.muster.value == MusterMode::Required,
    };
    if fails { Severity::Fail } else { Severity::Warn }
}

/// Every check, in the order of the table. A check that is off is left out.
pub fn examine(evidence: &Evidence<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    for (id, judge) in judges() {
        let chosen = evidence.settings.severities.get(&id).map(|chosen| chosen.value);
        let severity = chosen.unwrap_or_else(|| usual(id, evidence));
        for finding in judge(evidence) {
            let Some(level) = level(finding.kind, severity) else { continue };
            checks.push(Check {
                id,
                severity: level,
                text: finding.text,
                hint: finding.hint,
                verdict: finding.verdict.unwrap_or(id.verdict()),
                planned: finding.planned,
            });
        }
    }
    checks
}

/// Whether a GPU waits for its NVSwitch fabric, whose manager registers it some seconds after
/// a node's start.
pub fn fabric_is_pending(facts: &Facts) -> bool {
    facts.gpus.gpus.iter().any(|gpu| gpu.fabric.is_some_and(FabricState::is_pending))
}

fn level(kind: Kind, severity: Severity) -> Option<Level> {
    match (kind, severity) {
        (Kind::Refused, _) | (Kind::Bad, Severity::Fail) => Some(Level::Fail),
        (_, Severity::Off) => None,
        (Kind::Bad, Severity::Warn) | (Kind::Doubtful, _) => Some(Level::Warn),
        (Kind::Info, _) => Some(Level::Info),
        (Kind::Ok, _) => Some(Level::Ok),
    }
}

/// The first check that refuses a launch.
pub fn refusal<'a>(checks: impl IntoIterator<Item = &'a Check>) -> Option<Refusal> {
    let failed = checks.into_iter().find(|check| check.severity == Level::Fail)?;
    let Check { verdict, id, text, hint, .. } = failed;
    // What failed on another node has the verdict that it has there, whatever the table says of the id.
    Some(Refusal { verdict: *verdict, id: *id, text: text.clone(), hint: hint.clone() })
}

/// What a launch says and the planner has not said yet.
pub fn warnings(checks: &[Check]) -> Vec<Warning> {
    checks
        .iter()
        .filter(|check| check.severity == Level::Warn && !check.planned)
        .map(|check| Warning::new(check.id, check.text.clone(), check.hint.clone()))
        .collect()
}

#[cfg(test)]
mod tests;
