//! Whether the job has a muster, and how this node takes part in it.
//!
//! Takes settings, contract and membership; gives the muster's [`Config`].

use std::sync::Arc;

use linux::host::Host;
use linux::pace::Pace;
use muster::{Config, MemberKind, Memory, Purpose, Secret, Without};
use node::observe::Limits;
use plan::Membership;
use settings::contract::{Contract, Field};
use settings::{Need, Settings};
use text::text;
use verdict::{Id, Refusal};

/// Whether this job has a muster.
///
/// # Errors
/// When a muster is required but impossible.
pub(super) fn is_wanted(settings: &Settings, member: &Membership) -> Result<bool, Refusal> {
    let mode = settings.muster.value;
    if mode == Need::Off || member.members() < 2 {
        return Ok(false);
    }
    if member.elastic.is_none() {
        return Ok(true);
    }
    if mode == Need::Auto {
        return Ok(false);
    }
    let source = &settings.muster.source;
    Err(Refusal::new(
        Id::MusterElastic,
        text!(
            "{source}: the nodes of an elastic job change, so they cannot agree on one plan",
            "{source}：弹性任务的节点会变化，因此无法协商出统一的计划"
        ),
        text!("--muster auto starts the job without a muster", "使用 --muster auto 可跳过集结启动"),
    ))
}

/// Platforms that start one command on all nodes. If node 0 holds no muster there, that process
/// does not belong to this job. On other platforms a person or one template per role starts each
/// node, and may start one without ranklaunch.
const ONE_COMMAND: &[&str] = &[
    "slurm",
    "open-mpi",
    "mvapich",
    "pmi",
    "pmix",
    "azure-ml",
    "beaker",
    "flux",
    "htcondor",
    "vertex-ai",
    "sagemaker",
    "skypilot",
    "kubeflow-trainer-v2",
    "kubernetes-indexed-job",
];

/// Reaction to a node without ranklaunch. `first`: this is the first attempt of the job.
fn without(settings: &Settings, contract: &Contract, unit: MemberKind, first: bool) -> Without {
    let one = unit == MemberKind::Task
        || contract.evidence.iter().any(|found| ONE_COMMAND.contains(&found.platform.as_str()));
    match settings.muster.value {
        // All nodes agreed on the previous attempt, so all have ranklaunch.
        _ if !first => Without::Wait,
        Need::Required => Without::Refuse,
        _ if one => Without::Wait,
        _ => Without::Follow,
    }
}

/// The part of this node in the muster. `first`: this is the first attempt of the job.
///
/// # Errors
/// When the secret cannot be read or is too short.
pub(super) fn config(
    host: &Arc<Host>,
    settings: &Settings,
    contract: &Contract,
    member: &Membership,
    first: bool,
) -> Result<Config, Refusal> {
    let mut ids = contract.evidence.iter().filter(|found| found.field == Field::JobId);
    let job = ids.find(|found| !found.claim.is_blank()).map(|found| match &found.beside {
        Some(step) if !step.is_blank() => format!("{}.{}", found.claim.value, step.value),
        _ => found.claim.value.clone(),
    });
    let secret = Secret::read(host)?;
    let host = Arc::clone(host);
    let unit = if member.task.is_some() { MemberKind::Task } else { MemberKind::Node };
    let list = plan::listed(settings).filter(|_| unit == MemberKind::Node);
    let hosts = list.map(|list| list.value.clone()).unwrap_or_default();
    Ok(Config {
        purpose: Purpose::Run,
        unit,
        node: member.member(),
        nnodes: member.members(),
        hosts,
        job,
        master_addr: member.master_addr.clone(),
        port: settings.muster_port.as_ref().map_or(member.master_port, |port| port.value),
        wait_timeout: settings.wait_timeout.value,
        pace: Pace::STANDARD,
        live: None,
        peer_timeout: muster::PEER_TIMEOUT,
        secret,
        without: without(settings, contract, unit, first),
        grace: settings.grace.value,
        is_world_size: member.nnodes_by_world_size,
        memory: Arc::new(move || {
            let (used, limit) = Limits::memory_in_use(&host)?;
            Some(Memory { used, limit })
        }),
    })
}
