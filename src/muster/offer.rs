//! What node 0 proposed to a node, and the node's answer.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, interval, sleep_until, timeout};

use super::channel::Channel;
use super::compare::Difference;
use super::member;
use super::session::Session;
use super::silence::BEAT;
use super::types::{Agreement, BEFORE_THE_START, Config};
use super::wire::Frame;
use crate::lang::Text;
use crate::verdict::Refusal;

/// What node 0 proposes.
#[derive(Debug)]
pub struct Offer {
    pub agreement: Agreement,
    pub differences: Vec<Difference>,
    /// Our side of the connection: the address by which node 0 sees us.
    pub local: Option<SocketAddr>,
    pub(super) config: Config,
    pub(super) channel: Channel,
    pub(super) offset: i64,
}

/// How the agreement ended.
#[derive(Debug)]
pub enum Accepted {
    Session(Session),
    /// Node 0 begins the gathering anew, or died: join again.
    Lost,
    Alone(Text),
}

impl Offer {
    /// This node can follow. Waits until all others can.
    ///
    /// # Errors
    /// When another node cannot.
    pub async fn accept(self) -> Result<Accepted, Refusal> {
        let Offer { config, mut channel, offset, .. } = self;
        if channel.send(&Frame::Accept).await.is_err() {
            return Ok(Accepted::Lost);
        }
        let mut tick = interval(BEAT);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                frame = channel.receive() => {
                    heard = Instant::now();
                    match frame {
                        Ok(Frame::Go) => break,
                        Ok(Frame::Refuse(refusal)) => return Err(refusal),
                        Ok(Frame::Alone(text)) => return Ok(Accepted::Alone(text)),
                        Ok(Frame::Ping) => drop(channel.send(&Frame::Pong).await),
                        Ok(_) => {}
                        Err(_) => return Ok(Accepted::Lost),
                    }
                }
                _ = tick.tick() => drop(channel.send(&Frame::Beat { memory: (config.memory)() }).await),
                () = sleep_until(heard + config.peer_timeout * BEFORE_THE_START) => return Ok(Accepted::Lost),
            }
        }
        let master = config.master_addr.clone();
        Ok(Accepted::Session(Session::start(|ends| {
            member::run(config, master, channel, offset, ends)
        })))
    }

    /// This node cannot follow: node 0 tells the others.
    pub async fn decline(mut self, refusal: &Refusal) {
        if self.channel.send(&Frame::Decline(refusal.clone())).await.is_ok() {
            let _ = timeout(Duration::from_secs(2), self.channel.close()).await;
        }
    }
}
