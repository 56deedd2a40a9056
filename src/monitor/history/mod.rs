//! The history of a run, from its files.
//!
//! Takes the lines of agent.jsonl and the document run.json of each launcher; gives a
//! [`NodeHistory`] of each and a [`JobHistory`] of all: phases, attempts, ranks, findings, samples,
//! the use of the time, and the differences between two runs. Pure: reads no file and no clock. Any
//! line may be missing, cut or of another version, and then only its content is missing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::steps::Steps;
use text::lang::{Lang, Text};
use tracks::{Millis, Samples};

mod job;
mod journal;
mod record;
#[cfg(test)]
mod tests;
mod tracks;

pub use job::{Difference, JobHistory, Part, differences};
pub use journal::JournalReader;

/// A sentence in both languages, or only in the language of the run if its files have no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Words {
    Both(Text),
    One(String),
}

impl Default for Words {
    fn default() -> Words {
        Words::One(String::new())
    }
}

impl Words {
    pub fn get(&self, lang: Lang) -> &str {
        match self {
            Words::Both(text) => text.get(lang),
            Words::One(text) => text,
        }
    }
}

/// A run, as one launcher saw it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeHistory {
    pub run_id: String,
    pub node: u32,
    /// The local number of a task, if the platform starts a launcher per task.
    pub task: Option<u32>,
    /// Launchers of the job.
    pub members: u32,
    /// The file, module or command of the ranks, without arguments.
    pub program: String,
    /// The name of the profile in use.
    pub profile: String,
    pub host: String,
    pub lang: Lang,
    pub began: Millis,
    /// Time of the last line that was written.
    pub ended: Millis,
    /// No end was written: the run goes on, or ranklaunch itself was killed.
    pub cut_off: bool,
    pub exit_code: Option<i32>,
    /// `torch` → `2.9.0`
    pub versions: BTreeMap<String, String>,
    /// Variables of the container that affect the launch: `NCCL_*`, `TORCH_*`, `OMP_NUM_THREADS`.
    pub environment: BTreeMap<String, String>,
    pub phases: Vec<Step>,
    pub attempts: Vec<Attempt>,
    pub ranks: Vec<RankLife>,
    pub findings: Vec<Finding>,
    pub checks: Vec<CheckRow>,
    pub plan: PlanRecord,
    pub samples: Samples,
    /// The steps of each attempt in which the lines of rank 0 told any.
    pub steps: Vec<Steps>,
    /// Energy of the launcher's GPUs, if the driver reported energy or power.
    pub energy_joules: Option<f64>,
    /// The part of it that is power over time, since the driver has no energy counter.
    pub energy_estimated_joules: f64,
    /// Notes about anything that could not be read.
    pub notes: Vec<Text>,
}

/// A step of the launcher before the ranks run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    /// `muster`
    pub name: String,
    pub from: Millis,
    pub to: Millis,
}

/// One attempt of a run. The last one may be missing, if the launch was refused between two
/// attempts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attempt {
    pub number: u32,
    pub began: Millis,
    /// The end began: a rank failed, or the job was stopped.
    pub stopping: Option<Millis>,
    pub ended: Option<Millis>,
    pub exit_code: Option<i32>,
    pub verdict: Option<Verdict>,
    pub cause: Option<Cause>,
    /// The last lines of the failed rank, as the closing block shows them.
    pub last_lines: Vec<String>,
    pub excerpt: Option<Excerpt>,
}

/// The verdict on an attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    pub class: String,
    pub id: String,
    pub node: Option<u32>,
    pub rank: Option<u32>,
    pub text: Words,
    pub hint: Words,
}

/// The cause of the end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    pub id: String,
    pub node: Option<u32>,
    pub rank: Option<u32>,
    pub confidence: String,
    pub text: Words,
    pub remedy: Words,
    pub log: String,
    pub line: u64,
    pub evidence: String,
    pub frame: String,
    /// The fate of other ranks, and other failures.
    pub others: Vec<Words>,
}

/// Lines of a log around the one that shows the cause.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Excerpt {
    pub log: String,
    /// Number of the first line.
    pub first: u64,
    /// Number of the line that shows the cause.
    pub shown: u64,
    pub lines: Vec<String>,
}

/// The life of a rank in one attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankLife {
    pub attempt: u32,
    pub rank: u32,
    pub local: Option<u32>,
    pub pid: Option<u32>,
    pub began: Option<Millis>,
    pub ended: Option<Millis>,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Lines of the rank's output.
    pub lines: Option<u64>,
    pub bytes: Option<u64>,
    /// Bytes and lines that are in no file.
    pub dropped: u64,
}

/// Something that was noticed while the job ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// `hang`, `slow`, `rule`, `xid`, `kernel`, `links`, or what is abnormal: `cpu_pressure`.
    pub kind: String,
    pub at: Millis,
    pub until: Option<Millis>,
    pub rank: Option<u32>,
    /// Ranks that a standstill is due to.
    pub culprits: Vec<u32>,
    /// Whether the finding stops the job or explains a standstill.
    pub is_grave: bool,
    pub text: Words,
    pub hint: Words,
}

/// One line of the checks before the start, or a warning.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckRow {
    pub id: String,
    /// `fail`, `warn`, `info`, `ok`
    pub severity: String,
    pub text: Words,
    pub hint: Words,
}

/// The plan, with the reasons.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanRecord {
    pub engine: String,
    pub world_size: u32,
    /// GPUs that ranks of this node use.
    pub gpus: u32,
    pub decisions: Vec<DecisionRow>,
    pub warnings: Vec<CheckRow>,
    /// Set for the ranks.
    pub env: BTreeMap<String, String>,
    pub argv: Vec<String>,
}

/// A value of the plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DecisionRow {
    pub what: String,
    pub value: String,
    pub because: Words,
    pub source: String,
}

impl Finding {
    fn new(kind: &str, at: Millis, text: Words) -> Finding {
        Finding { kind: kind.to_owned(), at, text, ..Finding::default() }
    }
}

impl NodeHistory {
    /// The last attempt that ended, else the last one.
    pub(crate) fn last_attempt(&self) -> Option<&Attempt> {
        let ended = self.attempts.iter().rev().find(|attempt| attempt.verdict.is_some());
        ended.or(self.attempts.last())
    }

    /// The same attempt, for changes.
    pub fn last_attempt_mut(&mut self) -> Option<&mut Attempt> {
        let ended = self.attempts.iter().rposition(|attempt| attempt.verdict.is_some());
        let at = ended.or(self.attempts.len().checked_sub(1))?;
        self.attempts.get_mut(at)
    }
}
