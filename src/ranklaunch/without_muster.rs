//! The agreement phase without a muster, also of a single-node job: the node plans by itself and
//! waits for the master.

use super::context::Context;
use super::master::{prove_route, wait_for_master};
use super::own_plan::OwnPlan;
use super::restart::Restarts;
use super::run_identity::run_identity;
use node::observe::Facts;
use plan::{Plan, RunIdentity, Scope};
use preflight::decide::{Stage, decide};
use settings::{Need, StaleMode};
use text::text;
use verdict::Refusal;

/// The launch that this node starts by itself.
pub(super) struct Alone {
    pub(super) plan: Plan,
    pub(super) identity: RunIdentity,
    pub(super) restarts: Restarts,
}

/// # Errors
/// The refusal of the plan without a muster, or of the wait for the master.
pub(super) async fn plan(
    context: &Context,
    facts: &mut Facts,
    own: &mut OwnPlan,
) -> Result<Alone, Refusal> {
    let mut plan = own.plan.clone();
    let alone = plan.membership.members() == 1;
    if let Some(duty) = &mut own.duty
        && duty.request.mode == StaleMode::Force
        && !alone
    {
        // The nodes have not agreed on anything, so only proven leftovers are ended.
        duty.request.mode = StaleMode::Kill;
    }
    // Processes that will be ended may still hold GPU memory.
    let stage = if own.duty.is_some() { Stage::BeforeClearing } else { Stage::BeforeStart };
    let plan_again =
        |facts: &Facts| decide(&context.settings, facts, Scope::WithoutMuster).plan(stage);
    if !alone && context.settings.muster.value != Need::Off {
        // Some choices differ, such as the id of a c10d rendezvous.
        let before = std::mem::take(&mut plan.warnings);
        plan = plan_again(facts)?;
        // The losses without a muster, such as restarts, are reported before the launch.
        let new = plan.warnings.iter().filter(|warning| !before.contains(warning)).cloned();
        context.warn(&new.collect::<Vec<_>>());
    }
    if let Some(local) = wait_for_master(context, &plan, facts, own.port_taken.take()).await?
        && prove_route(facts, local)
    {
        plan = plan_again(facts)?;
        let interface = plan.network.socket_ifname.clone().unwrap_or_default();
        context.say(&text!(
            "the connection to the master goes through {interface}: planned again with it",
            "到 Master 的连接经过 {interface}：已据此重新规划"
        ));
    }
    let identity = run_identity(&plan, &facts.contract)?;
    // Several nodes can be restarted only through the muster.
    let restarts = if alone { context.restarts() } else { Restarts::none() };
    Ok(Alone { plan, identity, restarts })
}
