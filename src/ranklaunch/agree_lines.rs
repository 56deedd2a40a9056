//! What the nodes say of the muster and of what they agreed on. No decisions.

use std::collections::BTreeMap;

use linux::pace::clock;
use muster::{Config, MemberKind, NodeSummary};
use plan::{Plan, Resume};
use text::lang::Text;
use text::ranges::listed;
use text::text;
use verdict::{Warning, by_importance};

/// What the ranks go on from.
pub(super) fn goes_on_from(plan: &Plan) -> Text {
    let resume = plan.identity.as_ref().and_then(|identity| identity.resume.as_ref());
    let Some((Resume { path, step }, decided)) = resume.zip(plan.decision("checkpoint")) else {
        return text!(
            "no whole checkpoint that all nodes can read: the program starts from the beginning",
            "没有所有节点都能读取的完整检查点：程序从头开始"
        );
    };
    let (path, Text { en, zh }) = (path.display(), &decided.because);
    match step {
        Some(step) => {
            text!("goes on from step {step}: {path}, {en}", "从第 {step} 步继续：{path}，{zh}")
        }
        None => text!("goes on from {path}, {en}", "从 {path} 继续，{zh}"),
    }
}

/// This node has a checkpoint where the nodes have none in common.
pub(super) fn only_here(name: &str) -> Text {
    text!(
        "warning: {name} is whole on this node, and other nodes do not have it: is the folder mounted on all of them? --checkpoint-missing refuse starts nothing then",
        "警告：本节点的 {name} 是完整的，但其他节点没有：各节点是否都挂载了该目录？--checkpoint-missing refuse 则此时拒绝启动"
    )
}

/// The warnings of node 0 that other nodes have as well, one line for each set of nodes: those
/// nodes do not print them.
pub(super) fn same_elsewhere(own: &[Warning], summaries: &[NodeSummary]) -> Vec<Text> {
    let mut ids_of: BTreeMap<Vec<u32>, Vec<&str>> = BTreeMap::new();
    for warning in by_importance(own) {
        let key = warning.key();
        let has = |one: &&NodeSummary| one.node != 0 && one.warnings.contains(&key);
        let nodes: Vec<u32> = summaries.iter().filter(has).map(|one| one.node).collect();
        let ids = ids_of.entry(nodes).or_default();
        if !ids.contains(&warning.id.as_str()) {
            ids.push(warning.id.as_str());
        }
    }
    let lines = ids_of.into_iter().filter(|(nodes, _)| !nodes.is_empty()).map(|(nodes, ids)| {
        let (word, list) = (if nodes.len() == 1 { "node" } else { "nodes" }, listed(nodes, '–'));
        let (ids, ids_zh) = (ids.join(", "), ids.join("、"));
        text!("the same on {word} {list}: {ids}", "节点 {list} 同样存在：{ids_zh}")
    });
    lines.collect()
}

/// The line that names the nodes for which this node waits, and the address.
pub(super) fn begins(config: &Config) -> Text {
    let (port, timeout) = (config.port, clock(config.wait_timeout));
    let others = config.nnodes.saturating_sub(1);
    let last = others + config.seating.spares;
    if config.unit == MemberKind::Task {
        let address = &config.master_addr;
        return match config.node {
            0 => text!(
                "waiting on port {port} for tasks 1–{last}, at most {timeout}",
                "正在端口 {port} 上等待 task 1–{last}，最多 {timeout}"
            ),
            _ => text!(
                "looking for task 0 at {address}:{port}, at most {timeout}",
                "正在寻找 task 0（{address}:{port}），最多 {timeout}"
            ),
        };
    }
    match (config.node, last) {
        (0, _) if last > others => text!(
            "waiting on port {port} for {others} of nodes 1–{last}, at most {timeout}",
            "正在端口 {port} 上等待节点 1–{last} 中的 {others} 个，最多 {timeout}"
        ),
        (0, 1) => text!(
            "waiting on port {port} for node 1, at most {timeout}",
            "正在端口 {port} 上等待节点 1，最多 {timeout}"
        ),
        (0, _) => text!(
            "waiting on port {port} for nodes 1–{last}, at most {timeout}",
            "正在端口 {port} 上等待节点 1–{last}，最多 {timeout}"
        ),
        _ => {
            let address = &config.master_addr;
            text!(
                "looking for node 0 at {address}:{port}, at most {timeout}",
                "正在寻找节点 0（{address}:{port}），最多 {timeout}"
            )
        }
    }
}
