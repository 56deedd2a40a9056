//! Rules about the number of nodes: the launch's own, seats and spares, beside the pods, nodes or services that are started.

use super::sizes::{StatedSize, handed, spares, stated_nodes};
use crate::pods::Group;
use crate::scene::{Findings, LaunchSite, Scene};
use settings::launchers::FlagField;
use text::lang::Text;
use text::text;

pub(super) fn count(scene: &Scene<'_>, findings: &mut Findings) {
    // Pods without containers have a rule of their own, and their right number is not known.
    if scene.job.groups.iter().any(Group::is_empty) {
        return;
    }
    for place in &scene.sites {
        let (Some(pods), StatedSize::Known(nodes, line)) =
            (handed(scene, place), stated_nodes(scene, place))
        else {
            continue;
        };
        match spares(scene.job, place) {
            StatedSize::Known(spares, _) => {
                with_spares(place, (nodes, spares, pods), line, findings);
            }
            // srun may start the nodes one by one, each with its rank.
            StatedSize::Open if nodes > 1 && nodes != pods && place.launch.under.is_empty() => {
                let by = place.launch.source(FlagField::Nnodes);
                findings.error(
                    line,
                    text!(
                        "{nodes} nodes are set{by}, but the replicas make {pods} pods: {nodes} nodes never come together",
                        "设置了 {nodes} 个节点{by}，而副本数合计为 {pods} 个 Pod：永远凑不齐 {nodes} 个节点"
                    ),
                    text!("make both numbers equal", "请使两者相等"),
                );
            }
            _ => {}
        }
    }
}

/// The platform starts the seats and the spares.
fn with_spares(
    place: &LaunchSite<'_>,
    (seats, spares, handed): (u64, u64, u64),
    line: usize,
    findings: &mut Findings,
) {
    let all = seats.saturating_add(spares);
    // srun may start the nodes one by one, each with its rank.
    let is_one = !place.launch.under.is_empty() && place.launch.get(FlagField::NodeRank).is_some();
    if seats < 2 || all == handed || is_one {
        return;
    }
    let (by_seats, by_spares) =
        (place.launch.source(FlagField::Nnodes), place.launch.source(FlagField::Spares));
    let outcome = if handed > all {
        text!("the others are refused", "多出的会被拒绝")
    } else if handed < seats {
        text!("so many never come together", "永远凑不齐")
    } else {
        text!("some spares never come", "有的备用节点不会出现")
    };
    let Text { en, zh } = outcome;
    let fits = handed.saturating_sub(spares);
    let hint = match fits {
        0 | 1 => text!("start {all} nodes", "请启动 {all} 个节点"),
        _ => text!(
            "start {all} nodes, or write --nnodes {fits}: --nnodes counts the seats, not the spares, and may be left out where the platform counts the nodes",
            "请启动 {all} 个节点，或写 --nnodes {fits}：--nnodes 只计席位，不计备用节点；平台给出节点数时可省略"
        ),
    };
    findings.error(
        line,
        text!(
            "{seats} seats{by_seats} and {spares} spares{by_spares} make {all} nodes, but {handed} are started: {en}",
            "{seats} 个席位{by_seats}加 {spares} 个备用{by_spares}共 {all} 个节点，而启动的是 {handed} 个：{zh}"
        ),
        hint,
    );
}

/// The services of a Compose file that are nodes of one job with spares. One service alone may be this host's part of it.
pub(crate) fn services(services: &[Scene<'_>], findings: &mut Findings) {
    // A service, or a script, may have several launches, one after the other.
    let launches = services.iter().map(|scene| {
        let with_spares = scene.sites.iter().filter_map(|place| {
            let spares = spares(scene.job, place).known()?;
            Some((stated_nodes(scene, place).known(), spares, place.launch.line))
        });
        with_spares.collect::<Vec<_>>()
    });
    let launches: Vec<_> = launches.filter(|all| !all.is_empty()).collect();
    let count = u64::try_from(launches.len()).unwrap_or(u64::MAX);
    for (seats, spares, line) in launches.into_iter().flatten().filter(|_| count > 1) {
        let all = seats.map(|seats| seats.saturating_add(spares));
        let Some(all) = all.filter(|all| *all != count) else { continue };
        findings.error(
            line,
            text!(
                "{all} nodes with the spares, but {count} services start ranklaunch",
                "含备用节点共 {all} 个节点，而有 {count} 个服务启动 ranklaunch"
            ),
            text!("make both numbers equal", "请使两者相等"),
        );
    }
}
