//! Resumes the session with node 0 after its connection was cut.
//!
//! Both sides repeat their essential messages (a failure, the end of the ranks; a stop, the verdict), so frames need no
//! numbers. Questions that were open get no answer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::config::Config;
use crate::net::{connect, jitter};
use crate::protocol::handshake;
use crate::protocol::{Channel, FromMember, FromNode0, Hello, Loss, ResumePoint};
use crate::reach::{AGAIN, Cut, Port, Sight, port};

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
    pub async fn dial(&self, how: Cut, config: &Config) -> Result<Channel<FromNode0>, Loss> {
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
