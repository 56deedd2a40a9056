//! The listener of node 0 and what comes through it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::channel::Channel;
use super::handshake::{self, Stranger};
use super::secret::Secret;
use super::silence;
use super::wire::{Frame, Hello};

/// Connections that have not said who they are, beside one per node.
const STRANGERS: usize = 256;
/// How long a peer may leave its socket full.
const SEND: Duration = Duration::from_secs(30);
/// How long a closed connection may take to drain.
const DRAIN: Duration = Duration::from_secs(2);

/// Names a connection; numbers are never used twice.
pub(super) type Id = u64;
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

pub(super) type Ear = mpsc::Receiver<(Id, Said)>;

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
        let nodes = usize::try_from(nnodes).unwrap_or(usize::MAX);
        let places = Arc::new(Semaphore::new(STRANGERS.saturating_add(nodes).min(1 << 20)));
        let task = tokio::spawn(async move {
            tokio::select! {
                () = accept_all(listener, &places, secret, sender) => {}
                _ = stopped => {}
            }
        });
        Ok((Door { stop, task }, ear))
    }

    /// Frees the port; connections stay.
    pub(super) async fn shut(self) {
        drop(self.stop);
        let _ = self.task.await;
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let bind = |socket: TcpSocket, address: IpAddr| {
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(address, port))?;
        socket.listen(4096)
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
    places: &Arc<Semaphore>,
    secret: Option<Secret>,
    said: mpsc::Sender<(Id, Said)>,
) {
    let secret = Arc::new(secret);
    let mut id = 0;
    loop {
        // Before the accept: beyond the cap strangers wait in the kernel's queue.
        let Ok(place) = Arc::clone(places).acquire_owned().await else { return };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                // No descriptor left, or a connection that was reset in the queue.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        id += 1;
        let (secret, said) = (Arc::clone(&secret), said.clone());
        tokio::spawn(async move {
            let admitted = Box::pin(handshake::admit(stream, secret.as_ref().as_ref())).await;
            drop(place);
            match admitted {
                Ok((channel, hello)) => {
                    let (out, outbox) = mpsc::unbounded_channel();
                    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                    if said.send((id, Said::Arrived { hello, from, out })).await.is_ok() {
                        pump(channel, outbox, id, said).await;
                    }
                }
                Err(who) => {
                    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                    let _ = said.send((id, Said::Stranger { from, who })).await;
                }
            }
        });
    }
}

/// Carries frames both ways until one side ends.
async fn pump(
    mut channel: Channel,
    mut outbox: mpsc::UnboundedReceiver<Arc<[u8]>>,
    id: Id,
    said: mpsc::Sender<(Id, Said)>,
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
