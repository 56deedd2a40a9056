//! Questions of a command and answers of the agent: one JSON line each.

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
    /// Which job this is.
    Job,
    /// The stacks of these ranks, on all nodes.
    Stacks(Selection),
    /// The evidence of all nodes, for a bug report.
    Dump,
    /// A question of a viewer about the job: its state, its plan, its output. The executable gives it its meaning.
    View { of: Value },
}

/// Ranks of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Only of this node.
    #[serde(default)]
    pub node: Option<u32>,
    /// Only these, if there are any.
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
    /// Its ranks on this node that run now.
    #[serde(default)]
    pub ranks: Vec<GlobalRank>,
}

/// Answers of the nodes of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStacks {
    pub nodes: Vec<NodeStacks>,
    pub unanswered: Vec<Unanswered>,
    /// Whether the agent reaches the others: with `--muster off` each node is by itself.
    pub reaches_all: bool,
    pub took_ms: u64,
}

/// A node, or a task of one, that gave no answer.
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

/// That of one node, without secrets.
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

    /// Adds what there is not, and why.
    pub fn miss(&mut self, what: Text, why: Text) {
        self.missing.push(Missing { what, why });
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpFile {
    pub name: String,
    pub text: String,
    /// When it was read, in milliseconds since 1970.
    pub read_ms: u64,
}

/// A part of a dump that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub what: Text,
    pub why: Text,
}

/// The reading of one agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStacks {
    /// With all its ranks.
    pub job: Job,
    /// Those that were asked for.
    pub ranks: Vec<RankStacks>,
    /// How long the reading took.
    pub took_ms: u64,
}

/// Why the agent gives nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Refused {
    /// Only the job's own user and root are answered.
    User { uid: u32, owner: u32 },
    /// The peer is in another PID namespace: with the host's network every container of the node
    /// can connect.
    Container,
    /// Not understood: another version of this program.
    Question,
    /// No ranks run: it waits for other nodes, or is between two attempts.
    NotRunning,
}
