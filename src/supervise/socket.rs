//! Packets with descriptors between shims and agent, over an abstract Unix socket.
//!
//! Abstract, because a name in the file system needs a writable place, and a
//! root may have none. Anybody in the network namespace could connect to it, which on
//! the host's network is every container of the node: so each end checks that the other
//! has its own user id, the agent that the other is in its PID namespace, and the
//! supervisor that its first packet holds the token that only our children were given.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::unix::AsyncFd;

use crate::{random, sys};

/// Longest packet; a path of PATH_MAX fits.
const PACKET: usize = 8192;
/// Most descriptors of one packet: a rank's three standard streams, and one to spare.
const MOST: usize = 4;
/// How a connection is taken.
const TAKEN: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn packet_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// The pid of a peer that is one of ours.
fn same_user(fd: &impl AsFd) -> io::Result<i32> {
    let peer = sys::peer(fd)?;
    if peer.uid == rustix::process::geteuid().as_raw() {
        Ok(peer.pid)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer belongs to another user"))
    }
}

/// The pid of a shim that connected; one of another PID namespace has none here.
fn own_process(fd: &impl AsFd) -> io::Result<i32> {
    let pid = same_user(fd)?;
    if pid > 0 { Ok(pid) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// How long no connection is taken after one could not be: descriptors are used up, and
/// who waits in the queue is held up by nothing yet.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connects to the agent's socket. Blocking; for the shim.
pub(super) fn dial(name: &str) -> io::Result<OwnedFd> {
    let fd = packet_socket()?;
    connect(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    same_user(&fd)?;
    Ok(fd)
}

/// Sends one packet, with descriptors. Blocking where the socket is.
pub(super) fn send(
    fd: impl AsFd,
    message: &impl Serialize,
    pass: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !pass.is_empty() && !control.push(SendAncillaryMessage::ScmRights(pass)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(fd, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// One packet and its descriptors; None at the end of file.
pub(super) fn receive<M: DeserializeOwned>(fd: impl AsFd) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut bytes = [0u8; PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let length = recvmsg(fd, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    };
    let descriptors = control.drain().filter_map(rights).flatten().collect();
    if length == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(bytes.get(..length).unwrap_or_default())?;
    Ok(Some((message, descriptors)))
}

/// The agent's listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    fd: AsyncFd<OwnedFd>,
    name: String,
    token: String,
}

impl Listener {
    /// Listens under a name that nobody can guess. Call within the runtime.
    pub(super) fn bind() -> io::Result<Listener> {
        let name = format!("ranklaunch-{}", random::hex::<12>()?);
        let fd = packet_socket()?;
        bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&fd, 1024)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Listener { fd: sys::watch(fd)?, name, token: random::hex::<12>()? })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What a shim of ours says first.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// A shim that waits in the queue already.
    pub(super) fn accept_waiting(&self) -> Option<Connection> {
        let fd = accept_with(&self.fd, TAKEN).ok()?;
        let peer = own_process(&fd).ok()?;
        Some(Connection { fd: sys::watch(fd).ok()?, peer })
    }

    /// The next shim. Cancel-safe.
    pub(super) async fn accept(&self) -> io::Result<Connection> {
        loop {
            let mut ready = self.fd.readable().await?;
            match ready.try_io(|fd| Ok(accept_with(fd, TAKEN)?)) {
                Ok(Ok(fd)) => {
                    // A stranger's connection is dropped.
                    if let Ok(peer) = own_process(&fd) {
                        return Ok(Connection { fd: sys::watch(fd)?, peer });
                    }
                }
                Ok(Err(error)) => {
                    // The listener stays readable: without a pause this would spin.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    return Err(error);
                }
                Err(_would_block) => {}
            }
        }
    }
}

/// One shim's connection, as the agent sees it.
#[derive(Debug)]
pub(super) struct Connection {
    fd: AsyncFd<OwnedFd>,
    peer: i32,
}

impl Connection {
    /// The shim's pid, as it was when it connected.
    pub(super) fn peer(&self) -> i32 {
        self.peer
    }

    pub(super) async fn receive<M: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        loop {
            let mut ready = self.fd.readable().await?;
            match ready.try_io(|fd| receive(fd)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    /// Whether a packet, or the end, waits to be received.
    pub(super) fn has_message(&self) -> bool {
        sys::is_readable(&self.fd)
    }

    /// A packet is small and the peer reads: a full buffer means a peer that is stopped.
    pub(super) fn send(&self, message: &impl Serialize, pass: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.fd.get_ref(), message, pass)
    }
}
