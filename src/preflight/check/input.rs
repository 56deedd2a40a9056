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
    /// On node 0 of several nodes: whether the master port can be bound.
    pub port: Option<Result<u16, Refusal>>,
    /// A leftover of an earlier run holds that port, and a launch ends it.
    pub port_freed: Option<Text>,
    /// Leftovers hold memory of the chosen GPUs, and a launch ends them.
    #[serde(default)]
    pub gpus_freed: bool,
    /// On the other nodes: one connection to the master.
    pub reach: Option<Result<SocketAddr, Reach>>,
    /// `check`: the folder for logs, or why no file could be written in it.
    pub write: Option<Result<PathBuf, WriteProblem>>,
    /// `--torch`: the result of the ranks, or why they failed.
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

/// Why a connection to the master failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    pub peer: SocketAddr,
    pub cause: Text,
}

/// Everything that a check may read.
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

    /// Processes on this node; without a plan, one per visible GPU.
    pub(super) fn nproc(&self) -> u32 {
        let visible = u32::try_from(self.facts.gpus.visible.len()).unwrap_or(u32::MAX);
        self.outline().map_or(visible.max(1), |plan| plan.nproc_per_node)
    }

    /// Processes of this node that compute on GPUs.
    pub(super) fn on_gpus(&self) -> u32 {
        match self.outline() {
            Some(plan) if !plan.gpus.iter().any(|gpu| gpu.selected) => 0,
            _ if self.facts.gpus.visible.is_empty() => 0,
            _ => self.nproc(),
        }
    }
}
