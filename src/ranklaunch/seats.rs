//! A job with spares: the wait of a node without a seat, what the nodes say of their seats, and what the next attempt has
//! to know of them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::context::Context;
use super::job_verdict::judged;
use super::node_questions::SlowRanks;
use super::restart::{FailedAttempt, NextAttempt, Restarts, calls_for_another_leader};
use monitor::status::Phase;
use muster::{Again, Cause, Config, Gathered, Loss, Parked, Seating, Succession, Unparked};
use plan::Plan;
use report::Ending;
use text::lang::Text;
use text::ranges::listed;
use text::rank::GlobalRank;
use text::text;
use verdict::outcome::{Outcome, StopReason};

/// A node without a seat that lost its connection waits so long for node 0.
pub(super) const NODE_0_RETURNS: Duration = Duration::from_secs(60);
/// Time limit for a leader that lives to say so.
pub(super) const ANSWERS: Duration = Duration::from_secs(2);

/// What ends the wait for a seat.
pub(super) enum Waited {
    /// All nodes meet again.
    Again(NextAttempt),
    /// The job has ended.
    Over(Ending),
    /// The connection to the leader ended; the end of this node if it does not come back.
    Lost(Ending),
    /// The leader lives, and gathers there.
    Lives(SocketAddr),
}

/// Waits until a seat may be free or the job has ended.
pub(super) async fn wait(
    context: &Context,
    parked: Parked,
    config: &Config,
    restarts: &Restarts,
) -> Waited {
    let (node, seats) = (config.node, config.nnodes);
    context.enter(Phase::Parked);
    if let Some(saves) = context.saves.clone() {
        // Once the leader is lost a spare counts restarts as the others do, by what was saved since.
        tokio::spawn(async move { saves.begin(None).await.ok() });
    }
    context.say(&text!(
        "node {node} is a spare: all {seats} seats are taken, and it waits for one that becomes free",
        "节点 {node} 为备用节点：{seats} 个席位已满，等待空出的席位"
    ));
    let again = |again: Again, cause: &Cause, lost: BTreeSet<u32>, leader_resigns| {
        let Seating { spares, avoided, .. } = &config.seating;
        let mut seating =
            Seating { spares: *spares, avoided: avoided.clone(), ..Seating::default() };
        avoid(&mut seating, cause);
        seating.lost = lost;
        let (Again { attempt, tally, .. }, restarts) = (again, restarts.clone());
        let identity = None;
        Waited::Again(NextAttempt { attempt, identity, restarts, tally, seating, leader_resigns })
    };
    let began = Instant::now();
    let loss = match parked.wait().await {
        Unparked::AllDone => return Waited::Over(Ending::not_needed()),
        Unparked::Verdict { cause, again: None } => {
            return Waited::Over(of_others(config, *cause));
        }
        Unparked::Verdict { cause, again: Some(next) } => {
            let resigns = calls_for_another_leader(&cause, config.leader);
            return again(next, &cause, BTreeSet::new(), resigns);
        }
        Unparked::Lost(loss) => loss,
    };
    let (host, silence) = (&config.master_addr, config.peer_timeout);
    let who = (config.leader, None);
    let mut cause = Cause::lost(who, host, loss, None, silence, muster::now());
    let succession = config.succession.as_ref().filter(|succession| succession.can_go_on());
    if let Some(succession) = succession.filter(|_| loss != Loss::Died)
        && let Ok(at) = timeout(ANSWERS, succession.muster_of_leader(config.leader)).await
    {
        return Waited::Lives(at);
    }
    if let Some(last) = succession.and_then(Succession::electorate) {
        restarts.count_on(last.attempt, last.tally);
        match restarts.decide()(&mut cause, began.elapsed(), true) {
            Some(next) => {
                tokio::time::sleep(Duration::from_millis(next.pause)).await;
                return again(next, &cause, [config.leader].into(), false);
            }
            // Those with a seat know it as well, and end.
            None if loss == Loss::Died => return Waited::Over(of_others(config, cause)),
            None => {}
        }
    }
    Waited::Lost(of_others(config, cause))
}

/// The end of a node without a seat when the job failed elsewhere.
pub(super) fn of_others(config: &Config, cause: Cause) -> Ending {
    let stop = Some(StopReason::OtherNode);
    let own = Ending::of(&Outcome { stop, ..Outcome::default() });
    judged(config.node, None, own, Some(&(cause, None))).ending
}

/// The lines about the seats of a job with spares.
pub(super) fn said(gathered: &Gathered) -> Vec<Text> {
    let moved = (0..).zip(&gathered.seats).filter(|(seat, node)| seat != *node);
    let mut lines: Vec<Text> = moved
        .map(|(seat, node)| {
            let summary = gathered.summaries.iter().find(|one| one.node == *node);
            let host = summary.map_or("", |one| one.hostname.as_str());
            text!(
                "node {node} ({host}) has the seat of node {seat}",
                "节点 {node}（{host}）占用节点 {seat} 的席位"
            )
        })
        .collect();
    if !gathered.parked.is_empty() {
        let nodes = gathered.parked.iter().map(|one| one.node);
        let (count, list) = (gathered.parked.len(), listed(nodes, '–'));
        let word = if count == 1 { "node" } else { "nodes" };
        lines.push(text!("{word} {list}: spare, without a seat", "节点 {list}：备用，暂无席位"));
    }
    lines
}

/// What the next attempt has to know of the seats of this one, as long as no node fails.
pub(super) fn after(plan: &Plan, seats: &[u32], next: Option<&NextAttempt>) -> Seating {
    let avoided = next.map(|next| next.seating.avoided.clone()).unwrap_or_default();
    let spares = plan.membership.spares;
    let held = (!seats.is_empty()).then(|| plan.membership.seat());
    let returning = seats.iter().copied().collect();
    Seating { spares, held, returning, avoided, ..Seating::default() }
}

/// A node whose rank has been named slow for so long, and is still slow, gives its seat to another one.
const FOR_GOOD: Duration = Duration::from_secs(30);

/// The nodes with ranks that hold the others back at the end of an attempt, and not only for a moment; each with the rank.
pub(super) fn slow_for_good(slow: &SlowRanks) -> Vec<(u32, GlobalRank)> {
    let slow = slow.lock().unwrap_or_else(PoisonError::into_inner);
    let long = slow.iter().filter(|(_, (_, since))| since.elapsed() >= FOR_GOOD);
    long.map(|(rank, (node, _))| (*node, *rank)).collect()
}

pub(super) fn gives_up(node: u32) -> Text {
    text!(
        "node {node} held the others back until the end of this attempt: if a spare waits, it takes the seat",
        "节点 {node} 直到本次尝试结束都在拖慢其他节点：若有备用节点等待，则由其接替席位"
    )
}

/// A node whose failure calls for another one is no place for the next attempt.
pub(super) fn avoid(seating: &mut Seating, cause: &Cause) {
    if FailedAttempt::from(cause).calls_for_another_node() {
        seating.avoided.insert(cause.node);
    }
}

/// The same once these nodes are lost.
pub(super) fn without(mut seating: Seating, gone: BTreeSet<u32>) -> Seating {
    let Seating { returning, lost, avoided, .. } = &mut seating;
    avoided.extend(&gone);
    lost.extend(gone);
    returning.retain(|node| !lost.contains(node));
    seating
}
