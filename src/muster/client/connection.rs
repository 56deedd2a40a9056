//! The connection to node 0 after the handshake: frames in, heartbeats out.
//!
//! Answers what needs no decision (pings, heartbeats) by itself and says when node 0 is lost.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::lang::Text;
use crate::muster::config::Config;
use crate::muster::keepalive::{self, Heartbeat};
use crate::muster::protocol::{Channel, ChannelError, FromMember, FromNode0, Loss, Memory};
use crate::text;

/// How long the end of a connection may take.
const CLOSE: Duration = Duration::from_secs(2);

/// How a connection ended.
#[derive(Debug)]
pub(crate) enum Lost {
    Broken(ChannelError),
    Silent,
}

impl Lost {
    pub(crate) fn loss(&self) -> Loss {
        match self {
            Lost::Broken(_) => Loss::Died,
            Lost::Silent => Loss::Silent,
        }
    }

    pub(crate) fn text(&self) -> Text {
        match self {
            Lost::Broken(error) => error.text(),
            Lost::Silent => text!("it stopped responding", "不再应答"),
        }
    }
}

/// What came first.
#[derive(Debug)]
pub(crate) enum Received<T> {
    Frame(Box<FromNode0>),
    Other(T),
}

#[derive(Debug)]
pub(crate) struct Connection {
    channel: Channel<FromNode0>,
    pub(crate) config: Config,
    pub(crate) heartbeat: Heartbeat,
    heard: Instant,
    longest: Duration,
    /// As this node reported it last.
    pub(crate) reported: Option<Memory>,
    /// Node 0's, as it reported it last.
    pub(crate) memory: Option<Memory>,
}

impl Connection {
    pub(crate) fn new(channel: Channel<FromNode0>, config: &Config) -> Connection {
        keepalive::prepare(channel.stream());
        Connection {
            channel,
            config: config.clone(),
            heartbeat: Heartbeat::before_start(),
            heard: Instant::now(),
            longest: config.silence_before_start(),
            reported: None,
            memory: None,
        }
    }

    /// From now on the job runs: heartbeats come as often as the peer timeout needs them.
    pub(crate) fn started(mut self) -> Connection {
        self.heartbeat = Heartbeat::every(self.config.heartbeat());
        self.longest = self.config.longest_silence();
        self
    }

    pub(crate) fn stream(&self) -> &tokio::net::TcpStream {
        self.channel.stream()
    }

    /// A connection that does not take it ends by silence, or when all is read that was
    /// received before.
    pub(crate) async fn send(&mut self, frame: &FromMember) {
        let _ = timeout(self.config.peer_timeout, self.channel.send(frame)).await;
    }

    /// The next frame that is more than a sign of life.
    pub(crate) async fn next(&mut self) -> Result<FromNode0, Lost> {
        match self.next_or(std::future::pending::<std::convert::Infallible>()).await? {
            Received::Frame(frame) => Ok(*frame),
            Received::Other(never) => match never {},
        }
    }

    /// The same, or what `other` gives before; it must be cancel-safe. This is not.
    pub(crate) async fn next_or<T>(
        &mut self,
        other: impl Future<Output = T>,
    ) -> Result<Received<T>, Lost> {
        tokio::pin!(other);
        loop {
            tokio::select! {
                // What was sent while we did not run comes before any judgement of silence.
                biased;
                frame = self.channel.receive() => {
                    self.heard = Instant::now();
                    match frame.map_err(Lost::Broken)? {
                        FromNode0::Ping => self.send(&FromMember::Pong).await,
                        FromNode0::Heartbeat { memory } => self.memory = memory.or(self.memory),
                        frame => return Ok(Received::Frame(Box::new(frame))),
                    }
                }
                other = &mut other => return Ok(Received::Other(other)),
                late = self.heartbeat.due() => {
                    self.heard += late;
                    self.reported = (self.config.memory)();
                    self.send(&FromMember::Heartbeat { memory: self.reported }).await;
                }
                () = sleep_until(self.heard + self.longest) => return Err(Lost::Silent),
            }
        }
    }

    /// Closes, after what was sent has left.
    pub(crate) async fn close(self) {
        let _ = timeout(CLOSE, self.channel.close()).await;
    }
}
