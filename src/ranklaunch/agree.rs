//! The agreement phase: all nodes of a job agree on one plan before the start.
//!
//! Node 0 plans for the node with the least capacity and proposes that plan. The others plan
//! with the agreed values and answer whether they can follow. Without a muster, also as the single
//! node of a job, each node plans by itself and waits for the master, unless `--muster required`
//! forbids that. Gives the launch, with the run id that names the log folder.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use std::time::Duration;

use time::OffsetDateTime;
use time::macros::format_description;

use super::agree_lines::{begins, same_elsewhere};
use super::conductor::{Met, Start};
use super::context::Context;
use super::job_session::JobSession;
use super::leadership::{Elsewhere, Leader, Leadership};
use super::muster_config::{
    config, is_wanted, misplaced, not_encrypted, own_port, prove_route, summary, wait_for_master,
};
use super::own_plan::OwnPlan;
use super::restart::{FailedAttempt, NextAttempt, Restarts};
use super::seats::{self, Waited};
use super::stale::Duty;
use super::{collect, notify_peers};
use linux::random;
use muster::{
    Accepted, Again, Agreement, Assembly, Cause, Config, Difference, Joined, LostNodes,
    NodeSummary, Seating, Settled, StoreMark, Succession,
};
use node::observe::Facts;
use plan::{Plan, Resume, RunIdentity, Scope};
use preflight::decide::{Stage, decide};
use preflight::prepare;
use report::Ending;
use settings::contract::{Contract, Field};
use settings::{Need, Settings, StaleMode};
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal, Warning};

/// Time in which a leader that has fallen silent is found to be lost, beyond the longest silence.
const FOUND_LOST: Duration = Duration::from_secs(5);

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
    /// What the next attempt has to know of the seats of this one.
    pub(super) seating: Seating,
    /// The nodes that the leader loses.
    pub(super) lost: Option<LostNodes>,
    /// The node that leads, in a job with spares.
    pub(super) leader: Option<u32>,
    /// What failed calls for another node than that.
    pub(super) leader_resigns: bool,
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
        if FailedAttempt::from(cause).calls_for_another_node() {
            self.seating.avoided.insert(cause.node);
            self.leader_resigns = self.leader == Some(cause.node) && cause.loss.is_none();
        }
        if cause.loss.is_some() {
            self.seating.lost.insert(cause.node);
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

/// A port that is free on this node, at the address of the master if this node has it.
fn free_port(master: &str) -> Result<u16, Refusal> {
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

/// The plan of all nodes, or of this node alone.
struct Shared {
    plan: Plan,
    identity: RunIdentity,
    session: Option<Box<JobSession>>,
    attempt: u32,
    restarts: Restarts,
    /// The warnings that node 0 prints, on other nodes.
    said: Vec<u64>,
    seats: Vec<u32>,
}

/// What comes of the muster.
enum Mustered {
    Shared(Box<Shared>),
    /// This node continues by itself, because the job has one node or a node has no muster.
    Alone,
    Again(NextAttempt),
    Over(Ending),
    /// Another node leads the job, or may: this one, which gathers there, or one that has to be looked for.
    Elsewhere(Option<(u32, SocketAddr)>),
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
        Mustered::Elsewhere(_) => return Err(Refusal::internal("no leader")),
    };
    let Shared { plan, identity, session, attempt, restarts, said: _, seats } = shared;
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
        seating,
        lost,
        leader: context.leader(),
        leader_resigns: false,
    }))
}

#[tracing::instrument(name = "muster", skip_all)]
async fn hold_muster(
    context: &Context,
    facts: &mut Facts,
    own: &OwnPlan,
    next: Option<&NextAttempt>,
) -> Result<Mustered, Refusal> {
    let plan = &own.plan;
    let member = &plan.membership;
    if !context.host.is_live() || !is_wanted(&context.settings, member)? {
        return Ok(Mustered::Alone);
    }
    let (settings, contract) = (&context.settings, &facts.contract);
    let config = config(&context.host, settings, contract, member, next.is_none())?;
    let seating = next.map_or_else(|| config.seating.clone(), |next| next.seating.clone());
    let (pace, live, held) = (context.wait_pace(), context.live(), seating.held);
    let mut config = Config { pace, live, seating, ..config };
    if next.is_some_and(|next| next.identity.is_none()) {
        // Without ranks to end, this node comes before the others.
        config.wait_timeout += config.grace + config.peer_timeout;
    }
    let attempt = next.map_or(0, |next| next.attempt);
    let tally = next.map(|next| next.tally).unwrap_or_default();
    let summary = NodeSummary { attempt, tally, held, ..summary(&context.settings, facts, plan)? };
    let speaks = member.acts_for_node();
    if config.secret.is_none() && next.is_none() && member.is_master() {
        context.say(&not_encrypted());
    }
    if let Some(warning) = misplaced(facts, plan).filter(|_| next.is_none()) {
        context.warn(&[warning]);
    }
    config.succession = context.succession(&config, &summary.hostname);
    let resigns = next.is_some_and(|next| next.leader_resigns);
    let mut leadership = Leadership::new(&config, resigns);
    loop {
        let found = match leadership.find(&config).await {
            Ok(found) => found,
            Err(ending) => return Ok(Mustered::Over(ending)),
        };
        (config.leader, config.at) = match found {
            Leader::Me => (config.node, None),
            Leader::OfPlatform => (0, None),
            Leader::Other { leader, at } => (leader, Some(at)),
        };
        match leadership.says(found, &config) {
            Some(line) => context.say(&line),
            None if speaks => context.say(&begins(&config)),
            None => {}
        }
        if let Some(last) = config.succession.as_ref().and_then(Succession::electorate) {
            config.seating.may_return(&last, attempt);
        }
        let mustered = if config.leader == config.node {
            if config.node == 0 {
                let own_ports = || {
                    own.port_taken.clone().map_or(Ok(()), Err)?;
                    own_port(context, member.master_port)?;
                    if config.port == member.master_port {
                        return Ok(());
                    }
                    own_port(context, config.port)
                };
                if let Err(refusal) = own_ports() {
                    let hostname = &summary.hostname;
                    notify_peers::without_a_port(context, &config, hostname, &refusal).await;
                    return Err(refusal);
                }
            }
            lead(context, facts, plan, &config, summary.clone(), next).await
        } else {
            follow(context, facts, &config, &summary, next).await
        };
        match mustered? {
            Mustered::Elsewhere(found) => {
                leadership.moved(found);
                config.wait_timeout = leadership.left();
            }
            other => return Ok(other),
        }
    }
}

/// Node 0: gathers, plans for all, proposes.
async fn lead(
    context: &Context,
    facts: &Facts,
    plan: &Plan,
    config: &Config,
    own: NodeSummary,
    next: Option<&NextAttempt>,
) -> Result<Mustered, Refusal> {
    let restarts = next.map_or_else(|| context.restarts(), |next| next.restarts.clone());
    let last = config.succession.as_ref().and_then(Succession::electorate);
    let identity = match (next.and_then(|next| next.identity.clone()), &last) {
        (Some(identity), _) => identity,
        (None, Some(last)) => RunIdentity {
            run_id: last.run_id.clone(),
            timestamp: last.timestamp.clone(),
            master_port: plan.membership.master_port,
            resume: None,
        },
        (None, None) => run_identity(plan, &facts.contract)?,
    };
    let leads_instead = config.leader != 0;
    let mut say = |line: Text| context.say(&line);
    loop {
        let gathered = match muster::gather(config, own.clone(), &mut say).await? {
            Assembly::All(gathered) => gathered,
            Assembly::Alone(why) => {
                context.say(&why);
                return Ok(Mustered::Alone);
            }
            Assembly::Elsewhere(found) => return Ok(Mustered::Elsewhere(found)),
        };
        let differences = gathered.differences.clone();
        let same = same_elsewhere(&plan.warnings, &gathered.summaries);
        let (fewest, heads) = (gathered.fewest(), gathered.heads());
        let scope = Scope::ForAll { fewest, heads, seat: leads_instead.then_some(0) };
        let planned = plan_for_all(&context.settings, facts, &differences, scope);
        let planned = planned.and_then(|mut plan| {
            let resume = gathered.checkpoint(&plan)?;
            required(&context.settings, resume)?;
            if let Some(own) = config.succession.as_ref().filter(|_| leads_instead) {
                let own = own.own_address();
                let addr = own.map_or_else(|| facts.hostname.clone(), |own| own.to_string());
                plan.membership.master_addr = addr;
            }
            if config.seating.spares > 0 && plan.membership.master_port == config.port {
                // Nodes that come while the job runs find the muster where they look for it.
                plan.membership.master_port = free_port(&plan.membership.master_addr)?;
            }
            Ok((plan, resume))
        });
        let (plan, resume) = match planned {
            Ok(planned) => planned,
            Err(refusal) => {
                gathered.refuse(&refusal).await;
                return Err(refusal);
            }
        };
        let known = gathered.summaries.iter().map(|one| (one.attempt, one.tally));
        let told = last.as_ref().map(|last| (last.attempt + 1, last.tally));
        let known = known.chain(told).max_by_key(|(attempt, _)| *attempt);
        let (known, tally) = known.unwrap_or_default();
        let attempt = restarts.count_on(known, tally);
        if attempt > own.attempt {
            context.say(&text!(
                "the other nodes have come to attempt {attempt}: the restarts of the job count on from there",
                "其他节点已进行到第 {attempt} 次尝试：任务的重启次数由此继续计算"
            ));
        }
        let seats = gathered.seats.clone();
        let seating = seats::said(&gathered);
        let agreement = Agreement { resume, seats, ..proposal(&plan, &identity, attempt) };
        let decides = (restarts.decide(), restarts.tally());
        match gathered.agree(agreement.clone(), decides, &mut say).await? {
            Settled::Session(session) => {
                // The mark is kept in torch's store, which engine `command` may not have.
                let port = agreement.master_port;
                let mark =
                    (!plan.engine.runs_a_command()).then(|| StoreMark { port, key: config.key() });
                if let Some(last) = config.succession.as_ref().and_then(Succession::electorate) {
                    context.notices.leads(last.voters);
                }
                let longest = longest_verdict(config);
                let session = JobSession::new(session, (&own, true), mark, longest);
                let shared =
                    agreed(context, facts, plan, &agreement, &differences, session, restarts);
                if next.is_none() {
                    same.iter().for_each(|line| context.say(line));
                }
                seating.iter().for_each(|line| context.say(line));
                return Ok(Mustered::Shared(Box::new(shared)));
            }
            Settled::Lost(why) => {
                context.say(&why);
                if last.is_some() {
                    return Ok(Mustered::Elsewhere(None));
                }
            }
        }
    }
}

/// Any other node: joins, plans with the agreed values and answers whether it can follow.
async fn follow(
    context: &Context,
    facts: &mut Facts,
    config: &Config,
    own: &NodeSummary,
    next: Option<&NextAttempt>,
) -> Result<Mustered, Refusal> {
    let last = collect::last_resort(context.settings.probe.value);
    let mut say = |line: Text| context.say(&line);
    let mut config = config.clone();
    let mut lost: Option<Ending> = None;
    let is_here = facts.network.master.as_ref().is_none_or(|master| master.local);
    let elsewhere = Elsewhere::new(&config, is_here);
    let restarts = match (&config.succession, next) {
        (None, _) => Restarts::none(),
        (Some(_), Some(next)) => next.restarts.clone(),
        (Some(_), None) => context.restarts(),
    };
    loop {
        let joined = tokio::select! {
            joined = muster::join(&context.host, &config, own, Some(&last), &mut say) => joined,
            found = elsewhere.wait() => return Ok(Mustered::Elsewhere(found)),
        };
        let joined = match (joined, lost.take()) {
            // Node 0 did not come back.
            (Err(_), Some(lost)) => return Ok(Mustered::Over(lost)),
            (joined, _) => joined?,
        };
        let offer = match joined {
            Joined::Offer(offer) => offer,
            Joined::Elsewhere(leader, place) => {
                let at = match &config.succession {
                    Some(succession) => succession.gathers_at(leader, place).await,
                    None => None,
                };
                if at.is_some() {
                    return Ok(Mustered::Elsewhere(at.map(|at| (leader, at))));
                }
                // It is on its way to the next attempt.
                tokio::time::sleep(seats::ANSWERS / 4).await;
                continue;
            }
            // Node 0 asks only the nodes of `check` to measure.
            Joined::Measure(_) => continue,
            Joined::Alone(why) => {
                context.say(&why);
                return Ok(Mustered::Alone);
            }
            Joined::Parked(parked) => match seats::wait(context, *parked, &config, &restarts).await
            {
                Waited::Again(next) => return Ok(Mustered::Again(next)),
                Waited::Over(ending) => return Ok(Mustered::Over(ending)),
                Waited::Lives(at) => {
                    config.at = Some(at);
                    continue;
                }
                Waited::Lost(ending) => {
                    config.wait_timeout = config.wait_timeout.min(seats::NODE_0_RETURNS);
                    lost = Some(ending);
                    continue;
                }
            },
        };
        // The connection proves which of our addresses talks to node 0.
        if let Some(local) = offer.local {
            prove_route(facts, local);
        }
        let (agreement, differences) = (offer.agreement.clone(), offer.differences.clone());
        let said = offer.said.clone();
        let planned = plan_as_agreed(&context.settings, facts, &agreement, config.node);
        // The setting may be that of this node only.
        let planned = planned.and_then(|plan| {
            required(&context.settings, agreement.resume)?;
            Ok(plan)
        });
        let mut plan = match planned {
            Ok(plan) => plan,
            Err(refusal) => {
                offer.decline(&refusal).await;
                return Err(refusal);
            }
        };
        plan.membership.master_port = agreement.master_port;
        if let Some(at) = offer.leader_at().filter(|_| config.leader != 0) {
            plan.membership.master_addr = at.to_string();
        }
        let decide = config.succession.as_ref().map(|_| restarts.decide());
        match offer.accept(decide).await? {
            Accepted::Session(session) => {
                let agreed_last = config.succession.as_ref().and_then(Succession::electorate);
                if let Some(last) = agreed_last {
                    restarts.count_on(last.attempt, last.tally);
                }
                let longest = longest_verdict(&config);
                let session = JobSession::new(session, (own, false), None, longest);
                let restarts = restarts.clone();
                let shared =
                    agreed(context, facts, plan, &agreement, &differences, session, restarts);
                return Ok(Mustered::Shared(Box::new(Shared { said, ..shared })));
            }
            Accepted::Alone(why) => {
                context.say(&why);
                return Ok(Mustered::Alone);
            }
            Accepted::Lost => {
                context.say(&text!(
                    "the connection to node 0 was lost during the agreement; joining again",
                    "协商过程中与节点 0 的连接断开；重新加入"
                ));
                if config.succession.as_ref().is_some_and(|one| one.electorate().is_some()) {
                    return Ok(Mustered::Elsewhere(None));
                }
            }
        }
    }
}

fn agreed(
    context: &Context,
    facts: &Facts,
    mut plan: Plan,
    agreement: &Agreement,
    differences: &[Difference],
    session: JobSession,
    restarts: Restarts,
) -> Shared {
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
        context.say(&agreed);
    }
    let differences: Vec<Warning> = differences.iter().map(Difference::warning).collect();
    if plan.membership.is_master() {
        context.warn(&differences);
    }
    plan.warnings.extend(differences);
    let identity = RunIdentity {
        run_id: agreement.run_id.clone(),
        timestamp: agreement.timestamp.clone(),
        master_port: agreement.master_port,
        resume: resume(facts, agreement),
    };
    let (session, attempt) = (Some(Box::new(session)), agreement.attempt);
    let seats = agreement.seats.clone();
    Shared { plan, identity, session, attempt, restarts, said: Vec::new(), seats }
}

/// How long a node that failed waits for the verdict at least, where another node would give it once the leader is lost.
fn longest_verdict(config: &Config) -> Option<Duration> {
    let goes_on = config.succession.as_ref().is_some_and(Succession::can_go_on);
    goes_on.then(|| config.longest_silence() + FOUND_LOST)
}

/// Refuses a start without a checkpoint where the settings require one.
fn required(settings: &Settings, resume: Option<u64>) -> Result<(), Refusal> {
    let refused = plan::refused_without(settings).filter(|_| resume.is_none());
    refused.map_or(Ok(()), Err)
}

/// The agreed checkpoint as this node sees it.
fn resume(facts: &Facts, agreement: &Agreement) -> Option<Resume> {
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
    let (said, seats) = (Vec::new(), Vec::new());
    Ok(Shared { plan, identity, session: None, attempt, restarts, said, seats })
}

/// `<job>-<UTC time>-<4 hex>`. Before the nodes agree on one, it is the same on all nodes only
/// if the platform names the job.
fn run_identity(plan: &Plan, contract: &Contract) -> Result<RunIdentity, Refusal> {
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
