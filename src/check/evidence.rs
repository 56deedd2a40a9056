//! What a check may look at: settings, facts, the planner's survey, and what was tried.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::lang::Text;
use crate::muster::LinkReport;
use crate::observe::Facts;
use crate::plan::{Plan, Survey};
use crate::prepare::WriteProblem;
use crate::settings::Settings;
use crate::verdict::Refusal;

/// What was tried, where it applies.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Tried {
    /// Node 0 of several: whether the master port can be bound.
    pub port: Option<Result<u16, Refusal>>,
    /// A leftover of an earlier run holds that port, and a launch ends it.
    pub port_freed: Option<Text>,
    /// So it is with the memory in use on the chosen GPUs.
    #[serde(default)]
    pub gpus_freed: bool,
    /// The others: one connection to the master.
    pub reach: Option<Result<SocketAddr, Reach>>,
    /// `check`: the folder for logs, or why no file could be written in it.
    pub write: Option<Result<PathBuf, WriteProblem>>,
    /// `--torch`: what the ranks said, or why they failed.
    pub torch: Option<Result<Text, Text>>,
    /// The other nodes, where they were to be met. Of a capture, which is of one node, none.
    #[serde(skip)]
    pub nodes: Option<Nodes>,
}

/// What came of meeting the other nodes.
#[derive(Debug, Clone)]
pub enum Nodes {
    Found(Box<LinkReport>),
    /// A node takes no part, so this one was looked at alone.
    Alone(Text),
    /// One did not come, or they do not fit together.
    Refused(Box<Refusal>),
}

/// Why one attempt to reach the master came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    pub peer: SocketAddr,
    pub cause: Text,
}

/// All that a check may look at.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub settings: &'a Settings,
    pub facts: &'a Facts,
    pub survey: &'a Survey,
    pub tried: &'a Tried,
}

impl<'a> Evidence<'a> {
    /// The plan as far as there is one.
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

    /// Processes that compute on GPUs.
    pub(super) fn on_gpus(&self) -> u32 {
        match self.outline() {
            Some(plan) if !plan.gpus.iter().any(|gpu| gpu.selected) => 0,
            _ if self.facts.gpus.visible.is_empty() => 0,
            _ => self.nproc(),
        }
    }
}
