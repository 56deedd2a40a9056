//! A job with spares: the wait of a node without a seat, what the nodes say of their seats, and what the next attempt has
//! to know of them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::context::Context;
use super::job_verdict::judged;
use super::restart::{FailedAttempt, NextAttempt, Restarts};
use muster::{Again, Cause, Config, Gathered, Loss, Parked, Seating, Succession, Unparked};
use plan::Plan;
use report::Ending;
use text::lang::Text;
use text::ranges::listed;
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
    context.say(&text!(
        "node {node} is a spare: all {seats} seats are taken, and it waits for one that becomes free",
        "节点 {node} 为备用节点：{seats} 个席位已满，等待空出的席位"
    ));
    let began = Instant::now();
    match parked.wait().await {
        Unparked::AllDone => Waited::Over(Ending::not_needed()),
        Unparked::Verdict { cause, again: Some(again) } => {
            let seating = Seating { spares: config.seating.spares, ..Seating::default() };
            let (Again { attempt, tally, .. }, restarts) = (again, restarts.clone());
            let failed = FailedAttempt::from(&*cause);
            let leader_resigns = failed.calls_for_another_node()
                && cause.node == config.leader
                && cause.loss.is_none();
            Waited::Again(NextAttempt {
                attempt,
                identity: None,
                restarts,
                tally,
                seating,
                leader_resigns,
            })
        }
        Unparked::Verdict { cause, again: None } => Waited::Over(of_others(config, *cause)),
        Unparked::Lost(loss) => {
            let (host, silence) = (&config.master_addr, config.peer_timeout);
            let (leader, now) = ((config.leader, None), muster::now());
            let mut cause = Cause::lost(leader, host, loss, None, silence, now);
            let last = config.succession.as_ref().filter(|succession| succession.can_go_on());
            if let Some(succession) = last.filter(|_| loss != Loss::Died)
                && let Ok(at) = timeout(ANSWERS, succession.muster_of_leader(config.leader)).await
            {
                return Waited::Lives(at);
            }
            if let Some(last) = last.and_then(Succession::electorate) {
                restarts.count_on(last.attempt, last.tally);
                let mut decide = restarts.decide();
                if let Some(again) = decide(&mut cause, began.elapsed(), true) {
                    let (Again { attempt, tally, .. }, restarts) = (again, restarts.clone());
                    tokio::time::sleep(Duration::from_millis(again.pause)).await;
                    let (spares, lost) = (config.seating.spares, [config.leader].into());
                    let seating = Seating { spares, lost, ..Seating::default() };
                    return Waited::Again(NextAttempt {
                        attempt,
                        identity: None,
                        restarts,
                        tally,
                        seating,
                        leader_resigns: false,
                    });
                }
            }
            Waited::Lost(of_others(config, cause))
        }
    }
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
        let (count, list) = (gathered.parked.len(), listed(gathered.parked.iter().copied(), '–'));
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
    Seating { spares, held, returning, lost: BTreeSet::new(), avoided }
}

/// The same once these nodes are lost.
pub(super) fn without(mut seating: Seating, gone: BTreeSet<u32>) -> Seating {
    let Seating { returning, lost, avoided, .. } = &mut seating;
    avoided.extend(&gone);
    lost.extend(gone);
    returning.retain(|node| !lost.contains(node));
    seating
}
