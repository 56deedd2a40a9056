//! Facts about the nodes of a job: the summary that a node sends about itself, the differences between the nodes, and
//! the report of a link measurement that all nodes get.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::cause::{Loss, MemberKind, sanitize, sanitize_refusal};
use super::electorate::{Last, Tally};
use crate::links::{ALL_PAIRS, Link, Outlier};
use plan::Hardware;
use settings::{Engine, LayoutRule};
use text::lang::{Text, between};
use text::order::InOrder;
use text::text;
use verdict::{Id, Refusal, Warning};

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
    /// Nodes that may come beside those with a seat.
    #[serde(default)]
    pub spares: u32,
    /// The seat that the node had in the last attempt.
    #[serde(default)]
    pub held: Option<u32>,
    /// The agreement that this launcher was part of last; only in a job with spares.
    #[serde(default)]
    pub last: Option<Box<Last>>,
    /// What stays the same of the node from one launch to the next: a name, or the id of its board.
    #[serde(default)]
    pub machine: Option<String>,
    /// The node failed in the last days: the id of the failure.
    #[serde(default)]
    pub remembered: Option<String>,
    /// The attempt that this node has reached, so that a new node 0 continues the count.
    #[serde(default)]
    pub attempt: u32,
    /// The program and its arguments, masked and cut, with a digest of the whole.
    #[serde(default)]
    pub command: Option<String>,
    /// The attempts that this node knows to count against the limits.
    #[serde(default)]
    pub tally: Tally,
    /// The whole checkpoints that this node sees, newest first, by the digest that they have on every node; None: it
    /// looks for none.
    #[serde(default)]
    pub checkpoints: Option<Vec<u64>>,
    /// The same with those of which only files of ranks are missing, newest first; empty if no checkpoint has files of
    /// ranks.
    #[serde(default)]
    pub shares: Vec<Share>,
}

/// The files of ranks that a node sees of one checkpoint. Ranges of ranks are (first, last), ascending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The digest of the checkpoint.
    pub of: u64,
    pub here: Vec<(u32, u32)>,
    /// Empty: it is whole.
    pub missing: Vec<(u32, u32)>,
}

impl Share {
    /// Maximum number of ranges in each list.
    const MOST: usize = 64;

    /// Whether a node can have sent it, and it is not too long to be sent.
    pub fn is_sound(&self) -> bool {
        let are_sound = |ranges: &Vec<(u32, u32)>| {
            let rises = |pair: &[(u32, u32)]| matches!(pair, [one, next] if one.1 < next.0);
            ranges.len() <= Share::MOST
                && ranges.iter().all(|(first, last)| first <= last)
                && ranges.windows(2).all(rises)
        };
        are_sound(&self.here) && are_sound(&self.missing)
    }
}

/// Maximum number of checkpoints that a summary names.
const MOST_CHECKPOINTS: usize = 64;

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
        if self.last.as_ref().is_some_and(|last| !last.electorate.is_sound()) {
            return Err("an agreement that cannot be");
        }
        self.warnings.truncate(MOST_WARNINGS);
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.truncate(MOST_CHECKPOINTS);
        }
        self.shares.truncate(MOST_CHECKPOINTS);
        self.shares.retain(Share::is_sound);
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

/// Maximum number of nodes that a difference lists.
pub(crate) const LISTED: usize = 8;

/// Properties in which nodes may differ without a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Property {
    Version,
    Command,
    Script,
    Torch,
    Driver,
    Gpus,
    Nccl,
    Rails,
    LinkLayer,
    Clock,
    Mtu,
    Rates,
}

impl Property {
    /// The name, and the id of the warning.
    fn named(self) -> (Text, Id) {
        match self {
            Property::Version => (text!("ranklaunch", "ranklaunch 版本"), Id::MusterVersion),
            Property::Command => {
                (text!("the command (its digest)", "命令（摘要）"), Id::MusterCommand)
            }
            Property::Script => {
                (text!("the script (its digest)", "脚本（摘要）"), Id::MusterScript)
            }
            Property::Torch => (text!("torch", "torch 版本"), Id::MusterTorch),
            Property::Driver => (text!("the GPU driver", "GPU 驱动"), Id::MusterDriver),
            Property::Gpus => (text!("the number of GPUs", "GPU 数量"), Id::MusterGpus),
            Property::Nccl => {
                (text!("the NCCL settings (their digest)", "NCCL 设置（摘要）"), Id::MusterNccl)
            }
            Property::Rails => (text!("the number of RDMA ports", "RDMA 端口数"), Id::MusterRails),
            Property::LinkLayer => {
                (text!("the RDMA link layer", "RDMA 链路层"), Id::MusterLinkLayer)
            }
            Property::Clock => (text!("the clock", "时钟"), Id::ClockSync),
            Property::Mtu => (text!("the interface's MTU", "接口 MTU"), Id::MusterMtu),
            Property::Rates => (
                text!("the speed of the RDMA ports (Gb/s)", "RDMA 端口速率（Gb/s）"),
                Id::MusterRates,
            ),
        }
    }
}

/// One property, the value of most nodes, and the nodes with another value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub property: Property,
    pub common: String,
    /// (node, its value) of the first eight nodes that differ.
    pub odd: Vec<(u32, String)>,
    /// Total number of nodes that differ.
    pub count: u32,
}

impl Difference {
    pub(crate) fn sanitize(&mut self) {
        sanitize(&mut self.common);
        self.odd.truncate(LISTED);
        self.odd.iter_mut().for_each(|(_, value)| sanitize(value));
    }

    /// The difference as a warning.
    pub fn warning(&self) -> Warning {
        let (Text { en, zh }, id) = self.property.named();
        let of_zh = between(&zh);
        let common = &self.common;
        let list = |word: &str, between: &str| {
            let one = |(node, value): &(u32, String)| format!("{word} {node}: {value}");
            self.odd.iter().map(one).collect::<Vec<_>>().join(between)
        };
        let (odd, odd_zh) = (list("node", ", "), list("节点", "，"));
        let more = usize::try_from(self.count).unwrap_or(usize::MAX).saturating_sub(self.odd.len());
        let (more, more_zh) = if more > 0 {
            (format!(" and {more} more"), format!(" 等另外 {more} 个"))
        } else {
            Default::default()
        };
        let hint = match self.property {
            Property::Clock => text!(
                "start a time service on that node; log lines of different nodes cannot be ordered",
                "请在该节点启用时间同步；否则无法比较不同节点日志的先后"
            ),
            Property::Command => text!(
                "give all nodes the same program and arguments, and write what differs between nodes as a placeholder ({{node_rank}}); --muster required makes this fail",
                "请为所有节点指定相同的程序和参数，节点间不同的部分用占位符（{{node_rank}}）表示；--muster required 会使其成为错误"
            ),
            _ => text!(
                "use one image and one set of variables on all nodes; --muster required makes this fail",
                "请在所有节点使用同一镜像和同一组变量；--muster required 会使其成为错误"
            ),
        };
        Warning::new(
            id,
            text!(
                "{en} is not the same on all nodes: {odd}{more}; the others: {common}",
                "各节点的{of_zh}不一致：{odd_zh}{more_zh}；其余节点：{common}"
            ),
            hint,
        )
    }
}

/// Maximum number of outliers and lost nodes that are sent; the report of node 0 has all of them.
const SENT: usize = 16;

/// The result of a check of all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    pub nnodes: u32,
    /// All nodes, up to 16. With more than 16, only nodes with a finding, except on node 0.
    pub nodes: Vec<NodeResult>,
    pub differences: Vec<Difference>,
    /// The links; with more than 16 nodes they are only on node 0.
    pub links: Vec<Link>,
    pub outliers: Vec<Outlier>,
    /// Total number of outliers; [`LinkReport::outliers`] may be cut.
    pub outlier_count: u32,
    /// Nodes that were lost while links were measured.
    pub lost: Vec<(u32, Loss)>,
    /// Directions that were not measured in time.
    pub unmeasured: u32,
}

/// One node of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeResult {
    pub node: u32,
    pub hostname: String,
    pub endpoint: MeasureEndpoint,
}

impl LinkReport {
    pub fn hostname(&self, node: u32) -> &str {
        let found = self.nodes.iter().find(|result| result.node == node);
        found.map_or("?", |result| result.hostname.as_str())
    }

    pub fn endpoint(&self, node: u32) -> Option<&MeasureEndpoint> {
        self.nodes.iter().find(|result| result.node == node).map(|result| &result.endpoint)
    }

    /// The report for the other nodes; if there are many nodes, it has only those with a finding.
    pub(crate) fn for_members(&self) -> LinkReport {
        let mut short = self.clone();
        short.outliers.truncate(SENT);
        short.lost.truncate(SENT);
        if self.nnodes > ALL_PAIRS {
            short.links = Vec::new();
            let named: BTreeSet<u32> = short
                .outliers
                .iter()
                .flat_map(|outlier| [outlier.worst.from, outlier.worst.to])
                .chain(short.lost.iter().map(|(node, _)| *node))
                .in_set();
            short.nodes.retain(|one| named.contains(&one.node) || one.endpoint.failed.is_some());
            short.nodes.truncate(4 * SENT);
        }
        short
    }

    /// The report without optional text.
    pub fn shortened(&self) -> LinkReport {
        let mut short = self.clone();
        short.links.clear();
        for result in &mut short.nodes {
            result.endpoint.failed = None;
        }
        short
    }

    pub(crate) fn sanitize(&mut self) {
        self.nodes.truncate(4 * SENT);
        for result in &mut self.nodes {
            sanitize(&mut result.hostname);
            result.endpoint.sanitize();
        }
        self.differences.iter_mut().for_each(Difference::sanitize);
        self.outliers.truncate(SENT);
        let worst = self.outliers.iter_mut().map(|outlier| &mut outlier.worst);
        self.links.iter_mut().chain(worst).for_each(Link::sanitize);
    }
}
