//! The nodes without a seat: of all nodes that may come, the spares wait until another one is lost.

use super::claims::refuse;
use super::known::{By, Known};
use super::{listed, nodes};
use crate::Notes;
use settings::contract::Contract;
use settings::{Need, Settings};
use text::text;
use verdict::{Id, Refusal, Warning};

/// The number of seats of `all` nodes.
pub(super) fn seats(
    settings: &Settings,
    contract: &Contract,
    all: &Known,
    is_task: bool,
    notes: &mut Notes,
) -> Result<u32, Refusal> {
    let (spares, source, nodes) = (settings.spares.value, &settings.spares.source, all.value);
    if spares == 0 {
        return Ok(nodes);
    }
    if is_task {
        return Err(refuse(
            Id::MembershipSpares,
            text!(
                "{source} is {spares}, but this command is started once per rank",
                "{source} 为 {spares}，但该命令按 rank 逐个启动"
            ),
            text!(
                "a spare is a whole node: ask for one task per node, or leave {source} out",
                "备用以节点为单位：请设为每节点一个 task，或去掉 {source}"
            ),
        ));
    }
    if settings.muster.value == Need::Off {
        let muster = &settings.muster.source;
        return Err(refuse(
            Id::MembershipSpares,
            text!(
                "{source} is {spares}, but {muster} lets no node know of the others",
                "{source} 为 {spares}，但 {muster} 使各节点互不知晓"
            ),
            text!(
                "use --muster auto, or leave {source} out",
                "请使用 --muster auto，或去掉 {source}"
            ),
        ));
    }
    let seats = nodes.saturating_sub(spares);
    if seats < 2 {
        let said = &all.source;
        return Err(refuse(
            Id::MembershipSpares,
            text!(
                "{source} is {spares}, which leaves {seats} of {nodes} nodes ({said}) a seat, but a job with spares has at least 2",
                "{source} 为 {spares}，{nodes} 个节点（{said}）中只剩 {seats} 个席位，而带备用节点的任务至少需要 2 个"
            ),
            text!(
                "a spare takes the seat of a node that is lost; start more nodes, or ask for fewer spares",
                "备用节点接替丢失的节点；请启动更多节点，或减少备用节点"
            ),
        ));
    }
    let because = match all.by {
        By::Setting => text!(
            "so many nodes come beside the {seats} with a seat",
            "除 {seats} 个有席位的节点外，还有这么多个节点"
        ),
        _ => {
            let said = &all.source;
            text!(
                "of {nodes} nodes ({said}), {seats} have a seat",
                "{nodes} 个节点（{said}）中，{seats} 个有席位"
            )
        }
    };
    notes.decide("spares", spares, because, source);
    if let Some(started) = started(settings, contract, all) {
        raise_other_number(settings, all, (&started, seats), notes);
    }
    Ok(seats)
}

/// The number of nodes by the platform, where `--nnodes` and `--spares` give another one. A list of hosts is a job
/// beside that of the platform.
fn started(settings: &Settings, contract: &Contract, all: &Known) -> Option<Known> {
    if all.by != By::Setting || listed(settings).is_some() {
        return None;
    }
    let counted = nodes::counted(contract, &mut Notes::default()).ok()??;
    (counted.by == By::Platform && counted.value != all.value).then_some(counted)
}

fn raise_other_number(
    settings: &Settings,
    all: &Known,
    (started, seats): (&Known, u32),
    notes: &mut Notes,
) {
    let (source, nodes) = (&all.source, all.value);
    let (value, said) = (started.value, &started.source);
    let outcome = if value > nodes {
        text!("node {nodes} and those after it are refused", "编号从 {nodes} 起的节点会被拒绝")
    } else if value < seats {
        text!("so many never come together", "永远凑不齐")
    } else {
        let missing = nodes - value;
        text!("spares that never come: {missing}", "不会出现的备用节点：{missing} 个")
    };
    let (en, zh) = (outcome.en, outcome.zh);
    let spares = settings.spares.value;
    let fits = value.saturating_sub(spares);
    let hint = match fits {
        0 | 1 => text!("start {nodes} nodes", "请启动 {nodes} 个节点"),
        _ => text!(
            "start {nodes} nodes; or --nnodes {fits}, or no --nnodes: it counts the seats, and the platform's number the spares as well",
            "请启动 {nodes} 个节点；或用 --nnodes {fits}，或去掉 --nnodes：它只计席位，平台给出的数目则包含备用节点"
        ),
    };
    let text = text!(
        "{source} make {nodes} nodes, but the platform starts {value} ({said}): {en}",
        "{source} 合计 {nodes} 个节点，而平台启动 {value} 个（{said}）：{zh}"
    );
    notes.raise(settings, Warning::new(Id::MembershipSpares, text, hint));
}
