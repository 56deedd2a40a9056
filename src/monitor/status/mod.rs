//! The current knowledge of a node about its job, for anyone who looks at it while it runs.
//!
//! Owns [`NodeStatus`] and the [`StatusBoard`] that collects it. Takes phases, notices, samples and the reports of
//! the watches, as they come; gives a [`NodeStatus`] to whoever asks: the metrics, `ranklaunch top`, the status
//! line, other nodes. Does no I/O, and blocks nobody: each entry is a short lock.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::{IntoStaticStr, VariantArray};

use crate::watch::Reason;
pub use crate::watch::{
    GpuSample as GpuStatus, HcaSample as HcaStatus, InterfaceSample as InterfaceStatus,
    MemorySample as MemoryStatus,
};
use text::lang::Text;
use text::letters::plain;
use text::rank::{GlobalRank, LocalRank};

mod board;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod phase;
#[cfg(test)]
mod tests;

pub use board::{OwnerLog, StatusBoard};
pub use phase::{Ledger, Phase};

/// Maximum bytes of any other text of another node.
const LONGEST_TEXT: usize = 1024;

/// The current knowledge of a node about its job. Times of day are milliseconds since 1970 by the node's clock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// The version of ranklaunch.
    pub version: String,
    /// Time at which the status was taken.
    pub at_ms: u64,
    pub host: String,
    pub agent_pid: u32,
    /// Start of the agent.
    pub started_ms: u64,
    pub phase: Phase,
    pub phase_since_ms: u64,
    /// None before there is a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunStatus>,
    /// The ranks of this node in their order, planned ones included.
    pub ranks: Vec<RankStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuStatus>,
    /// Interfaces that had traffic.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hcas: Vec<HcaStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    /// Bytes free where the logs are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_folder_free: Option<u64>,
    /// Time of the last sample, which gives CPU, memory, GPUs and traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled_ms: Option<u64>,
    /// Number of findings by id: warnings of the plan, broken rules, hangs, slow ranks, and the cause of the
    /// end.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub findings: BTreeMap<String, u64>,
    /// The abnormal findings about the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub abnormal: Vec<Reason>,
    /// The present standstill: its start, and the rank that the others wait for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standstill: Option<StandstillStatus>,
    /// The notice that this node or the job is to end soon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice: Option<NoticeStatus>,
    /// Ranks that hold the others back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowStatus>,
    pub logs: LogStatus,
    /// How far the job is; None where no line of rank 0 tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressStatus>,
    pub ledger: Ledger,
    /// The verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<EndStatus>,
}

/// The current run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunStatus {
    /// None before the nodes agreed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Counted from 0; each attempt after the first is a restart of the job.
    pub attempt: u32,
    pub node: u32,
    pub nodes: u32,
    /// The number of this launcher where a platform starts one for each rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    pub world_size: u32,
    pub engine: String,
    /// The program of the ranks, as the user named it.
    pub program: String,
    /// The profile in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_folder: Option<String>,
}

#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RankState {
    /// The rank is not started yet.
    #[default]
    Planned,
    Running,
    /// Ended with code 0.
    Done,
    /// Ended with another code or by a signal.
    Failed,
}

impl RankState {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// One rank, or the user's command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankStatus {
    pub rank: GlobalRank,
    pub local_rank: LocalRank,
    pub state: RankState,
    /// While it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// The end of the rank. Both None if its shim was lost without a report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Number of restarts by the engine in this attempt.
    #[serde(skip_serializing_if = "is_zero")]
    pub restarts: u32,
    /// Percent of one CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// Resident bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// NVML's index of its GPU, if the plan gave it one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    pub log_bytes: u64,
    pub log_lines: u64,
    /// Output in bytes per second.
    pub log_rate: f64,
    /// Bytes that never reached a file, and lines that the console did not take in time.
    #[serde(skip_serializing_if = "is_zero")]
    pub log_dropped_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub log_dropped_lines: u64,
    /// The last line without secrets and control characters, truncated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_line: Option<String>,
    /// Milliseconds since the rank last wrote something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_line_age_ms: Option<u64>,
}

/// How far the job is, as the lines of its rank 0 tell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgressStatus {
    /// The share of the job that is done, from 0 to 1; None if the counter starts over for each epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<f64>,
    /// The last step, and the number that steps count up to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
    /// Milliseconds since the last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// Milliseconds of each of the last steps, the newest at the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub step_ms: Vec<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StandstillStatus {
    pub since_ms: u64,
    /// The first culprit, if one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<Text>,
}

/// Word that a node or the whole job is to end soon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeStatus {
    /// `slurm`, `gcp`, `file:PATH` and so on.
    pub source: String,
    pub reason: Text,
    /// The node that heard it.
    pub node: u32,
    pub heard_ms: u64,
    /// None: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowStatus {
    pub rank: GlobalRank,
    pub node: u32,
    pub since_ms: u64,
    /// The share of the time that the others lost by it.
    pub lost: f64,
}

/// The output of all ranks and the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogStatus {
    pub bytes: u64,
    pub lines: u64,
    /// Output in bytes per second.
    pub rate: f64,
    #[serde(skip_serializing_if = "is_zero")]
    pub dropped_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub dropped_lines: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndStatus {
    /// The exit code.
    pub code: i32,
    /// The id of the verdict (`rank.exit`).
    pub id: String,
    /// The id of the root cause, if the output shows it (`cuda_oom`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The node that caused it, if the nodes share a verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    pub text: Text,
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl NodeStatus {
    /// Reads the status of another node: no text of it has control characters or is too long. None if the bytes
    /// are not a status. Fields of a later version are left out before anything of them is kept.
    pub fn read(bytes: &[u8]) -> Option<NodeStatus> {
        let status: NodeStatus = serde_json::from_slice(bytes).ok()?;
        let mut document = serde_json::to_value(status).ok()?;
        clean(&mut document);
        serde_json::from_value(document).ok()
    }

    /// Ranks in this state.
    pub fn count(&self, state: RankState) -> usize {
        self.ranks.iter().filter(|rank| rank.state == state).count()
    }
}

/// Cleans all texts of a document, the names of its fields included.
fn clean(document: &mut Value) {
    let cleaned = |text: &str| plain(text, LONGEST_TEXT);
    match document {
        Value::String(text) => *text = cleaned(text),
        Value::Array(items) => items.iter_mut().for_each(clean),
        Value::Object(fields) => {
            let known = std::mem::take(fields).into_iter();
            *fields = known
                .map(|(name, mut value)| {
                    clean(&mut value);
                    (cleaned(&name), value)
                })
                .collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Maximum number of nodes that node 0 hears per second while somebody looks there. 1000 per second cost 1.5 % of a
/// core above the heartbeats, 2 % with encryption (`make bench SUITE=muster`); at most 1 % may be spent on it.
const HEARD: usize = 400;
/// The same if somebody looks on another node, to which node 0 passes each answer on.
const PASSED_ON: usize = 200;

/// The time between two looks of a viewer at this many nodes.
pub fn look_pace(nodes: usize, at_node_0: bool) -> Duration {
    let in_a_second = if at_node_0 { HEARD } else { PASSED_ON };
    Duration::from_secs(nodes.div_ceil(in_a_second).max(1) as u64)
}
