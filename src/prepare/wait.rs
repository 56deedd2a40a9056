//! Waiting until the master can be reached, on nodes that are not the master.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::host::Host;
use crate::lang::{Text, cause};
use crate::names::{self, LastResort};
use crate::pace::{Lines, Pace, clock};
use crate::text;
use crate::verdict::{Id, Refusal};

/// How long a connection must stay open before it counts: a mesh sidecar accepts
/// every connection and closes it when nothing listens behind it.
const HOLD: Duration = Duration::from_millis(500);

/// What one connection attempt may take; a dropped SYN is repeated after 1 s and 3 s.
const CONNECT: Duration = Duration::from_secs(5);

/// What one round of name resolution may take.
const RESOLVE: Duration = Duration::from_secs(8);

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Whom to wait for, and how patiently.
#[derive(Clone)]
pub struct Wait<'a> {
    /// A name or address, without port and brackets or with brackets.
    pub address: String,
    pub port: u16,
    pub timeout: Duration,
    /// When a line says what is still missing.
    pub pace: Pace,
    /// Addresses of this node's own interfaces, to tell a master that is ourselves.
    pub own_addresses: Vec<IpAddr>,
    pub last_resort: Option<&'a LastResort>,
}

impl std::fmt::Debug for Wait<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Wait")
            .field("address", &self.address)
            .field("port", &self.port)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Wait<'_> {
    /// At the usual pace, no helper, own addresses unknown.
    pub fn new(address: impl Into<String>, port: u16, timeout: Duration) -> Self {
        Wait {
            address: address.into(),
            port,
            timeout,
            pace: Pace::STANDARD,
            own_addresses: Vec::new(),
            last_resort: None,
        }
    }
}

/// A master that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    pub peer: SocketAddr,
    /// Our side of the connection: the address by which the master sees us.
    pub local: SocketAddr,
    pub waited: Duration,
}

/// What stood in the way last.
#[derive(Debug, Clone)]
enum Obstacle {
    Name(Text),
    Connection { peer: SocketAddr, cause: Text, says: u8 },
}

impl Obstacle {
    /// The more it says of the cause, the higher.
    fn says(&self) -> u8 {
        match self {
            Obstacle::Name(_) => 0,
            Obstacle::Connection { says, .. } => *says,
        }
    }
}

/// Resolves and connects until a connection has stayed open for half a second.
///
/// # Errors
/// At the deadline [`Verdict::MasterName`] when the name never had an address,
/// else [`Verdict::MasterReach`].
pub async fn wait_for_master(
    host: &Host,
    wait: &Wait<'_>,
    mut say: impl FnMut(Text),
) -> Result<Reached, Refusal> {
    let mut lines = Lines::begin(wait.pace);
    let tried = Mutex::new(Tried::default());
    let search = search(host, wait, &tried);
    tokio::pin!(search);
    loop {
        tokio::select! {
            found = &mut search => return found,
            () = sleep_until(lines.due()) => {
                say(progress(wait, &locked(&tried), lines.waited()));
                lines.said();
            }
        }
    }
}

fn locked(tried: &Mutex<Tried>) -> MutexGuard<'_, Tried> {
    tried.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn search(host: &Host, wait: &Wait<'_>, tried: &Mutex<Tried>) -> Result<Reached, Refusal> {
    let start = Instant::now();
    let end = start + wait.timeout;
    let mut pause = FIRST_PAUSE;
    let mut is_known = false;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match names::resolve(host, &wait.address, left.min(RESOLVE), wait.last_resort).await {
            Err(error) => locked(tried).name(end, error.text()),
            Ok(addresses) => {
                if !is_known {
                    // The name is there: from now on the master may answer at any moment.
                    (pause, is_known) = (FIRST_PAUSE, true);
                }
                locked(tried).addresses.clone_from(&addresses);
                for address in addresses {
                    let peer = SocketAddr::new(address, wait.port);
                    match connect(peer, end).await {
                        Ok(local) => return Ok(Reached { peer, local, waited: start.elapsed() }),
                        Err((says, cause)) => locked(tried).connection(end, peer, says, cause),
                    }
                }
            }
        }
        let now = Instant::now();
        let next = now + jittered(pause);
        if next >= end {
            // Another attempt at the very end would only be cut short.
            sleep_until(end).await;
            return Err(refuse(wait, &locked(tried)));
        }
        sleep_until(next).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[derive(Debug, Default)]
struct Tried {
    lookups: u64,
    connections: u64,
    /// What the name last resolved to.
    addresses: Vec<IpAddr>,
    last: Option<Obstacle>,
    /// What said the most, of equals the latest.
    best: Option<Obstacle>,
}

impl Tried {
    fn name(&mut self, end: Instant, cause: Text) {
        self.lookups = self.lookups.saturating_add(1);
        self.note(end, Obstacle::Name(cause));
    }

    fn connection(&mut self, end: Instant, peer: SocketAddr, says: u8, cause: Text) {
        self.connections = self.connections.saturating_add(1);
        self.note(end, Obstacle::Connection { peer, cause, says });
    }

    /// What came back last. An attempt that our own deadline cut short says
    /// nothing about the master, and must not hide the one before it.
    fn note(&mut self, end: Instant, obstacle: Obstacle) {
        if self.last.is_some() && Instant::now() >= end {
            return;
        }
        let best = self.best.as_ref().map_or(0, Obstacle::says);
        if obstacle.says() >= best {
            self.best = Some(obstacle.clone());
        }
        self.last = Some(obstacle);
    }
}

/// Connects and watches the connection for [`HOLD`]; gives our own address.
/// What the master sends meanwhile proves it as well.
///
/// # Errors
/// Why not, after how much that says of the cause: nothing answered, somebody refused,
/// somebody took the connection.
async fn connect(peer: SocketAddr, end: Instant) -> Result<SocketAddr, (u8, Text)> {
    const NOTHING: u8 = 1;
    const REFUSED: u8 = 2;
    const TAKEN: u8 = 3;
    let limit = end.min(Instant::now() + CONNECT);
    let mut stream = match timeout_at(limit, TcpStream::connect(peer)).await {
        Err(_) => {
            let silent = text!("no answer to the connection attempt", "连接请求没有应答");
            return Err((NOTHING, silent));
        }
        Ok(Err(error)) => {
            let refused = error.kind() == io::ErrorKind::ConnectionRefused;
            return Err((if refused { REFUSED } else { NOTHING }, reason(&error)));
        }
        Ok(Ok(stream)) => stream,
    };
    let local = stream.local_addr().map_err(|error| (NOTHING, reason(&error)))?;
    // Without a listener a connection from a port to itself can succeed
    // (simultaneous open), when the kernel picks the master port for our side.
    if local == peer {
        let own = text!(
            "connection refused (only our own socket answered)",
            "连接被拒绝（应答的是本进程自己的套接字）"
        );
        return Err((REFUSED, own));
    }
    match timeout(HOLD, stream.read(&mut [0; 1])).await {
        Err(_) | Ok(Ok(1..)) => Ok(local),
        Ok(Ok(0)) => Err((
            TAKEN,
            text!(
                "accepted and closed at once, as a sidecar does when nothing listens behind it",
                "接受连接后立即关闭，sidecar 后面没有进程监听时就会这样"
            ),
        )),
        Ok(Err(error)) => {
            let Text { en, zh } = reason(&error);
            Err((TAKEN, text!("accepted, then {en}", "接受连接之后：{zh}")))
        }
    }
}

fn reason(error: &io::Error) -> Text {
    let en = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset => "connection reset",
        io::ErrorKind::HostUnreachable => "no route to host",
        io::ErrorKind::NetworkUnreachable => "network unreachable",
        io::ErrorKind::TimedOut => "timed out",
        _ => return cause(error),
    };
    Text { en: en.into(), zh: cause(error).zh }
}

/// Between half and all of `pause`, so that the nodes of a job do not knock together.
fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    let share = getrandom::u32().unwrap_or(u32::MAX);
    half + half.mul_f64(f64::from(share) / f64::from(u32::MAX))
}

fn progress(wait: &Wait<'_>, tried: &Tried, waited: Duration) -> Text {
    let Wait { address, port, timeout, .. } = wait;
    let (waited, timeout) = (clock(waited), clock(*timeout));
    let last = words(tried.last.as_ref());
    Text::new(
        format!("waiting for master {address}:{port} ({waited} of {timeout}): {}", last.en),
        format!("正在等待 Master {address}:{port}（{waited}/{timeout}）：{}", last.zh),
    )
}

fn words(obstacle: Option<&Obstacle>) -> Text {
    match obstacle {
        Some(Obstacle::Name(Text { en, zh })) => text!("no address for {en}", "无法解析 {zh}"),
        Some(Obstacle::Connection { peer, cause: Text { en, zh }, .. }) => {
            text!("{peer}: {en}", "{peer}：{zh}")
        }
        None => text!("nothing was tried", "尚未尝试"),
    }
}

fn refuse(wait: &Wait<'_>, tried: &Tried) -> Refusal {
    let Wait { address, port, timeout, .. } = wait;
    let Tried { lookups, connections, .. } = tried;
    let seconds = timeout.as_secs_f64();
    let best = words(tried.best.as_ref());
    if tried.addresses.is_empty() {
        return Refusal::new(
            Id::MasterResolve,
            Text::new(
                format!(
                    "the master's name did not resolve in {seconds} s ({lookups} attempts): {}",
                    best.en
                ),
                format!("Master 名称在 {seconds} 秒内未能解析（尝试 {lookups} 次）：{}", best.zh),
            ),
            text!(
                "check that the master's pod and its headless service {address:?} exist in this namespace, or pass --master-addr; --wait-timeout waits longer",
                "请检查 Master 的 Pod 及其 headless service {address:?} 是否存在于当前命名空间，或指定 --master-addr；--wait-timeout 可延长等待"
            ),
        );
    }
    let addresses: Vec<String> = tried.addresses.iter().map(IpAddr::to_string).collect();
    let addresses = addresses.join(", ");
    let own = tried
        .addresses
        .iter()
        .any(|one| one.is_loopback() || one.is_unspecified() || wait.own_addresses.contains(one));
    let hint = if own {
        text!(
            "{addresses} is this node itself: a worker's MASTER_ADDR must be the address of node 0 as other nodes reach it; set --master-addr, or --node-rank 0 if this is the master",
            "{addresses} 就是本节点自己：worker 的 MASTER_ADDR 必须是其他节点可达的节点 0 地址；请设置 --master-addr，若本节点就是 Master 则设置 --node-rank 0"
        )
    } else {
        text!(
            "check that node 0 runs and that a network policy or firewall lets port {port} through; --master-addr and --master-port name another, --wait-timeout waits longer",
            "请检查 0 号节点是否在运行，以及网络策略或防火墙是否放行端口 {port}；可用 --master-addr 和 --master-port 指定其他地址，--wait-timeout 可延长等待"
        )
    };
    Refusal::new(
        Id::MasterReach,
        Text::new(
            format!(
                "master {address}:{port} ({addresses}) did not answer in {seconds} s ({connections} attempts): {}",
                best.en
            ),
            format!(
                "Master {address}:{port}（{addresses}）在 {seconds} 秒内没有应答（尝试 {connections} 次）：{}",
                best.zh
            ),
        ),
        hint,
    )
}

#[cfg(test)]
mod tests;
