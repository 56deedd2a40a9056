//! Before the start: meets the other nodes, so that all run one plan.
//!
//! Node 0 plans for the worst node and proposes; the others plan with what was
//! agreed and say whether they can follow. Where a node runs without a muster,
//! all go on by themselves, unless `--muster required` forbids it.

use std::sync::Arc;

use super::Scene;
use super::card::card;
use super::excuse;
use super::look;
use super::node::{self, Next};
use super::place::{begins, misplaced};
use super::restart::Restarts;
use super::shared::Together;
use crate::decide::{Stage, decide};
use crate::host::Host;
use crate::lang::Text;
use crate::muster::{
    self, Accepted, Agreement, Assembly, Config, Difference, Joined, Mark, Memory, NodeSummary,
    Purpose, Secret, Session, Settled, Unit, Without,
};
use crate::observe::{self, Contract, Facts, Field};
use crate::pace::Pace;
use crate::plan::{Decision, Membership, Plan, RunIdentity, Scope};
use crate::report::closing;
use crate::settings::{MusterMode, Settings};
use crate::text;
use crate::verdict::{Id, Refusal};

/// What came of it.
pub(super) enum Met {
    /// One plan for all nodes.
    Agreed { plan: Box<Plan>, identity: RunIdentity, together: Box<Together> },
    /// This node goes on by itself, as there is only one, or as a node has no muster.
    Alone,
}

/// Whether this job is to have one.
///
/// # Errors
/// When it is required and cannot be.
pub(super) fn is_wanted(settings: &Settings, member: &Membership) -> Result<bool, Refusal> {
    let mode = settings.muster.value;
    if mode == MusterMode::Off || member.members() < 2 {
        return Ok(false);
    }
    if member.elastic.is_none() {
        return Ok(true);
    }
    if mode == MusterMode::Auto {
        return Ok(false);
    }
    let source = &settings.muster.source;
    Err(Refusal::new(
        Id::MusterElastic,
        text!(
            "{source}: an elastic job changes its nodes, so they cannot agree on one plan",
            "{source}：弹性任务的节点会变化，因此无法协商出统一的计划"
        ),
        text!("--muster auto starts it without one", "使用 --muster auto 可跳过集结启动"),
    ))
}

/// Platforms that start one command on all nodes of a job: where node 0 has no muster
/// there, it is none of this job. Elsewhere a person, or one template per role, starts
/// each node, and may start one without ranklaunch.
const ONE_COMMAND: &[&str] = &[
    "slurm",
    "open-mpi",
    "mvapich",
    "pmi",
    "pmix",
    "azure-ml",
    "vertex-ai",
    "sagemaker",
    "skypilot",
    "kubeflow-trainer-v2",
    "kubernetes-indexed-job",
];

/// What a node without ranklaunch means; `first`: no attempt of the job went before.
fn without(settings: &Settings, contract: &Contract, unit: Unit, first: bool) -> Without {
    let one = unit == Unit::Task
        || contract.evidence.iter().any(|found| ONE_COMMAND.contains(&found.platform.as_str()));
    match settings.muster.value {
        // Whoever agreed on the attempt before has ranklaunch.
        _ if !first => Without::Wait,
        MusterMode::Required => Without::Refuse,
        _ if one => Without::Wait,
        _ => Without::Follow,
    }
}

/// How this node takes part; `first`: no attempt of the job went before.
///
/// # Errors
/// When the secret cannot be read or is too short.
pub(super) fn config(
    host: &Arc<Host>,
    settings: &Settings,
    contract: &Contract,
    member: &Membership,
    decisions: &[Decision],
    first: bool,
) -> Result<Config, Refusal> {
    let count = decisions.iter().find(|decision| decision.what == "nnodes");
    let mut ids = contract.evidence.iter().filter(|found| found.field == Field::JobId);
    let job = ids.find(|found| !found.claim.is_blank()).map(|found| match &found.beside {
        Some(step) if !step.is_blank() => format!("{}.{}", found.claim.value, step.value),
        _ => found.claim.value.clone(),
    });
    let secret = Secret::read(host)?;
    let host = Arc::clone(host);
    let unit = if member.task.is_some() { Unit::Task } else { Unit::Node };
    Ok(Config {
        purpose: Purpose::Run,
        unit,
        node: member.member(),
        nnodes: member.members(),
        job,
        master_addr: member.master_addr.clone(),
        port: settings.muster_port.as_ref().map_or(member.master_port, |port| port.value),
        wait_timeout: settings.wait_timeout.value,
        pace: Pace::STANDARD,
        peer_timeout: muster::PEER_TIMEOUT,
        secret,
        without: without(settings, contract, unit, first),
        grace: settings.grace.value,
        is_world_size: count.is_some_and(|count| count.source.starts_with("WORLD_SIZE=")),
        memory: Arc::new(move || {
            let (used, limit) = observe::limits::memory_in_use(&host)?;
            Some(Memory { used, limit })
        }),
    })
}

/// Meets the other nodes, where there are any.
///
/// `taken`: the port of node 0 is held by what stays.
///
/// # Errors
/// When they do not fit together, one is missing at the deadline, or the port is taken.
#[tracing::instrument(name = "muster", skip_all)]
pub(super) async fn meet(
    scene: &Scene,
    facts: &mut Facts,
    plan: &Plan,
    next: Option<&Next>,
    taken: Option<&Refusal>,
) -> Result<Met, Refusal> {
    let member = &plan.membership;
    if !scene.host.is_live() || !is_wanted(&scene.settings, member)? {
        return Ok(Met::Alone);
    }
    let (settings, contract) = (&scene.settings, &facts.contract);
    let decisions = &plan.decisions;
    let config = config(&scene.host, settings, contract, member, decisions, next.is_none())?;
    let own = card(&scene.settings, facts, plan)?;
    let speaks = member.acts_for_node();
    if config.secret.is_none() && next.is_none() && speaks {
        scene.say(&text!(
            "the connections between the nodes are not encrypted; set RANKLAUNCH_SECRET to encrypt them",
            "节点间的连接未加密；设置 RANKLAUNCH_SECRET 可加密"
        ));
    }
    if let Some(warning) = misplaced(facts, plan).filter(|_| next.is_none()) {
        scene.console.say(&closing::warning(&warning, scene.lang()));
    }
    if speaks {
        scene.say(&begins(&config));
    }
    if member.is_master() {
        let own_ports = || {
            taken.map_or(Ok(()), |taken| Err(taken.clone()))?;
            node::own_port(scene, member.master_port)?;
            if config.port == member.master_port {
                return Ok(());
            }
            node::own_port(scene, config.port)
        };
        if let Err(refusal) = own_ports() {
            excuse::without_a_port(scene, &config, &own.hostname, &refusal).await;
            return Err(refusal);
        }
        lead(scene, facts, plan, &config, own, next).await
    } else {
        follow(scene, facts, &config, &own).await
    }
}

/// Node 0: gathers, plans for all, proposes.
async fn lead(
    scene: &Scene,
    facts: &Facts,
    plan: &Plan,
    config: &Config,
    own: NodeSummary,
    next: Option<&Next>,
) -> Result<Met, Refusal> {
    let restarts = next.map_or_else(
        || Restarts::new(scene.settings.max_restarts.value),
        |next| next.restarts.clone(),
    );
    let identity = match next {
        Some(next) => next.identity.clone(),
        None => node::identity(plan, &facts.contract)?,
    };
    let mut say = |line: Text| scene.say(&line);
    loop {
        let gathered = match muster::gather(config, own.clone(), &mut say).await? {
            Assembly::All(gathered) => gathered,
            Assembly::Alone(why) => {
                scene.say(&why);
                return Ok(Met::Alone);
            }
        };
        let differences = gathered.differences().to_vec();
        let (fewest, heads) = (gathered.fewest(), gathered.heads());
        let planned = plan_for_all(&scene.settings, facts, &differences, fewest, heads);
        let plan = match planned {
            Ok(plan) => plan,
            Err(refusal) => {
                gathered.refuse(&refusal).await;
                return Err(refusal);
            }
        };
        let agreement = proposal(&plan, &identity, next.map_or(0, |next| next.attempt));
        match gathered.agree(agreement.clone(), restarts.decide(), &mut say).await? {
            Settled::Session(session) => {
                // Without a store of torch's nobody could read whose it is.
                let port = agreement.master_port;
                let mark =
                    (!plan.engine.runs_a_command()).then(|| Mark { port, key: config.key() });
                let met = agreed(scene, own, plan, &agreement, &differences, session, restarts);
                return Ok(with_mark(met, mark));
            }
            Settled::Lost(why) => scene.say(&why),
        }
    }
}

fn with_mark(mut met: Met, mark: Option<Mark>) -> Met {
    if let Met::Agreed { together, .. } = &mut met {
        together.mark = mark;
    }
    met
}

/// Node 0's plan for all: `fewest` is the least that one node can carry.
pub(super) fn plan_for_all(
    settings: &Settings,
    facts: &Facts,
    differences: &[Difference],
    fewest: u32,
    heads: Option<u32>,
) -> Result<Plan, Refusal> {
    if settings.muster.value == MusterMode::Required {
        muster::refuse_differences(differences)?;
    }
    decide(settings, facts, Scope::ForAll { fewest, heads }).plan(Stage::BeforeStart)
}

/// What of a plan holds for all nodes.
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

/// Any other node: joins, plans with what was agreed, says whether it can follow.
async fn follow(
    scene: &Scene,
    facts: &mut Facts,
    config: &Config,
    own: &NodeSummary,
) -> Result<Met, Refusal> {
    let last = look::last_resort(scene.settings.probe.value);
    let mut say = |line: Text| scene.say(&line);
    loop {
        let offer = match muster::join(&scene.host, config, own, Some(&last), &mut say).await? {
            Joined::Offer(offer) => offer,
            // Only who came to measure is asked to.
            Joined::Measure(_) => continue,
            Joined::Alone(why) => {
                scene.say(&why);
                return Ok(Met::Alone);
            }
        };
        // The connection proves which of our addresses talks to node 0.
        if let Some(local) = offer.local {
            node::prove_route(facts, local);
        }
        let (agreement, differences) = (offer.agreement.clone(), offer.differences.clone());
        let mut plan = match plan_as_agreed(&scene.settings, facts, &agreement) {
            Ok(plan) => plan,
            Err(refusal) => {
                offer.decline(&refusal).await;
                return Err(refusal);
            }
        };
        plan.membership.master_port = agreement.master_port;
        match offer.accept().await? {
            Accepted::Session(session) => {
                let none = Restarts::new(0);
                let own = own.clone();
                return Ok(agreed(scene, own, plan, &agreement, &differences, session, none));
            }
            Accepted::Alone(why) => {
                scene.say(&why);
                return Ok(Met::Alone);
            }
            Accepted::Lost => scene.say(&text!(
                "the connection to node 0 was lost during the agreement; joining again",
                "协商过程中与节点 0 的连接断开；重新加入"
            )),
        }
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
            "node 0 proposes {nproc} processes, ulysses_size {ulysses} and ring_size {ring}, and this node comes to {mine}, {my_ulysses} and {my_ring}",
            "节点 0 提议 {nproc} 个进程、ulysses_size {ulysses}、ring_size {ring}，而本节点得到 {mine}、{my_ulysses}、{my_ring}"
        ),
        text!(
            "give all nodes the same arguments, profile and checkpoint",
            "请为所有节点指定相同的参数、配置文件和检查点"
        ),
    ))
}

fn agreed(
    scene: &Scene,
    own: NodeSummary,
    mut plan: Plan,
    agreement: &Agreement,
    differences: &[Difference],
    session: Session,
    restarts: Restarts,
) -> Met {
    let Agreement { nnodes, nproc, world, run_id, .. } = agreement;
    let agreed = match plan.membership.task {
        Some(_) => text!(
            "all {world} tasks agree: one rank each, run {run_id}",
            "全部 {world} 个 task 达成一致：各启动一个 rank，运行 {run_id}"
        ),
        None => text!(
            "all {nnodes} nodes agree: {nproc} processes each, {world} in all, run {run_id}",
            "全部 {nnodes} 个节点达成一致：每节点 {nproc} 个进程，共 {world} 个，运行 {run_id}"
        ),
    };
    if plan.membership.acts_for_node() {
        scene.say(&agreed);
    }
    for warning in differences.iter().map(Difference::warning) {
        scene.console.say(&closing::warning(&warning, scene.lang()));
        plan.warnings.push(warning);
    }
    let identity = RunIdentity {
        run_id: agreement.run_id.clone(),
        timestamp: agreement.timestamp.clone(),
        master_port: agreement.master_port,
    };
    let who = (own.node, own.seat.map(|seat| seat.node));
    let together = Together::new(session, who, own.hostname, agreement.attempt, restarts);
    Met::Agreed { plan: Box::new(plan), identity, together: Box::new(together) }
}
