//! The connections of a succession to others: votes, and questions who leads.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::net::connect;
use crate::protocol::{Channel, FromMember, FromNode0, Hello, Leads, Purpose, Secret, handshake};

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
    /// Whether a connection of this job came for that.
    pub(super) fn is_asked(&self, theirs: &Hello, purpose: Purpose) -> bool {
        theirs.purpose == purpose && !self.hello.key.is_of_other_job(&theirs.key)
    }

    pub(super) async fn open(&self, place: SocketAddr) -> Option<Channel<FromNode0>> {
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
