//! Builds the [`NodeSummary`] that a node sends in the muster, from facts and plan.

use std::collections::BTreeMap;

use crate::muster::{NodeSummary, Seat};
use crate::observe::{self, Facts, Interface};
use crate::plan::{self, AskedNproc, Hardware, Plan};
use crate::settings::Settings;
use crate::verdict::{Refusal, Warning};

/// Settings that name devices of one node, so they may differ between nodes.
const OF_ONE_NODE: &[&str] = &["NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_FILE"];

/// The summary of this node.
pub(super) fn summary(
    settings: &Settings,
    facts: &Facts,
    plan: &Plan,
) -> Result<NodeSummary, Refusal> {
    let (most, exact) = match plan.membership.task {
        // A task starts one process; its launcher fixed that.
        Some(_) => (1, None),
        None => capacity(settings, facts)?,
    };
    let first_port = plan.network.hcas.first().and_then(|name| name.split(':').next());
    let link_layer = facts
        .hcas
        .iter()
        .find(|hca| Some(hca.name.as_str()) == first_port)
        .and_then(|hca| hca.ports.first())
        .map(|port| port.link_layer.clone());
    Ok(NodeSummary {
        node: plan.membership.member(),
        nnodes: plan.membership.members(),
        hostname: facts.hostname.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: plan.engine,
        rule: plan.layout.rule,
        heads: plan.layout.heads,
        most,
        exact,
        gpus: u32::try_from(facts.gpus.visible.len()).unwrap_or(u32::MAX),
        device: Some(match plan.gpus.iter().any(|gpu| gpu.selected) {
            true => Hardware::Gpus,
            false => Hardware::Cpus,
        }),
        torch: plan.torch_version.clone(),
        driver: facts.gpus.driver_version.clone(),
        script: facts.state.script.as_ref().and_then(|script| script.digest.clone()),
        nccl: nccl_digest(facts),
        rails: u32::try_from(plan.network.hcas.len()).unwrap_or(u32::MAX),
        link_layer,
        clock_offset: 0,
        mtu: interface(facts, plan).and_then(|interface| interface.mtu),
        rates: rates(facts, plan),
        endpoint: None,
        seat: plan
            .membership
            .task
            .as_ref()
            .map(|_| Seat { node: plan.membership.node_rank, nnodes: plan.membership.nnodes }),
        warnings: plan.warnings.iter().map(Warning::key).collect(),
    })
}

/// The most processes that this node can run, and the number that a setting or the platform
/// fixed.
fn capacity(settings: &Settings, facts: &Facts) -> Result<(u32, Option<u32>), Refusal> {
    let asked = plan::asked_nproc(settings, &facts.contract)?;
    let capacity = plan::node_capacity(settings, facts, &asked)?;
    let offered = plan::offered_nproc(&facts.contract).filter(|_| asked == AskedNproc::Auto);
    let most = offered.map_or(capacity.most, |(offered, _)| capacity.most.min(offered));
    Ok((most, capacity.exact.map(|(exact, _)| exact)))
}

/// The interface that the ranks use.
pub(super) fn interface<'a>(facts: &'a Facts, plan: &Plan) -> Option<&'a Interface> {
    let name = plan.network.socket_ifname.as_ref()?;
    facts.network.interfaces.iter().find(|interface| interface.name == *name)
}

/// Count and rate of the ports that will be used, such as `8 × 400` in Gb/s.
fn rates(facts: &Facts, plan: &Plan) -> Option<String> {
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    for used in &plan.network.hcas {
        let (name, number) = used.split_once(':')?;
        let hca = facts.hcas.iter().find(|hca| hca.name == name)?;
        let port = hca.ports.iter().find(|port| port.number.to_string() == number)?;
        // `as` saturates, and rates are small positive numbers. 56.25 and 56 count as one class.
        #[expect(clippy::cast_sign_loss, reason = "negative rates do not exist")]
        let rate = port.gigabits.unwrap_or(0.0) as u64;
        *counts.entry(rate).or_default() += 1;
    }
    let words: Vec<String> =
        counts.iter().rev().map(|(rate, count)| format!("{count} × {rate}")).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn nccl_digest(facts: &Facts) -> Option<String> {
    let settings: BTreeMap<&str, &str> = facts
        .network
        .nccl
        .iter()
        .filter(|setting| !OF_ONE_NODE.contains(&setting.name.as_str()))
        // The first source of a name wins.
        .rev()
        .map(|setting| (setting.name.as_str(), setting.value.as_str()))
        .collect();
    (!settings.is_empty()).then(|| observe::digest(format!("{settings:?}").as_bytes()))
}
