//! The frames, one type per direction.

use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::agreement::{Again, Agreement};
use super::cause::{Cause, Memory};
use super::difference::Difference;
use super::job_key::JobKey;
use super::question::QuestionFrame;
use super::report::LinkReport;
use super::sanitize::{sanitize, sanitize_refusal, sanitize_text};
use super::summary::NodeSummary;
use crate::links::Link;
use text::lang::Text;
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
    Summary(NodeSummary),
    Accept,
    Decline(Refusal),
    Failed(Cause),
    /// All ranks of the node succeeded.
    Done,
    Pong,
    /// The result of [`FromNode0::MeasureTo`].
    Measured(Link),
    Heartbeat {
        memory: Option<Memory>,
    },
    Question(QuestionFrame),
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
    },
    Go,
    Ping,
    /// A node failed: the ranks must stop, and the verdict follows.
    Stop,
    Verdict {
        cause: Cause,
        again: Option<Again>,
    },
    AllDone,
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
            | FromMember::Done
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
            FromNode0::Agreed { agreement, differences, resume, .. } => {
                if !agreement.is_sound() {
                    return Err("an agreement that cannot be");
                }
                resume.iter_mut().for_each(|point| sanitize(&mut point.hostname));
                differences.iter_mut().for_each(Difference::sanitize);
            }
            FromNode0::Welcome { .. }
            | FromNode0::Go
            | FromNode0::Ping
            | FromNode0::Stop
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
            FromNode0::Agreed { agreement, resume, .. } => {
                let (agreement, resume) = (agreement.clone(), resume.clone());
                let (differences, said) = (Vec::new(), Vec::new());
                Some(FromNode0::Agreed { agreement, differences, said, resume })
            }
            FromNode0::Report(report) => Some(FromNode0::Report(Box::new(report.shortened()))),
            _ => None,
        }
    }
}
