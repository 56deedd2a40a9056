//! Who votes on what follows an agreement, and what the last agreement of a node that joins means for the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::registry::Registry;
use crate::election::voters;
use crate::protocol::{Agreement, Electorate, Last, PLACES, Tally};
use crate::session::Config;
use crate::succession::Succession;
use text::order::InOrder;
use text::ranges::ranges;

/// Who votes on what follows the agreement, and where the others find each other; None: the job has no spares.
pub(super) fn electorate(
    config: &Config,
    registry: &Registry,
    agreement: &Agreement,
    parked: &[u32],
    tally: Tally,
) -> Option<Electorate> {
    let first = Electorate {
        token: String::new(),
        attempt: agreement.attempt,
        revision: 0,
        leader: config.leader,
        voters: Vec::new(),
        seats: agreement.seats.clone(),
        met: Vec::new(),
        places: BTreeMap::new(),
        tally,
        run_id: agreement.run_id.clone(),
        timestamp: agreement.timestamp.clone(),
    };
    among(config, registry, parked.iter().copied(), first)
}

/// The agreement of an attempt that runs, with the votes of those that are there now.
pub(super) fn renewed(
    config: &Config,
    registry: &Registry,
    last: &Electorate,
) -> Option<Electorate> {
    let revision = last.revision.saturating_add(1);
    let others = registry.nodes().filter(|node| !last.seats.contains(node));
    among(config, registry, others, Electorate { revision, ..last.clone() })
}

/// The leader votes, then those with a seat, then the others.
fn among(
    config: &Config,
    registry: &Registry,
    others: impl Iterator<Item = u32>,
    agreed: Electorate,
) -> Option<Electorate> {
    let (leader, succession) = (config.leader, config.succession.as_ref()?);
    let mut order = vec![leader];
    order.extend(agreed.seats.iter().copied().chain(others).filter(|node| *node != leader));
    let met: BTreeSet<u32> = order.iter().copied().in_set();
    let met = ranges(met);
    let reached: Vec<IpAddr> = registry.iter().filter_map(|(_, one)| one.at).collect();
    let own = reached.iter().find(|at| !at.is_loopback()).or(reached.first()).copied()?;
    let place = |node: &u32| {
        if *node == leader {
            return Some((*node, SocketAddr::new(own, succession.port())));
        }
        let member = registry.get(*node)?;
        // A launcher on this host has the address of this host for all others.
        let from = Some(member.from.ip()).filter(|from| !from.is_loopback()).unwrap_or(own);
        Some((*node, SocketAddr::new(from, member.alive?)))
    };
    let places = order.iter().take(PLACES).filter_map(place).in_map();
    order.retain(|node| places.contains_key(node));
    order.truncate(voters(order.len()));
    Some(Electorate {
        token: linux::random::hex::<16>().ok()?,
        voters: order,
        met,
        places,
        ..agreed
    })
}

/// What the last agreement of a node that joins means for this leader.
pub(super) enum Told {
    /// The job went on without this leader.
    Newer,
    /// The node has missed this one, on which it has a vote.
    Missed(Box<Electorate>),
    /// It has a vote on what follows.
    Votes,
    Nothing,
}

impl Told {
    pub(super) fn of(succession: &Succession, node: u32, theirs: &Last) -> Told {
        let Some(own) = succession.electorate() else { return Told::Nothing };
        let Last { electorate, votes } = theirs;
        if electorate.age() > own.age() {
            Told::Newer
        } else if electorate.token == own.token {
            if *votes { Told::Votes } else { Told::Nothing }
        } else if electorate.age() < own.age() && own.voters.contains(&node) {
            Told::Missed(Box::new(own))
        } else {
            Told::Nothing
        }
    }
}
