//! The types of [`Plan`]: what a launch does, each value with its reason.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cpus::CpuList;
use crate::lang::Text;
use crate::observe::AccelerateConfig;
use crate::rank::{GlobalRank, LocalRank};
use crate::settings::{Engine, LayoutRule, Program, Rendezvous};
use crate::verdict::Warning;

/// Everything that is fixed before the first process starts.
#[derive(Debug, Clone)]
pub struct Plan {
    pub membership: Membership,
    pub nproc_per_node: u32,
    /// nnodes × nproc_per_node, unless a platform that starts each rank says another number.
    pub world_size: u32,
    pub gpus: Vec<PlannedGpu>,
    pub layout: Layout,
    pub network: Network,
    /// Placeholder → value: sizes, ranks, `[[select]]` names.
    pub placeholders: BTreeMap<String, String>,
    /// Variables that we set for the ranks, in addition to the container's.
    pub env: BTreeMap<String, OsString>,
    /// Variables that must not reach the engine.
    pub env_remove: Vec<String>,
    pub engine: Engine,
    pub rdzv: Rendezvous,
    pub python: Option<std::path::PathBuf>,
    /// The program with its placeholders replaced, but for {run_id} and {timestamp}.
    pub program: Program,
    /// The engine's own further arguments, placeholders replaced.
    pub engine_args: Vec<String>,
    /// The configuration that accelerate reads, where it is the engine and has one.
    pub accelerate: Option<AccelerateConfig>,
    /// torch's version, where known, since engines' flags depend on it.
    pub torch_version: Option<String>,
    pub decisions: Vec<Decision>,
    pub warnings: Vec<Warning>,
    /// Run id, timestamp and final port; None until [`Plan::finish`].
    pub identity: Option<RunIdentity>,
    /// How long a c10d rendezvous waits for the other nodes.
    pub join_timeout: Duration,
    /// Tokens of the visible GPUs, as CUDA_VISIBLE_DEVICES names them.
    pub device_tokens: Vec<String>,
    /// The folder from which relative paths count, where the user or a profile names one.
    pub chdir: Option<std::path::PathBuf>,
    /// c10d's id where no muster spreads the run id; None: the run id.
    pub rdzv_id: Option<String>,
    /// The CPUs of each local rank, None where a rank is left alone; empty: nothing is bound.
    pub bindings: Vec<Option<CpuList>>,
    /// LOCAL_RANK of a task, where it is not the task's place on its node.
    pub device_rank: Option<LocalRank>,
}

impl Plan {
    /// Ranks that are started from here, whoever starts them.
    pub fn ranks_here(&self) -> u32 {
        if self.membership.task.is_some() { 1 } else { self.nproc_per_node }
    }

    /// Programs that are started from here: the ranks, or the user's command once.
    pub fn programs_here(&self) -> u32 {
        if self.engine.runs_a_command() { 1 } else { self.ranks_here() }
    }
}

/// Who takes part and where they meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Contract id (`kubeflow-pytorchjob`, `flags`, `none`).
    pub platform: String,
    pub nnodes: u32,
    pub node_rank: u32,
    pub master_addr: String,
    pub master_port: u16,
    /// One node alone: another free port is taken at launch.
    pub master_port_free: bool,
    /// min:max of an elastic job; the engine is then given c10d and this range.
    pub elastic: Option<(u32, u32)>,
    /// Which rank this is, where the platform starts its command once per rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
}

/// One of the starts of a command that a platform starts once per rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub rank: GlobalRank,
    pub world: u32,
    pub local: LocalRank,
    /// Tasks of this node; other nodes may have other numbers.
    pub of: u32,
    /// Who says how many this node has.
    pub source: String,
}

impl Membership {
    /// How many launchers agree on one plan: one per node, or each task.
    pub fn members(&self) -> u32 {
        self.task.as_ref().map_or(self.nnodes, |task| task.world)
    }

    /// Which of them this one is.
    pub fn member(&self) -> u32 {
        self.task.as_ref().map_or(self.node_rank, |task| task.rank.0)
    }

    /// The member where the others meet: it has rank 0.
    pub fn is_master(&self) -> bool {
        self.member() == 0
    }

    /// Whether this launcher acts for its node: ends what is left over there, and speaks of
    /// what its tasks have in common.
    pub fn acts_for_node(&self) -> bool {
        self.task.as_ref().is_none_or(|task| task.local.0 == 0)
    }

    /// This launcher's name among folders.
    pub fn folder(&self) -> String {
        match &self.task {
            Some(task) => format!("node-{}-task-{}", self.node_rank, task.local),
            None => format!("node-{}", self.node_rank),
        }
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
    /// `mlx5_0:1`; what will be used, whether or not a variable is needed to say so.
    pub hcas: Vec<String>,
    /// This node's address on that interface, which a c10d rendezvous advertises.
    pub local_addr: Option<IpAddr>,
}

/// One value, why it is so, and who decided.
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

/// What a launch is called and where it meets; node 0 chooses all three.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// `<job>-<UTC time>-<4 hex>`
    pub run_id: String,
    /// UTC, `20250102-030405`.
    pub timestamp: String,
    pub master_port: u16,
}
