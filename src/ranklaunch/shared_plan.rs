//! The plan of all nodes: made by the leader, followed by the others, and the run that it names.

use std::net::IpAddr;

use time::OffsetDateTime;
use time::macros::format_description;

use linux::random;
use muster::{Agreement, Difference};
use node::observe::Facts;
use plan::{Plan, Resume, RunIdentity, Scope};
use preflight::decide::{Stage, decide};
use preflight::prepare;
use settings::contract::{Contract, Field};
use settings::{Need, Settings};
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal};

/// A port that is free on this node, at the address of the master if this node has it.
pub(super) fn free_port(master: &str) -> Result<u16, Refusal> {
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let address = master.parse().unwrap_or(loopback);
    prepare::free_port(address).or_else(|_| prepare::free_port(loopback)).map_err(|error| {
        let Text { en, zh } = cause(&error);
        Refusal::new(
            Id::PortNone,
            text!("no free port on this node: {en}", "本节点没有空闲端口：{zh}"),
            text!("name one with --master-port", "请用 --master-port 指定端口"),
        )
    })
}

/// Refuses a start without a checkpoint where the settings require one, or where nodes see some, but none in common.
pub(super) fn required(
    settings: &Settings,
    resume: Option<u64>,
    are_seen: impl FnOnce() -> bool,
) -> Result<(), Refusal> {
    match resume {
        Some(_) => Ok(()),
        None => plan::refused_without(settings, are_seen()).map_or(Ok(()), Err),
    }
}

/// The agreed checkpoint as this node sees it.
pub(super) fn resume(facts: &Facts, agreement: &Agreement) -> Option<Resume> {
    let found = &facts.checkpoints.as_ref()?.found;
    found.iter().find(|one| Some(one.digest) == agreement.resume).map(Resume::from)
}

/// The leader's plan for all nodes. `scope`: [`Scope::ForAll`].
pub(super) fn plan_for_all(
    settings: &Settings,
    facts: &Facts,
    differences: &[Difference],
    scope: Scope,
) -> Result<Plan, Refusal> {
    if settings.muster.value == Need::Required {
        muster::refuse_differences(differences)?;
    }
    decide(settings, facts, scope).plan(Stage::BeforeStart)
}

/// The values of a plan that hold for all nodes.
pub(super) fn proposal(plan: &Plan, identity: &RunIdentity, attempt: u32) -> Agreement {
    Agreement {
        nnodes: plan.membership.members(),
        nproc: plan.ranks_here(),
        world: plan.world_size,
        ulysses: plan.layout.ulysses_size,
        ring: plan.layout.ring_size,
        heads: plan.layout.heads,
        master_port: plan.membership.master_port,
        run_id: identity.run_id.clone(),
        timestamp: identity.timestamp.clone(),
        attempt,
        resume: None,
        seats: Vec::new(),
    }
}

/// The plan of this node with the agreed sizes.
pub(super) fn plan_as_agreed(
    settings: &Settings,
    facts: &Facts,
    agreement: &Agreement,
    node: u32,
) -> Result<Plan, Refusal> {
    let fits = |plan: &Plan| {
        plan.ranks_here() == agreement.nproc
            && plan.world_size == agreement.world
            && plan.layout.ulysses_size == agreement.ulysses
            && plan.layout.ring_size == agreement.ring
    };
    let seat = agreement.seat_of(node).filter(|_| !agreement.seats.is_empty());
    let scope = Scope::Agreed { nproc: agreement.nproc, heads: agreement.heads, seat };
    let plan = decide(settings, facts, scope).plan(Stage::BeforeStart)?;
    if fits(&plan) {
        return Ok(plan);
    }
    let Agreement { nproc, ulysses, ring, .. } = agreement;
    let (mine, layout) = (plan.ranks_here(), &plan.layout);
    let (my_ulysses, my_ring) = (layout.ulysses_size, layout.ring_size);
    Err(Refusal::new(
        Id::MusterLayout,
        text!(
            "node 0 proposes {nproc} processes, ulysses_size {ulysses} and ring_size {ring}, but this node computes {mine}, {my_ulysses} and {my_ring}",
            "节点 0 提议 {nproc} 个进程、ulysses_size {ulysses}、ring_size {ring}，而本节点算出 {mine}、{my_ulysses}、{my_ring}"
        ),
        text!(
            "give all nodes the same arguments, profile and checkpoint",
            "请为所有节点指定相同的参数、配置文件和检查点"
        ),
    ))
}

/// `<job>-<UTC time>-<4 hex>`. Before the nodes agree on one, it is the same on all nodes only
/// if the platform names the job.
pub(super) fn run_identity(plan: &Plan, contract: &Contract) -> Result<RunIdentity, Refusal> {
    let mut random = [0u8; 2];
    random::fill(&mut random).map_err(|error| Refusal::internal(&error.to_string()))?;
    let now = OffsetDateTime::now_utc();
    let timestamp = now
        .format(format_description!("[year][month][day]-[hour][minute][second]"))
        .map_err(|error| Refusal::internal(&error.to_string()))?;
    let job = contract.first(Field::JobId).map_or("run", |claim| claim.value.as_str());
    let job: String = job
        .chars()
        .take(48)
        .enumerate()
        // A first dot would hide the folder of the run.
        .map(|(at, letter)| match letter {
            '.' if at > 0 => letter,
            _ if letter.is_ascii_alphanumeric() => letter,
            _ => '-',
        })
        .collect();
    let [high, low] = random;
    Ok(RunIdentity {
        run_id: format!("{job}-{timestamp}-{high:02x}{low:02x}"),
        timestamp,
        master_port: plan.membership.master_port,
        resume: None,
    })
}
