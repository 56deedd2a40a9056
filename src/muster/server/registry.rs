//! The nodes that are connected to node 0, and members whose connection was cut, until they return or are lost.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::listener::{Arrival, ConnectionId, FrameSender};
use crate::keepalive::{Cut, Port, Sight, port};
use crate::protocol::{FromNode0, Loss, Memory, Seat, channel};
use crate::succession::{Lifeline, Succession};

#[derive(Debug)]
pub struct Member {
    id: ConnectionId,
    pub from: SocketAddr,
    /// The address at which it reached this node.
    pub at: Option<IpAddr>,
    pub hostname: String,
    out: FrameSender,
    heard: Instant,
    /// Memory use from the last heartbeat that contained it.
    pub memory: Option<Memory>,
    /// Set for a task whose summary has arrived.
    pub seat: Option<Seat>,
    /// The port that is open as long as the member's agent lives.
    pub alive: Option<u16>,
}

impl Member {
    pub fn send(&self, frame: &FromNode0) {
        self.out.send(frame);
    }

    /// Queues a frame that waits until all others were sent.
    pub(crate) fn send_later(&self, bytes: Arc<[u8]>) {
        self.out.send_later(bytes);
    }

    pub(crate) fn note_memory(&mut self, memory: Option<Memory>) {
        self.memory = memory.or(self.memory);
    }
}

/// Members by node rank and by connection, so that no frame needs a search over ten thousand members.
#[derive(Debug, Default)]
pub struct Registry {
    members: BTreeMap<u32, Member>,
    by_id: HashMap<ConnectionId, u32>,
}

impl Registry {
    pub fn insert(&mut self, arrival: Arrival) {
        let Arrival { id, hello, from, at, out } = arrival;
        let member = Member {
            id,
            from,
            at,
            hostname: hello.hostname,
            out,
            heard: Instant::now(),
            memory: None,
            seat: None,
            alive: None,
        };
        self.by_id.insert(id, hello.node);
        self.members.insert(hello.node, member);
    }

    /// Gives the member a new connection; its other state is unchanged.
    pub fn resume(&mut self, arrival: Arrival, was: Option<Member>) {
        let node = arrival.hello.node;
        let was = self.remove(node).or(was);
        self.insert(arrival);
        if let (Some(member), Some(was)) = (self.members.get_mut(&node), was) {
            (member.memory, member.seat, member.alive) = (was.memory, was.seat, was.alive);
        }
    }

    pub fn get(&self, node: u32) -> Option<&Member> {
        self.members.get(&node)
    }

    pub fn node_of(&self, id: ConnectionId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// The member that sent a frame just now.
    pub fn hear(&mut self, id: ConnectionId) -> Option<(u32, &mut Member)> {
        let node = self.node_of(id)?;
        let member = self.members.get_mut(&node)?;
        member.heard = Instant::now();
        Some((node, member))
    }

    pub fn remove(&mut self, node: u32) -> Option<Member> {
        let member = self.members.remove(&node)?;
        self.by_id.remove(&member.id);
        Some(member)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Member)> {
        self.members.iter().map(|(node, member)| (*node, member))
    }

    pub fn nodes(&self) -> impl Iterator<Item = u32> {
        self.members.keys().copied()
    }

    pub fn broadcast(&self, frame: &FromNode0) {
        let bytes: Arc<[u8]> = channel::encode(frame).into();
        for member in self.members.values() {
            member.out.send_encoded(Arc::clone(&bytes));
        }
    }

    /// Sends the frame to those of these nodes that are members.
    pub(crate) fn broadcast_to(&self, nodes: &[u32], frame: &FromNode0) {
        let bytes: Arc<[u8]> = channel::encode(frame).into();
        for member in nodes.iter().filter_map(|node| self.members.get(node)) {
            member.out.send_encoded(Arc::clone(&bytes));
        }
    }

    /// Sends a heartbeat to all members, `late` after it was due. Gives the nodes that have been silent for longer than
    /// `longest`.
    pub(crate) fn keep_alive(
        &mut self,
        late: Duration,
        memory: Option<Memory>,
        longest: Duration,
    ) -> Vec<u32> {
        self.broadcast(&FromNode0::Heartbeat { memory });
        self.members.values_mut().for_each(|member| member.heard += late);
        let is_silent = |member: &Member| member.heard.elapsed() > longest;
        self.iter().filter(|(_, member)| is_silent(member)).map(|(node, _)| node).collect()
    }

    /// Restarts the measurement of silence, since the last heartbeats may be as old as the duration of the agreement.
    pub(crate) fn forget_silence(&mut self) {
        let now = Instant::now();
        self.members.values_mut().for_each(|member| member.heard = now);
    }
}

/// Maximum number of simultaneous dials when the job starts.
const DIALS: usize = 64;
/// Maximum number of lifelines, each of which is a handshake when the job starts and a descriptor.
const LIFELINES: usize = 512;

/// The finding of a task about a member.
#[derive(Debug)]
enum Found {
    /// Whether its port can be reached.
    Reached(u32, bool),
    Lost(u32, Loss),
}

#[derive(Debug, Default)]
pub(crate) struct Away {
    members: BTreeMap<u32, (Member, AbortHandle)>,
    reached: BTreeSet<u32>,
    lifelines: BTreeMap<u32, Lifeline>,
    tasks: JoinSet<Found>,
}

/// The address of a member's port that is open as long as the member lives.
fn alive(member: &Member) -> Option<SocketAddr> {
    Some(SocketAddr::new(member.from.ip(), member.alive?))
}

impl Away {
    /// Dials every member once, since a port that was never reached proves nothing later; in a job with spares it holds a
    /// connection there.
    pub(crate) fn reach(&mut self, registry: &Registry, succession: Option<&Succession>) {
        let dials = Arc::new(Semaphore::new(DIALS));
        for (node, member) in registry.iter() {
            let (Some(peer), dials) = (alive(member), Arc::clone(&dials)) else { continue };
            if let Some(succession) = succession.filter(|_| self.lifelines.len() < LIFELINES) {
                self.lifelines.insert(node, succession.lifeline(peer));
            }
            self.tasks.spawn(async move {
                let _dial = dials.acquire_owned().await;
                Found::Reached(node, port(peer).await == Port::Open)
            });
        }
    }

    /// Waits for a member whose connection was cut, for at most `longest`.
    pub(crate) fn wait_for(&mut self, node: u32, member: Member, how: Cut, longest: Duration) {
        let peer = alive(&member);
        let sight = Sight::new(self.reached.contains(&node), how, longest);
        let lifeline = self.lifelines.get(&node).cloned();
        let task = self.tasks.spawn(async move {
            let was_closed = || lifeline.as_ref().is_some_and(Lifeline::was_closed);
            Found::Lost(node, sight.until_lost(peer, was_closed).await)
        });
        self.members.insert(node, (member, task));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = u32> {
        self.members.keys().copied()
    }

    pub(crate) fn has(&self, node: u32) -> bool {
        self.members.contains_key(&node)
    }

    /// Removes a member that has returned or is lost.
    pub(crate) fn take(&mut self, node: u32) -> Option<Member> {
        let (member, task) = self.members.remove(&node)?;
        task.abort();
        Some(member)
    }

    /// The next member that is lost. Cancel-safe.
    pub(crate) async fn lost(&mut self) -> (u32, Member, Loss) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Found::Reached(node, is_reached))) => {
                    if is_reached {
                        self.reached.insert(node);
                    }
                }
                Some(Ok(Found::Lost(node, loss))) => {
                    if let Some(member) = self.take(node) {
                        return (node, member, loss);
                    }
                }
                // A member has returned, so its task was cancelled.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}
