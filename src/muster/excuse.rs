//! A node that refuses before it met the others: who of them is told, and where.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::handshake::{self, Stranger};
use super::key::JobKey;
use super::listen::{Door, Ear, Said, connect};
use super::obstacle::shut_out;
use super::second::{hello, second};
use super::types::Config;
use super::wire::{self, Frame};
use super::words::declined;
use crate::host::Host;
use crate::lang::{Text, cause};
use crate::names;
use crate::text;
use crate::verdict::Refusal;

/// Nodes of one job start within seconds, and dial about once a second.
const LATECOMERS: Duration = Duration::from_secs(5);
/// On the second port: whoever holds the first may keep each of them busy for some seconds.
const AT_THE_SECOND: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(5);
const RESOLVE: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(250);

/// Node 0 cannot take part: tells those who come within a few seconds; how many. Where
/// somebody else holds its port, it waits for them on the second one.
pub async fn turn_away(config: &Config, hostname: &str, refusal: &Refusal) -> usize {
    let open = |port| Door::open(port, config.nnodes, config.secret.clone());
    let (opened, patience) = match open(config.port) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            (open(second(config.port)), AT_THE_SECOND)
        }
        opened => (opened, LATECOMERS),
    };
    let Ok((door, mut ear)) = opened else { return 0 };
    let mut told = BTreeSet::new();
    let refusal = declined(config.unit, 0, hostname, refusal);
    tell_latecomers(config, &mut ear, &refusal, &mut told, patience).await;
    door.shut().await;
    let drained = async { while ear.recv().await.is_some() {} };
    let _ = timeout(Duration::from_secs(1), drained).await;
    told.len()
}

/// The same for a node 0 that has gathered: whoever is not in `told` is a little later
/// than the refusal, and would dial a node 0 that is gone until its own deadline.
pub(super) async fn tell_the_rest(
    config: &Config,
    ear: &mut Ear,
    refusal: &Refusal,
    told: &mut BTreeSet<u32>,
) {
    tell_latecomers(config, ear, refusal, told, LATECOMERS).await;
}

async fn tell_latecomers(
    config: &Config,
    ear: &mut Ear,
    refusal: &Refusal,
    told: &mut BTreeSet<u32>,
    patience: Duration,
) {
    let answer: Arc<[u8]> = wire::encode(&Frame::Refuse(refusal.clone())).into();
    let others = usize::try_from(config.nnodes.saturating_sub(1)).unwrap_or(usize::MAX);
    let key = JobKey::of(config);
    let tell = async {
        while told.len() < others {
            match ear.recv().await {
                Some((_, Said::Arrived { hello, out, .. }))
                    if hello.purpose == config.purpose
                        && !key.is_of_other_job(&JobKey::of_hello(&hello)) =>
                {
                    let _ = out.send(Arc::clone(&answer));
                    told.insert(hello.node);
                }
                Some(_) => {}
                None => return,
            }
        }
    };
    let _ = timeout(patience, tell).await;
}

/// Who heard of a refusal of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Excused {
    /// Node 0, and through it all.
    Told,
    /// Node 0 ends as well, for a reason of its own.
    EndsToo(Text),
    /// Nothing listens where node 0 should be: it has ended, or comes later.
    Absent(Text),
    /// Something is there that took no word.
    Untold(Text),
}

/// Tells node 0, where it can be reached within a few seconds, that this node cannot
/// take part.
pub async fn excuse(host: &Host, config: &Config, hostname: &str, refusal: &Refusal) -> Excused {
    let mut obstacle = Excused::Absent(text!("no answer", "无应答"));
    let tell = async {
        loop {
            match names::resolve(host, &config.master_addr, RESOLVE, None).await {
                Err(error) => obstacle = Excused::Absent(error.text()),
                Ok(addresses) => {
                    for address in addresses {
                        let peer = SocketAddr::new(address, config.port);
                        match excuse_to(config, hostname, refusal, peer).await {
                            Ok(end) => return end,
                            Err(why) => obstacle = why,
                        }
                    }
                }
            }
            sleep(PAUSE).await;
        }
    };
    // Whoever is not there hears of it when it dials a node that is gone.
    match timeout(LATECOMERS, tell).await {
        Ok(end) => end,
        Err(_) => obstacle,
    }
}

/// Err: another try may turn out better.
async fn excuse_to(
    config: &Config,
    hostname: &str,
    refusal: &Refusal,
    peer: SocketAddr,
) -> Result<Excused, Excused> {
    let stream = connect(peer, CONNECT).await.map_err(|error| Excused::Absent(cause(&error)))?;
    let dialed = handshake::dial(stream, config.secret.as_ref()).await;
    let mut channel = dialed.map_err(|stranger| match stranger {
        Stranger::Unknown(why) => Excused::Untold(why),
        Stranger::Silent => Excused::Untold(text!("it says nothing", "它没有应答")),
        known => Excused::Untold(shut_out(peer, &known).text),
    })?;
    let said = async {
        channel.send(&hello(config, hostname)).await?;
        let answer = channel.receive().await?;
        if let Frame::Welcome { .. } = answer {
            channel.send(&Frame::Decline(refusal.clone())).await?;
        }
        Ok::<Frame, super::channel::ChannelError>(answer)
    };
    match said.await.map_err(|error| Excused::Untold(error.text()))? {
        Frame::Welcome { .. } => {
            channel.close().await;
            Ok(Excused::Told)
        }
        Frame::Refuse(other) => Ok(Excused::EndsToo(other.text)),
        _ => Err(Excused::Untold(text!("an answer that does not fit", "应答不符合预期"))),
    }
}
