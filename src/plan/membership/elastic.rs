//! Elastic jobs, whose nodes get their ranks from the rendezvous.
//!
//! Takes settings and contract; gives a membership that is passed to c10d, or None for an
//! ordinary job with fixed ranks.

use crate::{Membership, Notes};
use settings::contract::{Contract, Evidence, Field, Reading, Strength};
use settings::{Rendezvous, Settings, Source};
use text::text;
use verdict::{Id, Refusal};

use super::claims::{self, Count, contradiction, refuse, strongest};
use super::known::platform;
use super::master;

/// The membership of a job whose node count is a range, or whose nodes get their ranks from
/// c10d.
pub(super) fn elastic(
    settings: &Settings,
    contract: &Contract,
    notes: &mut Notes,
) -> Result<Option<Membership>, Refusal> {
    if settings.nnodes.is_some() {
        return Ok(None);
    }
    let counts = strongest(contract, Field::Nnodes);
    let Some(found) =
        counts.iter().find(|found| found.reading == Reading::Range).or(counts.first())
    else {
        return Ok(None);
    };
    let (least, most) = match claims::count(found)? {
        Count::Between(least, most) => (least, most),
        Count::Exact(n) if n > 1 && ranks_by_rendezvous(settings, contract) => (n, n),
        Count::Exact(_) => return Ok(None),
    };
    let claim = &found.claim;
    for other in counts.iter().filter(|other| *other != found) {
        if let Count::Exact(n) = claims::count(other)?
            && !(least..=most).contains(&n)
        {
            return Err(contradiction(claim, &other.claim, "--nnodes N"));
        }
    }
    if least == 1 && standalone(contract).is_some() {
        return Ok(None);
    }
    if settings.rdzv.value == Rendezvous::Static && settings.rdzv.source != Source::Default {
        let source = &settings.rdzv.source;
        return Err(refuse(
            Id::MembershipElastic,
            text!(
                "{claim} is an elastic job, which static rendezvous ({source}) cannot run",
                "{claim} 是弹性任务，静态 rendezvous（{source}）无法运行"
            ),
            text!(
                "use --rdzv c10d, or fix the size with --nnodes N and --node-rank K",
                "请使用 --rdzv c10d，或用 --nnodes N 和 --node-rank K 固定规模"
            ),
        ));
    }
    let master = master::rendezvous(settings, contract, (most, claim), notes)?;
    let range = if least == most { least.to_string() } else { format!("{least}:{most}") };
    notes.decide(
        "nnodes",
        range,
        text!(
            "an elastic job: its nodes meet through c10d, which also gives them their ranks",
            "弹性任务：各节点通过 c10d 会合，并由它分配编号"
        ),
        claim,
    );
    Ok(Some(Membership {
        platform: platform(contract),
        nnodes: most,
        nnodes_by_world_size: false,
        node_rank: 0,
        master_addr: master.addr,
        master_port: master.port,
        master_port_free: false,
        elastic: Some((least, most)),
        task: None,
    }))
}

/// torchrun's `--standalone`: this node is the whole job. PyTorchJob sets the variable to an
/// empty string, with which torchrun itself fails.
pub(super) fn standalone(contract: &Contract) -> Option<Evidence> {
    claims::of(contract, Field::Standalone)
        .into_iter()
        .find(|found| found.claim.value.trim() != "0")
}

/// PyTorchJob without a Master replica: a fixed count, an endpoint, and no rank.
fn ranks_by_rendezvous(settings: &Settings, contract: &Contract) -> bool {
    let backend = claims::spoken(contract, Field::RdzvBackend);
    settings.node_rank.is_none()
        && claims::spoken(contract, Field::NodeRank)
            .iter()
            .all(|found| found.strength == Strength::Hint)
        && claims::spoken(contract, Field::Rank).is_empty()
        && !claims::spoken(contract, Field::RdzvEndpoint).is_empty()
        && backend.iter().any(|found| found.claim.value.trim() != "static")
}
