//! The connection to node 0 after the handshake: frames in, heartbeats out. Answers pings and sends heartbeats by
//! itself, and reports the loss of node 0.
//!
//! Resumes the session with node 0 after its connection was cut. Both sides repeat their essential messages (a failure,
//! the end of the ranks; a stop, the verdict), so frames need no numbers. Questions that were open get no answer.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::keepalive::{self, AGAIN, Cut, Heartbeat, Pause, Port, Sight, port};
use crate::net::{connect, jitter, on_all_addresses};
use crate::protocol::{
    Channel, ChannelError, Electorate, FromMember, FromNode0, Hello, Loss, Memory, ResumePoint,
    handshake,
};
use crate::session::Config;
use crate::succession::Lifeline;

/// Time limit for closing a connection.
const CLOSE: Duration = Duration::from_secs(2);

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
            pause: Pause::none(config.peer_timeout),
            alive: None,
        }
    }

    /// Opens a port by which node 0 can tell that this agent lives, and gives the port number.
    pub(crate) fn open_port(&mut self) -> Option<u16> {
        if let Some(succession) = &self.config.succession {
            return Some(succession.port());
        }
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

    /// Others vote on what follows the attempt that runs.
    pub(super) fn renewed(&self, electorate: Electorate) {
        if let (Some(succession), Ok(peer)) = (&self.config.succession, self.stream().peer_addr()) {
            succession.renewed(electorate.seen_from(peer));
        }
    }

    pub fn stream(&self) -> &tokio::net::TcpStream {
        self.channel.stream()
    }

    /// Sends a frame. A failed connection is noticed by its silence, or once everything received before is read.
    pub async fn send(&mut self, frame: &FromMember) {
        let _ = timeout(self.config.peer_timeout, self.channel.send(frame)).await;
    }

    /// The next frame other than a ping or a heartbeat.
    pub async fn next(&mut self) -> Result<FromNode0, ChannelError> {
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
    ) -> Result<Received<T>, ChannelError> {
        tokio::pin!(other);
        loop {
            tokio::select! {
                // Frames that arrived while this process was not running are read before silence is judged.
                biased;
                // First, because answers of other nodes may come without a pause.
                late = self.heartbeat.due() => {
                    self.heard += late;
                    self.pause.note(late);
                    self.reported = (self.config.memory)();
                    self.send(&FromMember::Heartbeat { memory: self.reported }).await;
                }
                frame = self.channel.receive() => {
                    self.pause.note(self.heartbeat.overdue());
                    self.heard = Instant::now();
                    match frame? {
                        FromNode0::Ping => self.send(&FromMember::Pong).await,
                        FromNode0::Heartbeat { memory } => self.memory = memory.or(self.memory),
                        frame => return Ok(Received::Frame(Box::new(frame))),
                    }
                }
                other = &mut other => return Ok(Received::Other(other)),
                () = sleep_until(self.heard + self.longest) => return Err(ChannelError::Silent),
            }
        }
    }

    /// Closes the connection after the last frames were sent.
    pub async fn close(self) {
        let _ = timeout(CLOSE, self.channel.close()).await;
    }
}

/// The interval over which nodes that start at the same time spread their first dial. It is about the cost of a
/// handshake times the number of nodes, so that node 0's queue does not overflow.
pub(crate) fn spread(config: &Config) -> Duration {
    let each = if config.secret.is_some() { 200 } else { 100 };
    Duration::from_micros(u64::from(config.nnodes) * each)
}

/// Time limit of one dial.
const DIAL: Duration = Duration::from_secs(1);
/// Time limit for node 0 to accept this node again.
const ANSWER: Duration = Duration::from_secs(3);

/// The address, identity and state with which this node resumes its session.
#[derive(Debug)]
pub struct Resumption {
    node_0: SocketAddr,
    /// Node 0's host name.
    pub hostname: String,
    hello: Hello,
    was_reached: Arc<AtomicBool>,
}

impl Resumption {
    /// `node_0`: the address where node 0 was reached.
    pub fn new(config: &Config, hostname: &str, point: ResumePoint, node_0: IpAddr) -> Resumption {
        let node_0 = SocketAddr::new(node_0, point.port);
        let ResumePoint { token, hostname: first, .. } = point;
        let hello = Hello { resume: Some(token), ..config.hello(hostname) };
        Resumption { node_0, hostname: first, hello, was_reached: Arc::default() }
    }

    /// Dials once when the job has started, since a port that was never reached proves nothing later. Does not dial
    /// earlier, because node 0 would count the connection as a stranger.
    pub fn reach(&self, config: &Config) {
        let (node_0, reached) = (self.node_0, Arc::clone(&self.was_reached));
        let pause = jitter(spread(config));
        tokio::spawn(async move {
            sleep(pause).await;
            reached.store(port(node_0).await == Port::Open, Ordering::Relaxed);
        });
    }

    #[cfg(any(test, feature = "fixtures"))]
    pub fn address(&self) -> SocketAddr {
        self.node_0
    }

    /// Dials until node 0 accepts this node again.
    ///
    /// # Errors
    /// When node 0 is lost.
    pub(crate) async fn dial(
        &self,
        (how, lifeline): (Cut, Option<&Lifeline>),
        config: &Config,
    ) -> Result<Channel<FromNode0>, Loss> {
        let cut = Instant::now();
        let was_reached = self.was_reached.load(Ordering::Relaxed);
        let mut sight = Sight::new(was_reached, how, config.peer_timeout);
        loop {
            let port = match connect(self.node_0, DIAL).await {
                Ok(stream) => {
                    let greeting = self.greet(stream, config);
                    if let Ok(Some(channel)) = timeout(ANSWER, greeting).await {
                        return Ok(channel);
                    }
                    Port::Open
                }
                Err(error) => Port::of(&error),
            };
            sight.note(lifeline.is_some_and(Lifeline::was_closed));
            if let Some(loss) = sight.judge(port, cut.elapsed()) {
                return Err(loss);
            }
            sleep(AGAIN + jitter(AGAIN)).await;
        }
    }

    async fn greet(
        &self,
        stream: tokio::net::TcpStream,
        config: &Config,
    ) -> Option<Channel<FromNode0>> {
        let mut channel = handshake::dial(stream, config.secret.as_ref()).await.ok()?;
        channel.send(&FromMember::Hello(self.hello.clone())).await.ok()?;
        matches!(channel.receive().await, Ok(FromNode0::Welcome { .. })).then_some(channel)
    }
}
