//! Signs of something abnormal beside records and stacks, one sentence each: signs that NCCL reports, and
//! signs on the culprits' nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::evidence::NodeEvidence;
use crate::watch::{Behind, RasVerdict, ReasonKind};
use text::lang::Text;
use text::ranges::listed;
use text::rank::GlobalRank;
use text::text;

/// A sentence, with the node and the ranks that it is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Sign {
    pub kind: SignKind,
    /// None if all nodes report the same.
    pub node: Option<u32>,
    /// Empty if the sign concerns all ranks of the node.
    pub ranks: Vec<u32>,
    pub text: Text,
}

/// The names are a contract: run.json and agent.jsonl contain them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SignKind {
    RasDead,
    RasUnresponsive,
    RasFailed,
    RasBehind,
    GpuUse,
    /// A sign on the node.
    #[serde(untagged)]
    Node(ReasonKind),
}

/// The signs of NCCL first, then those of the culprits' nodes. `culprits`: nodes and ranks. `is_link`: the
/// link that carries the messages of all nodes is suspected.
pub(super) fn signs(
    nodes: &[NodeEvidence],
    nccl: &RasVerdict,
    culprits: &[(Option<u32>, Option<u32>)],
    is_link: bool,
) -> Vec<Sign> {
    let mut found = of_nccl(nccl);
    for node in nodes {
        let of_node = culprits.iter().filter(|(of, _)| *of == Some(node.node));
        let own: Vec<GlobalRank> = of_node.filter_map(|(_, rank)| rank.map(GlobalRank)).collect();
        let concerns = |kind: ReasonKind, ranks: &[GlobalRank]| {
            let of_culprit = own.iter().any(|rank| ranks.is_empty() || ranks.contains(rank));
            of_culprit || (is_link && kind.is_of_links())
        };
        let number = node.node;
        let reasons = node.reasons.iter().filter(|one| concerns(one.kind, &one.ranks)).map(|one| {
            let Text { en, zh } = &one.text;
            Sign {
                kind: SignKind::Node(one.kind),
                node: Some(number),
                ranks: numbers(&one.ranks),
                text: text!("node {number}: {en}", "节点 {number}：{zh}"),
            }
        });
        found.extend(reasons);
        let gpus = node.gpus.iter().filter(|gpu| own.iter().any(|rank| gpu.ranks.contains(rank)));
        found.extend(gpus.map(|gpu| {
            let Text { en, zh } = gpu.text();
            Sign {
                kind: SignKind::GpuUse,
                node: Some(number),
                ranks: numbers(&gpu.ranks),
                text: text!("node {number}: {en}", "节点 {number}：{zh}"),
            }
        }));
    }
    found
}

fn numbers(ranks: &[GlobalRank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}

fn of_nccl(nccl: &RasVerdict) -> Vec<Sign> {
    let mut found = Vec::new();
    let mut tell = |kind, ranks: Vec<u32>, text: fn(String) -> Text| {
        if !ranks.is_empty() {
            let text = text(named(&ranks));
            found.push(Sign { kind, node: None, ranks, text });
        }
    };
    let all = |ranks: &BTreeSet<GlobalRank>| ranks.iter().map(|one| one.0).collect();
    tell(SignKind::RasDead, all(&nccl.dead), |who| {
        text!(
            "NCCL's RAS considers {who} dead: no answer for a minute",
            "NCCL RAS 认为 {who} 已失效：一分钟没有应答"
        )
    });
    tell(SignKind::RasUnresponsive, all(&nccl.unresponsive), |who| {
        text!("NCCL's RAS gets no answer of {who}", "NCCL RAS 得不到 {who} 的应答")
    });
    tell(SignKind::RasFailed, all(&nccl.failed), |who| {
        text!(
            "NCCL has an error on {who} that the program has not looked at",
            "NCCL 在 {who} 上有程序尚未查看的错误"
        )
    });
    let mut behind: BTreeMap<(&str, &str), Vec<&Behind>> = BTreeMap::new();
    for one in &nccl.behind {
        behind.entry((&one.communicator, &one.op)).or_default().push(one);
    }
    for ((communicator, op), late) in behind {
        let ranks: Vec<u32> = late.iter().map(|one| one.rank.0).collect();
        let (who, of) = (named(&ranks), late.iter().map(|one| one.of).max().unwrap_or_default());
        let least = late.iter().map(|one| one.count).min().unwrap_or_default();
        let most = late.iter().map(|one| one.most).max().unwrap_or_default();
        found.push(Sign {
            kind: SignKind::RasBehind,
            node: None,
            ranks,
            text: text!(
                "NCCL counts {least} {op} of {who}, of others {most} (communicator {communicator} of {of} ranks)",
                "NCCL 统计到 {who} 启动了 {least} 次 {op}，其他 rank 为 {most} 次（通信域 {communicator}，{of} 个 rank）"
            ),
        });
    }
    found
}

fn named(ranks: &[u32]) -> String {
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", listed(ranks.iter().copied(), '-'))
}
