//! The listener of node 0 and what comes through it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, unconstrained, yield_now};
use tokio::time::timeout;

use super::channel::Channel;
use super::handshake::{self, Stranger};
use super::porch::Porch;
use super::secret::Secret;
use super::silence;
use super::wire::{Frame, Hello};
use crate::text;

/// Connections that are let in before anybody else's turn.
const AT_ONCE: ConnectionId = 1024;
/// How long a peer may leave its socket full.
const SEND: Duration = Duration::from_secs(30);
/// How long a closed connection may take to drain.
const DRAIN: Duration = Duration::from_secs(2);

/// Names a connection; numbers are never used twice.
pub(super) type ConnectionId = u64;
/// Frames for one node, encoded.
pub(super) type Outbox = mpsc::UnboundedSender<Arc<[u8]>>;

/// What the connections say to node 0, in one order.
#[derive(Debug)]
pub(super) enum Said {
    Arrived { hello: Hello, from: SocketAddr, out: Outbox },
    Frame(Frame),
    Gone,
    Stranger { from: SocketAddr, who: Stranger },
}

pub(super) type Ear = mpsc::Receiver<(ConnectionId, Said)>;

/// An open listener. Dropped, it closes; [`Door::shut`] also waits for that.
#[derive(Debug)]
pub(super) struct Door {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Door {
    /// Listens on all addresses, as torch's store does.
    pub(super) fn open(port: u16, nnodes: u32, secret: Option<Secret>) -> io::Result<(Door, Ear)> {
        let listener = listen(port)?;
        let (stop, stopped) = oneshot::channel();
        let (sender, ear) = mpsc::channel(1024);
        let porch = Porch::new(nnodes);
        // The runtime's own measure of fairness, 128 at a time, would leave the
        // kernel's queue to overflow while thousands of handshakes are computed.
        let task = tokio::spawn(unconstrained(async move {
            tokio::select! {
                () = accept_all(listener, &porch, secret, sender) => {}
                _ = stopped => {}
            }
            porch.clear();
        }));
        Ok((Door { stop, task }, ear))
    }

    /// Frees the port and sends all strangers away; nodes stay connected.
    pub(super) async fn shut(self) {
        drop(self.stop);
        let _ = self.task.await;
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let bind = |socket: TcpSocket, address: IpAddr| {
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(address, port))?;
        // The kernel cuts it to net.core.somaxconn.
        socket.listen(u32::from(u16::MAX))
    };
    let dual = TcpSocket::new_v6().and_then(|socket| {
        rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
        bind(socket, Ipv6Addr::UNSPECIFIED.into())
    });
    match dual {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            bind(TcpSocket::new_v4()?, Ipv4Addr::UNSPECIFIED.into())
        }
        result => result,
    }
}

async fn accept_all(
    listener: TcpListener,
    porch: &Porch,
    secret: Option<Secret>,
    said: mpsc::Sender<(ConnectionId, Said)>,
) {
    let secret = Arc::new(secret);
    let mut id: ConnectionId = 0;
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            // No descriptor left: whoever has waited longest gives his.
            Err(error) if is_out_of_descriptors(&error) && porch.make_room() => {
                yield_now().await;
                continue;
            }
            // A connection that was reset in the queue, or nobody to give way.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        id += 1;
        if id.is_multiple_of(AT_ONCE) {
            yield_now().await;
        }
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let goes = porch.enter(id);
        let (secret, said, porch) = (Arc::clone(&secret), said.clone(), porch.clone());
        tokio::spawn(async move {
            let admitted = tokio::select! {
                biased;
                admitted = Box::pin(handshake::admit(stream, secret.as_ref().as_ref())) => admitted,
                _ = goes => Err(Stranger::Unknown(text!("it made room for others", "已为其他连接让位"))),
            };
            match admitted {
                Ok((channel, hello)) => {
                    let _inside = porch.admit(id);
                    let (out, outbox) = mpsc::unbounded_channel();
                    if said.send((id, Said::Arrived { hello, from, out })).await.is_ok() {
                        pump(channel, outbox, id, said).await;
                    }
                }
                Err(who) => {
                    porch.leave(id);
                    let _ = said.send((id, Said::Stranger { from, who })).await;
                }
            }
        });
    }
}

/// This process, or the whole machine, has no file descriptor left.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

/// Carries frames both ways until one side ends.
async fn pump(
    mut channel: Channel,
    mut outbox: mpsc::UnboundedReceiver<Arc<[u8]>>,
    id: ConnectionId,
    said: mpsc::Sender<(ConnectionId, Said)>,
) {
    silence::prepare(channel.stream());
    loop {
        tokio::select! {
            biased;
            bytes = outbox.recv() => match bytes {
                Some(bytes) => {
                    if !matches!(timeout(SEND, channel.send_encoded(&bytes)).await, Ok(Ok(()))) {
                        break;
                    }
                }
                None => {
                    let _ = timeout(DRAIN, channel.close()).await;
                    return;
                }
            },
            frame = channel.receive() => match frame {
                Ok(frame) => {
                    if said.send((id, Said::Frame(frame))).await.is_err() {
                        return;
                    }
                }
                Err(_) => break,
            },
        }
    }
    let _ = said.send((id, Said::Gone)).await;
}

/// Connects, with a deadline of its own.
pub(super) async fn connect(peer: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = timeout(patience, TcpStream::connect(peer))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    silence::prepare(&stream);
    Ok(stream)
}
