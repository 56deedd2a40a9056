//! The muster on every node except node 0: finds node 0, sends this node's summary, and follows node 0's decisions.
//! Decides only for its own node, and leaves the muster only on proof.
//!
//! A node that refuses before it has joined notifies node 0, and through it all others ([`decline`]).

mod connection;
pub(super) mod join;
mod problem;
mod run;

use std::net::SocketAddr;
use std::time::Duration;

use problem::incompatible;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::net::{Dialer, Target};
use crate::protocol::handshake::{self, Rejection};
use crate::protocol::{ChannelError, FromMember, FromNode0};
use crate::session::Config;
use linux::host::Host;
use text::lang::Text;
use text::text;
use verdict::Refusal;

/// Time limit for the whole attempt: the nodes of one job start within seconds.
const LIMIT: Duration = Duration::from_secs(5);

/// Result of notifying node 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Declined {
    /// Node 0 knows, and notifies the others.
    Told,
    /// Node 0 refuses as well, for a reason of its own.
    EndsToo(Text),
    /// Nothing listens at node 0's address: it has ended, or starts later.
    Absent(Text),
    /// The program there did not accept the message.
    Untold(Text),
}

/// Tells node 0 that this node cannot take part, if node 0 can be reached within a few seconds.
pub async fn decline(host: &Host, config: &Config, hostname: &str, refusal: &Refusal) -> Declined {
    let mut outcome = Declined::Absent(text!("no answer", "无应答"));
    let tell = async {
        let mut dialer = Dialer::new(Target {
            host,
            address: &config.master_addr,
            port: config.port,
            last_resort: None,
            deadline: Instant::now() + LIMIT,
        });
        while let Some(dialed) = dialer.next().await {
            outcome = match dialed {
                Err(error) => Declined::Absent(error.text()),
                Ok((stream, peer)) => match tell(config, hostname, refusal, peer, stream).await {
                    Ok(end) => return Some(end),
                    Err(why) => Declined::Untold(why),
                },
            };
        }
        None
    };
    // If node 0 starts later, this attempt does not reach it.
    match timeout(LIMIT, tell).await {
        Ok(Some(end)) => end,
        _ => outcome,
    }
}

/// Tells node 0 over one connection. Err: another attempt may succeed.
async fn tell(
    config: &Config,
    hostname: &str,
    refusal: &Refusal,
    peer: SocketAddr,
    stream: TcpStream,
) -> Result<Declined, Text> {
    let dialed = handshake::dial(stream, config.secret.as_ref()).await;
    let mut channel = dialed.map_err(|rejection| match rejection {
        Rejection::Unknown(why) => why,
        Rejection::Silent => text!("it does not answer", "它没有应答"),
        known => incompatible(config, peer, &known).text,
    })?;
    let sent = async {
        channel.send(&FromMember::Hello(config.hello(hostname))).await?;
        let answer = channel.receive().await?;
        if let FromNode0::Welcome { .. } = answer {
            channel.send(&FromMember::Decline(refusal.clone())).await?;
        }
        Ok::<FromNode0, ChannelError>(answer)
    };
    match sent.await.map_err(|error| error.text())? {
        FromNode0::Welcome { .. } => {
            channel.close().await;
            Ok(Declined::Told)
        }
        FromNode0::Refuse(other) => Ok(Declined::EndsToo(other.text)),
        _ => Err(text!("an answer that does not fit", "应答不符合预期")),
    }
}
