//! The nodes without a seat: of all nodes that may come, the spares wait until another one is lost.

use super::claims::refuse;
use super::known::{By, Known};
use crate::Notes;
use settings::{Need, Settings};
use text::text;
use verdict::{Id, Refusal};

/// The number of seats of `all` nodes.
pub(super) fn seats(
    settings: &Settings,
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
    Ok(seats)
}
