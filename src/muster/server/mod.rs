//! The muster on node 0 before the launch: waits for all nodes, names the missing ones, then proposes the plan. Notifies
//! nodes that arrive shortly after node 0 has refused, before or after it gathered.
//!
//! Decides which connections are nodes of the job; never decides a layout.

mod admission;
mod checkpoints;
pub(super) mod compare;
pub(super) mod listener;
mod measure;
mod refusals;
mod registry;
mod run;
mod seating;
mod voting;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::time::{Instant, sleep_until, timeout};

use crate::net::second_port;
use crate::protocol::{Agreement, Decide, Difference, FromNode0, NodeSummary, Tally};
use crate::session::{Config, Session};
use admission::{Admission, Change};
use linux::pace::Lines;
use listener::{ConnectionEvent, EventReceiver, Listener, drain};
use plan::Plan;
use refusals::{declined, too_few_files};
use text::lang::Text;
use text::order::{InOrder, Ordered};
use text::text;
use verdict::{Id, Refusal};

/// Result of the wait.
#[derive(Debug)]
pub enum Assembly {
    All(Box<Gathered>),
    /// A node runs without ranklaunch, so all nodes continue without a muster.
    Alone(Text),
    /// Another node leads the job, or may: this one, which gathers there, or one that has to be looked for.
    Elsewhere(Option<(u32, SocketAddr)>),
}

/// Result of the agreement.
#[derive(Debug)]
pub enum Settled {
    Session(Session),
    /// A node disconnected in the meantime; the others join again by themselves.
    Lost(Text),
}

/// The state when all nodes have arrived.
#[derive(Debug)]
pub struct Gathered {
    pub admission: Admission,
    /// The node of each seat; empty: each node has the seat of its number.
    pub seats: Vec<u32>,
    /// The summaries of the nodes with a seat, in the order of the seats.
    pub summaries: Vec<NodeSummary>,
    /// The nodes without a seat.
    pub parked: Vec<NodeSummary>,
    pub differences: Vec<Difference>,
}

/// Waits for all nodes. `own` is the summary of node 0.
///
/// # Errors
/// If this process may not open a file per node, listening on the port fails, a node is missing at the deadline, or
/// nodes do not fit together. All nodes that have arrived are notified.
pub async fn gather(
    config: &Config,
    own: NodeSummary,
    say: &mut (dyn FnMut(Text) + Send),
) -> Result<Assembly, Refusal> {
    // The refusal applies even if the muster is optional, since the others would wait in vain.
    if let Some(refusal) = too_few_files(config.all(), getrlimit(Resource::Nofile).current) {
        return Err(refusal);
    }
    let mut admission = Admission::open(config, own)?;
    match wait_for_all(config, &mut admission, say).await {
        Ok(Waited::All) => {}
        Ok(Waited::Alone(text)) => {
            admission.registry.broadcast(&FromNode0::Alone(text.clone()));
            admission.close().await;
            return Ok(Assembly::Alone(text));
        }
        Ok(Waited::Elsewhere(found)) => {
            // Those that are here look for the other one as well.
            admission.close().await;
            return Ok(Assembly::Elsewhere(found));
        }
        Err(refusal) => {
            admission.registry.broadcast(&FromNode0::Refuse(refusal.clone()));
            // Latecomers are not served after the deadline.
            if refusal.id != Id::MusterMissing {
                let mut told: BTreeSet<u32> = admission.registry.nodes().in_set();
                // A node that comes slightly later would dial the ended node 0 until its own deadline.
                tell(config, &mut admission.events, &refusal, &mut told, LATECOMERS).await;
            }
            admission.close().await;
            return Err(refusal);
        }
    }
    let mut there = admission.summaries();
    remember(&mut there, &config.remembered);
    let seats = match config.seating.spares {
        0 => Vec::new(),
        _ => seating::seats(config.nnodes, config.leader, &there, &config.seating.avoided),
    };
    let (mut summaries, parked): (Vec<NodeSummary>, Vec<NodeSummary>) =
        there.into_iter().partition(|one| seats.is_empty() || seats.contains(&one.node));
    summaries.order_by_key(|one| seats.iter().position(|node| *node == one.node));
    if let Err(refusal) = compare::check_all(&summaries) {
        admission.refuse(&refusal).await;
        return Err(refusal);
    }
    let differences = compare::differences(&summaries);
    let gathered = Gathered { admission, seats, summaries, parked, differences };
    Ok(Assembly::All(Box::new(gathered)))
}

/// Adds what is known here of the failures of earlier runs: nodes whose logs are on disks of their own may not know it.
fn remember(there: &mut [NodeSummary], known: &BTreeMap<String, String>) {
    let mut machines: BTreeMap<Option<String>, u32> = BTreeMap::new();
    for one in &*there {
        *machines.entry(one.machine.clone()).or_default() += 1;
    }
    for one in there {
        // Several launchers of one machine: none is worse than the others.
        let is_alone = machines.get(&one.machine) == Some(&1);
        let own = one.remembered.take();
        let known = one.machine.as_ref().and_then(|machine| known.get(machine).cloned());
        one.remembered = own.or(known).filter(|_| is_alone);
    }
}

/// How the wait for the nodes ends.
enum Waited {
    All,
    Alone(Text),
    Elsewhere(Option<(u32, SocketAddr)>),
}

async fn wait_for_all(
    config: &Config,
    admission: &mut Admission,
    say: &mut (dyn FnMut(Text) + Send),
) -> Result<Waited, Refusal> {
    let end = admission.deadline;
    let mut lines = Lines::begin(config.pace);
    while !admission.is_complete() {
        tokio::select! {
            change = admission.next(say) => match change? {
                Change::Alone(text) => return Ok(Waited::Alone(text)),
                Change::Elsewhere(found) => return Ok(Waited::Elsewhere(found)),
                Change::Declined(_, why) => say(why),
                _ => {}
            },
            () = sleep_until(lines.due().min(end)) => {
                if Instant::now() >= end && !admission.is_complete() {
                    admission.say_rejected(say);
                    return Err(admission.absence().refusal());
                }
                let progress = admission.absence().progress(lines.waited());
                match &config.live {
                    Some(live) => live.show(&progress),
                    None => say(progress),
                }
                lines.said();
            }
        }
    }
    Ok(Waited::All)
}

impl Gathered {
    /// The smallest number of processes that a node can run; a fixed number counts as the node's maximum.
    pub fn fewest(&self) -> u32 {
        compare::fewest(&self.summaries)
    }

    /// The heads, if at least one node knows them.
    pub fn heads(&self) -> Option<u32> {
        compare::heads(&self.summaries)
    }

    /// The newest checkpoint that every node can go on from, by its digest. `plan`: that of all nodes.
    ///
    /// # Errors
    /// When only some nodes look for checkpoints.
    pub fn checkpoint(&self, plan: &Plan) -> Result<Option<u64>, Refusal> {
        checkpoints::agreed(&self.summaries, &|place| plan.ranks_of(place))
    }

    /// Whether the nodes do not all see the same checkpoints.
    pub fn see_different_checkpoints(&self) -> bool {
        checkpoints::differ(&self.summaries)
    }

    /// Whether there is a whole checkpoint: on a node, with a seat or without one, or on the disks of several.
    /// `plan`: that of all nodes.
    pub fn see_checkpoints(&self, plan: &Plan) -> bool {
        let lost = checkpoints::of_lost_disks(&self.summaries, &|place| plan.ranks_of(place));
        checkpoints::are_seen(self.summaries.iter().chain(&self.parked), &lost)
    }

    /// Has all nodes read the folder of checkpoints again, and join again.
    pub async fn look_again(self) {
        self.admission.registry.broadcast(&FromNode0::Look);
        self.admission.close().await;
    }

    /// Sends all nodes the refusal.
    pub async fn refuse(self, refusal: &Refusal) {
        self.admission.refuse(refusal).await;
    }

    /// Proposes the plan. After all nodes have accepted, frees the port and sends the start.
    ///
    /// # Errors
    /// If the proposal contradicts a summary, or a node declines.
    pub async fn agree(
        self,
        agreement: Agreement,
        (decide, tally): (Decide, Tally),
        say: &mut (dyn FnMut(Text) + Send),
    ) -> Result<Settled, Refusal> {
        let Gathered { mut admission, seats: _, summaries, parked, differences } = self;
        let point = admission.resume_point(agreement.master_port);
        let nodes = agreement.nodes();
        let parked: Vec<u32> = parked.iter().map(|one| one.node).collect();
        let Admission { config, registry, .. } = &admission;
        let electorate = voting::electorate(config, registry, &agreement, &parked, tally);
        let accepted = match compare::check_exact(&summaries, agreement.nproc) {
            Ok(()) => {
                let said = admission.own.warnings.clone();
                let resume = point.clone();
                let electorate = electorate.clone().map(Box::new);
                let agreed = FromNode0::Agreed { agreement, differences, said, resume, electorate };
                admission.registry.broadcast_to(&nodes, &agreed);
                wait_for_accepts(&mut admission, &nodes, say).await
            }
            Err(refusal) => Err(refusal),
        };
        match accepted {
            Ok(None) => {}
            Ok(Some(node)) => {
                let Text { en, zh } = admission.config.unit.named(node);
                admission.close().await;
                return Ok(Settled::Lost(text!(
                    "{en} disconnected during the agreement; gathering again",
                    "{zh} 在协商过程中断开连接；重新集结"
                )));
            }
            Err(refusal) => {
                admission.refuse(&refusal).await;
                return Err(refusal);
            }
        }
        if let (Some(succession), Some(next)) = (admission.config.succession.clone(), &electorate)
            && !succession.decide(next).await
        {
            admission.close().await;
            return Ok(Settled::Lost(text!(
                "too few of the nodes that met before agree that this one leads; gathering again",
                "上次集结的节点中同意由本节点主持的不足半数；重新集结"
            )));
        }
        admission.say_rejected(say);
        // The port is freed before the start is sent, since torch's store binds the port at once.
        let (config, own, events, registry, resume) = admission.start(point).await;
        registry.broadcast_to(&nodes, &FromNode0::Go);
        let park = FromNode0::Park { electorate: electorate.clone().map(Box::new), votes: true };
        registry.broadcast_to(&parked, &park);
        if let (Some(succession), Some(next)) = (&config.succession, electorate) {
            succession.begin(next, true);
        }
        let (running, leader) = (Arc::clone(&nodes), config.leader);
        let job = run::Job { config, own, registry, running, resume, decide };
        let session = Session::start((leader, leader), nodes, |ends| run::run(job, events, ends));
        Ok(Settled::Session(session))
    }
}

/// Some: a node left before all had accepted.
async fn wait_for_accepts(
    admission: &mut Admission,
    nodes: &[u32],
    say: &mut (dyn FnMut(Text) + Send),
) -> Result<Option<u32>, Refusal> {
    let leader = admission.config.leader;
    let mut awaited: BTreeSet<u32> = nodes.iter().copied().filter(|node| *node != leader).in_set();
    while !awaited.is_empty() {
        match admission.next(say).await? {
            Change::Accepted(node) => drop(awaited.remove(&node)),
            Change::Left(node) if nodes.contains(&node) => return Ok(Some(node)),
            Change::Declined(node, why) => {
                say(why);
                if nodes.contains(&node) {
                    return Ok(Some(node));
                }
            }
            // A node without a seat came back or left.
            Change::Left(_) => {}
            // Others decide whether this one leads.
            Change::Elsewhere(_) => return Ok(Some(leader)),
            // All nodes have arrived, so a plain torchrun is not a node of this job.
            Change::None | Change::Alone(_) => {}
        }
    }
    Ok(None)
}

/// Time to wait for latecomers: the nodes of one job start within seconds, and dial about once a second.
const LATECOMERS: Duration = Duration::from_secs(5);
/// Tries to open the first port.
const FREED: usize = 10;
/// Time to wait on the second port, since the holder of the first may keep each node busy for some seconds.
const AT_SECOND_PORT: Duration = Duration::from_secs(10);
const DRAIN: Duration = Duration::from_secs(1);

/// Notifies the nodes that arrive within a few seconds that node 0 cannot take part, and returns their number. If its
/// port is taken, node 0 waits on the second port.
pub async fn turn_away(config: &Config, hostname: &str, refusal: &Refusal) -> usize {
    let open = |port| Listener::open(port, config.all(), config.secret.clone());
    // A muster of this process that was given up frees the port a moment later.
    let mut first = open(config.port);
    for _ in 0..FREED {
        if !matches!(&first, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        first = open(config.port);
    }
    let (opened, limit) = match first {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            (open(second_port(config.port)), AT_SECOND_PORT)
        }
        opened => (opened, LATECOMERS),
    };
    let Ok((listener, mut events)) = opened else { return 0 };
    let mut told = BTreeSet::new();
    let refusal = declined(config.unit, 0, hostname, refusal);
    tell(config, &mut events, &refusal, &mut told, limit).await;
    listener.close().await;
    drain(events, DRAIN).await;
    told.len()
}

/// Notifies the nodes that arrive within `limit` and are not in `told`.
async fn tell(
    config: &Config,
    events: &mut EventReceiver,
    refusal: &Refusal,
    told: &mut BTreeSet<u32>,
    limit: Duration,
) {
    let key = config.key();
    let tell = async {
        while told.len() < config.others() {
            let Some(event) = events.recv().await else { return };
            let ConnectionEvent::Arrived(arrival) = event else { continue };
            let hello = &arrival.hello;
            if hello.purpose == config.purpose && !key.is_of_other_job(&hello.key) {
                arrival.out.send(&FromNode0::Refuse(refusal.clone()));
                told.insert(hello.node);
            }
        }
    };
    let _ = timeout(limit, tell).await;
}
