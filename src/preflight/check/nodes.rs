//! Checks of the other nodes and of the links to them, as all nodes measured them together.
//!
//! Without other nodes these checks are left out. The number of nodes of a job with spares is judged before they meet.

use super::finding::{
    CheckFinding, CheckInput, FindingKind, Judge, Nodes, bad, doubtful, hinted, ok, or, planned,
};
use muster::{
    AffectedLinks, Difference, LinkReport, Loss, Measured, Outlier, Property, Speed, Trouble,
};
use settings::Need;
use text::lang::Text;
use text::text;
use verdict::Id;
use verdict::Warning;

pub(super) const JUDGES: &[Judge] = &[
    (Id::MembershipSpares, spares),
    (Id::NodesArrive, arrive),
    (Id::NodesChecks, others),
    (Id::NodesDiffer, differ),
    (Id::NodesRails, rails),
    (Id::LinkReach, reach),
    (Id::LinkLatency, latency),
    (Id::LinkBandwidth, bandwidth),
];

/// Refusals because nodes differ.
const DIFFERENT: &[Id] = &[
    Id::MusterEngine,
    Id::MusterTorchVersions,
    Id::MusterRule,
    Id::MusterDevice,
    Id::MusterHeads,
    Id::MusterLayout,
];

/// The number of nodes that are started, beside seats and spares.
fn spares(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(member) = input.outline().map(|plan| &plan.membership) else { return Vec::new() };
    if member.spares == 0 {
        return Vec::new();
    }
    or(planned(input, &[Id::MembershipSpares]), || {
        let (seats, spares, node) = (member.nnodes, member.spares, member.node_rank);
        ok(text!(
            "{seats} seats and {spares} spares; this is node {node}",
            "席位 {seats} 个，备用 {spares} 个；本节点编号 {node}"
        ))
    })
}

fn found<'a>(input: &CheckInput<'a>) -> Option<&'a LinkReport> {
    match &input.tried.nodes {
        Some(Nodes::Found(found)) => Some(found),
        _ => None,
    }
}

/// Node 2 (host-2)
fn name(found: &LinkReport, node: u32) -> Text {
    let host = found.hostname(node);
    text!("node {node} ({host})", "节点 {node}（{host}）")
}

fn arrive(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let found = match &input.tried.nodes {
        None => return Vec::new(),
        Some(Nodes::Alone(Text { en, zh })) => {
            return vec![doubtful(hinted!(
                "only this node was checked: {en}",
                "仅检查了本节点：{zh}",
                "start ranklaunch check on all nodes at the same time",
                "请在所有节点同时执行 ranklaunch check"
            ))];
        }
        Some(Nodes::Refused(refusal)) => {
            if DIFFERENT.contains(&refusal.id) {
                return vec![ok(text!("all nodes have arrived", "全部节点均已到达"))];
            }
            // A launch gives the same hint without the additional choice that `check` has.
            let Text { en, zh } = &refusal.hint;
            let hint = text!(
                "{en}; --muster off checks only this node",
                "{zh}；--muster off 仅检查本节点"
            );
            let verdict = Some(refusal.verdict);
            return vec![CheckFinding { verdict, ..bad((refusal.text.clone(), hint)) }];
        }
        Some(Nodes::Found(found)) => found,
    };
    if found.lost.is_empty() {
        let nodes = found.nnodes;
        return vec![ok(text!("all {nodes} have arrived", "全部 {nodes} 个节点均已到达"))];
    }
    let lost = found.lost.iter().map(|(node, loss)| {
        let Text { en, zh } = name(found, *node);
        let text = match loss {
            Loss::Died | Loss::Cut => {
                text!("{en} disconnected during link measurement", "{zh}在测量链路时断开连接")
            }
            Loss::Silent => {
                text!("{en} stopped responding during link measurement", "{zh}在测量链路时失去响应")
            }
        };
        let hint = text!(
            "check that node: its pod may have been deleted, evicted or stopped",
            "请检查该节点：其 Pod 可能已被删除、驱逐或停止"
        );
        bad((text, hint))
    });
    lost.collect()
}

/// Failures of other nodes, with their exit code there.
fn others(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(found) = found(input) else { return Vec::new() };
    let own = input.outline().map(|plan| plan.membership.node_rank);
    let failed = found.nodes.iter().filter(|visited| Some(visited.node) != own);
    let failed = failed.filter_map(|visited| {
        let refusal = visited.endpoint.failed.as_ref()?;
        let Text { en, zh } = name(found, visited.node);
        let (id, said, said_zh) = (&refusal.id, &refusal.text.en, &refusal.text.zh);
        let text = text!("{en}: {id}: {said}", "{zh}：{id}：{said_zh}");
        let verdict = Some(refusal.verdict);
        Some(CheckFinding { verdict, ..bad((text, refusal.hint.clone())) })
    });
    or(failed.collect(), || ok(text!("no check fails on other nodes", "其他节点没有检查失败")))
}

fn differ(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    if let Some(Nodes::Refused(refusal)) = &input.tried.nodes
        && DIFFERENT.contains(&refusal.id)
    {
        let (kind, verdict) = (FindingKind::Refused, Some(refusal.verdict));
        let finding = bad((refusal.text.clone(), refusal.hint.clone()));
        return vec![CheckFinding { kind, verdict, ..finding }];
    }
    let Some(found) = found(input) else { return Vec::new() };
    or(differences(input, found, |property| !is_of_rdma(property)), || {
        ok(text!("software, settings, MTU and clocks are the same", "软件、设置、MTU 与时钟一致"))
    })
}

fn rails(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(found) = found(input) else { return Vec::new() };
    or(differences(input, found, is_of_rdma), || {
        ok(text!(
            "number, speed and type of the RDMA ports are the same",
            "RDMA 端口的数量、速率与类型一致"
        ))
    })
}

fn is_of_rdma(property: Property) -> bool {
    matches!(property, Property::Rails | Property::LinkLayer | Property::Rates)
}

fn differences(
    input: &CheckInput<'_>,
    found: &LinkReport,
    wanted: impl Fn(Property) -> bool,
) -> Vec<CheckFinding> {
    let required = input.settings.muster.value == Need::Required;
    let finding = |difference: &Difference| {
        let Warning { text, hint, .. } = difference.warning();
        // The same as in a launch: fewer GPUs on one node only make the plan smaller.
        let is_doubtful = required && difference.property == Property::Gpus;
        if is_doubtful { doubtful((text, hint)) } else { bad((text, hint)) }
    };
    found.differences.iter().filter(|one| wanted(one.property)).map(finding).collect()
}

fn reach(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(found) = found(input) else { return Vec::new() };
    let hint = text!(
        "open all TCP ports between the nodes (firewall, NetworkPolicy, security group): NCCL and Gloo listen on ports chosen by the kernel",
        "请放行节点间的所有 TCP 端口（防火墙、NetworkPolicy、安全组）：NCCL 与 Gloo 监听由内核分配的端口"
    );
    let mut all = odd(found, Trouble::Unreachable, &hint, |odd| {
        let Measured::Failed(why) = &odd.worst.measured else { return None };
        Some(text!("no connection ({why})", "无法连接（{why}）"))
    });
    let unmeasured = found.unmeasured;
    if unmeasured > 0 && found.lost.is_empty() {
        all.push(doubtful(hinted!(
            "{unmeasured} directions were not measured in time",
            "有 {unmeasured} 个方向未能及时测量",
            "run it again on idle nodes",
            "请在空闲节点上重新执行"
        )));
    }
    let nodes = found.nnodes;
    or(all, || {
        ok(text!("all {nodes} nodes can connect to each other", "{nodes} 个节点两两均可连接"))
    })
}

fn latency(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(found) = found(input) else { return Vec::new() };
    let hint = text!(
        "place the nodes of a job close together: check zone, rack, tunnels and overlay networks between them",
        "同一任务的节点应就近部署：请检查它们之间的可用区、机架、隧道与 overlay 网络"
    );
    let all = odd(found, Trouble::Slow, &hint, |odd| {
        let here = millis(odd.worst.speed()?.floor);
        Some(match odd.others.map(millis) {
            Some(good) => text!(
                "the round trip takes {here} ms, {good} ms on good links",
                "往返需 {here} ms，正常链路为 {good} ms"
            ),
            None => text!("the round trip takes {here} ms", "往返需 {here} ms"),
        })
    });
    or_range(
        all,
        found,
        |speed| speed.median,
        |low, high| {
            let (low, high) = (millis(low), millis(high));
            text!("round trips of {low} to {high} ms", "往返 {low} 至 {high} ms")
        },
    )
}

fn bandwidth(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(found) = found(input) else { return Vec::new() };
    let hint = text!(
        "check the cable, the negotiated speed, traffic shaping and other users of that node's network (ethtool, tc qdisc)",
        "请检查线缆、协商速率、流量整形以及占用该节点网络的其他程序（ethtool、tc qdisc）"
    );
    let all = odd(found, Trouble::Narrow, &hint, |odd| {
        let here = gigabits(odd.worst.speed()?.megabits());
        let claims = [odd.worst.from, odd.worst.to]
            .into_iter()
            .filter_map(|node| found.endpoint(node)?.megabits)
            .min();
        Some(match (odd.others.map(gigabits), claims.map(|claimed| gigabits(claimed.into()))) {
            (Some(good), _) => text!(
                "the bandwidth is {here} Gb/s, {good} Gb/s on good links",
                "带宽为 {here} Gb/s，正常链路为 {good} Gb/s"
            ),
            (None, Some(claimed)) => text!(
                "the bandwidth is {here} Gb/s, but the interface reports {claimed} Gb/s",
                "带宽为 {here} Gb/s，而网卡标称 {claimed} Gb/s"
            ),
            (None, None) => text!("the bandwidth is {here} Gb/s", "带宽为 {here} Gb/s"),
        })
    });
    or_range(all, found, Speed::megabits, |low, high| {
        let (low, high) = (gigabits(low), gigabits(high));
        text!("{low} to {high} Gb/s over one TCP connection", "单个 TCP 连接 {low} 至 {high} Gb/s")
    })
}

/// One finding per outlier.
fn odd(
    found: &LinkReport,
    trouble: Trouble,
    hint: &Text,
    what: impl Fn(&Outlier) -> Option<Text>,
) -> Vec<CheckFinding> {
    let all = found.outliers.iter().filter(|odd| odd.trouble == trouble);
    let finding = |odd: &Outlier| {
        let Text { en, zh } = place(found, odd);
        let Text { en: said, zh: said_zh } = what(odd)?;
        Some(bad((text!("{en}: {said}", "{zh}：{said_zh}"), hint.clone())))
    };
    all.filter_map(finding).collect()
}

/// The node or link of an outlier, with the interface.
fn place(found: &LinkReport, odd: &Outlier) -> Text {
    let Text { en, zh } = match odd.place {
        AffectedLinks::All => text!("all links", "所有链路"),
        AffectedLinks::Node(node) => {
            let Text { en, zh } = name(found, node);
            text!("every link of {en}", "{zh}的所有链路")
        }
        AffectedLinks::Pair(one, other) => both(name(found, one), "↔", name(found, other)),
        AffectedLinks::OneWay(one, other) => both(name(found, one), "→", name(found, other)),
    };
    match found.endpoint(odd.worst.from).and_then(|station| station.interface.as_ref()) {
        Some(interface) => text!("{en} on {interface}", "{zh}（{interface}）"),
        None => Text::new(en, zh),
    }
}

fn both(one: Text, sign: &str, other: Text) -> Text {
    let (one_zh, other_zh) = (one.zh, other.zh);
    let (one, other) = (one.en, other.en);
    text!("{one} {sign} {other}", "{one_zh} {sign} {other_zh}")
}

/// Microseconds in milliseconds.
fn millis(micros: u64) -> String {
    format!("{:.2}", micros as f64 / 1e3)
}

/// Mb/s in Gb/s.
fn gigabits(megabits: u64) -> String {
    let rate = megabits as f64 / 1e3;
    if rate < 1.0 { format!("{rate:.2}") } else { format!("{rate:.1}") }
}

fn or_range(
    all: Vec<CheckFinding>,
    found: &LinkReport,
    value: impl Fn(&Speed) -> u64,
    words: impl Fn(u64, u64) -> Text,
) -> Vec<CheckFinding> {
    let values = || found.links.iter().filter_map(|link| link.speed()).map(&value);
    match values().min().zip(values().max()) {
        Some((low, high)) => or(all, || ok(words(low, high))),
        None if found.links.is_empty() && found.outlier_count == 0 => {
            or(all, || ok(text!("no outliers", "无异常")))
        }
        None => all,
    }
}
