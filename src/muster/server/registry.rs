//! The nodes that are connected to node 0.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::listener::{Arrival, ConnectionId, FrameSender};
use crate::protocol::codec;
use crate::protocol::{FromNode0, Memory, Seat};

#[derive(Debug)]
pub struct Member {
    id: ConnectionId,
    pub from: SocketAddr,
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
        let Arrival { id, hello, from, out } = arrival;
        let member = Member {
            id,
            from,
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
        let bytes: Arc<[u8]> = codec::encode(frame).into();
        for member in self.members.values() {
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
