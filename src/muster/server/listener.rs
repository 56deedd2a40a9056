//! The listener of node 0 and its connections.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, unconstrained, yield_now};
use tokio::time::timeout;

use crate::keepalive::{self, Cut};
use crate::net::{ConnectionLimiter, on_all_addresses};
use crate::protocol::handshake::{self, Rejection};
use crate::protocol::{Channel, ChannelError, FromMember, FromNode0, Hello, Secret, channel};
use text::text;

/// Offset of the connection numbers of a second listener, which are greater than those of the first.
const BESIDE: ConnectionId = 1 << 48;
/// Maximum number of connections that are accepted before another task runs.
const AT_ONCE: ConnectionId = 1024;
/// Time limit for sending to a peer whose socket is full.
const SEND: Duration = Duration::from_secs(30);
/// Time limit for draining a closed connection.
const DRAIN: Duration = Duration::from_secs(2);

/// Identifies a connection; numbers are never reused.
pub(crate) type ConnectionId = u64;

/// Queues frames for one node. When dropped, it closes the connection after the frames are sent.
#[derive(Debug)]
pub struct FrameSender {
    frames: mpsc::UnboundedSender<Arc<[u8]>>,
    /// Parts of answers; all other frames are sent before them.
    later: mpsc::UnboundedSender<Arc<[u8]>>,
}

/// The queues of a [`FrameSender`]: all frames, and parts of answers.
type Frames = [mpsc::UnboundedReceiver<Arc<[u8]>>; 2];

impl FrameSender {
    pub fn send(&self, frame: &FromNode0) {
        self.send_encoded(channel::encode(frame).into());
    }

    pub(crate) fn send_encoded(&self, bytes: Arc<[u8]>) {
        // A closed connection is reported by its own event.
        let _ = self.frames.send(bytes);
    }

    /// Sends these bytes once no other frame waits.
    pub(crate) fn send_later(&self, bytes: Arc<[u8]>) {
        let _ = self.later.send(bytes);
    }
}

/// A connection that has identified its node.
#[derive(Debug)]
pub struct Arrival {
    pub id: ConnectionId,
    pub hello: Hello,
    pub from: SocketAddr,
    /// The address at which the node reached this one.
    pub at: Option<IpAddr>,
    pub out: FrameSender,
}

/// The events of all connections, in one order.
#[derive(Debug)]
pub enum ConnectionEvent {
    Arrived(Arrival),
    Frame(ConnectionId, Box<FromMember>),
    Gone(ConnectionId, Cut),
    Rejected { from: SocketAddr, why: Rejection },
}

pub(crate) type EventReceiver = mpsc::Receiver<ConnectionEvent>;

/// Waits until all connections whose senders were dropped are closed.
pub(crate) async fn drain(mut events: EventReceiver, limit: Duration) {
    let drained = async { while events.recv().await.is_some() {} };
    let _ = timeout(limit, drained).await;
}

/// An open listener. It closes when dropped; [`Listener::close`] also waits for the closing.
#[derive(Debug)]
pub(crate) struct Listener {
    pub port: u16,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    events: mpsc::Sender<ConnectionEvent>,
}

impl Listener {
    /// Listens on all addresses in the same way as torch's store.
    pub(crate) fn open(
        port: u16,
        nnodes: u32,
        secret: Option<Secret>,
    ) -> io::Result<(Listener, EventReceiver)> {
        let (sender, events) = mpsc::channel(1024);
        Ok((Listener::on(port, nnodes, secret, sender, 0)?, events))
    }

    /// A second listener, on any free port. Its connections send their events to the same receiver.
    pub(crate) fn beside(&self, nnodes: u32, secret: Option<Secret>) -> io::Result<Listener> {
        Listener::on(0, nnodes, secret, self.events.clone(), BESIDE)
    }

    /// `first`: a number below those of its connections.
    fn on(
        port: u16,
        nnodes: u32,
        secret: Option<Secret>,
        events: mpsc::Sender<ConnectionEvent>,
        first: ConnectionId,
    ) -> io::Result<Listener> {
        let listener = TcpListener::from_std(on_all_addresses(port)?)?;
        let port = listener.local_addr()?.port();
        let (stop, stopped) = oneshot::channel();
        let sender = events.clone();
        let limiter = ConnectionLimiter::new(nnodes);
        // With the runtime's cooperative budget of 128 the kernel's queue would overflow while
        // thousands of handshakes are computed.
        let task = tokio::spawn(unconstrained(async move {
            tokio::select! {
                () = accept_all(listener, &limiter, secret, sender, first) => {}
                _ = stopped => {}
            }
            limiter.evict_all();
        }));
        Ok(Listener { port, stop, task, events })
    }

    /// Frees the port and closes all unidentified connections; nodes stay connected.
    pub(crate) async fn close(self) {
        let Listener { stop, task, .. } = self;
        drop(stop);
        let _ = task.await;
    }
}

async fn accept_all(
    listener: TcpListener,
    limiter: &ConnectionLimiter,
    secret: Option<Secret>,
    events: mpsc::Sender<ConnectionEvent>,
    first: ConnectionId,
) {
    let mut id = first;
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            // The process is out of descriptors: the oldest unidentified connection is closed.
            Err(error) if is_out_of_descriptors(&error) && limiter.evict_oldest() => {
                yield_now().await;
                continue;
            }
            // The connection was reset in the queue, or no connection could be closed.
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
        let at = stream.local_addr().ok().map(|at| at.ip().to_canonical());
        let evicted = limiter.enter(id);
        let (secret, events, limiter) = (secret.clone(), events.clone(), limiter.clone());
        tokio::spawn(async move {
            let admitted = tokio::select! {
                biased;
                admitted = Box::pin(handshake::admit(stream, secret.as_ref())) => admitted,
                _ = evicted => {
                    Err(Rejection::Unknown(text!("evicted for other connections", "已为其他连接让位")))
                }
            };
            match admitted {
                Ok((channel, hello)) => {
                    let _identified = limiter.identify(id);
                    let (frames, first) = mpsc::unbounded_channel();
                    let (later, second) = mpsc::unbounded_channel();
                    let out = FrameSender { frames, later };
                    let arrival = Arrival { id, hello, from, at, out };
                    if events.send(ConnectionEvent::Arrived(arrival)).await.is_ok() {
                        pump(channel, [first, second], id, events).await;
                    }
                }
                Err(why) => {
                    limiter.leave(id);
                    let _ = events.send(ConnectionEvent::Rejected { from, why }).await;
                }
            }
        });
    }
}

/// Whether this process or the whole node is out of file descriptors.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

/// Carries frames in both directions until one side ends.
async fn pump(
    mut channel: Channel<FromMember>,
    [mut frames, mut later]: Frames,
    id: ConnectionId,
    events: mpsc::Sender<ConnectionEvent>,
) {
    keepalive::prepare(channel.stream());
    let mut writes = true;
    let cut = loop {
        tokio::select! {
            biased;
            bytes = frames.recv(), if writes => match bytes {
                Some(bytes) => match is_sent(&mut channel, &bytes).await {
                    Some(is_sent) => writes = is_sent,
                    None => break Cut::Reset,
                }
                None => {
                    let _ = timeout(DRAIN, channel.close()).await;
                    return;
                }
            },
            // What the peer had sent before its end, and which end that was.
            frame = channel.receive() => match frame {
                Ok(frame) => {
                    if events.send(ConnectionEvent::Frame(id, Box::new(frame))).await.is_err() {
                        return;
                    }
                }
                Err(error) => break Cut::from(&error),
            },
            // One part at a time: all other frames that came in the meantime are sent before the next part.
            Some(bytes) = later.recv(), if writes => match is_sent(&mut channel, &bytes).await {
                Some(is_sent) => writes = is_sent,
                None => break Cut::Reset,
            }
        }
    };
    let _ = events.send(ConnectionEvent::Gone(id, cut)).await;
}

/// None: not within the time limit, or not by the peer's fault.
async fn is_sent(channel: &mut Channel<FromMember>, bytes: &[u8]) -> Option<bool> {
    match timeout(SEND, channel.send_encoded(bytes)).await.ok()? {
        Ok(()) => Some(true),
        Err(ChannelError::Io(_)) => Some(false),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    /// What is heard of a peer that has said that it is done, and whose connection has ended, while frames wait for it.
    async fn heard_of(end: fn(TcpStream)) -> Vec<ConnectionEvent> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let peer = TcpStream::connect(listener.local_addr().expect("an address")).await;
        let (stream, _) = listener.accept().await.expect("a connection");
        let mut peer: Channel<FromNode0> = Channel::new(peer.expect("a connection"), None);
        peer.send(&FromMember::Done).await.expect("it is sent");
        end(peer.into_stream().expect("nothing was sent to it"));
        let (frames, first) = mpsc::unbounded_channel();
        let (later, second) = mpsc::unbounded_channel();
        let out = FrameSender { frames, later };
        (0..8).for_each(|_| out.send(&FromNode0::Stop));
        let (sender, mut events) = mpsc::channel(8);
        pump(Channel::new(stream, None), [first, second], 1, sender).await;
        let mut heard = Vec::new();
        while let Some(event) = events.recv().await {
            heard.push(event);
        }
        heard
    }

    #[tokio::test]
    async fn frames_that_wait_hide_neither_the_last_word_nor_the_end() {
        let closed = heard_of(drop).await;
        let is_reported = matches!(
            closed.as_slice(),
            [ConnectionEvent::Frame(1, done), ConnectionEvent::Gone(1, Cut::Closed)]
                if matches!(**done, FromMember::Done)
        );
        assert!(is_reported, "{closed:?}");
        let reset = heard_of(|peer| {
            let linger = rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO));
            linger.expect("it is set");
        });
        let reset = reset.await;
        // A firewall ends connections so.
        assert!(matches!(reset.last(), Some(ConnectionEvent::Gone(1, Cut::Reset))), "{reset:?}");
    }
}
