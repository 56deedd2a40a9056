//! TCP between nodes: dialing a name until the peer answers, listening for IPv4 and IPv6, and the number of connections
//! that may be unidentified.
//!
//! Takes addresses, ports and deadlines; gives connections and listeners, or a [`DialError`]. Owns the pauses and the
//! attempts; the caller judges a connection and decides when the wait is over. Knows no protocol.
//!
//! If its port is taken, node 0 cannot notify any node, and the nodes would dial the holder until their deadline. So
//! node 0 waits for them on a port that both sides derive from the first, [`second_port`]. It sends only a refusal
//! there.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use crate::names::{self, LastResort};
use linux::host::Host;
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal};

/// Timeout of one connection attempt; a dropped SYN is repeated after 1 s and 3 s.
const CONNECT: Duration = Duration::from_secs(5);
/// Timeout of one round of name resolution.
const RESOLVE: Duration = Duration::from_secs(8);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The reason why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialError {
    /// The name has no address; questions and answers.
    Name(Text),
    /// The peer does not answer, or the network reports an error.
    Unreachable(SocketAddr, Text),
    /// The host is up, but nothing listens.
    Refused(SocketAddr),
    /// The connection was accepted but did not stay open.
    Closed(SocketAddr, Text),
}

impl DialError {
    fn of(peer: SocketAddr, error: &io::Error) -> DialError {
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::ConnectionRefused, _) => DialError::Refused(peer),
            // This is our own timeout, not the kernel's.
            (io::ErrorKind::TimedOut, None) => DialError::Unreachable(
                peer,
                text!("no answer to the connection attempt", "连接请求没有应答"),
            ),
            _ => DialError::Unreachable(peer, cause(error)),
        }
    }

    /// Higher for an error that tells more about the cause; at most [`DialError::HIGHEST`].
    pub fn rank(&self) -> u8 {
        match self {
            DialError::Name(_) => 1,
            DialError::Unreachable(..) => 2,
            DialError::Refused(_) => 3,
            DialError::Closed(..) => Self::HIGHEST,
        }
    }

    pub const HIGHEST: u8 = 4;

    pub fn text(&self) -> Text {
        match self {
            DialError::Name(Text { en, zh }) => text!("no address for {en}", "无法解析 {zh}"),
            DialError::Refused(peer) => text!(
                "{peer} refuses connections: the host is up, but nothing listens on that port; node 0 has not started yet, or has another --master-port",
                "{peer} 拒绝连接：主机在线，但该端口上没有进程监听；节点 0 尚未启动，或使用了另一个 --master-port"
            ),
            DialError::Unreachable(peer, why) | DialError::Closed(peer, why) => why.about(peer),
        }
    }

    /// The refusal at the end of a wait for `address:port`; `text` names the peer.
    pub fn refusal(&self, address: &str, port: u16, text: Text) -> Refusal {
        let (id, hint) = match self {
            DialError::Name(_) => (
                Id::MasterResolve,
                text!(
                    "check that the master's pod and its headless service {address:?} exist in this namespace, or set --master-addr; --wait-timeout waits longer",
                    "请检查 Master 的 Pod 及其 headless service {address:?} 是否存在于当前命名空间，或设置 --master-addr；--wait-timeout 可延长等待"
                ),
            ),
            DialError::Refused(_) => (
                Id::MasterReach,
                text!(
                    "look at node 0's log: it says on which port it waits; give all nodes one --master-port (here {port})",
                    "请查看节点 0 的日志中它等待的端口；所有节点应使用同一个 --master-port（本节点为 {port}）"
                ),
            ),
            DialError::Unreachable(..) | DialError::Closed(..) => (
                Id::MasterReach,
                text!(
                    "check that node 0 runs and that no firewall or NetworkPolicy blocks port {port}; --master-addr and --master-port name another, --wait-timeout waits longer",
                    "请检查节点 0 是否在运行，以及防火墙或 NetworkPolicy 是否放行端口 {port}；可用 --master-addr 和 --master-port 指定其他地址，--wait-timeout 可延长等待"
                ),
            ),
        };
        Refusal::new(id, text, hint)
    }
}

/// An observation during a wait, with the rule that decides which of two explains a timeout better.
pub trait Observation: Clone {
    fn replaces(&self, best: &Self) -> bool;
}

impl Observation for DialError {
    fn replaces(&self, best: &Self) -> bool {
        self.rank() >= best.rank()
    }
}

/// The observations of a wait, shared with the code that prints the progress.
#[derive(Debug)]
pub struct Seen<O>(Mutex<Option<(O, O)>>);

impl<O: Observation> Seen<O> {
    pub fn nothing() -> Seen<O> {
        Seen(Mutex::new(None))
    }

    pub fn note(&self, observation: O) {
        let mut seen = self.0.lock();
        let best = match seen.take() {
            Some((_, best)) if !observation.replaces(&best) => best,
            _ => observation.clone(),
        };
        *seen = Some((observation, best));
    }

    /// The latest observation, and the most informative one.
    pub fn get(&self) -> Option<(O, O)> {
        self.0.lock().clone()
    }
}

/// Connects within `limit`. Sets TCP_NODELAY.
pub async fn connect(peer: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let dialed = timeout(limit, TcpStream::connect(peer)).await;
    let stream = dialed.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    // Without a listener, a connection from a port to itself can succeed (simultaneous open) if the kernel picks the
    // peer's port for our end.
    if stream.local_addr()? == peer {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A random duration up to `most`.
pub(crate) fn jitter(most: Duration) -> Duration {
    let mut random = [0u8; 4];
    // Without randomness all nodes wait equally long, which is only slower.
    let _ = linux::random::fill(&mut random);
    most.mul_f64(f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX))
}

/// The peer to dial, and the deadline.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub host: &'a Host,
    /// A name or an address.
    pub address: &'a str,
    pub port: u16,
    pub last_resort: Option<&'a LastResort>,
    pub deadline: Instant,
}

impl std::fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target")
            .field("address", &self.address)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// One wait: rounds over all addresses with growing pauses.
#[derive(Debug)]
pub struct Dialer<'a> {
    target: Target<'a>,
    /// Pause before the next round; none before the first.
    pause: Option<Duration>,
    round: VecDeque<IpAddr>,
    /// The addresses from the last resolution.
    pub addresses: Vec<IpAddr>,
    pub lookups: u32,
    pub connections: u32,
    has_failed: bool,
}

impl Dialer<'_> {
    pub fn new(target: Target<'_>) -> Dialer<'_> {
        Dialer {
            target,
            pause: None,
            round: VecDeque::new(),
            addresses: Vec::new(),
            lookups: 0,
            connections: 0,
            has_failed: false,
        }
    }

    fn left(&self) -> Duration {
        self.target.deadline.saturating_duration_since(Instant::now())
    }

    /// The next connection, or the reason why it failed. None: the deadline has passed.
    pub async fn next(&mut self) -> Option<Result<(TcpStream, SocketAddr), DialError>> {
        let dialed = self.attempt().await?;
        if dialed.is_err() {
            // An attempt that our own deadline cut short must not hide the error before it.
            if self.has_failed && self.left().is_zero() {
                return None;
            }
            self.has_failed = true;
        }
        Some(dialed)
    }

    async fn attempt(&mut self) -> Option<Result<(TcpStream, SocketAddr), DialError>> {
        if self.round.is_empty() {
            self.wait_for_round().await?;
            let Target { host, address, last_resort, .. } = self.target;
            self.lookups += 1;
            match names::resolve(host, address, self.left().min(RESOLVE), last_resort).await {
                Err(error) => return Some(Err(DialError::Name(error.text()))),
                Ok(addresses) => {
                    if self.addresses.is_empty() {
                        // The name resolves now, so the peer may answer soon.
                        self.pause = Some(FIRST_PAUSE);
                    }
                    self.round = addresses.iter().copied().collect();
                    self.addresses = addresses;
                }
            }
        }
        let peer = SocketAddr::new(self.round.pop_front()?, self.target.port);
        self.connections += 1;
        let connected = connect(peer, self.left().min(CONNECT)).await;
        Some(connected.map(|stream| (stream, peer)).map_err(|error| DialError::of(peer, &error)))
    }

    /// None if the next round would begin after the deadline.
    async fn wait_for_round(&mut self) -> Option<()> {
        let Some(pause) = self.pause else {
            self.pause = Some(FIRST_PAUSE);
            return Some(());
        };
        self.pause = Some((pause * 2).min(LONGEST_PAUSE));
        let next = Instant::now() + pause / 2 + jitter(pause);
        sleep_until(next.min(self.target.deadline)).await;
        (next < self.target.deadline).then_some(())
    }
}

/// Listens on all addresses in the same way as torch's store: IPv6 with IPv4 if there is IPv6, with SO_REUSEADDR.
/// Non-blocking. The kernel limits the queue to net.core.somaxconn.
///
/// # Errors
/// If the port is taken, or this user may not bind it.
pub fn on_all_addresses(port: u16) -> Result<TcpListener, Errno> {
    let open = |family, address: IpAddr| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if family == AddressFamily::INET6 {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        bind(&socket, &SocketAddr::new(address, port))?;
        // With SO_REUSEADDR two sockets can bind; only the listen call fails.
        listen(&socket, i32::from(u16::MAX))?;
        Ok(TcpListener::from(socket))
    };
    match open(AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()) {
        // This kernel or namespace has no IPv6.
        Err(error) if error != Errno::ADDRINUSE => {
            open(AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into())
        }
        result => result,
    }
}

/// Unidentified connections beyond one per node that is still expected.
const SPARE: usize = 256;

/// The limiter, shared by the listener and its connections.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimiter(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    nodes: usize,
    identified: usize,
    /// Unidentified connections from old to new, since ids increase. Dropping the sender evicts the connection.
    pending: BTreeMap<u64, oneshot::Sender<()>>,
}

impl ConnectionLimiter {
    pub(crate) fn new(nnodes: u32) -> ConnectionLimiter {
        let nodes = usize::try_from(nnodes).unwrap_or(usize::MAX);
        let inner = Inner { nodes, identified: 0, pending: BTreeMap::new() };
        ConnectionLimiter(Arc::new(Mutex::new(inner)))
    }

    /// Registers a new connection; the receiver ends when the connection is evicted.
    pub(crate) fn enter(&self, id: u64) -> oneshot::Receiver<()> {
        let (stays, evicted) = oneshot::channel();
        let mut inner = self.0.lock();
        inner.pending.insert(id, stays);
        let most = inner.nodes.saturating_sub(inner.identified).saturating_add(SPARE);
        if inner.pending.len() > most {
            inner.pending.pop_first();
        }
        evicted
    }

    /// Evicts the oldest unidentified connection; false if there is none.
    pub(crate) fn evict_oldest(&self) -> bool {
        self.0.lock().pending.pop_first().is_some()
    }

    /// Removes a connection that was evicted or closed by the peer.
    pub(crate) fn leave(&self, id: u64) {
        self.0.lock().pending.remove(&id);
    }

    /// Counts the connection as identified until the guard is dropped.
    pub(crate) fn identify(&self, id: u64) -> Identified {
        let mut inner = self.0.lock();
        inner.pending.remove(&id);
        inner.identified += 1;
        drop(inner);
        Identified(self.clone())
    }

    pub(crate) fn evict_all(&self) {
        self.0.lock().pending.clear();
    }
}

/// One identified connection.
#[derive(Debug)]
pub(crate) struct Identified(ConnectionLimiter);

impl Drop for Identified {
    fn drop(&mut self) {
        let mut inner = self.0.0.lock();
        inner.identified = inner.identified.saturating_sub(1);
    }
}

/// Distance between the ports, which keeps the second port outside of the ephemeral range.
const DISTANCE: u16 = 10_000;

/// The second port: 10 000 below the first port, or above it if there is no room below.
pub(crate) fn second_port(port: u16) -> u16 {
    if port >= 2 * DISTANCE { port - DISTANCE } else { port + DISTANCE }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many nodes spread their dials: no part of the interval gets much more than its share.
    #[test]
    fn dials_of_many_nodes_spread_evenly() {
        const NODES: usize = 10_000;
        const PARTS: usize = 20;
        let most = Duration::from_secs(1);
        let mut dials = [0usize; PARTS + 1];
        for _ in 0..NODES {
            let at = jitter(most);
            assert!(at <= most, "{at:?}");
            dials[usize::try_from(at.as_millis()).expect("short") * PARTS / 1000] += 1;
        }
        // Twelve standard deviations, so only a real concentration fails this.
        let (share, slack) = (NODES / PARTS, 260);
        for part in &dials[..PARTS] {
            assert!(part.abs_diff(share) < slack, "{dials:?}");
        }
        assert_eq!(jitter(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn most_informative_then_latest_observation_is_kept() {
        let peer = SocketAddr::from(([10, 0, 0, 1], 29500));
        let name = || DialError::Name(text!("x", "x"));
        let slow = |words: &'static str| DialError::Unreachable(peer, Text::same(words));
        let seen = Seen::nothing();
        assert_eq!(seen.get(), None);
        for (noted, best) in [
            (name(), name()),
            (slow("one"), slow("one")),
            (slow("two"), slow("two")),
            (name(), slow("two")),
            (DialError::Refused(peer), DialError::Refused(peer)),
        ] {
            seen.note(noted.clone());
            assert_eq!(seen.get(), Some((noted, best)));
        }
    }

    #[tokio::test]
    async fn self_connection_of_a_port_is_refused() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let peer = listener.local_addr().expect("its address");
        drop(listener);
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(peer).expect("free");
        assert_eq!(
            socket.connect(peer).await.expect("to itself").local_addr().expect("ours"),
            peer
        );
        assert!(
            matches!(connect(peer, CONNECT).await, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
        );
    }

    #[test]
    fn oldest_unidentified_connection_is_evicted() {
        let limiter = ConnectionLimiter::new(2);
        let is_evicted = |receiver: &mut oneshot::Receiver<()>| {
            receiver.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        let mut all: Vec<_> = (0..258).map(|id| limiter.enter(id)).collect();
        assert!(!all.iter_mut().any(is_evicted));
        all.push(limiter.enter(258));
        assert!(is_evicted(&mut all[0]) && !is_evicted(&mut all[1]));
        // An identified node is no longer expected, so the limit shrinks by its place too.
        let identified = limiter.identify(258);
        all.push(limiter.enter(259));
        assert!(is_evicted(&mut all[1]) && !is_evicted(&mut all[2]));
        drop(identified);
        all.push(limiter.enter(260));
        assert!(!is_evicted(&mut all[2]), "the node left and may come back");
        assert!(limiter.evict_oldest() && is_evicted(&mut all[2]));
        limiter.evict_all();
        assert!(is_evicted(&mut all[200]) && !limiter.evict_oldest());
    }

    #[test]
    fn second_port_is_valid_and_never_the_first() {
        for (first, other) in [
            (29500, 19500),
            (7777, 17777),
            (20000, 10000),
            (19999, 29999),
            (65535, 55535),
            (1, 10001),
        ] {
            assert_eq!(second_port(first), other);
        }
    }
}
