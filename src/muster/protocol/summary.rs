//! The summary that a node sends about itself.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::sanitize::{sanitize, sanitize_refusal};
use plan::Hardware;
use settings::{Engine, LayoutRule};
use text::lang::Text;
use text::text;
use verdict::Refusal;

/// The summary of one node, with plain values only: no variables and no paths.
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
    /// Maximum number of processes that the node can run.
    pub most: u32,
    /// The number of processes that was set on that node.
    pub exact: Option<u32>,
    pub gpus: u32,
    /// The device that its ranks would run on; None from a version that does not report it.
    #[serde(default)]
    pub device: Option<Hardware>,
    pub torch: Option<String>,
    pub driver: Option<String>,
    /// Digest of the script's bytes.
    pub script: Option<String>,
    /// Digest of the NCCL settings that must be the same on all nodes.
    pub nccl: Option<String>,
    /// RDMA ports that will be used.
    pub rails: u32,
    /// `InfiniBand`, `Ethernet`
    pub link_layer: Option<String>,
    /// Milliseconds by which the node's clock is behind node 0's clock; measured in the handshake.
    pub clock_offset: i64,
    /// Bytes of the MTU of the interface that the ranks use.
    pub mtu: Option<u32>,
    /// Gb/s of the RDMA ports that will be used: `8 × 400`.
    pub rates: Option<String>,
    /// The listener for measurements. Only for [`Purpose::Check`](super::messages::Purpose).
    pub endpoint: Option<Box<MeasureEndpoint>>,
    /// For a task: its node.
    pub seat: Option<Seat>,
    /// The warnings of the node's own plan, each as [`Warning::key`](verdict::Warning::key).
    #[serde(default)]
    pub warnings: Vec<u64>,
    /// A port on which no data is exchanged: while it is open, this node's agent lives.
    #[serde(default)]
    pub alive: Option<u16>,
    /// The attempt that this node has reached, so that a new node 0 continues the count.
    #[serde(default)]
    pub attempt: u32,
    /// The program and its arguments, masked and cut, with a digest of the whole.
    #[serde(default)]
    pub command: Option<String>,
}

/// Maximum number of warnings that a summary names.
const MOST_WARNINGS: usize = 64;

/// The node of a task. Its number comes from the task's own count of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    pub node: u32,
    pub nnodes: u32,
}

/// A node as target of measurements.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasureEndpoint {
    /// The node's listener on the interface that the ranks use. Unspecified: the address at which the node was reached.
    pub address: Option<SocketAddr>,
    pub interface: Option<String>,
    /// Nominal rate of the interface in Mb/s.
    pub megabits: Option<u32>,
    /// The first of the node's own checks that failed.
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
    pub fn unit(&self) -> MemberKind {
        if self.seat.is_some() { MemberKind::Task } else { MemberKind::Node }
    }

    pub(crate) fn sanitize(&mut self) -> Result<(), &'static str> {
        // A correct node never offers or requests zero processes.
        if self.most == 0 || self.exact == Some(0) {
            return Err("a summary that cannot be");
        }
        self.warnings.truncate(MOST_WARNINGS);
        sanitize(&mut self.hostname);
        sanitize(&mut self.version);
        let words = [&mut self.torch, &mut self.driver, &mut self.script, &mut self.nccl];
        let more = [&mut self.link_layer, &mut self.rates, &mut self.command];
        words.into_iter().chain(more).flatten().for_each(sanitize);
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.sanitize();
        }
        Ok(())
    }
}

/// The kind of a member of the muster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberKind {
    /// Each member counts as a node of the job.
    Node,
    /// Several members are on one node, since the platform starts the command once per rank.
    Task,
}

impl MemberKind {
    /// `node 3`
    pub fn named(self, number: u32) -> Text {
        match self {
            MemberKind::Node => text!("node {number}", "节点 {number}"),
            MemberKind::Task => text!("task {number}", "task {number}"),
        }
    }

    /// `nodes`
    pub fn plural(self) -> Text {
        match self {
            MemberKind::Node => text!("nodes", "节点"),
            MemberKind::Task => text!("tasks", " task "),
        }
    }
}
