//! The types of [`Plan`]: everything that a launch does, each value with its reason.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use linux::cpus::CpuList;
use node::observe::{AccelerateConfig, EngineCli, GpuSource};
use serde::{Deserialize, Serialize};
use settings::contract::{Claim, Field, Reading};
use settings::{Engine, LayoutRule, Need, Program, Rendezvous, Settings};
use text::lang::Text;
use text::rank::{GlobalRank, LocalRank};
use verdict::{Id, Refusal, Severity, Usual, Warning};

/// Everything that is fixed before the first process starts.
#[derive(Debug, Clone)]
pub struct Plan {
    pub membership: Membership,
    pub nproc_per_node: u32,
    /// nnodes × nproc_per_node, unless a platform that starts each rank gives another number.
    pub world_size: u32,
    pub gpus: Vec<PlannedGpu>,
    /// The source that counted the GPUs.
    pub gpu_source: GpuSource,
    pub layout: Layout,
    pub network: Network,
    /// Placeholder → value: sizes, ranks, `[[select]]` names.
    pub placeholders: BTreeMap<String, String>,
    /// Variables to set for the ranks, in addition to the container's.
    pub env: BTreeMap<String, OsString>,
    /// Variables that must not reach the engine.
    pub env_remove: Vec<String>,
    pub engine: Engine,
    pub rdzv: Rendezvous,
    pub python: Option<PathBuf>,
    /// The program with its placeholders replaced, but for {run_id} and {timestamp}.
    pub program: Program,
    /// The engine's own further arguments, placeholders replaced.
    pub engine_args: Vec<String>,
    /// Options of torchrun from its own variables, name → value.
    pub torchrun: BTreeMap<&'static str, String>,
    /// Number of times that the engine itself starts its ranks again; above 0 only for an elastic job.
    pub engine_restarts: u32,
    /// The configuration that accelerate reads, if it is the engine and has one.
    pub accelerate: Option<AccelerateConfig>,
    /// The flags that the installed engine knows, if they could be read.
    pub engine_cli: Option<EngineCli>,
    /// torch's version, if known, since engines' flags depend on it.
    pub torch_version: Option<String>,
    pub decisions: Vec<Decision>,
    pub warnings: Vec<Warning>,
    /// The settings name a folder of checkpoints, so that the last three placeholders have a meaning.
    pub has_checkpoints: bool,
    /// The checkpoint that this node expects to go on from; the nodes agree on one when they meet.
    pub expects: Option<Resume>,
    /// Run id, timestamp and final port; None until [`Plan::finish`].
    pub identity: Option<RunIdentity>,
    /// Time for which a c10d rendezvous waits for the other nodes.
    pub join_timeout: Duration,
    /// Tokens of the visible GPUs, as CUDA_VISIBLE_DEVICES names them.
    pub device_tokens: Vec<String>,
    /// The working folder of the job, if the user or a profile names one.
    pub chdir: Option<PathBuf>,
    /// c10d's id if no muster distributes the run id; None: the run id.
    pub rdzv_id: Option<String>,
    /// The CPUs of each local rank, None for a rank that is not bound. Empty if no rank is
    /// bound.
    pub bindings: Vec<Option<CpuList>>,
    /// LOCAL_RANK of a task, if it is not the task's position on its node.
    pub device_rank: Option<LocalRank>,
    /// The ranks' Python starts torch's worker server.
    pub inject: bool,
    /// The variable with the path to which torch writes its flight recorder, if it is not set.
    pub recorder_file: Option<&'static str>,
    /// The variable with the path of the pipes that make a torch without a worker server write it at once.
    pub recorder_pipe: Option<&'static str>,
}

impl Plan {
    /// Whether the installed engine knows this flag; `otherwise` if its flags are unknown.
    pub fn knows(&self, flag: &str, otherwise: bool) -> bool {
        self.engine_cli.as_ref().map_or(otherwise, |cli| cli.knows(flag))
    }

    /// The ranks of a place of the job ([`Membership::place`]), first and last. None if its engine numbers them anew at each start, so that
    /// nobody knows them before.
    pub fn ranks_of(&self, place: u32) -> Option<(u32, u32)> {
        if self.membership.task.is_some() {
            return Some((place, place));
        }
        let by_c10d = self.rdzv == Rendezvous::C10d && self.engine.row().has_c10d;
        let first = place.checked_mul(self.nproc_per_node)?;
        let last = first.checked_add(self.nproc_per_node.checked_sub(1)?)?;
        (!by_c10d && self.membership.elastic.is_none()).then_some((first, last))
    }

    /// Ranks of this launcher, started by it or by its engine.
    pub fn ranks_here(&self) -> u32 {
        if self.membership.task.is_some() { 1 } else { self.nproc_per_node }
    }

    /// Programs of this launcher: the ranks, or the user's command once.
    pub fn programs_here(&self) -> u32 {
        if self.engine.runs_a_command() { 1 } else { self.ranks_here() }
    }
}

/// A variable of the platform, and its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeighedEvidence {
    pub platform: String,
    /// None: the platform is not proven.
    pub field: Option<Field>,
    pub reading: Option<Reading>,
    /// None: a platform of the profile without any of its variables.
    pub claim: Option<Claim>,
    pub is_used: bool,
    /// The decision that the variable made, or the reason why it made none.
    pub because: Text,
}

/// Node count, node rank and master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Contract id (`kubeflow-pytorchjob`, `flags`, `none`).
    pub platform: String,
    pub nnodes: u32,
    /// Only WORLD_SIZE gave the number of nodes, and it counts processes on some platforms.
    #[serde(skip)]
    pub nnodes_by_world_size: bool,
    /// Nodes that may come beside those with a seat.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spares: u32,
    /// Identifies the node, from 0 to `nnodes + spares - 1`.
    pub node_rank: u32,
    /// The place of this node among those that run; None: its node rank is its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seat: Option<u32>,
    pub master_addr: String,
    pub master_port: u16,
    /// Single node: another free port may be taken at launch.
    pub master_port_free: bool,
    /// min:max of an elastic job; the engine then gets c10d and this range.
    pub elastic: Option<(u32, u32)>,
    /// Set if the platform starts its command once per rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
}

/// One of several starts on a node, each for one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub rank: GlobalRank,
    pub world: u32,
    pub local: LocalRank,
    /// Tasks of this node; other nodes may have other numbers.
    pub of: u32,
    /// The source of that number.
    pub source: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Membership {
    /// Number of launchers that start ranks: one per node, or each task.
    pub fn members(&self) -> u32 {
        self.task.as_ref().map_or(self.nnodes, |task| task.world)
    }

    /// The node rank that the ranks see. The plan of a node without a seat is that of the last seat.
    pub fn seat(&self) -> u32 {
        self.seat.unwrap_or_else(|| self.node_rank.min(self.nnodes.saturating_sub(1)))
    }

    /// The place of this launcher among those that start ranks.
    pub fn place(&self) -> u32 {
        self.task.as_ref().map_or_else(|| self.seat(), |task| task.rank.0)
    }

    /// The number of this launcher among these members.
    pub fn member(&self) -> u32 {
        self.task.as_ref().map_or(self.node_rank, |task| task.rank.0)
    }

    /// Whether this is the member with rank 0, where the others meet. A node that leads in place of node 0 has its seat.
    pub fn is_master(&self) -> bool {
        self.seat.unwrap_or_else(|| self.member()) == 0
    }

    /// Whether this launcher acts for its node: ends stale processes there, and prints what its
    /// tasks have in common.
    pub fn acts_for_node(&self) -> bool {
        self.task.as_ref().is_none_or(|task| task.local.0 == 0)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedGpu {
    pub index: u32,
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub pci: Option<String>,
    pub selected: bool,
    pub local_rank: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    pub rule: LayoutRule,
    pub heads: Option<u32>,
    pub ulysses_size: u32,
    pub ring_size: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    pub socket_ifname: Option<String>,
    /// Ports that will be used, such as `mlx5_0:1`, even if no variable is needed to select
    /// them.
    pub hcas: Vec<String>,
    /// This node's address on that interface, which a c10d rendezvous advertises.
    pub local_addr: Option<IpAddr>,
}

/// One value, its reason and its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// `nproc_per_node`
    pub what: String,
    pub value: String,
    pub because: Text,
    /// `solved`, `detected`, `default`, a flag, a variable or file:line.
    pub source: String,
}

impl Decision {
    pub fn new(
        what: impl Into<String>,
        value: impl ToString,
        because: Text,
        source: impl ToString,
    ) -> Decision {
        Decision {
            what: what.into(),
            value: value.to_string(),
            because,
            source: source.to_string(),
        }
    }
}

/// Run id, timestamp and master port of a launch; node 0 chooses all three.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// `<job>-<UTC time>-<4 hex>`
    pub run_id: String,
    /// UTC, `20250102-030405`.
    pub timestamp: String,
    pub master_port: u16,
    /// The checkpoint on which the nodes agreed; None: there is none that all of them can read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
}

/// The checkpoint from which a program goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    pub path: PathBuf,
    /// None: its writer names no step.
    pub step: Option<u64>,
}

/// Knowledge about the other nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scope {
    /// Nothing: this node is the only one, or the nodes have not met yet.
    #[default]
    Alone,
    /// The nodes hold no muster, so each makes the common choices by itself.
    WithoutMuster,
    /// Node 0 has the summaries of all nodes, and plans for all.
    ForAll {
        /// The smallest number of processes that one of them can run.
        fewest: u32,
        /// Attention heads, if any node knows the number.
        heads: Option<u32>,
        /// The seat of this node; None: its node rank.
        seat: Option<u32>,
    },
    /// Node 0 has proposed these values.
    Agreed {
        /// Processes of each node.
        nproc: u32,
        heads: Option<u32>,
        /// The seat of this node; None: its node rank.
        seat: Option<u32>,
    },
}

impl Scope {
    /// Whether the nodes agree on one plan, as far as settings decide that.
    pub(crate) fn has_muster(self, settings: &Settings) -> bool {
        self != Scope::WithoutMuster && settings.muster.value != Need::Off
    }

    /// The most processes that the other nodes allow.
    pub fn most(self) -> Option<u32> {
        match self {
            Scope::Alone | Scope::WithoutMuster => None,
            Scope::ForAll { fewest, .. } => Some(fewest),
            Scope::Agreed { nproc, .. } => Some(nproc),
        }
    }

    pub fn heads(self) -> Option<u32> {
        match self {
            Scope::Alone | Scope::WithoutMuster => None,
            Scope::ForAll { heads, .. } | Scope::Agreed { heads, .. } => heads,
        }
    }
}

/// Decisions, warnings and failures, each in the order in which they were made.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    pub decisions: Vec<Decision>,
    pub warnings: Vec<Warning>,
    /// Findings of checks with the severity fail.
    pub failures: Vec<Refusal>,
}

impl Notes {
    pub fn decide(
        &mut self,
        what: impl Into<String>,
        value: impl ToString,
        because: Text,
        source: impl ToString,
    ) {
        self.decisions.push(Decision::new(what, value, because, source));
    }

    pub fn warn(&mut self, id: Id, text: Text, hint: Text) {
        self.warnings.push(Warning::new(id, text, hint));
    }

    /// Adds a finding with the severity that the user set for its check, else the default one.
    pub fn raise(&mut self, settings: &Settings, finding: Warning) {
        let usual = finding.id.usual().map_or(Severity::Warn, Usual::severity);
        self.raise_as(settings, usual, finding);
    }

    /// Like [`Notes::raise`], with another default severity than that of the check.
    pub(crate) fn raise_as(&mut self, settings: &Settings, usual: Severity, finding: Warning) {
        let Warning { id, text, hint } = finding;
        match severity(settings, id.check().unwrap_or(id), usual) {
            Severity::Fail => self.failures.push(Refusal::new(id, text, hint)),
            Severity::Warn => self.warn(id, text, hint),
            Severity::Off => {}
        }
    }

    /// Adds a finding about a network setting without effect or with harm.
    pub(crate) fn env_nccl(&mut self, settings: &Settings, text: Text, hint: Text) {
        self.raise(settings, Warning::new(Id::EnvNccl, text, hint));
    }
}

/// The severity of the finding `id`: the user's, else `usual`.
pub fn severity(settings: &Settings, id: Id, usual: Severity) -> Severity {
    settings.severities.get(&id).map_or(usual, |chosen| chosen.value)
}

/// `1, 2, 4 or 5` in both languages; `none` for an empty list.
pub(crate) fn one_of<T: ToString>(values: &[T]) -> Text {
    let words: Vec<String> = values.iter().map(ToString::to_string).collect();
    match words.split_last() {
        None => Text::new("none", "无"),
        Some((only, [])) => Text::same(only.clone()),
        Some((last, rest)) => Text::new(
            format!("{} or {last}", rest.join(", ")),
            format!("{} 或 {last}", rest.join("、")),
        ),
    }
}
