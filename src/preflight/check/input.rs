//! The input of the checks: settings, facts, the planner's survey, and the results of trials
//! ([`Tried`]), such as a connection to the master.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::prepare::WriteProblem;
use muster::LinkReport;
use node::observe::Facts;
use plan::{Plan, Survey};
use settings::Settings;
use text::lang::Text;
use verdict::Refusal;

/// Results of trials; None for a trial that does not apply.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Tried {
    /// Whether node 0 of several nodes can bind the master port.
    pub port: Option<Result<u16, Refusal>>,
    /// Whether a leftover of an earlier run holds that port, and a launch ends it.
    pub port_freed: Option<Text>,
    /// Whether leftovers hold memory of the chosen GPUs, and a launch ends them.
    #[serde(default)]
    pub gpus_freed: bool,
    /// The one connection to the master that the other nodes make.
    pub reach: Option<Result<SocketAddr, Reach>>,
    /// For `check`: the folder for logs, or the reason why no file could be written in it.
    pub write: Option<Result<PathBuf, WriteProblem>>,
    /// For `--torch`: the result of the ranks, or the reason of their failure.
    pub torch: Option<Result<Text, Text>>,
    /// The meeting with the other nodes; None for a capture, which covers one node.
    #[serde(skip)]
    pub nodes: Option<Nodes>,
}

/// Result of the meeting with the other nodes.
#[derive(Debug, Clone)]
pub enum Nodes {
    Found(Box<LinkReport>),
    /// A node takes no part, so only this node is examined.
    Alone(Text),
    /// A node did not come, or the nodes do not fit together.
    Refused(Box<Refusal>),
}

/// The reason why a connection to the master failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    pub peer: SocketAddr,
    pub cause: Text,
}

/// All inputs that a check may read.
#[derive(Debug, Clone, Copy)]
pub struct CheckInput<'a> {
    pub settings: &'a Settings,
    pub facts: &'a Facts,
    pub survey: &'a Survey,
    pub tried: &'a Tried,
}

impl<'a> CheckInput<'a> {
    /// The plan, if one could be made.
    pub(super) fn outline(&self) -> Option<&'a Plan> {
        self.survey.outline()
    }

    pub(super) fn nnodes(&self) -> u32 {
        self.outline().map_or(1, |plan| plan.membership.nnodes)
    }

    /// Number of processes on this node; without a plan, one per visible GPU.
    pub(super) fn nproc(&self) -> u32 {
        let visible = u32::try_from(self.facts.gpus.visible.len()).unwrap_or(u32::MAX);
        self.outline().map_or(visible.max(1), |plan| plan.nproc_per_node)
    }

    /// Number of processes of this node that compute on GPUs.
    pub(super) fn on_gpus(&self) -> u32 {
        match self.outline() {
            Some(plan) if !plan.gpus.iter().any(|gpu| gpu.selected) => 0,
            _ if self.facts.gpus.visible.is_empty() => 0,
            _ => self.nproc(),
        }
    }
}
