//! What a job with spares agreed on, as far as the next leader has to know it: who votes on what follows, and where each
//! launcher listens for the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use text::order::InOrder;
use text::run_id::RunId;

/// Most nodes whose places are named: enough for all voters, and for others to hear of the leader.
pub(crate) const PLACES: usize = 64;
/// Most nodes that vote: two of them may be lost.
pub(crate) const VOTERS: usize = 5;

/// The attempts that count against the limits of restarts. Every node knows them, so that a new node 0 goes on counting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Restarts since a checkpoint was last saved, or since the beginning.
    pub restarts: u32,
    /// Attempts in a row that ended before a newer checkpoint was saved.
    pub without_progress: u32,
}

/// An agreement that began, or is proposed to begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Electorate {
    /// Tells agreements apart.
    pub token: String,
    /// Number of the attempt from 0.
    pub attempt: u32,
    /// Counts the changes of the voters while the attempt runs.
    #[serde(default)]
    pub revision: u32,
    pub leader: u32,
    /// Who votes on what follows, the leader first; empty: too few nodes are there.
    pub voters: Vec<u32>,
    /// The node of each seat.
    pub seats: Vec<u32>,
    /// Ranges of the nodes that met, first and last; empty: an earlier version agreed.
    #[serde(default)]
    pub met: Vec<(u32, u32)>,
    /// Where the launchers of nodes listen as long as they live.
    pub places: BTreeMap<u32, SocketAddr>,
    pub tally: Tally,
    /// As in the agreement.
    pub run_id: String,
    pub timestamp: String,
}

impl Electorate {
    /// The order in which agreements of a job follow each other.
    pub(crate) fn age(&self) -> (u32, u32) {
        (self.attempt, self.revision)
    }

    /// With the leader's address as a node has just reached it.
    pub(crate) fn seen_from(mut self, peer: SocketAddr) -> Electorate {
        if let Some(place) = self.places.get_mut(&self.leader) {
            place.set_ip(peer.ip().to_canonical());
        }
        self
    }

    /// Whether a correct node can have sent it.
    pub(crate) fn is_sound(&self) -> bool {
        let distinct: BTreeSet<&u32> = self.voters.iter().in_set();
        self.voters.len() <= VOTERS
            && distinct.len() == self.voters.len()
            && self.voters.first().is_none_or(|first| *first == self.leader)
            && self.places.len() <= PLACES
            && RunId::is_sound(&self.token)
            && RunId::is_sound(&self.run_id)
            && RunId::is_sound(&self.timestamp)
    }
}

/// The agreement after which a node joins the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Last {
    pub electorate: Electorate,
    /// Whether this launcher has a vote on what follows: it was there when that was agreed.
    pub votes: bool,
}

/// Where the leader of a job is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leads {
    pub leader: u32,
    /// Where its launcher listens; None: at the address at which this answer was asked for.
    pub place: Option<SocketAddr>,
    /// The port on which it gathers, where the leader itself answers.
    pub port: Option<u16>,
}
