//! What a launcher of a job with spares keeps as long as it lives, so that the job goes on when its leader is lost: the
//! agreement that it was part of last, its vote on what follows, and a listener at which the others vote, ask who leads,
//! and see that it lives.
//!
//! Takes the agreements that begin and what is known of lost nodes; gives who leads the next attempt ([`Succession::seek`])
//! and whether that may begin ([`Succession::decide`]). The rules are those of the simulation in `election`: an attempt
//! follows another one only once a majority of the voters of the last agreement has decided that, and never two follow
//! the same. Only where a majority is proven to be dead that never left its leader, that one goes on alone.

mod lifeline;
mod links;
mod serve;
mod shared;
mod task;
mod tells;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::keepalive::{Port, port};
use crate::protocol::{Electorate, Hello, Last, Secret};
use crate::server::listener::Listener;
pub(crate) use lifeline::{Deaths, Lifeline};
use links::Caller;
use linux::host::Host;
use serve::TICK;
use shared::{Shared, Tells};
use task::Task;

/// Pause between two questions to all who leads.
const ASK: Duration = Duration::from_millis(500);
/// Questions in a row after which a leader that does not gather is none: it has seen another one that was lost as well.
const IDLE: u32 = 10;
/// Time limit of a decision; those that are missing may have another leader by then.
const DECIDES: Duration = Duration::from_secs(20);
/// Time in which a leader without a majority looks for one, and for which it leaves the lead to others then.
pub(crate) const ALONE: Duration = Duration::from_secs(20);
/// Pause between two looks at the leader's listener.
const LOOKS: Duration = Duration::from_millis(100);
/// Looks in a row that find it closed.
const CLOSED: u32 = 3;

/// Who leads the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// This node.
    Me,
    /// Another node, which gathers there.
    Other { leader: u32, at: SocketAddr },
}

/// A handle; all of one launcher are the same.
#[derive(Clone)]
pub struct Succession {
    shared: Arc<Shared>,
    _serving: Arc<Task>,
}

impl fmt::Debug for Succession {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Succession").field("port", &self.shared.port).finish_non_exhaustive()
    }
}

impl Succession {
    /// Listens on any free port.
    ///
    /// # Errors
    /// If that is not possible.
    pub(crate) fn start(
        (hello, secret, all): (Hello, Option<Secret>, u32),
        (host, master_addr): (Arc<Host>, String),
    ) -> std::io::Result<Succession> {
        let (listener, events) = Listener::open(0, all, secret.clone())?;
        let tells = Tells { host, master_addr, port: hello.key.port };
        let shared = Arc::new(Shared {
            me: hello.node,
            tells,
            caller: Caller { hello, secret, all },
            port: listener.port,
            state: Mutex::default(),
            stirred: Notify::new(),
            changed: Notify::new(),
        });
        let serving = Task::of(serve::serve(Arc::clone(&shared), listener, events));
        Ok(Succession { shared, _serving: Arc::new(serving) })
    }

    pub(crate) fn port(&self) -> u16 {
        self.shared.port
    }

    /// The agreement that this launcher was part of last; None: of none.
    pub fn electorate(&self) -> Option<Electorate> {
        self.shared.state.lock().electorate.clone()
    }

    pub(crate) fn last(&self) -> Option<Last> {
        let state = self.shared.state.lock();
        let electorate = state.electorate.clone()?;
        Some(Last { electorate, votes: state.election.is_some() })
    }

    /// Where the others reach this launcher, as its last leader saw it.
    pub fn own_address(&self) -> Option<IpAddr> {
        let state = self.shared.state.lock();
        state.electorate.as_ref()?.places.get(&self.shared.me).map(SocketAddr::ip)
    }

    /// Whether another node can lead after the leader is lost.
    pub fn can_go_on(&self) -> bool {
        self.shared.state.lock().electorate.as_ref().is_some_and(|last| !last.voters.is_empty())
    }

    /// The nodes to which lifelines are held.
    #[cfg(test)]
    pub(crate) fn holds_lifelines_to(&self) -> Vec<u32> {
        let state = self.shared.state.lock();
        let held = state.lifelines.iter().filter(|(_, (_, one))| one.is_held());
        held.map(|(node, _)| *node).collect()
    }

    /// A connection to the launcher there: the one that is held to it, or a new one.
    pub(crate) fn lifeline(&self, place: SocketAddr) -> Lifeline {
        let state = self.shared.state.lock();
        let held = state.lifelines.values().find(|(at, line)| *at == place && !line.was_closed());
        let held = held.map(|(_, line)| line.clone());
        held.unwrap_or_else(|| Lifeline::open(self.shared.caller.clone(), place))
    }

    /// Those of the nodes that die, or died, as far as the lifelines to them prove it.
    pub(crate) fn deaths(&self, nodes: impl IntoIterator<Item = u32>) -> Deaths {
        let state = self.shared.state.lock();
        let line = |node: u32| Some((node, state.lifelines.get(&node)?.clone()));
        Deaths::of(nodes.into_iter().filter_map(line))
    }

    /// An attempt runs, or this node waits for a seat of it. `votes`: it was there when that was agreed.
    pub(crate) fn begin(&self, electorate: Electorate, votes: bool) {
        let mut state = self.shared.state.lock();
        state.adopt(self.shared.me, electorate, votes);
        self.shared.hold_lifelines(&mut state);
        (state.runs, state.is_leaderless) = (true, false);
        let leads = state.leads(self.shared.me);
        if !leads {
            (state.gathers, state.telling) = (None, None);
        }
        if !leads && self.shared.me == 0 {
            state.telling = Some(Task::of(tells::answer_all(Arc::downgrade(&self.shared))));
        }
        state.rests_until = None;
    }

    /// The attempt is over on this node. `is_leaderless`: its leader was lost.
    pub(crate) fn ended(&self, is_leaderless: bool) {
        let mut state = self.shared.state.lock();
        // A leader is found again once it gathers.
        (state.runs, state.gathers, state.is_leaderless) = (false, None, is_leaderless);
    }

    /// Whether the leader of the last agreement is lost, as far as this node knows.
    pub fn has_lost_leader(&self) -> bool {
        self.shared.state.lock().is_leaderless
    }

    /// Others agreed on what follows, and this node learns it late. Whether that was news.
    pub(crate) fn learn(&self, newer: Electorate) -> bool {
        let mut state = self.shared.state.lock();
        let Some(own) = state.electorate.as_ref().map(Electorate::age) else { return false };
        if newer.age() <= own {
            return false;
        }
        let votes = newer.voters.contains(&self.shared.me);
        state.adopt(self.shared.me, newer, votes);
        true
    }

    /// Others vote on what follows the attempt that runs.
    pub(crate) fn renewed(&self, newer: Electorate) {
        let mut state = self.shared.state.lock();
        let is_newer = |own: &Electorate| own.leader == newer.leader && own.age() < newer.age();
        if state.runs && state.electorate.as_ref().is_some_and(is_newer) {
            let votes = newer.voters.contains(&self.shared.me);
            state.adopt(self.shared.me, newer, votes);
            self.shared.hold_lifelines(&mut state);
        }
    }

    /// As the leader of the attempt that runs: has others vote in place of those that are gone, if a majority agrees.
    pub(crate) async fn renew(&self, next: &Electorate) -> bool {
        let is_decided = self.decide(next).await;
        let mut state = self.shared.state.lock();
        match &mut state.election {
            _ if is_decided => state.adopt(self.shared.me, next.clone(), true),
            Some(election) => election.follow(self.shared.me),
            None => {}
        }
        is_decided
    }

    /// As a leader: this node is proven to be dead, or has said that it leaves.
    pub(crate) fn died(&self, node: u32) {
        let mut state = self.shared.state.lock();
        if !state.parted.contains(&node) {
            state.dead.insert(node);
        }
    }

    /// As a leader: nobody knows what this node does.
    pub(crate) fn parted(&self, node: u32) {
        self.shared.state.lock().parted.insert(node);
    }

    /// This node follows the leader, or is itself the one that a majority will be asked to follow.
    pub(crate) fn follow(&self, leader: u32) {
        let mut state = self.shared.state.lock();
        if let Some(election) = &mut state.election {
            election.follow(leader);
        }
    }

    /// As a leader: the port on which it gathered before.
    pub(crate) fn gathered_at(&self) -> Option<u16> {
        self.shared.state.lock().gathered
    }

    /// As a leader: it gathers on this port.
    pub(crate) fn gathers(&self, port: u16) {
        let mut state = self.shared.state.lock();
        (state.gathers, state.gathered) = (Some(port), Some(port));
        if self.shared.me != 0 {
            state.telling = Some(Task::of(tells::tell_all(Arc::downgrade(&self.shared))));
        }
    }

    /// The leader is lost, or this node is none any more.
    pub fn look(&self) {
        let mut state = self.shared.state.lock();
        (state.runs, state.gathers, state.telling) = (false, None, None);
        state.is_leaderless = true;
        // Nobody else will be preferred.
        let stands = state.is_next(self.shared.me) && !state.rests();
        if let Some(election) = &mut state.election {
            election.look();
            if stands {
                election.stand();
            }
        }
        drop(state);
        self.shared.stirred.notify_one();
    }

    /// Leaves the lead to others for some time.
    pub fn rest(&self) {
        self.shared.state.lock().rests_until = Some(Instant::now() + ALONE);
    }

    /// Whether these nodes and this one are enough voters to decide what follows.
    pub(crate) fn is_quorum(&self, voting: &BTreeSet<u32>) -> bool {
        let state = self.shared.state.lock();
        let Some(last) = &state.electorate else { return true };
        let others = last.voters.iter().filter(|voter| voting.contains(voter)).count();
        let here = others + usize::from(state.election.is_some());
        state.needs_no_vote(self.shared.me) || here * 2 > last.voters.len()
    }

    /// Waits until another node is seen to lead, or an agreement that this node has missed. Cancel-safe.
    pub(crate) async fn deposed(&self) {
        loop {
            let changed = self.shared.changed.notified();
            if self.is_deposed() {
                return;
            }
            changed.await;
        }
    }

    fn is_deposed(&self) -> bool {
        let state = self.shared.state.lock();
        let Some(election) = &state.election else { return false };
        let other = election.leader().is_some_and(|leader| leader != self.shared.me);
        other || election.decision().is_some()
    }

    /// Decides that this follows the last agreement. False: something else follows, or too few voters answer.
    pub(crate) async fn decide(&self, next: &Electorate) -> bool {
        let Ok(proposal) = serde_json::to_string(next) else { return false };
        {
            let mut state = self.shared.state.lock();
            if state.needs_no_vote(self.shared.me) {
                return true;
            }
            let Some(election) = &mut state.election else { return false };
            election.stand();
            election.propose(proposal.clone());
        }
        self.shared.stirred.notify_one();
        let decided = async {
            loop {
                let changed = self.shared.changed.notified();
                if let Some(decision) = self.decision() {
                    return decision == proposal;
                }
                changed.await;
            }
        };
        timeout(DECIDES, decided).await.unwrap_or(false)
    }

    fn decision(&self) -> Option<String> {
        self.shared.state.lock().election.as_ref()?.decision()
    }

    /// The leader of the next attempt, once the last one is lost. None: nobody was found in time.
    pub async fn seek(&self, deadline: Instant) -> Option<Found> {
        self.look();
        let mut asked: Option<Instant> = None;
        loop {
            let changed = self.shared.changed.notified();
            if let Some(next) = self.decision() {
                // Its leader was lost before it could tell; who heard it may run ranks.
                if let Ok(next) = serde_json::from_slice(next.as_bytes()) {
                    self.learn(next);
                }
                self.look();
            }
            match self.elected() {
                Some(leader) if leader == self.shared.me => {
                    if let Some(election) = &mut self.shared.state.lock().election {
                        election.stand();
                    }
                    self.shared.stirred.notify_one();
                    return Some(Found::Me);
                }
                Some(leader) => {
                    if let Some(at) = self.muster_of(leader).await {
                        self.follow(leader);
                        return Some(Found::Other { leader, at });
                    }
                }
                None => {}
            }
            if asked.is_none_or(|at| at.elapsed() >= ASK) {
                asked = Some(Instant::now());
                if let Some((leader, at)) = self.ask_all(deadline).await {
                    self.follow(leader);
                    return Some(Found::Other { leader, at });
                }
            }
            if Instant::now() >= deadline {
                return None;
            }
            let _ = timeout_at(deadline.min(Instant::now() + TICK), changed).await;
        }
    }

    /// Whom a majority of the voters follows; not this node while it rests.
    fn elected(&self) -> Option<u32> {
        let state = self.shared.state.lock();
        let leader = state.election.as_ref()?.leader()?;
        (leader != self.shared.me || !state.rests()).then_some(leader)
    }

    /// Where this leader gathers, if it does.
    async fn muster_of(&self, leader: u32) -> Option<SocketAddr> {
        let place = self.place(leader)?;
        let leads = self.shared.caller.ask(place).await?;
        let port = leads.port.filter(|_| leads.leader == leader)?;
        Some(SocketAddr::new(place.ip(), port))
    }

    fn place(&self, node: u32) -> Option<SocketAddr> {
        self.shared.state.lock().electorate.as_ref()?.places.get(&node).copied()
    }

    /// Where this leader gathers, whose launcher listens there.
    pub async fn gathers_at(&self, leader: u32, place: SocketAddr) -> Option<SocketAddr> {
        let (found, at) = self.shared.caller.leader(place).await?;
        (found == leader).then_some(at)
    }

    /// The leader that any other node knows.
    async fn ask_all(&self, deadline: Instant) -> Option<(u32, SocketAddr)> {
        let places = self.electorate().map(|last| last.places).unwrap_or_default();
        let mut asked = JoinSet::new();
        for (_, place) in places.into_iter().filter(|(node, _)| *node != self.shared.me) {
            let caller = self.shared.caller.clone();
            asked.spawn(async move { caller.leader(place).await });
        }
        let first = async {
            while let Some(answer) = asked.join_next().await {
                let found = answer.ok().flatten();
                if let Some((leader, at)) = found.filter(|(leader, _)| *leader != self.shared.me) {
                    return Some((leader, at));
                }
            }
            None
        };
        timeout_at(deadline, first).await.ok().flatten()
    }

    /// Where the launcher of the leader listens.
    pub(crate) fn leaders_place(&self) -> Option<SocketAddr> {
        let leader = self.shared.state.lock().electorate.as_ref()?.leader;
        self.place(leader)
    }

    /// Where this leader gathers, once it does; without end if it is not known where its launcher is. Cancel-safe.
    pub async fn muster_of_leader(&self, leader: u32) -> SocketAddr {
        loop {
            if let Some(at) = self.muster_of(leader).await {
                self.follow(leader);
                return at;
            }
            sleep(LOOKS).await;
        }
    }

    /// Waits until this leader gathers somewhere else. None: it lives, and gathers no more. Cancel-safe.
    pub async fn until_moved(&self, leader: u32, from: SocketAddr) -> Option<SocketAddr> {
        let mut idle = 0;
        while idle < IDLE {
            sleep(ASK).await;
            idle = match (self.muster_of(leader).await, self.place(leader)) {
                (Some(at), _) if at.port() != from.port() => return Some(at),
                (None, Some(place)) if port(place).await == Port::Open => idle + 1,
                _ => 0,
            };
        }
        None
    }

    /// Waits until nothing listens any more where this leader did, or nothing answers for so long; without end if it is
    /// not known where. Cancel-safe.
    pub async fn until_lost(&self, leader: u32, longest: Duration) {
        let Some(place) = self.place(leader) else { return std::future::pending().await };
        let (mut heard, mut closed) = (Instant::now(), 0);
        loop {
            match port(place).await {
                Port::Open => (heard, closed) = (Instant::now(), 0),
                Port::Closed => closed += 1,
                Port::Unanswered => {}
            }
            if closed >= CLOSED || heard.elapsed() >= longest {
                return;
            }
            sleep(LOOKS).await;
        }
    }

    /// Waits until a leader tells this node, which knows nothing of the job, that it leads, and where it gathers.
    /// Cancel-safe.
    pub async fn told(&self) -> (u32, SocketAddr) {
        tells::told(&self.shared).await
    }
}
