//! How a launcher that knows nothing of the job, since the platform has started it again, hears that another node than
//! node 0 leads: the leader tells it. Node 0 gathers by itself then, at the address of the job; other nodes listen for
//! that while they look for node 0. A node 0 that does not lead tells those that look for it as well.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Weak;
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::links::Caller;
use super::shared::{Shared, Tells};
use crate::keepalive::{millis, now};
use crate::names;
use crate::protocol::{FromMember, FromNode0, Purpose};
use crate::server::listener::{ConnectionEvent, EventReceiver, Listener};

/// Pause between two rounds.
const AGAIN: Duration = Duration::from_secs(1);
/// Time limit of the resolution of node 0's name.
const RESOLVE: Duration = Duration::from_secs(2);
/// Time limit for an answer to leave.
const ANSWERED: Duration = Duration::from_millis(50);

/// Tells all that may know less, as long as this node leads.
pub(super) async fn tell_all(shared: Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let (port, attempt, others) = {
            let state = shared.state.lock();
            let (Some(port), Some(last)) = (state.gathers, &state.electorate) else { return };
            (port, last.attempt, state.addresses.clone())
        };
        let Tells { host, master_addr, port: of_job } = &shared.tells;
        let named = names::resolve(host, master_addr, RESOLVE, None).await.unwrap_or_default();
        let node_0 = named.into_iter().map(|at| SocketAddr::new(at, *of_job));
        let others = others.into_iter().filter(|(node, _)| *node != shared.me);
        let others = others.map(|(_, ip)| SocketAddr::new(ip, shared.tells.told_at()));
        let mut told = JoinSet::new();
        for place in node_0.chain(others) {
            let (caller, master) = (shared.caller.clone(), master_addr.clone());
            let leads = FromMember::Leads { port, attempt, master };
            told.spawn(async move { caller.tell(place, leads).await });
        }
        drop(shared);
        told.join_all().await;
        sleep(AGAIN).await;
    }
}

/// Listens once nobody else does, which may be this launcher: what it listened with before is still being closed.
async fn listen(port: u16, caller: &Caller) -> (Listener, EventReceiver) {
    loop {
        match Listener::open(port, caller.all, caller.secret.clone()) {
            Ok(opened) => return opened,
            Err(error) => tracing::debug!(port, %error, "not heard by those that look for the job"),
        }
        sleep(AGAIN).await;
    }
}

/// At a node 0 that does not lead: tells those that look for the job at its address who does.
pub(super) async fn answer_all(shared: Weak<Shared>) {
    let of_job = shared.upgrade().map(|shared| (shared.tells.port, shared.caller.clone()));
    let Some((port, caller)) = of_job else { return };
    let (_listener, mut events) = listen(port, &caller).await;
    while let Some(event) = events.recv().await {
        let ConnectionEvent::Arrived(arrival) = event else { continue };
        let is_ours = caller.is_asked(&arrival.hello, Purpose::Run);
        let Some(shared) = shared.upgrade().filter(|_| is_ours) else { continue };
        if let Some(leads) = shared.who_leads() {
            arrival.out.send(&FromNode0::Leads(leads));
        }
    }
}

/// The leader and where it gathers, once it tells.
pub(super) async fn told(shared: &Shared) -> (u32, SocketAddr) {
    let Shared { caller, tells, .. } = shared;
    let (_listener, mut events) = listen(tells.told_at(), caller).await;
    let mut peers = BTreeMap::new();
    while let Some(event) = events.recv().await {
        match event {
            ConnectionEvent::Arrived(arrival) => {
                if caller.is_asked(&arrival.hello, Purpose::Succession) {
                    peers.insert(arrival.id, arrival);
                }
            }
            ConnectionEvent::Frame(id, frame) => {
                let (FromMember::Leads { port, master, .. }, Some(peer)) = (*frame, peers.get(&id))
                else {
                    continue;
                };
                // The host may have become part of another job, which has its own node 0.
                if master != tells.master_addr {
                    continue;
                }
                peer.out.send(&FromNode0::Welcome { at: now(), wall: millis(SystemTime::now()) });
                sleep(ANSWERED).await;
                return (peer.hello.node, SocketAddr::new(peer.from.ip(), port));
            }
            ConnectionEvent::Gone(id, _) => drop(peers.remove(&id)),
            ConnectionEvent::Rejected { .. } => {}
        }
    }
    std::future::pending().await
}
