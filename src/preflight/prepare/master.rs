//! The master: its port on this node, and the wait of other nodes until it can be reached.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use linux::host::Host;
use linux::pace::{Pace, clock, with_lines};
use linux::procfs::{self, ListeningSocket};
use muster::names::LastResort;
use muster::net::{DialError, Dialer, Seen, Target, on_all_addresses};
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal};

/// A TCP port of `address` that is free at this moment.
///
/// # Errors
/// When the address is not this node's, or no port is left.
pub fn free_port(address: IpAddr) -> io::Result<u16> {
    TcpListener::bind(SocketAddr::new(address, 0))?.local_addr().map(|bound| bound.port())
}

/// Whether torch's store could listen on `port`.
///
/// # Errors
/// `Verdict::PortInUse`, with the owner if it is visible.
pub fn check_port(host: &Host, port: u16) -> Result<(), Refusal> {
    let Err(error) = on_all_addresses(port) else { return Ok(()) };
    let error = io::Error::from(error);
    let Text { en: why, zh: why_zh } = cause(&error);
    if error.kind() == io::ErrorKind::PermissionDenied {
        return Err(Refusal::new(
            Id::PortForbidden,
            text!(
                "master port {port} may not be bound by this user: {why}",
                "当前用户无权绑定 Master 端口 {port}：{why_zh}"
            ),
            text!(
                "choose a port above 1023 with --master-port, the same on every node",
                "请在所有节点上用 --master-port 指定同一个大于 1023 的端口"
            ),
        ));
    }
    let (en, zh) = match ListeningSocket::on(host, port) {
        Some(ListeningSocket { owner: Some((pid, argv)), .. }) => {
            let command = procfs::shown(&argv);
            (format!("held by pid {pid} ({command})"), format!("占用者为 pid {pid}（{command}）"))
        }
        Some(_) => (
            "held by a process that is not visible here: another container of this pod or host network, or another user"
                .to_owned(),
            "占用者在此处不可见：同一 Pod 或主机网络中的其他容器，或其他用户".to_owned(),
        ),
        None => (format!("no listener is visible: {why}"), format!("未见监听者：{why_zh}")),
    };
    Err(Refusal::new(
        Id::PortFree,
        text!(
            "master port {port} is in use on this node, {en}",
            "本节点的 Master 端口 {port} 已被占用，{zh}"
        ),
        text!(
            "end that process, or choose another port with --master-port, the same on every node",
            "请结束该进程，或在所有节点上用 --master-port 指定同一个其他端口"
        ),
    ))
}

/// Time for which a connection must stay open to count: a service-mesh sidecar accepts every
/// connection, and closes it if there is no listener.
const HOLD: Duration = Duration::from_millis(500);

/// The peer to wait for, and the time limit.
#[derive(Clone)]
pub struct Wait<'a> {
    /// A name or address without port, with or without brackets.
    pub address: String,
    pub port: u16,
    pub timeout: Duration,
    /// The pace of the progress lines.
    pub pace: Pace,
    /// Addresses of this node's own interfaces, to recognise a master that is this node.
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
    /// A wait with the standard pace, no helper and unknown own addresses.
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
    /// Our end of the connection.
    pub local: SocketAddr,
    pub waited: Duration,
}

/// Resolves and connects until a connection stays open for half a second.
///
/// # Errors
/// At the deadline: [`Verdict::MasterName`](verdict::Verdict::MasterName) (exit code 85)
/// if the name never had an address, else
/// [`Verdict::MasterReach`](verdict::Verdict::MasterReach) (86).
pub async fn wait_for_master(
    host: &Host,
    wait: &Wait<'_>,
    mut say: impl FnMut(Text),
) -> Result<Reached, Refusal> {
    let seen = Seen::nothing();
    with_lines(wait.pace, search(host, wait, &seen), |waited| say(progress(wait, &seen, waited)))
        .await
}

async fn search(host: &Host, wait: &Wait<'_>, seen: &Seen<DialError>) -> Result<Reached, Refusal> {
    let Wait { address, port, timeout, last_resort, .. } = wait;
    let start = Instant::now();
    let mut dialer = Dialer::new(Target {
        host,
        address,
        port: *port,
        last_resort: *last_resort,
        deadline: start + *timeout,
    });
    while let Some(dialed) = dialer.next().await {
        let held = match dialed {
            Ok((stream, peer)) => hold(stream, peer).await.map(|local| (peer, local)),
            Err(error) => Err(error),
        };
        match held {
            Ok((peer, local)) => return Ok(Reached { peer, local, waited: start.elapsed() }),
            Err(error) => seen.note(error),
        }
    }
    Err(refuse(wait, &dialer, seen))
}

/// Watches the connection for [`HOLD`]; gives our own address. Bytes from the master prove it as
/// well.
async fn hold(mut stream: TcpStream, peer: SocketAddr) -> Result<SocketAddr, DialError> {
    let closed = |error| DialError::Closed(peer, cause(&error));
    let local = stream.local_addr().map_err(closed)?;
    match timeout(HOLD, stream.read(&mut [0; 1])).await {
        Err(_) | Ok(Ok(1..)) => Ok(local),
        Ok(Ok(0)) => Err(DialError::Closed(
            peer,
            text!(
                "accepted and closed at once, as a sidecar does when nothing listens behind it",
                "接受连接后立即关闭，sidecar 后面没有进程监听时就会这样"
            ),
        )),
        Ok(Err(error)) => {
            let Text { en, zh } = cause(&error);
            Err(DialError::Closed(peer, text!("accepted, then {en}", "接受连接之后：{zh}")))
        }
    }
}

fn progress(wait: &Wait<'_>, seen: &Seen<DialError>, waited: Duration) -> Text {
    let Wait { address, port, timeout, .. } = wait;
    let (waited, timeout) = (clock(waited), clock(*timeout));
    let Text { en, zh } = match seen.get() {
        Some((last, _)) => last.text(),
        None => text!("nothing was tried yet", "尚未尝试"),
    };
    text!(
        "waiting for master {address}:{port} ({waited} of {timeout}): {en}",
        "正在等待 Master {address}:{port}（{waited}/{timeout}）：{zh}"
    )
}

fn refuse(wait: &Wait<'_>, dialer: &Dialer<'_>, seen: &Seen<DialError>) -> Refusal {
    let Wait { address, port, timeout, own_addresses, .. } = wait;
    let (lookups, connections) = (dialer.lookups, dialer.connections);
    let seconds = timeout.as_secs_f64();
    let best = seen.get().map(|(_, best)| best);
    let best = best.unwrap_or_else(|| DialError::Name(Text::same(format!("{address:?}"))));
    let Text { en, zh } = best.text();
    if dialer.addresses.is_empty() {
        return best.refusal(
            address,
            *port,
            text!(
                "the master's name did not resolve in {seconds} s ({lookups} attempts): {en}",
                "Master 名称在 {seconds} 秒内未能解析（尝试 {lookups} 次）：{zh}"
            ),
        );
    }
    let addresses: Vec<String> = dialer.addresses.iter().map(IpAddr::to_string).collect();
    let addresses = addresses.join(", ");
    let refusal = best.refusal(
        address,
        *port,
        text!(
            "master {address}:{port} ({addresses}) did not answer in {seconds} s ({connections} attempts): {en}",
            "Master {address}:{port}（{addresses}）在 {seconds} 秒内没有应答（尝试 {connections} 次）：{zh}"
        ),
    );
    let is_own =
        |one: &IpAddr| one.is_loopback() || one.is_unspecified() || own_addresses.contains(one);
    if !dialer.addresses.iter().any(is_own) {
        return refusal;
    }
    Refusal {
        hint: text!(
            "{addresses} is this node itself: a worker's MASTER_ADDR must be the address of node 0 as other nodes reach it; set --master-addr, or --node-rank 0 if this is the master",
            "{addresses} 就是本节点自己：worker 的 MASTER_ADDR 必须是其他节点可达的节点 0 地址；请设置 --master-addr，若本节点就是 Master 则设置 --node-rank 0"
        ),
        ..refusal
    }
}

#[cfg(test)]
mod tests;
