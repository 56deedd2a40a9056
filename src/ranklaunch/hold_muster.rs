//! The muster of one attempt: which node leads it, and this node's part as the leader or another node.
//!
//! The leader plans for the node with the least capacity and proposes that plan. The others plan with the agreed values and
//! answer whether they can follow. Where another node leads than this one has found, it looks again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::agree_lines::{begins, same_elsewhere};
use super::bad_nodes;
use super::collect;
use super::context::Context;
use super::job_session::JobSession;
use super::leadership::{Elsewhere, Leader, Leadership};
use super::muster_config::{
    config, is_wanted, misplaced, not_encrypted, own_port, prove_route, summary, with_checkpoints,
};
use super::notify_peers;
use super::own_plan::OwnPlan;
use super::restart::{NextAttempt, Restarts};
use super::seats::{self, Waited};
use super::shared_plan::{
    free_port, plan_as_agreed, plan_for_all, proposal, required, resume, run_identity,
};
use linux::deadline::in_thread;
use muster::{
    Accepted, Agreement, Assembly, Config, Difference, Joined, NodeSummary, Settled, StoreMark,
    Succession,
};
use node::observe::{self, Facts};
use plan::{Plan, RunIdentity, Scope};
use report::Ending;
use text::lang::Text;
use text::text;
use verdict::{Refusal, Warning};

/// Looks again where the nodes see different checkpoints, which on storage of their own may stay so.
const LOOKS: u32 = 1;
/// The same where they see none in common: a file server may show one client's files to the others late.
const LOOKS_FOR_ONE: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Time in which a leader that has fallen silent is found to be lost, beyond the longest silence.
const FOUND_LOST: Duration = Duration::from_secs(5);

/// The plan of all nodes, or of this node alone.
pub(super) struct Shared {
    pub(super) plan: Plan,
    pub(super) identity: RunIdentity,
    pub(super) session: Option<Box<JobSession>>,
    pub(super) attempt: u32,
    pub(super) restarts: Restarts,
    /// The warnings that node 0 prints, on other nodes.
    pub(super) said: Vec<u64>,
    pub(super) seats: Vec<u32>,
    /// On the leader: the machines of all nodes, by the numbers of the nodes.
    pub(super) machines: BTreeMap<u32, String>,
}

/// What comes of the muster.
pub(super) enum Mustered {
    Shared(Box<Shared>),
    /// This node continues by itself, because the job has one node or a node has no muster.
    Alone,
    Again(NextAttempt),
    Over(Ending),
}

/// What comes of one leader.
enum Led {
    Mustered(Box<Mustered>),
    /// Another node leads the job, or may: this one, which gathers there, or one that has to be looked for.
    Elsewhere(Option<(u32, SocketAddr)>),
}

impl From<Shared> for Led {
    fn from(shared: Shared) -> Led {
        Mustered::Shared(Box::new(shared)).into()
    }
}

impl From<Mustered> for Led {
    fn from(mustered: Mustered) -> Led {
        Led::Mustered(Box::new(mustered))
    }
}

#[tracing::instrument(name = "muster", skip_all)]
pub(super) async fn hold_muster(
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
    let mut summary =
        NodeSummary { attempt, tally, held, ..summary(&context.settings, facts, plan)? };
    summary.machine = bad_nodes::identity(&context.host, &summary.hostname);
    if config.seating.spares > 0 {
        if next.is_none() {
            context.bad_nodes.look(&context.host, &context.settings).await;
        }
        config.remembered = context.bad_nodes.known();
        let machine = summary.machine.as_ref();
        summary.remembered = machine.and_then(|machine| config.remembered.get(machine).cloned());
    }
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
        let led = if config.leader == config.node {
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
            follow(context, facts, &config, summary.clone(), next).await
        };
        match led? {
            Led::Elsewhere(found) => {
                if found.is_none() && config.leader == config.node {
                    context.say(&text!(
                        "this node cannot go on as the leader: too few of the nodes that vote are here, or others go on; looking for them",
                        "本节点无法继续主持：有投票权的节点不足，或其他节点已继续；正在寻找它们"
                    ));
                }
                leadership.moved(found);
                config.wait_timeout = leadership.left();
            }
            Led::Mustered(mustered) => return Ok(*mustered),
        }
    }
}

/// The leader: gathers, plans for all, proposes.
async fn lead(
    context: &Context,
    facts: &mut Facts,
    plan: &Plan,
    config: &Config,
    mut own: NodeSummary,
    next: Option<&NextAttempt>,
) -> Result<Led, Refusal> {
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
    let mut looks = 0;
    loop {
        let gathered = match muster::gather(config, own.clone(), &mut say).await? {
            Assembly::All(gathered) => gathered,
            Assembly::Alone(why) => {
                context.say(&why);
                return Ok(Mustered::Alone.into());
            }
            Assembly::Elsewhere(found) => return Ok(Led::Elsewhere(found)),
        };
        let differences = gathered.differences.clone();
        let same = same_elsewhere(&plan.warnings, &gathered.summaries);
        let (fewest, heads) = (gathered.fewest(), gathered.heads());
        let scope = Scope::ForAll { fewest, heads, seat: leads_instead.then_some(0) };
        let planned = plan_for_all(&context.settings, facts, &differences, scope);
        let planned = planned.and_then(|mut plan| {
            let resume = gathered.checkpoint(&plan)?;
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
        if let Ok((_, resume)) = &planned
            && gathered.see_different_checkpoints()
            && looks < resume.map_or(LOOKS_FOR_ONE, |_| LOOKS)
        {
            if looks > 0 {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            looks += 1;
            gathered.look_again().await;
            own = looked_again(context, facts, own).await;
            continue;
        }
        let planned = planned.and_then(|planned| {
            required(&context.settings, planned.1, || gathered.see_checkpoints(&planned.0))?;
            Ok(planned)
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
        let seating = [seats::said(&gathered), bad_nodes::said(&gathered)].concat();
        let machine = |one: &NodeSummary| Some((one.node, one.machine.clone()?));
        let machines = gathered.summaries.iter().filter_map(machine).collect();
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
                return Ok(Shared { machines, ..shared }.into());
            }
            Settled::Lost(why) => {
                context.say(&why);
                if last.is_some() {
                    return Ok(Led::Elsewhere(None));
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
    mut own: NodeSummary,
    next: Option<&NextAttempt>,
) -> Result<Led, Refusal> {
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
            joined = muster::join(&context.host, &config, &own, Some(&last), &mut say) => joined,
            found = elsewhere.wait() => return Ok(Led::Elsewhere(found)),
        };
        let joined = match (joined, lost.take()) {
            // Node 0 did not come back.
            (Err(_), Some(lost)) => return Ok(Mustered::Over(lost).into()),
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
                    return Ok(Led::Elsewhere(at.map(|at| (leader, at))));
                }
                // It is on its way to the next attempt.
                tokio::time::sleep(seats::ANSWERS / 4).await;
                continue;
            }
            // Node 0 asks only the nodes of `check` to measure.
            Joined::Measure(_) => continue,
            Joined::Look => {
                own = looked_again(context, facts, own).await;
                continue;
            }
            Joined::Alone(why) => {
                context.say(&why);
                return Ok(Mustered::Alone.into());
            }
            Joined::Parked(parked) => match seats::wait(context, *parked, &config, &restarts).await
            {
                Waited::Again(next) => return Ok(Mustered::Again(next).into()),
                Waited::Over(ending) => return Ok(Mustered::Over(ending).into()),
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
            required(&context.settings, agreement.resume, || false)?;
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
                let session = JobSession::new(session, (&own, false), None, longest);
                let restarts = restarts.clone();
                let shared =
                    agreed(context, facts, plan, &agreement, &differences, session, restarts);
                return Ok(Shared { said, ..shared }.into());
            }
            Accepted::Alone(why) => {
                context.say(&why);
                return Ok(Mustered::Alone.into());
            }
            Accepted::Lost => {
                let leader = config.leader;
                context.say(&text!(
                    "the connection to node {leader} was lost during the agreement; joining again",
                    "协商过程中与节点 {leader} 的连接断开；重新加入"
                ));
                if config.succession.as_ref().is_some_and(|one| one.electorate().is_some()) {
                    return Ok(Led::Elsewhere(None));
                }
            }
        }
    }
}

/// This node's summary after another look at the checkpoints. Other nodes may have gone on saving, and removing older ones,
/// since it looked: while this one waited for a leader, or theirs was lost.
async fn looked_again(context: &Context, facts: &mut Facts, own: NodeSummary) -> NodeSummary {
    let (host, settings) = (Arc::clone(&context.host), Arc::clone(&context.settings));
    let look = in_thread(move || observe::checkpoints(&host, &settings));
    // Without an answer what was seen before still counts.
    if let Ok(seen) = timeout(observe::CHECKPOINTS, look).await {
        facts.checkpoints = seen;
        if let Some(saves) = &context.saves {
            saves.observed(facts.checkpoints.as_ref());
        }
    }
    with_checkpoints(own, facts)
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
    let (said, machines) = (Vec::new(), BTreeMap::new());
    Shared { plan, identity, session, attempt, restarts, said, seats, machines }
}

/// How long a node that failed waits for the verdict at least, where another node would give it once the leader is lost.
fn longest_verdict(config: &Config) -> Option<Duration> {
    let goes_on = config.succession.as_ref().is_some_and(Succession::can_go_on);
    goes_on.then(|| config.longest_silence() + FOUND_LOST)
}
