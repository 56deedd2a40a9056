//! What the tasks and the handles of a succession share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::lifeline::Lifeline;
use super::links::{Caller, Links};
use super::task::Task;
use crate::election::Election;
use crate::net::second_port;
use crate::protocol::{Electorate, Leads};
use linux::host::Host;
use text::order::InOrder;

#[derive(Default)]
pub(super) struct State {
    pub(super) electorate: Option<Electorate>,
    /// Where nodes of any agreement were, for those that come back and know nothing.
    pub(super) addresses: BTreeMap<u32, IpAddr>,
    /// None: this node has no vote on what follows.
    pub(super) election: Option<Election>,
    /// An attempt runs, so this node knows who leads it.
    pub(super) runs: bool,
    /// The leader of the last agreement was lost.
    pub(super) is_leaderless: bool,
    /// The port on which this node gathers, or on which its attempt that runs is found.
    pub(super) gathers: Option<u16>,
    /// The same before.
    pub(super) gathered: Option<u16>,
    /// This node led without a majority, and leaves it to others until then.
    pub(super) rests_until: Option<Instant>,
    /// Voters that never left this leader before they were proven to be dead.
    pub(super) dead: BTreeSet<u32>,
    /// Nodes with which the contact broke.
    pub(super) parted: BTreeSet<u32>,
    pub(super) links: Links,
    /// By the nodes at their other ends, each with the place there.
    pub(super) lifelines: BTreeMap<u32, (SocketAddr, Lifeline)>,
    /// The task that tells others who leads.
    pub(super) telling: Option<Task>,
}

pub(super) struct Shared {
    pub(super) me: u32,
    pub(super) caller: Caller,
    /// The port of the listener.
    pub(super) port: u16,
    /// Where nodes that know nothing of the job look for it.
    pub(super) tells: Tells,
    pub(super) state: Mutex<State>,
    /// There are votes to send.
    pub(super) stirred: Notify,
    /// Somebody may lead, or something is decided.
    pub(super) changed: Notify,
}

/// The address of the job as the platform gives it.
pub(super) struct Tells {
    pub(super) host: Arc<Host>,
    pub(super) master_addr: String,
    pub(super) port: u16,
}

impl Tells {
    /// The port at which nodes without an agreement hear who leads; nothing else of this program uses it.
    pub(super) fn told_at(&self) -> u16 {
        second_port(self.port).saturating_add(1)
    }
}

impl State {
    pub(super) fn adopt(&mut self, me: u32, electorate: Electorate, votes: bool) {
        self.election = Election::new(me, &electorate.voters).filter(|_| votes);
        let seen = electorate.places.iter().map(|(node, place)| (*node, place.ip()));
        self.addresses.extend(seen);
        self.electorate = Some(electorate);
        self.dead.clear();
        self.parted.clear();
        self.links = Links::default();
    }

    pub(super) fn leads(&self, me: u32) -> bool {
        self.electorate.as_ref().is_some_and(|last| last.leader == me)
    }

    /// Whether this node is the first of the voters once the leader is lost.
    pub(super) fn is_next(&self, me: u32) -> bool {
        self.electorate.as_ref().is_some_and(|last| last.voters.get(1) == Some(&me))
    }

    pub(super) fn rests(&self) -> bool {
        self.rests_until.is_some_and(|until| until > Instant::now())
    }

    pub(super) fn needs_no_vote(&self, me: u32) -> bool {
        let Some(last) = &self.electorate else { return true };
        let dead = last.voters.iter().filter(|voter| self.dead.contains(voter)).count();
        last.voters.is_empty() || (last.leader == me && dead * 2 > last.voters.len())
    }
}

impl Shared {
    /// Holds lifelines to those with a seat if this launcher votes; those to the same places stay.
    pub(super) fn hold_lifelines(&self, state: &mut State) {
        let last = state.electorate.as_ref().filter(|_| state.election.is_some());
        let seats = last.map(|last| last.seats.as_slice()).unwrap_or_default();
        let places = seats.iter().filter(|node| **node != self.me).filter_map(|node| {
            let place = *last?.places.get(node)?;
            let held = state.lifelines.get(node);
            let held = held.filter(|(at, line)| *at == place && !line.was_closed()).cloned();
            let held = held.unwrap_or_else(|| (place, Lifeline::open(self.caller.clone(), place)));
            Some((*node, held))
        });
        state.lifelines = places.in_map();
    }

    /// Whether this node votes on who leads, so that time counts.
    pub(super) fn votes(&self) -> bool {
        self.state.lock().election.as_ref().is_some_and(Election::is_open)
    }

    /// Time has passed in which each voter could answer.
    pub(super) fn tick(&self) {
        let mut state = self.state.lock();
        if let Some(election) = &mut state.election {
            election.tick();
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub(super) fn hear(&self, from: u32, token: &str, vote: &str) {
        let mut state = self.state.lock();
        let is_of_it = state.electorate.as_ref().is_some_and(|last| last.token == token);
        if let (true, Some(election), Ok(vote)) =
            (is_of_it, &mut state.election, serde_json::from_slice(vote.as_bytes()))
        {
            election.hear(from, vote);
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// What a node is told that asks who leads; None: this one does not know.
    pub(super) fn who_leads(&self) -> Option<Leads> {
        let state = self.state.lock();
        if let Some(port) = state.gathers {
            return Some(Leads { leader: self.me, place: None, port: Some(port) });
        }
        let last = state.electorate.as_ref().filter(|_| state.runs)?;
        let place = Some(*last.places.get(&last.leader)?);
        Some(Leads { leader: last.leader, place, port: None })
    }

    /// Hands the votes to the connections to their receivers.
    pub(super) fn send_votes(&self) {
        let mut state = self.state.lock();
        let State { electorate: Some(last), election: Some(election), links, .. } = &mut *state
        else {
            return;
        };
        for (to, vote) in election.outgoing() {
            let (Some(place), Ok(vote)) = (last.places.get(&to), serde_json::to_string(&vote))
            else {
                continue;
            };
            links.send(to, *place, &self.caller, (last.token.clone(), vote));
        }
    }
}
