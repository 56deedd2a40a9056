//! What a node says about itself.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::sanitize::{sanitize, sanitize_refusal};
use crate::lang::Text;
use crate::settings::{Engine, LayoutRule};
use crate::text;
use crate::verdict::Refusal;

/// Plain values: no variables and no paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSummary {
    pub node: u32,
    pub nnodes: u32,
    pub hostname: String,
    /// ranklaunch's version.
    pub version: String,
    pub engine: Engine,
    pub rule: LayoutRule,
    pub heads: Option<u32>,
    /// Most processes that the node can carry.
    pub most: u32,
    /// A number of processes that was set on that node.
    pub exact: Option<u32>,
    pub gpus: u32,
    pub torch: Option<String>,
    pub driver: Option<String>,
    /// Digest of the script's bytes.
    pub script: Option<String>,
    /// Digest of the NCCL settings that must be alike everywhere.
    pub nccl: Option<String>,
    /// RDMA ports that will be used.
    pub rails: u32,
    /// `InfiniBand`, `Ethernet`
    pub link_layer: Option<String>,
    /// Milliseconds by which the node's clock is behind node 0's. Filled in by the handshake.
    pub clock_offset: i64,
    /// Bytes, of the interface that the ranks use.
    pub mtu: Option<u32>,
    /// Gb/s of the RDMA ports that will be used: `8 × 400`.
    pub rates: Option<String>,
    /// Where the others can measure to. Only of [`Purpose::Check`](super::messages::Purpose).
    pub endpoint: Option<Box<MeasureEndpoint>>,
    /// Of a task: its node.
    pub seat: Option<Seat>,
}

/// The node that a task is on, as the task counts nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    pub node: u32,
    pub nnodes: u32,
}

/// A node as the others see it when links are measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasureEndpoint {
    /// Its listener on the interface that the ranks use. Unspecified: wherever it was reached.
    pub address: Option<SocketAddr>,
    pub interface: Option<String>,
    /// What the interface claims, in Mb/s.
    pub megabits: Option<u32>,
    /// The first of its own checks that failed.
    pub failed: Option<Refusal>,
}

impl MeasureEndpoint {
    pub(crate) fn sanitize(&mut self) {
        self.interface.iter_mut().for_each(sanitize);
        if let Some(refusal) = &mut self.failed {
            sanitize_refusal(refusal);
        }
    }
}

impl NodeSummary {
    pub(crate) fn unit(&self) -> Unit {
        if self.seat.is_some() { Unit::Task } else { Unit::Node }
    }

    pub(crate) fn sanitize(&mut self) -> Result<(), &'static str> {
        // No honest node offers or asks for no process.
        if self.most == 0 || self.exact == Some(0) {
            return Err("a summary that cannot be");
        }
        sanitize(&mut self.hostname);
        sanitize(&mut self.version);
        let words = [&mut self.torch, &mut self.driver, &mut self.script, &mut self.nccl];
        let more = [&mut self.link_layer, &mut self.rates];
        words.into_iter().chain(more).flatten().for_each(sanitize);
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.sanitize();
        }
        Ok(())
    }
}

/// What the members of a muster are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Each counts as a node of the job.
    Node,
    /// Several are on one node: their platform starts a command once per rank.
    Task,
}

impl Unit {
    /// `node 3`
    pub(crate) fn named(self, number: u32) -> Text {
        match self {
            Unit::Node => text!("node {number}", "节点 {number}"),
            Unit::Task => text!("task {number}", "task {number}"),
        }
    }

    /// `nodes`
    pub(crate) fn plural(self) -> Text {
        match self {
            Unit::Node => text!("nodes", "节点"),
            Unit::Task => text!("tasks", " task "),
        }
    }
}
