//! Is this node fit for the job: one verdict per check, by id.
//!
//! Takes the facts, what the planner found, and what was tried on the network;
//! gives [`Check`]s in the order of the table of ids, each with its
//! severity and a hint. Pure: what has to be tried, others try before. `run`
//! refuses by the same checks that `check` shows.

mod gpu_health;
mod gpus;
mod limits;
mod network;
mod nodes;
mod signals;
mod software;
mod storage;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lang::{Text, bytes};
use crate::muster::LinkReport;
use crate::observe::Facts;
use crate::observe::gpu::FabricState;
use crate::plan::{Plan, Survey};
use crate::prepare::WriteProblem;
use crate::settings::{MusterMode, Rdma, Settings};
use crate::verdict::{Id, Refusal, Severity, Usual, Verdict, Warning, Where};

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

/// What was tried, where it applies.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Tried {
    /// Node 0 of several: whether the master port can be bound.
    pub port: Option<Result<u16, Refusal>>,
    /// A leftover of an earlier run holds that port, and a launch ends it.
    pub port_freed: Option<Text>,
    /// So it is with the memory in use on the chosen GPUs.
    #[serde(default)]
    pub gpus_freed: bool,
    /// The others: one connection to the master.
    pub reach: Option<Result<SocketAddr, Reach>>,
    /// `check`: the folder for logs, or why no file could be written in it.
    pub write: Option<Result<PathBuf, WriteProblem>>,
    /// `--torch`: what the ranks said, or why they failed.
    pub torch: Option<Result<Text, Text>>,
    /// The other nodes, where they were to be met. Of a capture, which is of one node, none.
    #[serde(skip)]
    pub nodes: Option<Nodes>,
}

/// What came of meeting the other nodes.
#[derive(Debug, Clone)]
pub enum Nodes {
    Found(Box<LinkReport>),
    /// A node takes no part, so this one was looked at alone.
    Alone(Text),
    /// One did not come, or they do not fit together.
    Refused(Box<Refusal>),
}

/// Why one attempt to reach the master came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    pub peer: SocketAddr,
    pub cause: Text,
}

/// All that a check may look at.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub settings: &'a Settings,
    pub facts: &'a Facts,
    pub survey: &'a Survey,
    pub tried: &'a Tried,
}

impl<'a> Evidence<'a> {
    /// The plan as far as there is one.
    fn outline(&self) -> Option<&'a Plan> {
        self.survey.outline()
    }

    fn nnodes(&self) -> u32 {
        self.outline().map_or(1, |plan| plan.membership.nnodes)
    }

    /// Processes on this node; without a plan, one per visible GPU.
    fn nproc(&self) -> u32 {
        let visible = u32::try_from(self.facts.gpus.visible.len()).unwrap_or(u32::MAX);
        self.outline().map_or(visible.max(1), |plan| plan.nproc_per_node)
    }

    /// Processes that compute on GPUs.
    fn on_gpus(&self) -> u32 {
        match self.outline() {
            Some(plan) if !plan.gpus.iter().any(|gpu| gpu.selected) => 0,
            _ if self.facts.gpus.visible.is_empty() => 0,
            _ => self.nproc(),
        }
    }
}

/// What one row of the table has to say.
#[derive(Debug, Clone)]
struct Finding {
    kind: Kind,
    text: Text,
    hint: Text,
    planned: bool,
    /// Where it exits with another code than its row says.
    verdict: Option<Verdict>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of the severity that the check has.
    Bad,
    /// Fails whatever the severity is: something was required by name.
    Refused,
    /// A warning at most.
    Doubtful,
    Info,
    Ok,
}

impl Finding {
    fn new(kind: Kind, text: Text, hint: Text) -> Finding {
        Finding { kind, text, hint, planned: false, verdict: None }
    }

    fn bad(text: Text, hint: Text) -> Finding {
        Finding::new(Kind::Bad, text, hint)
    }

    fn doubtful(text: Text, hint: Text) -> Finding {
        Finding::new(Kind::Doubtful, text, hint)
    }

    fn info(text: Text) -> Finding {
        Finding::new(Kind::Info, text, Text::same(""))
    }

    fn ok(text: Text) -> Finding {
        Finding::new(Kind::Ok, text, Text::same(""))
    }
}

/// One check and who judges it.
type Judged = (Id, fn(&Evidence<'_>) -> Vec<Finding>);

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

/// What the planner found under these ids: what fails first, then what warns.
fn planned(evidence: &Evidence<'_>, ids: &[Id]) -> Vec<Finding> {
    let survey = evidence.survey;
    let failures =
        survey.failures().iter().map(|one| (Kind::Refused, one.id, &one.text, &one.hint));
    let warnings = survey.warnings().iter().map(|one| (Kind::Bad, one.id, &one.text, &one.hint));
    failures
        .chain(warnings)
        .filter(|(_, id, ..)| ids.contains(id))
        .map(|(kind, _, text, hint)| Finding {
            planned: true,
            ..Finding::new(kind, text.clone(), hint.clone())
        })
        .collect()
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

/// `8 GiB`, `512 MiB`, `64 KiB`.
fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}

#[cfg(test)]
mod tests;
