//! The listener of a succession.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::shared::Shared;
use crate::protocol::{FromMember, FromNode0, Purpose};
use crate::server::listener::{
    ConnectionEvent, ConnectionId, EventReceiver, FrameSender, Listener,
};

/// Time in which each voter can answer.
pub(super) const TICK: Duration = Duration::from_millis(200);

/// Serves the listener until the task is ended.
pub(super) async fn serve(shared: Arc<Shared>, listener: Listener, mut events: EventReceiver) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut peers: HashMap<ConnectionId, (u32, FrameSender)> = HashMap::new();
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => hear(&shared, &mut peers, event),
                None => break,
            },
            _ = ticks.tick(), if shared.votes() => shared.tick(),
            () = shared.stirred.notified() => {}
        }
        shared.send_votes();
    }
    drop(listener);
}

fn hear(
    shared: &Shared,
    peers: &mut HashMap<ConnectionId, (u32, FrameSender)>,
    event: ConnectionEvent,
) {
    match event {
        ConnectionEvent::Arrived(arrival) => {
            let hello = &arrival.hello;
            let caller = &shared.caller;
            if caller.is_asked(hello, Purpose::Succession) && hello.node < caller.all {
                peers.insert(arrival.id, (hello.node, arrival.out));
            }
        }
        ConnectionEvent::Frame(id, frame) => {
            let Some((node, out)) = peers.get(&id) else { return };
            match *frame {
                FromMember::Vote { token, vote } => shared.hear(*node, &token, &vote),
                FromMember::WhoLeads => match shared.who_leads() {
                    Some(leads) => out.send(&FromNode0::Leads(leads)),
                    // The end of the connection says that this node does not know.
                    None => drop(peers.remove(&id)),
                },
                _ => {}
            }
        }
        ConnectionEvent::Gone(id, _) => drop(peers.remove(&id)),
        ConnectionEvent::Rejected { .. } => {}
    }
}
