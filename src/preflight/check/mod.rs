//! Judges whether this node is fit for the job: one result per check id.
//!
//! Takes the facts, the planner's findings and the results of trials ([`CheckInput`]); gives
//! [`Check`]s in the order of the table of ids, each with its severity and a hint. Pure: it
//! tries nothing itself. `run` refuses by the same checks that `check` shows.

mod finding;
mod gpus;
mod limits;
mod network;
mod nodes;
mod software;
mod storage;

use serde::Serialize;

use node::observe::Facts;
use node::observe::gpu::FabricState;
use settings::Need;
use text::lang::Text;
use text::order::Ordered;
use verdict::{Id, Refusal, Severity, Usual, Verdict, Warning, Where};

pub use finding::{CheckInput, Nodes, Reach, Tried};
use finding::{FindingKind, Judge};

/// Result of one check, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// `run` refuses to start.
    Fail,
    /// `run` prints it and starts.
    Warn,
    /// Information only.
    Info,
    Ok,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub id: Id,
    pub severity: CheckStatus,
    pub text: Text,
    /// Empty if nothing has to be done.
    pub hint: Text,
    /// The exit code of a failure.
    pub verdict: Verdict,
    /// Found by the planner, so it is already among the plan's warnings.
    pub planned: bool,
}

impl Check {
    /// Whether the check is about GPU memory in use, which proves nothing before stale processes
    /// have ended.
    pub(crate) fn is_of_memory_in_use(&self) -> bool {
        self.id == Id::GpuBusy
    }
}

/// Every check, in the order of the table of ids.
fn judges() -> Vec<Judge> {
    let [gpus, limits, storage] = [gpus::JUDGES, limits::JUDGES, storage::JUDGES];
    let [network, software, nodes] = [network::JUDGES, software::JUDGES, nodes::JUDGES];
    let mut all = [gpus, limits, storage, network, software, nodes].concat();
    all.order_by_key(|(id, _)| *id);
    all
}

/// The severity of a check where neither the user nor a profile sets one.
fn usual(id: Id, input: &CheckInput<'_>) -> Severity {
    let Some(Usual::FailWhere(place)) = id.usual() else {
        return id.usual().map_or(Severity::Warn, Usual::severity);
    };
    let fails = match place {
        Where::GpusAreFull => gpus::is_full(input),
        Where::RdmaIsRequired => input.settings.rdma.value == Need::Required,
        Where::MusterIsRequired => input.settings.muster.value == Need::Required,
    };
    if fails { Severity::Fail } else { Severity::Warn }
}

/// Every check, in the order of the table. A check that is off is left out.
pub fn examine(input: &CheckInput<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    for (id, judge) in judges() {
        let chosen = input.settings.severities.get(&id).map(|chosen| chosen.value);
        let severity = chosen.unwrap_or_else(|| usual(id, input));
        for finding in judge(input) {
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

fn level(kind: FindingKind, severity: Severity) -> Option<CheckStatus> {
    match (kind, severity) {
        (FindingKind::Refused, _) | (FindingKind::Bad, Severity::Fail) => Some(CheckStatus::Fail),
        (_, Severity::Off) => None,
        (FindingKind::Bad, Severity::Warn) | (FindingKind::Doubtful, _) => Some(CheckStatus::Warn),
        (FindingKind::Info, _) => Some(CheckStatus::Info),
        (FindingKind::Ok, _) => Some(CheckStatus::Ok),
    }
}

/// The first check that refuses a launch.
pub fn refusal<'a>(checks: impl IntoIterator<Item = &'a Check>) -> Option<Refusal> {
    let failed = checks.into_iter().find(|check| check.severity == CheckStatus::Fail)?;
    let Check { verdict, id, text, hint, .. } = failed;
    // A failure of another node keeps the verdict of that node.
    Some(Refusal { verdict: *verdict, id: *id, text: text.clone(), hint: hint.clone() })
}

/// The warnings that a launch prints beside those of the planner.
pub fn warnings(checks: &[Check]) -> Vec<Warning> {
    checks
        .iter()
        .filter(|check| check.severity == CheckStatus::Warn && !check.planned)
        .map(|check| Warning::new(check.id, check.text.clone(), check.hint.clone()))
        .collect()
}

#[cfg(test)]
mod tests;
