//! The frames, one type per direction, with the key by which nodes recognise their job and the decisions of node 0 for
//! all nodes: the plan of the job, and whether all start again.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cause::{Cause, Memory, sanitize, sanitize_refusal, sanitize_text};
use super::electorate::{Electorate, Leads, Tally};
use super::summary::{Difference, LinkReport, NodeSummary};
use crate::links::Link;
use crate::questions::frames::QuestionFrame;
use text::lang::Text;
use text::order::InOrder;
use text::run_id::RunId;
use text::text;
use verdict::Refusal;

/// The frames of one direction.
pub trait Message: Serialize + DeserializeOwned {
    /// The frames that the other side sends.
    type Answer: Message;

    /// Makes received text safe for a terminal and for paths.
    ///
    /// # Errors
    /// If the content cannot come from a correct node.
    fn sanitize(&mut self) -> Result<(), &'static str>;

    /// The frame without optional text, for a frame that is too long. None: it has no optional text.
    fn shortened(&self) -> Option<Self>;
}

/// From any other node to node 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromMember {
    Hello(Hello),
    Summary(Box<NodeSummary>),
    Accept,
    Decline(Refusal),
    Failed(Cause),
    /// All ranks of the node succeeded.
    Done,
    /// The node leaves. Without it a connection that ends means that its agent died.
    Bye {
        /// The node takes part in the next attempt.
        returns: bool,
    },
    Pong,
    /// The result of [`FromNode0::MeasureTo`].
    Measured(Link),
    Heartbeat {
        memory: Option<Memory>,
    },
    Question(QuestionFrame),
    /// To the listener of a succession: a vote on what follows the agreement with this token.
    Vote {
        token: String,
        vote: String,
    },
    /// To the listener of a succession.
    WhoLeads,
    /// To a launcher that knows nothing of the job or less: the sender leads, and gathers on this port.
    Leads {
        port: u16,
        attempt: u32,
        /// Where the platform of the sender says that the job is found.
        master: String,
    },
}

/// From node 0 to any other node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromNode0 {
    Welcome {
        /// Node 0's steady clock in milliseconds.
        at: i64,
        /// Node 0's wall clock in milliseconds since 1970.
        wall: i64,
    },
    Refuse(Refusal),
    /// The muster is cancelled; every node continues by itself.
    Alone(Text),
    Agreed {
        agreement: Agreement,
        differences: Vec<Difference>,
        /// Keys of the warnings of node 0's plan, as in its summary. Node 0 prints them for all nodes.
        #[serde(default)]
        said: Vec<u64>,
        /// None: a connection that is cut cannot be resumed.
        #[serde(default)]
        resume: Option<ResumePoint>,
        /// Only in a job with spares.
        #[serde(default)]
        electorate: Option<Box<Electorate>>,
    },
    Go,
    /// All seats are taken: the node waits until one is free, or the job has ended.
    Park {
        #[serde(default)]
        electorate: Option<Box<Electorate>>,
        /// The node was there when that was agreed, so it has a vote if it is named.
        #[serde(default)]
        votes: bool,
    },
    /// The agreement after which the sender gathers, which the receiver has missed.
    Missed(Box<Electorate>),
    /// The answer to [`FromMember::WhoLeads`].
    Leads(Leads),
    Ping,
    /// A node failed: the ranks must stop, and the verdict follows.
    Stop,
    /// Whether a node may still run ranks of which nobody knows: what follows the attempt waits for their end.
    Unsure(bool),
    Verdict {
        cause: Cause,
        again: Option<Again>,
    },
    AllDone,
    /// What the nodes see of the checkpoints differs: each reads the folder again, and then joins again.
    Look,
    /// All nodes have arrived; nodes that have this token measure the links.
    Measure {
        token: String,
    },
    /// The receiver must measure the link to this node now.
    MeasureTo {
        to: u32,
        address: SocketAddr,
    },
    Report(Box<LinkReport>),
    Heartbeat {
        memory: Option<Memory>,
    },
    Question(QuestionFrame),
}

/// Purpose of a connection. A node joins only a node 0 with the same purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A node launches a job.
    Run,
    /// A node checks all nodes and the links between them.
    Check,
    /// A node measures one link to another node.
    Measure,
    /// A launcher of a job with spares votes, asks who leads, or says so.
    Succession,
}

/// The first frame of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub node: u32,
    pub key: JobKey,
    pub hostname: String,
    pub purpose: Purpose,
    /// The token of [`ResumePoint`], from a node that already takes part.
    #[serde(default)]
    pub resume: Option<String>,
    /// The seat that the node had in the last attempt.
    #[serde(default)]
    pub held: Option<u32>,
}

/// The port at which node 0 accepts nodes again whose connection was cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumePoint {
    pub port: u16,
    /// The token, known only to the nodes of this attempt.
    pub token: String,
    /// Node 0's host name.
    pub hostname: String,
}

impl Message for FromMember {
    type Answer = FromNode0;

    fn sanitize(&mut self) -> Result<(), &'static str> {
        match self {
            FromMember::Hello(hello) => {
                sanitize(&mut hello.hostname);
                hello.key.job.iter_mut().for_each(sanitize);
            }
            FromMember::Summary(summary) => return summary.sanitize(),
            FromMember::Decline(refusal) => sanitize_refusal(refusal),
            FromMember::Failed(cause) => cause.sanitize(),
            FromMember::Measured(link) => link.sanitize(),
            FromMember::Question(frame) => return frame.check(),
            FromMember::Accept
            | FromMember::Vote { .. }
            | FromMember::WhoLeads
            | FromMember::Leads { .. }
            | FromMember::Done
            | FromMember::Bye { .. }
            | FromMember::Pong
            | FromMember::Heartbeat { .. } => {}
        }
        Ok(())
    }

    fn shortened(&self) -> Option<FromMember> {
        match self {
            FromMember::Failed(cause) => Some(FromMember::Failed(cause.without_lines())),
            _ => None,
        }
    }
}

impl Message for FromNode0 {
    type Answer = FromMember;

    fn sanitize(&mut self) -> Result<(), &'static str> {
        match self {
            FromNode0::Refuse(refusal) => sanitize_refusal(refusal),
            FromNode0::Alone(text) => sanitize_text(text),
            FromNode0::Verdict { cause, .. } => cause.sanitize(),
            FromNode0::Report(report) => report.sanitize(),
            FromNode0::Question(frame) => return frame.check(),
            FromNode0::Agreed { agreement, differences, resume, electorate, .. } => {
                let is_sound = electorate.as_ref().is_none_or(|one| one.is_sound());
                if !agreement.is_sound() || !is_sound {
                    return Err("an agreement that cannot be");
                }
                resume.iter_mut().for_each(|point| sanitize(&mut point.hostname));
                differences.iter_mut().for_each(Difference::sanitize);
            }
            FromNode0::Park { electorate: Some(electorate), .. }
            | FromNode0::Missed(electorate) => {
                if !electorate.is_sound() {
                    return Err("an agreement that cannot be");
                }
            }
            FromNode0::Welcome { .. }
            | FromNode0::Go
            | FromNode0::Park { electorate: None, .. }
            | FromNode0::Leads(_)
            | FromNode0::Ping
            | FromNode0::Stop
            | FromNode0::Unsure(_)
            | FromNode0::Look
            | FromNode0::AllDone
            | FromNode0::Measure { .. }
            | FromNode0::MeasureTo { .. }
            | FromNode0::Heartbeat { .. } => {}
        }
        Ok(())
    }

    fn shortened(&self) -> Option<FromNode0> {
        match self {
            FromNode0::Verdict { cause, again } => {
                Some(FromNode0::Verdict { cause: cause.without_lines(), again: *again })
            }
            FromNode0::Agreed { agreement, resume, electorate, .. } => {
                let (agreement, resume) = (agreement.clone(), resume.clone());
                let (differences, said, electorate) = (Vec::new(), Vec::new(), electorate.clone());
                Some(FromNode0::Agreed { agreement, differences, said, resume, electorate })
            }
            FromNode0::Report(report) => Some(FromNode0::Report(Box::new(report.shortened()))),
            _ => None,
        }
    }
}

/// The agreed plan. Every node renders its own command line from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    pub nnodes: u32,
    pub nproc: u32,
    /// nnodes × nproc; also the key of the profile's `[[select]]` rows.
    pub world: u32,
    pub ulysses: u32,
    pub ring: u32,
    pub heads: Option<u32>,
    pub master_port: u16,
    /// `<job>-<UTC time>-<4 hex>`
    pub run_id: String,
    /// `20250102-030405`
    pub timestamp: String,
    /// Number of the attempt from 0, the same on all nodes.
    pub attempt: u32,
    /// The newest checkpoint that all nodes see, by its digest.
    #[serde(default)]
    pub resume: Option<u64>,
    /// The node of each seat; empty: each node has the seat of its number.
    #[serde(default)]
    pub seats: Vec<u32>,
}

impl Agreement {
    /// Run id and timestamp become folder names and arguments.
    pub fn is_sound(&self) -> bool {
        RunId::is_sound(&self.run_id)
            && RunId::is_sound(&self.timestamp)
            && self.nproc > 0
            && self.nnodes.checked_mul(self.nproc) == Some(self.world)
            && self.seats_are_sound()
    }

    fn seats_are_sound(&self) -> bool {
        let nodes: BTreeSet<u32> = self.seats.iter().copied().in_set();
        let is_of_all = |count: usize| u32::try_from(count) == Ok(self.nnodes);
        self.seats.is_empty() || (is_of_all(self.seats.len()) && is_of_all(nodes.len()))
    }

    /// The seat of a node; None: it has none.
    pub fn seat_of(&self, node: u32) -> Option<u32> {
        if self.seats.is_empty() {
            return (node < self.nnodes).then_some(node);
        }
        self.seats.iter().position(|one| *one == node).and_then(|seat| u32::try_from(seat).ok())
    }

    /// The nodes with a seat, in ascending order.
    pub fn nodes(&self) -> Arc<[u32]> {
        let mut nodes = self.seats.clone();
        if nodes.is_empty() {
            nodes = (0..self.nnodes).collect();
        }
        nodes.sort_unstable();
        nodes.into()
    }
}

/// The order to start all nodes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Again {
    /// The number of the coming attempt.
    pub attempt: u32,
    /// Milliseconds until its start.
    pub pause: u64,
    /// The restarts that count against the limits, with this one.
    #[serde(default)]
    pub tally: Tally,
}

/// Node 0's restart policy: takes the first failure of an attempt, the duration of the attempt, and whether a node waits
/// for a seat. It may give the job another verdict.
pub type Decide = Box<dyn FnMut(&mut Cause, Duration, bool) -> Option<Again> + Send>;

/// The key of a job. It is never a secret, since greetings and the store of a running job contain it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobKey {
    pub job: Option<String>,
    /// The port on which node 0 gathers.
    pub port: u16,
    pub nnodes: u32,
}

impl JobKey {
    /// Whether `other` is the key of another job. If both have ids, the ports are ignored: one job may be reached
    /// through two ports.
    pub(crate) fn is_of_other_job(&self, other: &JobKey) -> bool {
        match (&self.job, &other.job) {
            (Some(ours), Some(theirs)) => ours != theirs,
            _ => (self.port, self.nnodes) != (other.port, other.nnodes),
        }
    }

    /// `job 4711`, `the job of 2 nodes on port 29500`.
    pub fn text(&self) -> Text {
        let JobKey { job, port, nnodes } = self;
        match job {
            Some(job) => text!("job {job}", "任务 {job}"),
            None => text!(
                "the job of {nnodes} nodes on port {port}",
                "端口 {port} 上 {nnodes} 个节点的任务"
            ),
        }
    }

    /// The key as bytes for a store.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub fn decode(bytes: &[u8]) -> Option<JobKey> {
        let mut key: JobKey = serde_json::from_slice(bytes).ok()?;
        key.job.iter_mut().for_each(sanitize);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_key_compares_ids_or_port_and_count() {
        let key =
            |job: Option<&str>, port, nnodes| JobKey { job: job.map(str::to_owned), port, nnodes };
        let table = [
            (key(Some("a"), 1, 2), key(Some("a"), 9, 3), false),
            (key(Some("a"), 1, 2), key(Some("b"), 1, 2), true),
            (key(None, 1, 2), key(None, 1, 2), false),
            (key(None, 1, 2), key(None, 2, 2), true),
            (key(None, 1, 2), key(None, 1, 3), true),
            (key(Some("a"), 1, 2), key(None, 1, 2), false),
            (key(None, 1, 2), key(Some("a"), 1, 3), true),
        ];
        for (one, two, other) in table {
            assert_eq!(one.is_of_other_job(&two), other, "{one:?} {two:?}");
            assert_eq!(two.is_of_other_job(&one), other, "{two:?} {one:?}");
            assert_eq!(JobKey::decode(&one.encode()), Some(one));
        }
        assert_eq!(JobKey::decode(b"{}"), None);
    }
}
