//! The node rank.
//!
//! Takes settings, contract and the node count; gives a node rank below the count, or a refusal
//! that names both.

use crate::Notes;
use settings::Settings;
use settings::contract::{Claim, Contract, Evidence, Field, Strength};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

use super::claims::{self, Count, contradiction, half_given, refuse, strongest};
use super::known::{By, Known};
use super::nodes::how_many;

pub(super) fn node_rank(
    settings: &Settings,
    contract: &Contract,
    nnodes: &Known,
    notes: &mut Notes,
) -> Result<Known, Refusal> {
    let nodes = nnodes.value;
    let stated = text!("given", "已指定");
    let (known, because) = if let Some(setting) = &settings.node_rank {
        let source = setting.source.to_string();
        (Known { value: setting.value, source, by: By::Setting }, stated)
    } else if nnodes.is_apart() {
        // `--nnodes 1` in a job of several pods: each pod is a job of its own, whatever its
        // index.
        let source = &nnodes.source;
        let because = text!("the only node, by {source}", "按 {source}，只有本节点");
        (Known { value: 0, source: nnodes.source.clone(), by: nnodes.by }, because)
    } else if let Some((known, because)) = ranked(contract, nnodes)? {
        (known, because)
    } else if nodes == 1 {
        let because = text!("the only node", "唯一的节点");
        (Known { value: 0, source: "default".to_owned(), by: By::Default }, because)
    } else {
        let (source, last) = (&nnodes.source, nodes.saturating_sub(1));
        return Err(half_given(
            contract,
            text!(
                "there are {nodes} nodes ({source}), but nothing says which of them this is",
                "共有 {nodes} 个节点（{source}），但没有信息说明本节点是第几个"
            ),
            text!(
                "set --node-rank 0 to {last}, or RANK; --nnodes 1 if each node works for itself",
                "请给出 --node-rank 0 到 {last}，或设置 RANK；若各节点独立工作，请用 --nnodes 1"
            ),
        ));
    };
    check_rank(contract, nnodes, &known)?;
    if known.by == By::Platform {
        warn_of_other_rank(contract, nodes, &known, notes);
    }
    notes.decide("node_rank", known.value, because, &known.source);
    Ok(known)
}

/// The node rank that the contract gives.
fn ranked(contract: &Contract, nnodes: &Known) -> Result<Option<(Known, Text)>, Refusal> {
    let nodes = nnodes.value;
    let strong = strongest(contract, Field::NodeRank);
    if let Some(first) = strong.first() {
        let value = claims::rank(first)?;
        for other in strong.iter().skip(1) {
            if claims::rank(other)? != value {
                return Err(contradiction(&first.claim, &other.claim, "--node-rank K"));
            }
        }
        let platform = &first.platform;
        let because =
            text!("numbers nodes (platform {platform})", "表示节点编号（平台 {platform}）");
        let known = Known { value, source: first.claim.to_string(), by: By::Platform };
        return Ok(Some((known, because)));
    }
    let hint = |found: &Evidence| found.strength == Strength::Hint && nodes > 1;
    let found = claims::spoken(contract, Field::Rank)
        .into_iter()
        .next()
        .or_else(|| claims::spoken(contract, Field::NodeRank).into_iter().find(hint));
    let Some(found) = found else { return Ok(None) };
    refuse_rank_of_process(contract, nnodes, &found)?;
    let value = claims::rank(&found)?;
    let because = text!("the index of this node", "本节点的编号");
    let known = Known { value, source: found.claim.to_string(), by: By::WorldSize };
    Ok(Some((known, because)))
}

/// If WORLD_SIZE is larger than the number of nodes, RANK may be the rank of a process. The ranks of the
/// first processes are possible ranks of nodes as well.
fn refuse_rank_of_process(
    contract: &Contract,
    nnodes: &Known,
    rank: &Evidence,
) -> Result<(), Refusal> {
    let nodes = nnodes.value;
    // A job of one node has one place.
    if nodes == 1 || nnodes.by == By::WorldSize || rank.field != Field::Rank {
        return Ok(());
    }
    // The number of nodes of an elastic PyTorchJob may come from WORLD_SIZE.
    let is_more = |world: &Evidence| {
        world.claim.to_string() != nnodes.source
            && claims::count(world).is_ok_and(|all| matches!(all, Count::Exact(all) if all > nodes))
    };
    let Some(world) = claims::spoken(contract, Field::WorldSize).into_iter().find(is_more) else {
        return Ok(());
    };
    let (rank, world, by) = (&rank.claim, &world.claim, &nnodes.source);
    Err(refuse(
        Id::MembershipProcesses,
        text!(
            "{world} is more than the {nodes} nodes ({by}), so {rank} may be the rank of a process, and nothing else says which node this is",
            "{world} 大于节点数 {nodes}（{by}），因此 {rank} 可能是进程的编号，而没有其他信息说明本节点是第几个"
        ),
        text!(
            "set --node-rank K, with --nnodes N: the same way on every node",
            "请给出 --node-rank K 和 --nnodes N，各节点方式相同"
        ),
    ))
}

/// Warns if RANK differs from a stronger variable although WORLD_SIZE counts the same nodes.
fn warn_of_other_rank(contract: &Contract, nodes: u32, known: &Known, notes: &mut Notes) {
    let first = |field| claims::spoken(contract, field).into_iter().next().map(|found| found.claim);
    let number = |claim: &Claim| claim.value.trim().parse::<u32>().ok();
    let (Some(size), Some(rank)) = (first(Field::WorldSize), first(Field::Rank)) else { return };
    if number(&size) != Some(nodes) || number(&rank) == Some(known.value) {
        return;
    }
    let source = &known.source;
    notes.warn(
        Id::MembershipRank,
        text!(
            "{rank} is not the node rank of {source}, which is used",
            "{rank} 与 {source} 的节点编号不同；采用后者"
        ),
        text!("--node-rank overrides both", "--node-rank 可覆盖二者"),
    );
}

fn check_rank(contract: &Contract, nnodes: &Known, rank: &Known) -> Result<(), Refusal> {
    let (nodes, value) = (nnodes.value, rank.value);
    let said = match rank.by {
        By::Setting => format!("{}={value}", rank.source),
        _ => rank.source.clone(),
    };
    if nnodes.by == By::Default && rank.by != By::Default {
        return Err(half_given(
            contract,
            text!(
                "{said} is the index of a node, but nothing says how many nodes there are",
                "{said} 是节点编号，但没有信息说明共有多少节点"
            ),
            how_many(),
        ));
    }
    if value < nodes {
        return Ok(());
    }
    let source = match nnodes.by {
        By::Setting => format!("{}={nodes}", nnodes.source),
        _ => nnodes.source.clone(),
    };
    let last = nodes.saturating_sub(1);
    Err(refuse(
        Id::MembershipRank,
        text!(
            "{said} is beyond the last of {nodes} nodes ({source}): node ranks are 0 to {last}",
            "{said} 超出了 {nodes} 个节点（{source}）的范围：节点编号应为 0 到 {last}"
        ),
        text!(
            "correct one of them, or set --nnodes N and --node-rank K",
            "请改正其中之一，或给出 --nnodes N 和 --node-rank K"
        ),
    ))
}
