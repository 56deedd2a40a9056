//! Where the nodes meet, as this node sees it: whom it waits for on which port, and
//! whether it is the node that belongs there.

use std::net::IpAddr;

use crate::lang::Text;
use crate::muster::{Config, Unit};
use crate::observe::Facts;
use crate::pace::clock;
use crate::plan::Plan;
use crate::text;
use crate::verdict::{Id, Warning};

/// Whom this node waits for, and where.
pub(super) fn begins(config: &Config) -> Text {
    let (port, patience) = (config.port, clock(config.wait_timeout));
    let last = config.nnodes.saturating_sub(1);
    if config.unit == Unit::Task {
        let address = &config.master_addr;
        return match config.node {
            0 => text!(
                "waiting on port {port} for tasks 1 to {last}, at most {patience}",
                "正在端口 {port} 上等待 task 1 到 {last}，最多 {patience}"
            ),
            _ => text!(
                "looking for task 0 at {address}:{port}, at most {patience}",
                "正在寻找 task 0（{address}:{port}），最多 {patience}"
            ),
        };
    }
    match (config.node, last) {
        (0, 1) => text!(
            "waiting on port {port} for node 1, at most {patience}",
            "正在端口 {port} 上等待节点 1，最多 {patience}"
        ),
        (0, _) => text!(
            "waiting on port {port} for nodes 1 to {last}, at most {patience}",
            "正在端口 {port} 上等待节点 1 到 {last}，最多 {patience}"
        ),
        _ => {
            let address = &config.master_addr;
            text!(
                "looking for node 0 at {address}:{port}, at most {patience}",
                "正在寻找节点 0（{address}:{port}），最多 {patience}"
            )
        }
    }
}

/// By addresses, however the name is written: a node 0 that is not where the others look
/// for it, or another node that looks for node 0 at itself.
pub(super) fn misplaced(facts: &Facts, plan: &Plan) -> Option<Warning> {
    let route = facts.network.master.as_ref().filter(|route| !route.addresses.is_empty())?;
    let member = &plan.membership;
    let (node, name) = (member.node_rank, &member.master_addr);
    let list = |addresses: &[IpAddr]| {
        let words: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        words.join(", ")
    };
    let theirs = list(&route.addresses);
    if member.task.is_some() && member.is_master() && !route.local {
        return Some(Warning::new(
            Id::MasterElsewhere,
            text!(
                "task 0 is on this host, and the others look for it at {name} ({theirs}), which is no address of this host",
                "task 0 位于本机，而其他 task 会到 {name}（{theirs}）寻找它，但这不是本机的地址"
            ),
            text!(
                "set MASTER_ADDR to the host of task 0, or let the first node of the list have it",
                "请将 MASTER_ADDR 设为 task 0 所在的主机，或让列表中的第一个节点运行 task 0"
            ),
        ));
    }
    if member.is_master() && !route.local {
        let interfaces = facts.network.interfaces.iter().filter(|one| !one.loopback);
        let own = interfaces.flat_map(|one| one.addresses.clone());
        // Every interface has one of those, and nobody is told to look there.
        let is_for_others = |one: &IpAddr| match one {
            IpAddr::V6(one) => !one.is_unicast_link_local(),
            IpAddr::V4(_) => true,
        };
        let own = list(&own.filter(is_for_others).collect::<Vec<_>>());
        return Some(Warning::new(
            Id::MasterElsewhere,
            text!(
                "this is node 0, and the master {name} ({theirs}) is no address of this host ({own})",
                "本节点是节点 0，但 Master {name}（{theirs}）不是本机的地址（{own}）"
            ),
            text!(
                "is --node-rank right? the others look for node 0 at {name}; nothing is wrong where that address is forwarded to this host",
                "--node-rank 是否正确？其他节点会到 {name} 寻找节点 0；若该地址会转发到本机则无需处理"
            ),
        ));
    }
    // The plan says it of names and addresses that mean this node everywhere.
    let said = plan.warnings.iter().any(|warning| warning.id == Id::MasterLocalhost);
    // Other tasks of node 0 meet at their own host.
    (node > 0 && route.local && !said).then(|| {
        Warning::new(
            Id::MasterLocalhost,
            text!(
                "node {node} is to meet node 0 at {name} ({theirs}), which is this node itself",
                "节点 {node} 要到 {name}（{theirs}）与节点 0 会合，而该地址就是本节点自己"
            ),
            text!(
                "give the name or address of node 0 with --master-addr, or --node-rank 0 if this is node 0",
                "请用 --master-addr 给出节点 0 的名称或地址；若本节点就是节点 0，请用 --node-rank 0"
            ),
        )
    })
}
