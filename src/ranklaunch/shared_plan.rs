//! The plan for all nodes: node 0's proposal, and the plan of another node with the agreed
//! values.
//!
//! Pure: takes settings, facts and the agreed values; gives a plan, a proposal or a refusal.

use muster::{Agreement, Difference};
use node::observe::Facts;
use plan::{Plan, RunIdentity, Scope};
use preflight::decide::{Stage, decide};
use settings::{Need, Settings};
use text::text;
use verdict::{Id, Refusal};

/// Node 0's plan for all nodes. `fewest`: the smallest number of processes that some node can run.
pub(super) fn plan_for_all(
    settings: &Settings,
    facts: &Facts,
    differences: &[Difference],
    fewest: u32,
    heads: Option<u32>,
) -> Result<Plan, Refusal> {
    if settings.muster.value == Need::Required {
        muster::refuse_differences(differences)?;
    }
    decide(settings, facts, Scope::ForAll { fewest, heads }).plan(Stage::BeforeStart)
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
    }
}

/// The plan of this node with the agreed sizes.
pub(super) fn plan_as_agreed(
    settings: &Settings,
    facts: &Facts,
    agreement: &Agreement,
) -> Result<Plan, Refusal> {
    let fits = |plan: &Plan| {
        plan.ranks_here() == agreement.nproc
            && plan.world_size == agreement.world
            && plan.layout.ulysses_size == agreement.ulysses
            && plan.layout.ring_size == agreement.ring
    };
    let scope = Scope::Agreed { nproc: agreement.nproc, heads: agreement.heads };
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
