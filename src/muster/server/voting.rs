//! Who votes on what follows an agreement, and what the last agreement of a node that joins means for the leader.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::registry::Registry;
use crate::election::voters;
use crate::protocol::{Agreement, Electorate, Last, PLACES, Tally};
use crate::session::Config;
use crate::succession::Succession;
use text::order::InOrder;

/// Who votes on what follows the agreement, and where the others find each other; None: the job has no spares.
pub(super) fn electorate(
    config: &Config,
    registry: &Registry,
    agreement: &Agreement,
    parked: &[u32],
    tally: Tally,
) -> Option<Electorate> {
    let (leader, succession) = (config.leader, config.succession.as_ref()?);
    let seats = agreement.seats.clone();
    let mut order = vec![leader];
    let rest = seats.iter().chain(parked).copied();
    order.extend(rest.filter(|node| *node != leader));
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
    let places: BTreeMap<u32, SocketAddr> = order.iter().take(PLACES).filter_map(place).in_map();
    order.retain(|node| places.contains_key(node));
    order.truncate(voters(order.len()));
    Some(Electorate {
        token: linux::random::hex::<16>().ok()?,
        attempt: agreement.attempt,
        leader,
        voters: order,
        seats,
        places,
        tally,
        run_id: agreement.run_id.clone(),
        timestamp: agreement.timestamp.clone(),
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
        if electorate.attempt > own.attempt {
            Told::Newer
        } else if electorate.token == own.token {
            if *votes { Told::Votes } else { Told::Nothing }
        } else if electorate.attempt < own.attempt && own.voters.contains(&node) {
            Told::Missed(Box::new(own))
        } else {
            Told::Nothing
        }
    }
}
