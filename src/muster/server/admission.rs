//! Admits nodes and keeps their summaries. The rules concern the job, the node count, the node
//! rank and duplicates.
//!
//! Owns the listener and the connections until the agreement. Each event gives a [`Change`]; [`gather`](super::gather)
//! decides the consequence.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until};

use super::compare;
use super::listener::{
    Arrival, ConnectionEvent, ConnectionId, EventReceiver, FrameSender, Listener, drain,
};
use super::refusals::{Absence, Misfit, Rejected, Say, cannot_listen, declined, duplicate, misfit};
use super::registry::Registry;
use super::voting::Told;
use crate::foreign::ForeignAction;
use crate::keepalive::{Heartbeat, millis, now};
use crate::protocol::{FromMember, FromNode0, NodeSummary, Purpose, ResumePoint};
use crate::session::{Config, Seating};
use crate::succession::{ALONE, Deaths, Succession};
use text::lang::Text;
use text::text;
use verdict::Refusal;

/// Time in which the earlier of two nodes with the same node rank must prove that it still runs.
const CHALLENGE: Duration = Duration::from_secs(2);
/// Once every seat could be taken, the time for which nodes are awaited that may still come.
const LAST_CALL: Duration = Duration::from_secs(5);
/// The same for nodes of the last attempt, beyond the grace period of their ranks.
const RETURN: Duration = Duration::from_secs(15);
/// Time limit for sending the last frames.
const DRAIN: Duration = Duration::from_secs(3);

/// An event that concerns the muster.
#[derive(Debug)]
pub enum Change {
    None,
    /// A node accepted the proposal.
    Accepted(u32),
    /// An admitted node left.
    Left(u32),
    /// A node cannot take part, and the others can do without it.
    Declined(u32, Text),
    /// A node of the job runs torchrun without ranklaunch.
    Alone(Text),
    /// Another node leads, or may: this one, which gathers there, or one that has to be looked for.
    Elsewhere(Option<(u32, SocketAddr)>),
}

/// A new node whose rank is taken, until the earlier node has answered.
#[derive(Debug)]
struct Challenge {
    until: Instant,
    newcomer: Arrival,
}

/// The port and token with which the nodes of the running job resume their sessions.
#[derive(Debug)]
pub struct Resume {
    pub token: String,
    _listener: Listener,
}

#[derive(Debug)]
pub struct Admission {
    pub config: Config,
    pub own: NodeSummary,
    listener: Listener,
    /// The listener for nodes whose connection is cut while the job runs.
    beside: Option<Listener>,
    pub events: EventReceiver,
    pub registry: Registry,
    summaries: BTreeMap<u32, NodeSummary>,
    challenges: BTreeMap<u32, Challenge>,
    /// Address and time at which each node was last heard, including nodes that left.
    seen: BTreeMap<u32, (SocketAddr, Instant)>,
    /// Since when every seat could be taken.
    enough: Option<Instant>,
    /// The end of the wait.
    pub(crate) deadline: Instant,
    rejected: Rejected,
    heartbeat: Heartbeat,
    opened: Instant,
    /// Nodes that have a vote on what follows the last agreement.
    voting: BTreeSet<u32>,
    /// Leaders that connected to tell that they lead.
    leaders: BTreeMap<ConnectionId, (u32, SocketAddr, FrameSender)>,
    /// Those that are awaited.
    deaths: Deaths,
}

impl Admission {
    /// # Errors
    /// If listening on the port fails.
    pub fn open(config: &Config, mut own: NodeSummary) -> Result<Admission, Refusal> {
        // As those of the others come: a line break in the command is no difference.
        let _ = own.sanitize();
        let open = |port| Listener::open(port, config.all(), config.secret.clone());
        let opened = open(config.listens());
        // Only the address of node 0 is fixed.
        let opened = if config.node == 0 { opened } else { opened.or_else(|_| open(0)) };
        let (listener, events) = opened.map_err(|error| cannot_listen(config.port, &error))?;
        if let Some(succession) = &config.succession {
            succession.gathers(listener.port);
        }
        let returning = config.seating.returning.iter().copied();
        let succession = config.succession.as_ref();
        let deaths = succession.map(|succession| succession.deaths(returning));
        Ok(Admission {
            config: config.clone(),
            own,
            listener,
            beside: None,
            events,
            registry: Registry::default(),
            summaries: BTreeMap::new(),
            challenges: BTreeMap::new(),
            seen: BTreeMap::new(),
            enough: None,
            deadline: Instant::now() + config.wait_timeout,
            rejected: Rejected::new(config),
            heartbeat: Heartbeat::before_start(),
            opened: Instant::now(),
            voting: BTreeSet::new(),
            leaders: BTreeMap::new(),
            deaths: deaths.unwrap_or_default(),
        })
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.challenges.is_empty()
            && self.is_quorum()
            && self.complete_at().is_some_and(|at| at <= Instant::now())
    }

    /// Whether those that are here may decide that an attempt follows the last one.
    fn is_quorum(&self) -> bool {
        self.config.succession.as_ref().is_none_or(|succession| succession.is_quorum(&self.voting))
    }

    /// The nodes that may come.
    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let leader = self.config.leader;
        (0..self.config.all()).filter(move |node| *node != leader)
    }

    /// The time from which nobody else is awaited; None: a seat would stay free.
    fn complete_at(&self) -> Option<Instant> {
        let Config { seating, grace, .. } = &self.config;
        let Seating { spares, lost, returning, avoided, .. } = seating;
        let enough = self.enough?;
        if *spares == 0 {
            return Some(enough);
        }
        let absent = |node: &u32| !self.summaries.contains_key(node);
        // Any other node is better than one that failed by itself.
        let is_bad = |node: &u32| *node == self.config.leader || !absent(node);
        let has_bad = avoided.iter().any(is_bad);
        let may_come = |node| seating.may_come(node) || (has_bad && !lost.contains(&node));
        let is_awaited = self.others().any(|node| absent(&node) && may_come(node));
        let returns = |node: &&u32| **node != self.config.leader;
        let patience = match returning.iter().filter(returns).any(absent) {
            // Who had a seat, and is neither here nor dead, may still run ranks.
            true => RETURN.saturating_add(*grace).max(self.config.proof()),
            false if is_awaited => LAST_CALL,
            false => Duration::ZERO,
        };
        Some((enough + patience).min(self.deadline.max(enough)))
    }

    /// Follows a change of the nodes that are there.
    fn recount(&mut self) {
        let seats = usize::try_from(self.config.nnodes).unwrap_or(usize::MAX);
        let is_enough = self.summaries.len() + 1 >= seats;
        self.enough = is_enough.then(|| self.enough.unwrap_or_else(Instant::now));
    }

    /// All summaries received, in the order of the node rank.
    pub fn summaries(&self) -> Vec<NodeSummary> {
        std::iter::once(&self.own).chain(self.summaries.values()).cloned().collect()
    }

    /// Waits for the next event. Cancel-safe.
    ///
    /// # Errors
    /// If the job is impossible.
    pub async fn next(&mut self, say: Say<'_>) -> Result<Change, Refusal> {
        let due = self.challenges.values().map(|challenge| challenge.until).min();
        let complete = self.complete_at().filter(|at| *at > Instant::now());
        let succession = self.config.succession.clone();
        let deposed = async {
            match &succession {
                Some(succession) => succession.deposed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(event) = self.events.recv() => self.hear(event, say),
            () = deposed => Ok(Change::Elsewhere(None)),
            node = self.deaths.next() => {
                self.died(node);
                Ok(Change::None)
            }
            late = self.heartbeat.due() => self.keep_alive(late),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                self.end_challenges(say)
            }
            () = sleep_until(complete.unwrap_or_else(Instant::now)), if complete.is_some() => {
                Ok(Change::None)
            }
        }
    }

    fn keep_alive(&mut self, late: Duration) -> Result<Change, Refusal> {
        let silent = self.registry.keep_alive(late, None, self.config.silence_before_start());
        for node in &silent {
            self.remove(*node);
        }
        if let Some(succession) = &self.config.succession
            && self.opened.elapsed() > ALONE
            && !self.is_quorum()
        {
            succession.rest();
            return Ok(Change::Elsewhere(None));
        }
        match silent.first() {
            Some(node) => Ok(Change::Left(*node)),
            None if self.is_complete() => Ok(Change::None),
            None => self.of_rejected(self.rejected.verdict()),
        }
    }

    fn of_rejected(&self, verdict: ForeignAction) -> Result<Change, Refusal> {
        match verdict {
            ForeignAction::Wait => Ok(Change::None),
            ForeignAction::Alone(text) => Ok(Change::Alone(text)),
            ForeignAction::Refuse(refusal) => Err(refusal),
        }
    }

    fn hear(&mut self, event: ConnectionEvent, say: Say<'_>) -> Result<Change, Refusal> {
        match event {
            ConnectionEvent::Arrived(arrival) => self.arrived(arrival, say),
            ConnectionEvent::Frame(id, frame) => self.frame(id, *frame, say),
            ConnectionEvent::Gone(id, _) => {
                self.leaders.remove(&id);
                self.challenges.retain(|_, challenge| challenge.newcomer.id != id);
                let Some(node) = self.registry.node_of(id) else { return Ok(Change::None) };
                self.replace(node, say)
            }
            ConnectionEvent::Rejected { from, why } => {
                let verdict = self.rejected.hear(from, &why, say);
                self.of_rejected(verdict)
            }
        }
    }

    /// A node of the last attempt is proven to be dead; another launcher of it may be there.
    fn died(&mut self, node: u32) {
        if !self.summaries.contains_key(&node) {
            self.config.seating.lost.insert(node);
            self.config.seating.returning.remove(&node);
        }
    }

    fn remove(&mut self, node: u32) {
        self.registry.remove(node);
        self.summaries.remove(&node);
        self.voting.remove(&node);
        self.recount();
    }

    /// Handles a node that left; a new node that waits for its rank gets it.
    fn replace(&mut self, node: u32, say: Say<'_>) -> Result<Change, Refusal> {
        self.remove(node);
        if let Some(Challenge { newcomer, .. }) = self.challenges.remove(&node) {
            self.arrived(newcomer, say)?;
        }
        Ok(Change::Left(node))
    }

    /// Handles a new connection. A node of another job is refused and named, and does not affect
    /// this job.
    fn arrived(&mut self, arrival: Arrival, say: Say<'_>) -> Result<Change, Refusal> {
        let Arrival { hello, from, out, .. } = &arrival;
        // The job does not run yet, so no session can be resumed.
        if hello.resume.is_some() {
            return Ok(Change::None);
        }
        let (node, from, theirs) = (hello.node, *from, &hello.key);
        let is_leader = hello.purpose == Purpose::Succession && self.config.seating.spares > 0;
        if is_leader && !self.config.key().is_of_other_job(theirs) {
            self.leaders.insert(arrival.id, (node, from, arrival.out));
            return Ok(Change::None);
        }
        if let Some((misfit, refusal)) = misfit(&self.config, hello, from) {
            out.send(&FromNode0::Refuse(refusal.clone()));
            match misfit {
                Misfit::Job => {
                    let host = &hello.hostname;
                    let Text { en, zh } = theirs.text();
                    let line = text!(
                        "{host} ({from}) belongs to {en}: rejected",
                        "{host}（{from}）属于{zh}：拒绝其加入"
                    );
                    self.rejected.name(from, line, refusal.hint, say);
                }
                Misfit::Purpose => {}
                Misfit::Rank => self.rejected.name(from, refusal.text, refusal.hint, say),
                // The node's job has the same id as ours.
                Misfit::Count => {
                    self.seen.insert(node, (from, Instant::now()));
                    return Err(refusal);
                }
            }
            return Ok(Change::None);
        }
        self.seen.insert(node, (from, Instant::now()));
        if let Some(earlier) = self.registry.get(node) {
            earlier.send(&FromNode0::Ping);
            let until = Instant::now() + CHALLENGE;
            self.challenges.insert(node, Challenge { until, newcomer: arrival });
            return Ok(Change::None);
        }
        out.send(&FromNode0::Welcome { at: now(), wall: millis(SystemTime::now()) });
        self.registry.insert(arrival);
        Ok(Change::None)
    }

    fn frame(
        &mut self,
        id: ConnectionId,
        frame: FromMember,
        say: Say<'_>,
    ) -> Result<Change, Refusal> {
        // A job that has run goes on without a newcomer that does not fit.
        let is_replaceable = self.own.attempt > 0 && self.config.seating.spares > 0;
        if let (FromMember::Leads { port, attempt, .. }, Some((leader, from, out))) =
            (&frame, self.leaders.get(&id))
        {
            let own = self.config.succession.as_ref().and_then(Succession::electorate);
            if own.is_some_and(|own| own.attempt >= *attempt) {
                return Ok(Change::None);
            }
            out.send(&FromNode0::Welcome { at: now(), wall: millis(SystemTime::now()) });
            return Ok(Change::Elsewhere(Some((*leader, SocketAddr::new(from.ip(), *port)))));
        }
        let Some((node, member)) = self.registry.hear(id) else { return Ok(Change::None) };
        self.seen.insert(node, (member.from, Instant::now()));
        if let Some(Challenge { newcomer, .. }) = self.challenges.remove(&node) {
            let earlier = (member.hostname.as_str(), member.from);
            let refusal = duplicate(self.config.unit, earlier, &newcomer.hello, newcomer.from);
            if !is_replaceable {
                newcomer.out.send(&FromNode0::Refuse(refusal.clone()));
                return Err(refusal);
            }
            let has_seat = self.summaries.get(&node).is_some_and(|one| one.held.is_some());
            if has_seat || newcomer.hello.held.is_none() {
                newcomer.out.send(&FromNode0::Refuse(refusal));
            } else {
                // The newcomer is the node of the last attempt.
                member.send(&FromNode0::Refuse(refusal));
                self.remove(node);
                return self.arrived(newcomer, say);
            }
        }
        match frame {
            FromMember::Summary(summary) if summary.node == node => {
                let goes_on = is_replaceable && summary.held.is_none();
                if let Err(refusal) = compare::check_node(&self.own, &summary) {
                    if goes_on {
                        member.send(&FromNode0::Refuse(refusal));
                        self.config.seating.lost.insert(node);
                        self.remove(node);
                        return Ok(Change::None);
                    }
                    return Err(refusal);
                }
                (member.seat, member.alive) = (summary.seat, summary.alive);
                if let Some(succession) = &self.config.succession
                    && let Some(last) = &summary.last
                {
                    match Told::of(succession, node, last) {
                        Told::Newer => {
                            succession.learn(last.electorate.clone());
                            return Ok(Change::Elsewhere(None));
                        }
                        Told::Missed(electorate) => {
                            member.send(&FromNode0::Missed(electorate));
                        }
                        Told::Votes => drop(self.voting.insert(node)),
                        Told::Nothing => {}
                    }
                }
                self.summaries.insert(node, *summary);
                self.config.seating.lost.remove(&node);
                self.recount();
            }
            FromMember::Accept => return Ok(Change::Accepted(node)),
            FromMember::Decline(refusal) => {
                let refusal = declined(self.config.unit, node, &member.hostname, &refusal);
                return self.without(node, refusal);
            }
            FromMember::Heartbeat { memory } => member.note_memory(memory),
            // A pong only shows that the node lives, as every frame does. The remaining frames come only while the job
            // runs.
            _ => {}
        }
        Ok(Change::None)
    }

    /// A node cannot take part: another one gets its seat, as long as there may be enough.
    fn without(&mut self, node: u32, refusal: Refusal) -> Result<Change, Refusal> {
        self.config.seating.lost.insert(node);
        let lost = u32::try_from(self.config.seating.lost.len()).unwrap_or(u32::MAX);
        let left = self.config.all().saturating_sub(lost);
        if left < self.config.nnodes {
            return Err(refusal);
        }
        self.config.seating.returning.remove(&node);
        self.remove(node);
        Ok(Change::Declined(node, refusal.text))
    }

    /// A node that did not answer in time loses its rank to the newcomer.
    fn end_challenges(&mut self, say: Say<'_>) -> Result<Change, Refusal> {
        let now = Instant::now();
        let is_due =
            |(node, challenge): (&u32, &Challenge)| (challenge.until <= now).then_some(*node);
        let due: Vec<u32> = self.challenges.iter().filter_map(is_due).collect();
        for node in &due {
            self.replace(*node, &mut *say)?;
        }
        // The earlier acceptance of the node is void.
        Ok(due.first().map_or(Change::None, |node| Change::Left(*node)))
    }

    /// Prints the rejected connections: health checks, port scans and others.
    pub(crate) fn say_rejected(&self, say: Say<'_>) {
        self.rejected.say(say);
    }

    pub fn absence(&self) -> Absence<'_> {
        let config = &self.config;
        let is_absent = |node: &u32| !self.summaries.contains_key(node);
        let absent: Vec<u32> = self.others().filter(is_absent).collect();
        let seen = absent.iter().find_map(|node| self.seen.get(node)).copied();
        let has_run = self.own.attempt > 0;
        Absence { config, absent, seen, rejected: &self.rejected, has_run }
    }

    /// The port on which nodes may resume their sessions: the port of the muster, or a separate port if the ranks need
    /// that port. None if no port is available; then a cut connection is a lost node.
    pub(crate) fn resume_point(&mut self, master_port: u16) -> Option<ResumePoint> {
        self.beside = None;
        let token = linux::random::hex::<16>().ok()?;
        let (config, hostname) = (&self.config, self.own.hostname.clone());
        if self.listener.port != master_port {
            return Some(ResumePoint { port: self.listener.port, token, hostname });
        }
        let beside = self.listener.beside(config.all(), config.secret.clone()).ok()?;
        let port = self.beside.insert(beside).port;
        Some(ResumePoint { port, token, hostname })
    }

    /// Frees the port; nodes stay connected. Gives the parts that the session needs, and with a `point` the listener on
    /// which sessions are resumed.
    pub async fn start(
        self,
        point: Option<ResumePoint>,
    ) -> (Config, NodeSummary, EventReceiver, Registry, Option<Resume>) {
        let Admission { config, own, listener, beside, events, registry, .. } = self;
        let kept = if beside.is_none() && point.is_some() {
            Some(listener)
        } else {
            listener.close().await;
            beside
        };
        let resume =
            point.zip(kept).map(|(point, kept)| Resume { token: point.token, _listener: kept });
        (config, own, events, registry, resume)
    }

    /// Closes everything after the last frames were sent.
    pub async fn close(self) {
        let (_, _, events, registry, _) = self.start(None).await;
        drop(registry);
        drain(events, DRAIN).await;
    }

    pub async fn refuse(self, refusal: &Refusal) {
        self.registry.broadcast(&FromNode0::Refuse(refusal.clone()));
        self.close().await;
    }
}
