//! The connection to node 0 after the handshake: frames in, heartbeats out.
//!
//! Answers pings and sends heartbeats by itself, and reports the loss of node 0.

use std::net::TcpListener;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::config::Config;
use crate::keepalive::{self, Heartbeat, Pause};
use crate::net::on_all_addresses;
use crate::protocol::{Channel, ChannelError, FromMember, FromNode0, Loss, Memory};
use text::lang::Text;
use text::text;

/// Time limit for closing a connection.
const CLOSE: Duration = Duration::from_secs(2);

/// The reason why a connection ended.
#[derive(Debug)]
pub enum ConnectionLost {
    Broken(ChannelError),
    Silent,
}

impl ConnectionLost {
    /// The kind of loss, judged without dialing node 0's port.
    pub fn loss(&self) -> Loss {
        match self {
            ConnectionLost::Broken(_) => Loss::Cut,
            ConnectionLost::Silent => Loss::Silent,
        }
    }

    pub fn text(&self) -> Text {
        match self {
            ConnectionLost::Broken(error) => error.text(),
            ConnectionLost::Silent => text!("it stopped responding", "不再应答"),
        }
    }
}

/// The first of two results.
#[derive(Debug)]
pub(crate) enum Received<T> {
    Frame(Box<FromNode0>),
    Other(T),
}

#[derive(Debug)]
pub struct Connection {
    channel: Channel<FromNode0>,
    pub config: Config,
    pub heartbeat: Heartbeat,
    heard: Instant,
    longest: Duration,
    /// The last memory use that this node reported.
    pub reported: Option<Memory>,
    /// The last memory use that node 0 reported.
    pub memory: Option<Memory>,
    pub pause: Pause,
    /// Listener that is open as long as this agent lives; no data is exchanged on it.
    alive: Option<TcpListener>,
}

impl Connection {
    pub fn new(channel: Channel<FromNode0>, config: &Config) -> Connection {
        keepalive::prepare(channel.stream());
        Connection {
            channel,
            config: config.clone(),
            heartbeat: Heartbeat::before_start(),
            heard: Instant::now(),
            longest: config.silence_before_start(),
            reported: None,
            memory: None,
            pause: Pause::none(),
            alive: None,
        }
    }

    /// Opens a port by which node 0 can tell that this agent lives, and gives the port number.
    pub(crate) fn open_port(&mut self) -> Option<u16> {
        self.alive = on_all_addresses(0).ok();
        self.alive.as_ref()?.local_addr().ok().map(|address| address.port())
    }

    /// Continues the session over another connection.
    pub fn resume(&mut self, channel: Channel<FromNode0>) {
        keepalive::prepare(channel.stream());
        (self.channel, self.heard) = (channel, Instant::now());
        self.heartbeat.is_due_now();
    }

    /// The job starts: from now on heartbeats are as frequent as the peer timeout requires.
    pub fn started(mut self) -> Connection {
        self.heartbeat = Heartbeat::every(self.config.heartbeat());
        self.longest = self.config.longest_silence();
        self
    }

    pub fn stream(&self) -> &tokio::net::TcpStream {
        self.channel.stream()
    }

    /// Sends a frame. A failed connection is noticed by its silence, or once everything received before is read.
    pub async fn send(&mut self, frame: &FromMember) {
        let _ = timeout(self.config.peer_timeout, self.channel.send(frame)).await;
    }

    /// The next frame other than a ping or a heartbeat.
    pub async fn next(&mut self) -> Result<FromNode0, ConnectionLost> {
        match self.next_or(std::future::pending::<std::convert::Infallible>()).await? {
            Received::Frame(frame) => Ok(*frame),
            Received::Other(never) => match never {},
        }
    }

    /// Like [`next`](Self::next), but gives the result of `other` if that completes first. `other` must be cancel-safe;
    /// this function is not.
    pub(crate) async fn next_or<T>(
        &mut self,
        other: impl Future<Output = T>,
    ) -> Result<Received<T>, ConnectionLost> {
        tokio::pin!(other);
        loop {
            tokio::select! {
                // Frames that arrived while this process was not running are read before silence is judged.
                biased;
                // First, because answers of other nodes may come without a pause.
                late = self.heartbeat.due() => {
                    self.heard += late;
                    self.pause.note(late, &self.config);
                    self.reported = (self.config.memory)();
                    self.send(&FromMember::Heartbeat { memory: self.reported }).await;
                }
                frame = self.channel.receive() => {
                    self.pause.note(self.heartbeat.overdue(), &self.config);
                    self.heard = Instant::now();
                    match frame.map_err(ConnectionLost::Broken)? {
                        FromNode0::Ping => self.send(&FromMember::Pong).await,
                        FromNode0::Heartbeat { memory } => self.memory = memory.or(self.memory),
                        frame => return Ok(Received::Frame(Box::new(frame))),
                    }
                }
                other = &mut other => return Ok(Received::Other(other)),
                () = sleep_until(self.heard + self.longest) => return Err(ConnectionLost::Silent),
            }
        }
    }

    /// Closes the connection after the last frames were sent.
    pub async fn close(self) {
        let _ = timeout(CLOSE, self.channel.close()).await;
    }
}
