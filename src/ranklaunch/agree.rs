//! The agreement phase: all nodes of a job agree on one plan before the start.
//!
//! Without a muster, also as the single node of a job, each node plans by itself and waits for the master, unless
//! `--muster required` forbids that. Gives the launch, with the run id that names the log folder.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::conductor::{Met, Start};
use super::context::Context;
use super::hold_muster::{Mustered, Shared, hold_muster};
use super::job_session::JobSession;
use super::muster_config::{prove_route, wait_for_master};
use super::node_questions::SlowRanks;
use super::own_plan::OwnPlan;
use super::restart::{NextAttempt, Restarts, calls_for_another_leader};
use super::seats;
use super::shared_plan::{free_port, run_identity};
use super::stale::Duty;
use muster::{Again, Cause, LostNodes, Seating};
use node::observe::Facts;
use plan::{Plan, Resume, RunIdentity, Scope};
use preflight::decide::{Stage, decide};
use settings::contract::Field;
use settings::{Need, StaleMode};
use text::text;
use verdict::Refusal;

/// The launch that this node starts after stale processes are cleared.
pub(super) struct Agreed {
    pub(super) plan: Plan,
    pub(super) identity: RunIdentity,
    /// The session with the other nodes; None without a muster.
    pub(super) session: Option<Box<JobSession>>,
    /// Number of the attempt, from 0.
    pub(super) attempt: u32,
    pub(super) restarts: Restarts,
    /// The single rank inherits stdin, stdout and stderr.
    pub(super) interactive: bool,
    /// Path of this executable, with which engines start the shim.
    pub(super) executable: PathBuf,
    /// The stale processes to end now.
    pub(super) duty: Option<Duty>,
    /// The node of each seat; empty: each node has the seat of its number.
    pub(super) seats: Vec<u32>,
    /// On the leader: the machines of all nodes, by the numbers of the nodes.
    pub(super) machines: BTreeMap<u32, String>,
    /// What the next attempt has to know of the seats of this one.
    pub(super) seating: Seating,
    /// The nodes that the leader loses.
    pub(super) lost: Option<LostNodes>,
    /// The node that leads, in a job with spares.
    pub(super) leader: Option<u32>,
    /// What failed calls for another node than that.
    pub(super) leader_resigns: bool,
    /// The ranks that hold the others back.
    pub(super) slow: SlowRanks,
}

impl Agreed {
    /// A single node runs its plan again; several nodes observe, plan and agree anew.
    pub(super) fn start_again(self, again: Again) -> Start<Agreed, NextAttempt> {
        let attempt = again.attempt;
        if self.plan.membership.members() == 1 {
            return Start::Run(Agreed { attempt, ..self });
        }
        let Agreed { identity, restarts, seating, .. } = self;
        let gone = self.lost.map(|gone| gone.lock().clone()).unwrap_or_default();
        let (identity, tally, seating) =
            (Some(identity), again.tally, seats::without(seating, gone));
        let leader_resigns = self.leader_resigns;
        Start::Observe(Some(NextAttempt {
            attempt,
            identity,
            restarts,
            tally,
            seating,
            leader_resigns,
        }))
    }

    /// The first failure of this attempt is known.
    pub(super) fn failed(&mut self, cause: &Cause) {
        seats::avoid(&mut self.seating, cause);
        self.leader_resigns =
            self.leader.is_some_and(|leader| calls_for_another_leader(cause, leader));
        if cause.loss.is_some() {
            self.seating.lost.insert(cause.node);
        }
    }

    /// Another attempt follows: nodes that were slow until the end of this one get a seat only where no other is there.
    pub(super) fn avoid_slow_nodes(&mut self, context: &Context) {
        for (node, rank) in seats::slow_for_good(&self.slow) {
            // A rank that is slow on another node as well is slow by itself.
            let is_first = context.bad_nodes.is_new(&rank.to_string(), "slow");
            if self.leader.is_none_or(|leader| leader == node) || !is_first {
                continue;
            }
            context.say(&seats::gives_up(node));
            self.seating.avoided.insert(node);
        }
    }

    /// A single node takes a port that is free now; several nodes use the agreed port.
    pub(super) fn master_port(&self) -> Result<u16, Refusal> {
        let member = &self.plan.membership;
        if !member.master_port_free {
            return Ok(member.master_port);
        }
        free_port(&member.master_addr)
    }
}

/// The plan of all nodes, or this node's own without a muster.
///
/// # Errors
/// When the nodes do not fit together, a node is missing at the deadline, or a port is taken.
pub(super) async fn agree(
    context: &Context,
    mut facts: Facts,
    mut own: OwnPlan,
    next: Option<&NextAttempt>,
) -> Result<Met<Agreed, NextAttempt>, Refusal> {
    if let Some(saves) = &context.saves {
        saves.of_job(facts.contract.first(Field::JobId).map(|claim| claim.value.trim()));
        saves.observed(facts.checkpoints.as_ref());
    }
    let held = hold_muster(context, &mut facts, &own, next).await;
    let said: &[u64] = match &held {
        Ok(Mustered::Shared(shared)) => &shared.said,
        _ => &[],
    };
    own.unsaid.retain(|warning| !said.contains(&warning.key()));
    context.warn_of_plan(&own.unsaid);
    let shared = match held? {
        Mustered::Shared(shared) => *shared,
        Mustered::Alone => {
            let attempt = next.map_or(0, |next| next.attempt);
            plan_alone(context, &mut facts, &mut own, attempt).await?
        }
        Mustered::Again(next) => return Ok(Met::Again(next)),
        Mustered::Over(ending) => return Ok(Met::Over(ending)),
    };
    let Shared { plan, identity, session, attempt, restarts, said: _, seats, machines } = shared;
    let OwnPlan { interactive, executable, duty, .. } = own;
    let seating = seats::after(&plan, &seats, next);
    let lost = session.as_ref().map(|session| session.lost());
    Ok(Met::Agreed(Agreed {
        plan,
        identity,
        session,
        attempt,
        restarts,
        interactive,
        executable,
        duty,
        seats,
        machines,
        seating,
        lost,
        leader: context.leader(),
        leader_resigns: false,
        slow: SlowRanks::default(),
    }))
}

/// # Errors
/// The refusal of the plan without a muster, or of the wait for the master.
async fn plan_alone(
    context: &Context,
    facts: &mut Facts,
    own: &mut OwnPlan,
    attempt: u32,
) -> Result<Shared, Refusal> {
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
    let found = facts.checkpoints.as_ref().map(|facts| &facts.found[..]);
    let resume = plan::newest(found.unwrap_or_default(), None).map(Resume::from);
    let identity = RunIdentity { resume, ..run_identity(&plan, &facts.contract)? };
    // Several nodes can be restarted only through the muster.
    let restarts = if alone { context.restarts() } else { Restarts::none() };
    let (said, seats, machines) = (Vec::new(), Vec::new(), BTreeMap::new());
    Ok(Shared { plan, identity, session: None, attempt, restarts, said, seats, machines })
}
