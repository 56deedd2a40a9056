//! The way to the master, RDMA ports, and NCCL's settings.

use super::table::planned;
use super::{Evidence, Finding};
use crate::text;

pub(super) fn port(evidence: &Evidence<'_>) -> Vec<Finding> {
    vec![match &evidence.tried.port {
        Some(Ok(port)) => Finding::ok(text!("{port} can be bound", "{port} 可绑定")),
        Some(Err(refusal)) => Finding::bad(refusal.text.clone(), refusal.hint.clone()),
        None if evidence.nnodes() == 1 => {
            Finding::ok(text!("one node: any free port is taken", "单节点：自动选用空闲端口"))
        }
        None => Finding::ok(text!("node 0's to bind", "由节点 0 绑定")),
    }]
}

pub(super) fn resolve(evidence: &Evidence<'_>) -> Vec<Finding> {
    let Some(master) = &evidence.facts.network.master else {
        return vec![Finding::ok(text!("no name to resolve", "无需解析"))];
    };
    let name = &master.host;
    if master.addresses.is_empty() {
        let why = master.error.as_deref().unwrap_or("?");
        return vec![Finding::bad(
            text!("{name} has no address: {why}", "{name} 无地址：{why}"),
            text!(
                "check MASTER_ADDR and the headless Service; run keeps asking until --wait-timeout",
                "请检查 MASTER_ADDR 与 headless Service；run 会一直询问直到 --wait-timeout"
            ),
        )];
    }
    let all: Vec<String> = master.addresses.iter().map(ToString::to_string).collect();
    let all = all.join(", ");
    if let Some(why) = &master.error {
        return vec![Finding::doubtful(
            text!("{name} is {all}, but {why}", "{name} 为 {all}，但 {why}"),
            text!(
                "check the routes of this node (ip route get)",
                "请检查本节点的路由（ip route get）"
            ),
        )];
    }
    vec![Finding::ok(text!("{name} is {all}", "{name} 为 {all}"))]
}

pub(super) fn reach(evidence: &Evidence<'_>) -> Vec<Finding> {
    vec![match &evidence.tried.reach {
        Some(Ok(peer)) => Finding::ok(text!("{peer} answers", "{peer} 已应答")),
        Some(Err(reach)) => {
            let (peer, cause) = (reach.peer, &reach.cause);
            let (en, zh) = (&cause.en, &cause.zh);
            Finding::bad(
                text!("{peer} does not answer now: {en}", "{peer} 当前无应答：{zh}"),
                text!(
                    "start node 0 first, or check firewall and NetworkPolicy; run waits for it until --wait-timeout",
                    "请先启动节点 0，或检查防火墙与 NetworkPolicy；run 会等待直到 --wait-timeout"
                ),
            )
        }
        None => Finding::ok(text!("nothing to reach from here", "此处无需连接")),
    }]
}

pub(super) fn rdma(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut found = planned(evidence, &["rdma.ports"]);
    let hcas = &evidence.facts.hcas;
    let chosen = evidence.outline().map(|plan| plan.network.hcas.as_slice()).unwrap_or_default();
    if found.is_empty() {
        found.push(if hcas.is_empty() {
            Finding::ok(text!("no RDMA device", "无 RDMA 设备"))
        } else if chosen.is_empty() {
            let all = hcas.len();
            Finding::info(text!("none of {all} RDMA devices is used", "{all} 个 RDMA 设备均未使用"))
        } else {
            let list = chosen.join(", ");
            Finding::ok(text!("{list}", "{list}"))
        });
    }
    if !hcas.is_empty() && hcas.iter().all(|hca| !hca.openable) {
        let all = hcas.len();
        found.push(Finding::doubtful(
            text!(
                "sysfs shows {all} RDMA devices and none can be opened: NCCL then uses TCP without an error",
                "sysfs 中有 {all} 个 RDMA 设备但均无法打开：NCCL 会不报错地改用 TCP"
            ),
            text!(
                "request the RDMA resource for the container (rdma/hca), or mount /dev/infiniband",
                "请为容器申请 RDMA 资源（rdma/hca），或挂载 /dev/infiniband"
            ),
        ));
    }
    let gpus = evidence.on_gpus() as usize;
    if evidence.nnodes() > 1 && !chosen.is_empty() && chosen.len() < gpus {
        let rails = chosen.len();
        found.push(Finding::new(
            super::Kind::Info,
            text!("{rails} RDMA ports for {gpus} GPUs", "{gpus} 个 GPU 使用 {rails} 个 RDMA 端口"),
            text!(
                "compare with the other nodes: all should have the same number",
                "请与其他节点比较：各节点数量应相同"
            ),
        ));
    }
    found
}

pub(super) fn nccl(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut found = planned(evidence, &["env.nccl"]);
    if found.is_empty() {
        let set = evidence.facts.network.nccl.len();
        found.push(Finding::ok(if set == 0 {
            text!("nothing is set", "未设置任何变量")
        } else {
            text!("{set} settings, none dead or harmful", "{set} 项设置，均有效且无害")
        }));
    }
    found
}
