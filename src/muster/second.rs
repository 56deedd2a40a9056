//! The second port: where node 0 refuses when somebody else holds the first.
//!
//! A node 0 whose port is taken could tell nobody, and its nodes would dial the
//! holder until their deadline. It waits for them on a port that both sides derive
//! from the first one. Only a refusal is ever said there.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::timeout;

use super::handshake;
use super::listen::connect;
use super::types::Config;
use super::wire::{Frame, Hello};
use crate::verdict::{Id, Refusal, Verdict};

/// A distance that keeps both ports off the ephemeral ones wherever the first is.
const DISTANCE: u16 = 10_000;
const CONNECT: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(2);

/// 10 000 below the first port, and above it where there is no room below.
pub(super) fn second(port: u16) -> u16 {
    if port >= 2 * DISTANCE { port - DISTANCE } else { port + DISTANCE }
}

/// What a node says of itself first, to node 0 on either port.
pub(super) fn hello(config: &Config, hostname: &str) -> Frame {
    Frame::Hello(Hello {
        node: config.node,
        nnodes: config.nnodes,
        job: config.job.clone(),
        port: config.port,
        hostname: hostname.to_owned(),
        purpose: config.purpose,
    })
}

/// What node 0 has to say there, if it is there.
pub(super) async fn refusal(config: &Config, hostname: &str, address: IpAddr) -> Option<Refusal> {
    let peer = SocketAddr::new(address, second(config.port));
    let stream = connect(peer, CONNECT).await.ok()?;
    let asked = async {
        let mut channel = handshake::dial(stream, config.secret.as_ref()).await.ok()?;
        channel.send(&hello(config, hostname)).await.ok()?;
        match channel.receive().await.ok()? {
            // The node 0 of another job may gather on this port: it says so in other words.
            Frame::Refuse(refusal) if is_of_node_0(&refusal) => Some(refusal),
            _ => None,
        }
    };
    timeout(ANSWER, asked).await.ok().flatten()
}

fn is_of_node_0(refusal: &Refusal) -> bool {
    refusal.verdict == Verdict::PortInUse || refusal.id == Id::MusterDeclined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_port_is_one_and_never_the_first() {
        for (first, other) in [
            (29500, 19500),
            (7777, 17777),
            (20000, 10000),
            (19999, 29999),
            (65535, 55535),
            (1, 10001),
        ] {
            assert_eq!(second(first), other);
        }
    }
}
