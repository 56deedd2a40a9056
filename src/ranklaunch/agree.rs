//! The agreement phase: all nodes of a job agree on one plan before the start.
//!
//! Node 0 plans for the node with the least capacity and proposes that plan. The others plan
//! with the agreed values and answer whether they can follow. Without a muster each node
//! continues by itself, unless `--muster required` forbids that.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::collect;
use super::context::Context;
use super::job_session::JobSession;
use super::master::{misplaced, own_port, prove_route};
use super::muster_config::{config, is_wanted};
use super::notify_peers;
use super::observed::Observed;
use super::own_plan::OwnPlan;
use super::restart::{NextAttempt, Restarts};
use super::run_identity::run_identity;
use super::shared_plan::{plan_as_agreed, plan_for_all, proposal};
use super::stale::Duty;
use super::summary::summary;
use super::without_muster::{self, Alone};
use linux::pace::clock;
use muster::{
    Accepted, Agreement, Assembly, Config, Difference, Joined, MemberKind, NodeSummary, Settled,
    StoreMark,
};
use node::observe::Facts;
use plan::{Plan, RunIdentity};
use text::lang::Text;
use text::ranges::listed;
use text::text;
use verdict::{Refusal, Warning, by_importance};

/// The launch that this node starts after stale processes are cleared.
pub(super) struct Agreed {
    pub(super) plan: Plan,
    pub(super) identity: RunIdentity,
    /// None without a muster.
    pub(super) session: Option<Box<JobSession>>,
    pub(super) attempt: u32,
    pub(super) restarts: Restarts,
    pub(super) interactive: bool,
    pub(super) executable: PathBuf,
    /// The stale processes to end now.
    pub(super) duty: Option<Duty>,
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
}

/// The plan of all nodes, or this node's own without a muster.
///
/// # Errors
/// When the nodes do not fit together, a node is missing at the deadline, or a port is taken.
pub(super) async fn agree(
    context: &Context,
    observed: Observed,
    mut own: OwnPlan,
    next: Option<&NextAttempt>,
) -> Result<Agreed, Refusal> {
    let Observed { mut facts } = observed;
    let held = hold_muster(context, &mut facts, &own, next).await;
    let said: &[u64] = match &held {
        Ok(Some(shared)) => &shared.said,
        _ => &[],
    };
    own.unsaid.retain(|warning| !said.contains(&warning.key()));
    context.warn_of_plan(&own.unsaid);
    let shared = match held? {
        Some(shared) => shared,
        None => {
            let Alone { plan, identity, restarts } =
                without_muster::plan(context, &mut facts, &mut own).await?;
            let attempt = next.map_or(0, |next| next.attempt);
            Shared { plan, identity, session: None, attempt, restarts, said: Vec::new() }
        }
    };
    let Shared { plan, identity, session, attempt, restarts, said: _ } = shared;
    let OwnPlan { interactive, executable, duty, .. } = own;
    Ok(Agreed { plan, identity, session, attempt, restarts, interactive, executable, duty })
}

/// None if this node continues by itself, because the job has one node or a node has no muster.
#[tracing::instrument(name = "muster", skip_all)]
async fn hold_muster(
    context: &Context,
    facts: &mut Facts,
    own: &OwnPlan,
    next: Option<&NextAttempt>,
) -> Result<Option<Shared>, Refusal> {
    let plan = &own.plan;
    let member = &plan.membership;
    if !context.host.is_live() || !is_wanted(&context.settings, member)? {
        return Ok(None);
    }
    let (settings, contract) = (&context.settings, &facts.contract);
    let config = config(&context.host, settings, contract, member, next.is_none())?;
    let config = Config { pace: context.wait_pace(), live: context.live(), ..config };
    let attempt = next.map_or(0, |next| next.attempt);
    let summary = NodeSummary { attempt, ..summary(&context.settings, facts, plan)? };
    let speaks = member.acts_for_node();
    if config.secret.is_none() && next.is_none() && member.is_master() {
        context.say(&text!(
            "the connections between the nodes are not encrypted; set RANKLAUNCH_SECRET to encrypt them",
            "节点间的连接未加密；设置 RANKLAUNCH_SECRET 可加密"
        ));
    }
    if let Some(warning) = misplaced(facts, plan).filter(|_| next.is_none()) {
        context.warn(&[warning]);
    }
    if speaks {
        context.say(&begins(&config));
    }
    if member.is_master() {
        let own_ports = || {
            own.port_taken.clone().map_or(Ok(()), Err)?;
            own_port(context, member.master_port)?;
            if config.port == member.master_port {
                return Ok(());
            }
            own_port(context, config.port)
        };
        if let Err(refusal) = own_ports() {
            notify_peers::without_a_port(context, &config, &summary.hostname, &refusal).await;
            return Err(refusal);
        }
        lead(context, facts, plan, &config, summary, next).await
    } else {
        follow(context, facts, &config, &summary).await
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
) -> Result<Option<Shared>, Refusal> {
    let restarts = next.map_or_else(|| context.restarts(), |next| next.restarts.clone());
    let identity = match next {
        Some(next) => next.identity.clone(),
        None => run_identity(plan, &facts.contract)?,
    };
    let mut say = |line: Text| context.say(&line);
    loop {
        let gathered = match muster::gather(config, own.clone(), &mut say).await? {
            Assembly::All(gathered) => gathered,
            Assembly::Alone(why) => {
                context.say(&why);
                return Ok(None);
            }
        };
        let differences = gathered.differences.clone();
        let same = same_elsewhere(&plan.warnings, &gathered.summaries);
        let (fewest, heads) = (gathered.fewest(), gathered.heads());
        let planned = plan_for_all(&context.settings, facts, &differences, fewest, heads);
        let plan = match planned {
            Ok(plan) => plan,
            Err(refusal) => {
                gathered.refuse(&refusal).await;
                return Err(refusal);
            }
        };
        let known = gathered.summaries.iter().map(|one| one.attempt).max().unwrap_or_default();
        let attempt = restarts.count_on(known);
        if attempt > own.attempt {
            context.say(&text!(
                "the other nodes have come to attempt {attempt}: the restarts of the job count on from there",
                "其他节点已进行到第 {attempt} 次尝试：任务的重启次数由此继续计算"
            ));
        }
        let agreement = proposal(&plan, &identity, attempt);
        match gathered.agree(agreement.clone(), restarts.decide(), &mut say).await? {
            Settled::Session(session) => {
                // The mark is kept in torch's store, which engine `command` may not have.
                let port = agreement.master_port;
                let mark =
                    (!plan.engine.runs_a_command()).then(|| StoreMark { port, key: config.key() });
                let session = JobSession::new(session, &own, mark);
                let shared = agreed(context, plan, &agreement, &differences, session, restarts);
                if next.is_none() {
                    same.iter().for_each(|line| context.say(line));
                }
                return Ok(Some(shared));
            }
            Settled::Lost(why) => context.say(&why),
        }
    }
}

/// Any other node: joins, plans with the agreed values and answers whether it can follow.
async fn follow(
    context: &Context,
    facts: &mut Facts,
    config: &Config,
    own: &NodeSummary,
) -> Result<Option<Shared>, Refusal> {
    let last = collect::last_resort(context.settings.probe.value);
    let mut say = |line: Text| context.say(&line);
    loop {
        let offer = match muster::join(&context.host, config, own, Some(&last), &mut say).await? {
            Joined::Offer(offer) => offer,
            // Node 0 asks only the nodes of `check` to measure.
            Joined::Measure(_) => continue,
            Joined::Alone(why) => {
                context.say(&why);
                return Ok(None);
            }
        };
        // The connection proves which of our addresses talks to node 0.
        if let Some(local) = offer.local {
            prove_route(facts, local);
        }
        let (agreement, differences) = (offer.agreement.clone(), offer.differences.clone());
        let said = offer.said.clone();
        let mut plan = match plan_as_agreed(&context.settings, facts, &agreement) {
            Ok(plan) => plan,
            Err(refusal) => {
                offer.decline(&refusal).await;
                return Err(refusal);
            }
        };
        plan.membership.master_port = agreement.master_port;
        match offer.accept().await? {
            Accepted::Session(session) => {
                let session = JobSession::new(session, own, None);
                let none = Restarts::none();
                let shared = agreed(context, plan, &agreement, &differences, session, none);
                return Ok(Some(Shared { said, ..shared }));
            }
            Accepted::Alone(why) => {
                context.say(&why);
                return Ok(None);
            }
            Accepted::Lost => context.say(&text!(
                "the connection to node 0 was lost during the agreement; joining again",
                "协商过程中与节点 0 的连接断开；重新加入"
            )),
        }
    }
}

fn agreed(
    context: &Context,
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
    };
    let (session, attempt) = (Some(Box::new(session)), agreement.attempt);
    Shared { plan, identity, session, attempt, restarts, said: Vec::new() }
}

/// The warnings of node 0 that other nodes have as well, one line for each set of nodes: those
/// nodes do not print them.
fn same_elsewhere(own: &[Warning], summaries: &[NodeSummary]) -> Vec<Text> {
    let mut ids_of: BTreeMap<Vec<u32>, Vec<&str>> = BTreeMap::new();
    for warning in by_importance(own) {
        let key = warning.key();
        let has = |one: &&NodeSummary| one.node != 0 && one.warnings.contains(&key);
        let nodes: Vec<u32> = summaries.iter().filter(has).map(|one| one.node).collect();
        let ids = ids_of.entry(nodes).or_default();
        if !ids.contains(&warning.id.as_str()) {
            ids.push(warning.id.as_str());
        }
    }
    let lines = ids_of.into_iter().filter(|(nodes, _)| !nodes.is_empty()).map(|(nodes, ids)| {
        let (word, list) = (if nodes.len() == 1 { "node" } else { "nodes" }, listed(nodes, '–'));
        let (ids, ids_zh) = (ids.join(", "), ids.join("、"));
        text!("the same on {word} {list}: {ids}", "节点 {list} 同样存在：{ids_zh}")
    });
    lines.collect()
}

/// The line that names the nodes for which this node waits, and the address.
pub(super) fn begins(config: &Config) -> Text {
    let (port, timeout) = (config.port, clock(config.wait_timeout));
    let last = config.nnodes.saturating_sub(1);
    if config.unit == MemberKind::Task {
        let address = &config.master_addr;
        return match config.node {
            0 => text!(
                "waiting on port {port} for tasks 1–{last}, at most {timeout}",
                "正在端口 {port} 上等待 task 1–{last}，最多 {timeout}"
            ),
            _ => text!(
                "looking for task 0 at {address}:{port}, at most {timeout}",
                "正在寻找 task 0（{address}:{port}），最多 {timeout}"
            ),
        };
    }
    match (config.node, last) {
        (0, 1) => text!(
            "waiting on port {port} for node 1, at most {timeout}",
            "正在端口 {port} 上等待节点 1，最多 {timeout}"
        ),
        (0, _) => text!(
            "waiting on port {port} for nodes 1–{last}, at most {timeout}",
            "正在端口 {port} 上等待节点 1–{last}，最多 {timeout}"
        ),
        _ => {
            let address = &config.master_addr;
            text!(
                "looking for node 0 at {address}:{port}, at most {timeout}",
                "正在寻找节点 0（{address}:{port}），最多 {timeout}"
            )
        }
    }
}
