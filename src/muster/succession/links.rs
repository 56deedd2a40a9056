//! The listener of a succession, and its connections to others: votes, and questions who leads.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Shared, TICK};
use crate::net::connect;
use crate::protocol::{
    Channel, FromMember, FromNode0, Hello, JobKey, Leads, Purpose, Secret, handshake,
};
use crate::server::listener::{
    ConnectionEvent, ConnectionId, EventReceiver, FrameSender, Listener,
};

/// Time limit of a question or of one frame.
const ANSWER: Duration = Duration::from_secs(1);
/// Votes that wait for a connection; more are of no use.
const QUEUE: usize = 256;

/// How this launcher introduces itself to the listeners of others.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) hello: Hello,
    pub(super) secret: Option<Secret>,
    /// Number of nodes that may come.
    pub(super) all: u32,
}

impl Caller {
    pub(super) fn key(&self) -> &JobKey {
        &self.hello.key
    }

    async fn open(&self, place: SocketAddr) -> Option<Channel<FromNode0>> {
        let opened = async {
            let stream = connect(place, ANSWER).await.ok()?;
            let mut channel = handshake::dial(stream, self.secret.as_ref()).await.ok()?;
            channel.send(&FromMember::Hello(self.hello.clone())).await.ok()?;
            Some(channel)
        };
        timeout(ANSWER, opened).await.ok().flatten()
    }

    /// Who leads, as the launcher there knows it.
    pub(super) async fn ask(&self, place: SocketAddr) -> Option<Leads> {
        let mut channel = self.open(place).await?;
        let asked = async {
            channel.send(&FromMember::WhoLeads).await.ok()?;
            match channel.receive().await.ok()? {
                FromNode0::Leads(leads) => Some(leads),
                _ => None,
            }
        };
        timeout(ANSWER, asked).await.ok().flatten()
    }

    /// The leader as the launcher there knows it, and where that one gathers.
    pub(super) async fn leader(&self, place: SocketAddr) -> Option<(u32, SocketAddr)> {
        let leads = self.ask(place).await?;
        let (place, leads) = match leads.place {
            Some(place) if leads.port.is_none() => (place, self.ask(place).await?),
            _ => (place, leads),
        };
        Some((leads.leader, SocketAddr::new(place.ip(), leads.port?)))
    }

    /// Tells a launcher that knows nothing of the job, or less, that this node leads.
    pub(super) async fn tell(&self, place: SocketAddr, leads: FromMember) {
        let Some(mut channel) = self.open(place).await else { return };
        let told = async {
            channel.send(&leads).await.ok()?;
            // It answers once it has read that.
            channel.receive().await.ok()
        };
        let _ = timeout(ANSWER, told).await;
    }
}

/// A vote with the token of its agreement.
type TokenVote = (String, String);

/// The connections to the other voters, each opened with the first vote for it.
#[derive(Debug, Default)]
pub(super) struct Links(BTreeMap<u32, mpsc::Sender<TokenVote>>);

impl Links {
    /// Votes arrive in order; those that find no connection are lost.
    pub(super) fn send(&mut self, to: u32, place: SocketAddr, caller: &Caller, vote: TokenVote) {
        let link = self.0.entry(to).or_insert_with(|| {
            let (sender, votes) = mpsc::channel(QUEUE);
            tokio::spawn(carry(caller.clone(), place, votes));
            sender
        });
        let _ = link.try_send(vote);
    }
}

async fn carry(caller: Caller, place: SocketAddr, mut votes: mpsc::Receiver<TokenVote>) {
    let mut channel = None;
    while let Some((token, vote)) = votes.recv().await {
        let mut open = match channel.take() {
            Some(open) => Some(open),
            None => caller.open(place).await,
        };
        let is_sent = match &mut open {
            Some(open) => {
                let sent = timeout(ANSWER, open.send(&FromMember::Vote { token, vote })).await;
                matches!(sent, Ok(Ok(())))
            }
            None => false,
        };
        if is_sent {
            channel = open;
        } else {
            // What comes late is worth less than what comes next.
            while votes.try_recv().is_ok() {}
        }
    }
}

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
            _ = ticks.tick() => shared.tick(),
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
            let is_ours = hello.purpose == Purpose::Succession
                && hello.node < shared.caller.all
                && !shared.caller.key().is_of_other_job(&hello.key);
            if is_ours {
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
