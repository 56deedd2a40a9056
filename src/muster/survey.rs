//! `check` on all nodes: node 0 has them measure in steps and tells all what came of it.
//!
//! Takes the nodes that [`gather`](super::gather) let in; gives one [`Found`] that
//! all of them hold. Node 0 alone says who measures when, so that no node has two
//! tasks at a time. A node that dies or falls silent meanwhile is named; the rest
//! goes on. Every step and the whole have a deadline.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::channel::Channel;
use super::compare::Difference;
use super::gather::Gathered;
use super::hall::{Hall, Member};
use super::links::{ALL_PAIRS, Link, Measured, Odd, odd, schedule};
use super::listen::{ConnectionId, Ear, Said};
use super::measure::{Target, Task, WHOLE};
use super::silence::BEAT;
use super::types::{BEFORE_THE_START, Card, Config, Loss, Station};
use super::wire::{self, Frame};

/// One step: the measurement's own limit, and a busy node 0 on both ends.
const STEP: Duration = Duration::from_secs(12);
/// All steps; what is not measured by then stays unmeasured.
const ALL_STEPS: Duration = Duration::from_secs(90);
/// Directions that are measured a second time, since one busy moment proves nothing.
const DOUBTFUL: usize = 16;
/// How long the last frames may take to leave.
const DRAIN: Duration = Duration::from_secs(3);
/// Findings and nodes that travel; the report of node 0 has all.
const LISTED: usize = 16;

/// What all nodes know in the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub nnodes: u32,
    /// Of up to 16 nodes all; of more, elsewhere than on node 0, those that have something to say.
    pub nodes: Vec<Visited>,
    pub differences: Vec<Difference>,
    /// As `nodes`: of more than 16 nodes they stay on node 0.
    pub links: Vec<Link>,
    pub odd: Vec<Odd>,
    /// Odd places in all; [`Found::odd`] may be cut.
    pub odd_count: u32,
    /// Nodes that were lost while links were measured.
    pub lost: Vec<(u32, Loss)>,
    /// Directions that time did not suffice for.
    pub unmeasured: u32,
}

/// One node of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Visited {
    pub node: u32,
    pub hostname: String,
    pub station: Station,
}

impl Found {
    pub fn hostname(&self, node: u32) -> &str {
        let found = self.nodes.iter().find(|visited| visited.node == node);
        found.map_or("?", |visited| visited.hostname.as_str())
    }

    pub fn station(&self, node: u32) -> Option<&Station> {
        self.nodes.iter().find(|visited| visited.node == node).map(|visited| &visited.station)
    }

    /// What fits into a frame.
    fn in_short(&self) -> Found {
        let mut short = self.clone();
        short.odd.truncate(LISTED);
        short.lost.truncate(LISTED);
        if self.nnodes > ALL_PAIRS {
            short.links = Vec::new();
            let named: BTreeSet<u32> = short
                .odd
                .iter()
                .flat_map(|odd| [odd.worst.from, odd.worst.to])
                .chain(short.lost.iter().map(|(node, _)| *node))
                .collect();
            short.nodes.retain(|one| named.contains(&one.node) || one.station.failed.is_some());
            short.nodes.truncate(4 * LISTED);
        }
        short
    }

    /// What came over the wire ends on a terminal.
    pub(super) fn clean(&mut self) {
        self.nodes.truncate(4 * LISTED);
        for visited in &mut self.nodes {
            wire::clean(&mut visited.hostname);
            visited.station.clean();
        }
        self.differences.iter_mut().for_each(Difference::clean);
        self.odd.truncate(LISTED);
        let worst = self.odd.iter_mut().map(|odd| &mut odd.worst);
        self.links.iter_mut().chain(worst).for_each(clean_link);
    }
}

pub(super) fn clean_link(link: &mut Link) {
    if let Measured::Failed(why) = &mut link.measured {
        wire::clean(why);
    }
}

impl Gathered {
    /// Has all nodes measure the links between them, and tells them what was found.
    pub async fn survey(self, own: Station, mut target: Target) -> Found {
        let Gathered { hall, cards, differences } = self;
        let Hall { config, door, ear, members, own: card, .. } = hall;
        // Nobody comes any more: strangers cannot disturb what is measured.
        door.shut().await;
        let mut token = [0u8; 16];
        // Without randomness the secret alone keeps others out, where there is one.
        let _ = crate::random::fill(&mut token);
        let token: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
        target.serve(config.secret.clone(), token.clone());
        let by_id = members.iter().map(|(node, member)| (member.id, *node)).collect();
        let mut stations: BTreeMap<u32, Station> = cards
            .iter()
            .map(|card| (card.node, card.station.as_deref().cloned().unwrap_or_default()))
            .chain([(0, own)])
            .collect();
        for (node, member) in &members {
            let station = stations.get_mut(node);
            if let Some(address) = station.and_then(|station| station.address.as_mut())
                && address.ip().is_unspecified()
            {
                // Where it came from is where it listens, since it listens everywhere.
                address.set_ip(member.from.ip());
            }
        }
        let mut conduct = Conduct {
            config,
            hostname: card.hostname,
            token,
            ear,
            members,
            by_id,
            stations,
            lost: BTreeMap::new(),
            links: BTreeMap::new(),
            deadline: Instant::now() + ALL_STEPS,
        };
        conduct.broadcast(&Frame::Measure { token: conduct.token.clone() });
        conduct.measure_all().await;
        conduct.finish(&cards, differences).await
    }
}

struct Conduct {
    config: Config,
    hostname: String,
    token: String,
    ear: Ear,
    members: BTreeMap<u32, Member>,
    by_id: HashMap<ConnectionId, u32>,
    stations: BTreeMap<u32, Station>,
    lost: BTreeMap<u32, Loss>,
    links: BTreeMap<(u32, u32), Link>,
    deadline: Instant,
}

impl Conduct {
    fn broadcast(&self, frame: &Frame) {
        let bytes: Arc<[u8]> = wire::encode(frame).into();
        for member in self.members.values() {
            let _ = member.out.send(Arc::clone(&bytes));
        }
    }

    async fn measure_all(&mut self) {
        for step in schedule(self.config.nnodes) {
            self.step(&step).await;
        }
        // Whatever looks odd is looked at twice, with nothing beside it that could be the cause.
        let mut doubtful: Vec<(u32, u32)> =
            self.odd().iter().flat_map(|odd| self.links_of(odd)).take(DOUBTFUL).collect();
        doubtful.dedup();
        for pair in doubtful {
            self.step(&[pair]).await;
        }
    }

    fn odd(&self) -> Vec<Odd> {
        let links: Vec<Link> = self.measured();
        odd(&links, &|node| self.stations.get(&node).and_then(|station| station.megabits))
    }

    /// Of nodes that are still there: what was found with one that died says nothing of the way.
    fn measured(&self) -> Vec<Link> {
        let lost = |node: &u32| self.lost.contains_key(node);
        let stays = |link: &&Link| !lost(&link.from) && !lost(&link.to);
        self.links.values().filter(stays).cloned().collect()
    }

    fn links_of(&self, odd: &Odd) -> Vec<(u32, u32)> {
        use super::links::Place;
        let is_there = |(from, to): &(u32, u32)| match odd.place {
            Place::All => true,
            Place::Node(node) => *from == node || *to == node,
            Place::Pair(one, other) => (*from, *to) == (one, other) || (*from, *to) == (other, one),
            Place::OneWay(one, other) => (*from, *to) == (one, other),
        };
        self.links.keys().copied().filter(is_there).collect()
    }

    fn task(&self, from: u32, to: u32) -> Option<Task> {
        let station = self.stations.get(&to)?;
        Some(Task {
            node: from,
            nnodes: self.config.nnodes,
            hostname: self.hostname.clone(),
            to,
            address: station.address?,
            token: self.token.clone(),
            secret: self.config.secret.clone(),
        })
    }

    /// One step: its pairs at the same time.
    async fn step(&mut self, pairs: &[(u32, u32)]) {
        let end = (Instant::now() + STEP).min(self.deadline);
        if Instant::now() >= self.deadline {
            return;
        }
        let mut pending: BTreeSet<(u32, u32)> = BTreeSet::new();
        let mut own = JoinSet::new();
        for (from, to) in pairs {
            if self.lost.contains_key(from) || self.lost.contains_key(to) {
                continue;
            }
            let Some(task) = self.task(*from, *to) else { continue };
            if *from == 0 {
                own.spawn(task.run());
            } else if let Some(member) = self.members.get(from) {
                member.tell(&Frame::Dial { to: *to, address: task.address });
            }
            pending.insert((*from, *to));
        }
        let mut tick = interval(BEAT);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !pending.is_empty() {
            tokio::select! {
                Some(done) = own.join_next() => match done {
                    Ok(link) => self.note(link, &mut pending),
                    Err(_) => pending.retain(|(from, _)| *from != 0),
                },
                said = self.ear.recv() => match said {
                    Some((id, said)) => self.hear(id, said, &mut pending),
                    None => break,
                },
                _ = tick.tick() => self.broadcast(&Frame::Beat { memory: None }),
                () = sleep_until(end) => break,
            }
        }
        // The whole time being over is nobody's fault.
        if Instant::now() < self.deadline {
            for (from, _) in pending {
                self.lose(from, Loss::Silent);
            }
        }
    }

    fn note(&mut self, link: Link, pending: &mut BTreeSet<(u32, u32)>) {
        let key = (link.from, link.to);
        if !pending.remove(&key) {
            return;
        }
        match self.links.get_mut(&key) {
            Some(first) => first.again(link),
            None => drop(self.links.insert(key, link)),
        }
    }

    fn hear(&mut self, id: ConnectionId, said: Said, pending: &mut BTreeSet<(u32, u32)>) {
        let Some(node) = self.by_id.get(&id).copied() else { return };
        match said {
            // A node speaks for itself only.
            Said::Frame(Frame::Measured(link)) if link.from == node => self.note(link, pending),
            Said::Gone => {
                self.lose(node, Loss::Died);
                pending.retain(|(from, _)| *from != node);
            }
            _ => {}
        }
    }

    fn lose(&mut self, node: u32, loss: Loss) {
        if let Some(member) = self.members.remove(&node) {
            self.by_id.remove(&member.id);
        }
        self.lost.insert(node, loss);
    }

    async fn finish(mut self, cards: &[Card], differences: Vec<Difference>) -> Found {
        let odd = self.odd();
        let links = self.measured();
        let asked: usize = schedule(self.config.nnodes).iter().map(Vec::len).sum();
        let nodes = cards.iter().map(|card| Visited {
            node: card.node,
            hostname: card.hostname.clone(),
            station: self.stations.get(&card.node).cloned().unwrap_or_default(),
        });
        let found = Found {
            nnodes: self.config.nnodes,
            nodes: nodes.collect(),
            differences,
            unmeasured: u32::try_from(asked.saturating_sub(links.len())).unwrap_or(u32::MAX),
            links,
            odd_count: u32::try_from(odd.len()).unwrap_or(u32::MAX),
            odd,
            lost: self.lost.iter().map(|(node, loss)| (*node, *loss)).collect(),
        };
        self.broadcast(&Frame::Found(Box::new(found.in_short())));
        // Dropping the outboxes closes the connections once they are drained.
        self.members.clear();
        let drained = async { while self.ear.recv().await.is_some() {} };
        let _ = timeout(DRAIN, drained).await;
        found
    }
}

/// A place in the survey of node 0.
#[derive(Debug)]
pub struct Visit {
    pub(super) config: Config,
    pub(super) hostname: String,
    pub(super) channel: Channel,
    pub(super) token: String,
}

impl Visit {
    /// The address by which this node sees node 0.
    pub fn master(&self) -> Option<SocketAddr> {
        self.channel.stream().peer_addr().ok()
    }

    /// Measures what node 0 asks for, until it says what was found.
    ///
    /// # Errors
    /// When node 0 is lost.
    pub async fn follow(self, mut target: Target) -> Result<Found, Loss> {
        let Visit { config, hostname, mut channel, token } = self;
        target.serve(config.secret.clone(), token.clone());
        let master = channel.stream().peer_addr().ok();
        let mut tasks = JoinSet::new();
        let mut tick = interval(BEAT);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        let end = heard + ALL_STEPS + WHOLE + STEP;
        loop {
            let frame = tokio::select! {
                frame = channel.receive() => {
                    heard = Instant::now();
                    match frame {
                        Ok(Frame::Dial { to, address }) => {
                            // Node 0 listens where we found it, if it does not know better.
                            let ip = match master {
                                Some(master) if address.ip().is_unspecified() => master.ip(),
                                _ => address.ip(),
                            };
                            // One at a time: a node that asks for more is not our node 0.
                            tasks.shutdown().await;
                            tasks.spawn(Task {
                                node: config.node,
                                nnodes: config.nnodes,
                                hostname: hostname.clone(),
                                to,
                                address: SocketAddr::new(ip.to_canonical(), address.port()),
                                token: token.clone(),
                                secret: config.secret.clone(),
                            }.run());
                            continue;
                        }
                        Ok(Frame::Found(found)) => {
                            let _ = timeout(DRAIN, channel.close()).await;
                            return Ok(*found);
                        }
                        Ok(Frame::Ping) => Frame::Pong,
                        Ok(_) => continue,
                        Err(_) => return Err(Loss::Died),
                    }
                }
                Some(done) = tasks.join_next() => match done {
                    Ok(link) => Frame::Measured(link),
                    Err(_) => continue,
                },
                _ = tick.tick() => Frame::Beat { memory: None },
                () = sleep_until((heard + config.peer_timeout * BEFORE_THE_START).min(end)) => {
                    return Err(Loss::Silent);
                }
            };
            if !matches!(timeout(config.peer_timeout, channel.send(&frame)).await, Ok(Ok(()))) {
                return Err(Loss::Died);
            }
        }
    }
}
