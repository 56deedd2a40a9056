//! Requests a refusal of node 0 on the second port.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::timeout;

use crate::config::Config;
use crate::net::connect;
use crate::protocol::handshake;
use crate::protocol::{FromMember, FromNode0};
use crate::second_port::second_port;
use verdict::{Id, Refusal, Verdict};

const CONNECT: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(2);

/// The refusal of node 0, if node 0 listens on the second port.
pub(crate) async fn refusal(config: &Config, hostname: &str, address: IpAddr) -> Option<Refusal> {
    let peer = SocketAddr::new(address, second_port(config.port));
    let stream = connect(peer, CONNECT).await.ok()?;
    let asked = async {
        let mut channel = handshake::dial(stream, config.secret.as_ref()).await.ok()?;
        channel.send(&FromMember::Hello(config.hello(hostname))).await.ok()?;
        match channel.receive().await.ok()? {
            // The node 0 of another job may gather on this port; its refusals have other ids.
            FromNode0::Refuse(refusal) if is_of_node_0(&refusal) => Some(refusal),
            _ => None,
        }
    };
    timeout(ANSWER, asked).await.ok().flatten()
}

fn is_of_node_0(refusal: &Refusal) -> bool {
    refusal.verdict == Verdict::PortInUse || refusal.id == Id::MusterDeclined
}
