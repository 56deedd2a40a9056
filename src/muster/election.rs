//! Who leads the next attempt, and whether it may begin: the vote of up to five nodes of an agreement.
//!
//! Takes messages and the passing of time; gives messages, the leader, and the decision. One election belongs to one
//! agreement and decides once: on the agreement that follows. So two attempts can never follow the same one, however the
//! nodes are cut off from each other. The protocol is OmniPaxos (EuroSys 2023), whose election tolerates links that are
//! cut one way. Nothing here sends, reads a clock or keeps a file: a launcher that starts again votes in no election of
//! before.
//!
//! A launcher holds it in its `succession`; jobs that are simulated hold many (`tests`).

use std::fmt;

use omnipaxos::ballot_leader_election::Ballot;
use omnipaxos::messages::Message;
use omnipaxos::storage::{Entry, NoSnapshot};
use omnipaxos::util::{LogEntry, NodeId};
use omnipaxos::{ClusterConfig, OmniPaxos, ServerConfig};
use omnipaxos_storage::memory_storage::MemoryStorage;
use serde::{Deserialize, Serialize};

use crate::protocol::VOTERS;

/// Fewest nodes among which one may be lost.
const FEWEST: usize = 3;
/// Ticks after which what was not answered is sent again.
const AGAIN: u64 = 3;
/// Ticks after which a proposal without a decision is made again from the beginning: what was on its way to a voter that
/// had another leader then is lost.
const DECIDED: u32 = 5;

/// What is proposed to follow the agreement. The first one that is decided counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Next(String);

impl Entry for Next {
    type Snapshot = NoSnapshot;
}

/// What the voters send each other.
pub(crate) type Vote = Message<Next>;

/// How many of `members` vote: an odd number, so that no halves are equal. Zero: too few for an election.
pub(crate) fn voters(members: usize) -> usize {
    match members.min(VOTERS) {
        few if few < FEWEST => 0,
        count => count - (count + 1) % 2,
    }
}

/// Whose votes a voter hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stance {
    /// This leader is there, or this node is the leader and its attempt runs. Nobody else counts: a node that lost its own
    /// cable must not disturb those that have lost nothing.
    Settled(u32),
    /// There is no leader, or this node is the leader and gathers for the next attempt.
    Open,
}

/// One voter.
pub(crate) struct Election {
    voters: Vec<u32>,
    me: u32,
    stance: Stance,
    /// The ballot of the leader that was lost: it counts no more, although nobody else may stand.
    lost: Ballot,
    /// Ticks since this node proposed what follows.
    proposed: Option<u32>,
    paxos: OmniPaxos<Next, MemoryStorage<Next>>,
}

impl fmt::Debug for Election {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Election { voters, me, .. } = self;
        out.debug_struct("Election").field("voters", voters).field("me", me).finish_non_exhaustive()
    }
}

impl Election {
    /// The voter `me` among `voters`, which are named in the same order on each of them: those before are preferred as
    /// leaders. None: this node has no vote, or too few have one.
    pub(crate) fn new(me: u32, voters: &[u32]) -> Option<Election> {
        if voters.len() < FEWEST {
            return None;
        }
        let count = u64::try_from(voters.len()).ok()?;
        let place = u64::try_from(voters.iter().position(|node| *node == me)?).ok()?;
        let cluster = ClusterConfig {
            configuration_id: 1,
            nodes: (1..=count).collect(),
            flexible_quorum: None,
        };
        let server = ServerConfig {
            pid: place + 1,
            election_tick_timeout: 1,
            resend_message_tick_timeout: AGAIN,
            leader_priority: u32::try_from(count - place).ok()?,
            ..ServerConfig::default()
        };
        let paxos = cluster.build_for_server(server, MemoryStorage::default()).ok()?;
        let stance = Stance::Settled(*voters.first()?);
        Some(Election {
            voters: voters.to_vec(),
            me,
            stance,
            lost: Ballot::default(),
            proposed: None,
            paxos,
        })
    }

    /// The leader is lost: another one is looked for. Whom a majority follows meanwhile remains it.
    pub(crate) fn look(&mut self) {
        self.stance = Stance::Open;
        let leader = self.paxos.get_promise();
        if self.node(leader.pid) != Some(self.me) {
            self.lost = leader;
        }
    }

    /// Follows this leader, until [`look`](Self::look).
    pub(crate) fn follow(&mut self, leader: u32) {
        self.stance = Stance::Settled(leader);
    }

    fn node(&self, id: NodeId) -> Option<u32> {
        let place = usize::try_from(id.checked_sub(1)?).ok()?;
        self.voters.get(place).copied()
    }

    /// Whether there is no leader yet, or this node gathers as one.
    pub(crate) fn is_open(&self) -> bool {
        self.stance == Stance::Open
    }

    /// Time has passed in which each voter could answer.
    pub(crate) fn tick(&mut self) {
        if !self.is_open() {
            return;
        }
        self.paxos.tick();
        let Some(ticks) = &mut self.proposed else { return };
        *ticks += 1;
        if *ticks % DECIDED == 0 && self.leader() == Some(self.me) && self.decision().is_none() {
            self.paxos.try_become_leader();
        }
    }

    /// Handles what the voter `from` sent to this one.
    pub(crate) fn hear(&mut self, from: u32, vote: Vote) {
        let is_of = |id, node| self.node(id) == Some(node);
        let counts = [Stance::Open, Stance::Settled(from)].contains(&self.stance);
        if counts && is_of(vote.get_sender(), from) && is_of(vote.get_receiver(), self.me) {
            self.paxos.handle_incoming(vote);
        }
    }

    /// What is to be sent now, each with its receiver. Messages to one receiver must arrive in order or not at all.
    pub(crate) fn outgoing(&mut self) -> Vec<(u32, Vote)> {
        let mut votes = Vec::new();
        self.paxos.take_outgoing_messages(&mut votes);
        let addressed = |vote: Vote| Some((self.node(vote.get_receiver())?, vote));
        votes.into_iter().filter_map(addressed).collect()
    }

    /// The node that a majority follows, as far as this one knows.
    pub(crate) fn leader(&self) -> Option<u32> {
        let (id, is_followed) = self.paxos.get_current_leader()?;
        let is_new = self.paxos.get_promise() != self.lost;
        self.node(id).filter(|_| is_followed && is_new)
    }

    /// Stands for the lead without waiting for a vote that is due.
    pub(crate) fn stand(&mut self) {
        self.stance = Stance::Open;
        if self.leader() != Some(self.me) {
            self.paxos.try_become_leader();
        }
    }

    /// Proposes what follows; once, since what is on its way stays.
    pub(crate) fn propose(&mut self, next: String) {
        // It fails only once the members of this election were changed, which they never are.
        let _ = self.paxos.append(Next(next));
        self.proposed = Some(0);
    }

    /// What follows this agreement, once that cannot change any more.
    pub(crate) fn decision(&self) -> Option<String> {
        match self.paxos.read_decided_suffix(0)?.into_iter().next()? {
            LogEntry::Decided(Next(next)) => Some(next),
            _ => None,
        }
    }
}

#[cfg(test)]
mod launcher;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
