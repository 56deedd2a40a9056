//! Messages between the command and the agent: one JSON line each.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use diagnose::stacks::RankStacks;
use linux::deadline::millis;
use text::lang::Text;
use text::rank::GlobalRank;
use text::run_id::RunId;

/// Command → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// The job of the agent.
    Job,
    /// The stacks of these ranks, on all nodes.
    Stacks(Selection),
    /// The evidence of all nodes, for a bug report.
    Dump,
    /// A question from a viewer of the job: its state, its plan, its output. This module does not
    /// interpret it.
    View { of: Value },
}

/// Ranks of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Selects only the ranks of this node.
    #[serde(default)]
    pub node: Option<u32>,
    /// Selects only these ranks, if the list is not empty.
    #[serde(default)]
    pub ranks: Vec<GlobalRank>,
}

/// Agent → command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Job(Job),
    Stacks(JobStacks),
    Dump(JobDump),
    View { what: Value },
    Refused(Refused),
}

/// A job on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub run_id: RunId,
    pub attempt: u32,
    /// Rank of this node.
    pub node: u32,
    pub nodes: u32,
    /// Ranks of the job on this node that run now.
    #[serde(default)]
    pub ranks: Vec<GlobalRank>,
}

/// Answers of the nodes of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStacks {
    pub nodes: Vec<NodeStacks>,
    pub unanswered: Vec<Unanswered>,
    /// Whether the agent reaches the other nodes: with `--muster off` each node is on its own.
    pub reaches_all: bool,
    pub took_ms: u64,
}

/// A node, or a task of a node, that gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// `node 3`
    pub who: Text,
    pub why: Text,
}

/// The evidence of the nodes of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDump {
    pub nodes: Vec<NodeDump>,
    pub unanswered: Vec<Unanswered>,
}

/// The evidence of one node, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDump {
    pub node: u32,
    pub files: Vec<DumpFile>,
    pub missing: Vec<Missing>,
}

impl NodeDump {
    /// Adds a file that was read now.
    pub fn add(&mut self, name: String, text: String) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let read_ms = millis(since.unwrap_or_default());
        self.files.push(DumpFile { name, text, read_ms });
    }

    /// Adds an item that is missing, with the reason.
    pub fn miss(&mut self, what: Text, why: Text) {
        self.missing.push(Missing { what, why });
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpFile {
    pub name: String,
    pub text: String,
    /// Time at which the file was read, in milliseconds since 1970.
    pub read_ms: u64,
}

/// An item that belongs to a dump and is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub what: Text,
    pub why: Text,
}

/// Stacks that one agent read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStacks {
    /// The job with all its ranks.
    pub job: Job,
    /// Ranks that were requested.
    pub ranks: Vec<RankStacks>,
    /// Duration of the reading.
    pub took_ms: u64,
}

/// The reason why the agent gives no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Refused {
    /// The agent answers only the job's own user and root.
    User { uid: u32, owner: u32 },
    /// The peer is in another PID namespace: with the host's network every container of the node
    /// can connect.
    Container,
    /// The question was not understood: it comes from another version of this program.
    Question,
    /// No ranks run: the job waits for other nodes, or is between two attempts.
    NotRunning,
}
