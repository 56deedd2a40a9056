//! Packets with descriptors between shims and agent, over an abstract Unix socket.
//!
//! Abstract, because a name in the file system needs a writable place, and a
//! root may have none. Anybody in the network namespace could connect to it, which on
//! the host's network is every container of the node: so each end checks that the other
//! has its own user id, the agent that the other is in its PID namespace, and the
//! supervisor that its first packet holds the token that only our children were given.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    UnixAddr, accept4, bind, connect, getsockopt, listen, recvmsg, sendmsg, socket, sockopt,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::unix::AsyncFd;

use crate::random;

/// Longest packet; a path of PATH_MAX fits.
const PACKET: usize = 8192;

fn packet_socket() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?)
}

/// The pid of a peer that is one of ours.
fn same_user(fd: &impl AsFd) -> io::Result<i32> {
    let peer = getsockopt(fd, sockopt::PeerCredentials)?;
    if peer.uid() == rustix::process::geteuid().as_raw() {
        Ok(peer.pid())
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
    connect(fd.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
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
    let raw: Vec<RawFd> = pass.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    sendmsg::<()>(
        fd.as_fd().as_raw_fd(),
        &[IoSlice::new(&bytes)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

/// One packet and its descriptors; None at the end of file.
pub(super) fn receive<M: DeserializeOwned>(fd: impl AsFd) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut bytes = [0u8; PACKET];
    let mut control = nix::cmsg_space!([RawFd; 4]);
    let mut descriptors = Vec::new();
    let length = {
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg::<()>(
            fd.as_fd().as_raw_fd(),
            &mut slices,
            Some(&mut control),
            MsgFlags::MSG_CMSG_CLOEXEC,
        )?;
        for message in received.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = message {
                descriptors.extend(raw.into_iter().map(crate::sys::own_received));
            }
        }
        received.bytes
    };
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
        bind(fd.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        listen(&fd, Backlog::new(1024)?)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Listener { fd: crate::sys::watch(fd)?, name, token: random::hex::<12>()? })
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
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = crate::sys::own_received(accept4(self.fd.as_raw_fd(), flags).ok()?);
        let peer = own_process(&fd).ok()?;
        Some(Connection { fd: crate::sys::watch(fd).ok()?, peer })
    }

    /// The next shim. Cancel-safe.
    pub(super) async fn accept(&self) -> io::Result<Connection> {
        loop {
            let mut ready = self.fd.readable().await?;
            let accepted = ready.try_io(|fd| {
                let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
                Ok(crate::sys::own_received(accept4(fd.as_raw_fd(), flags)?))
            });
            match accepted {
                Ok(Ok(fd)) => {
                    // A stranger's connection is dropped.
                    if let Ok(peer) = own_process(&fd) {
                        return Ok(Connection { fd: crate::sys::watch(fd)?, peer });
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
    pub(super) fn has_words(&self) -> bool {
        let mut asked = [PollFd::new(self.fd.get_ref().as_fd(), PollFlags::POLLIN)];
        poll(&mut asked, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// A packet is small and the peer reads: a full buffer means a peer that is stopped.
    pub(super) fn send(&self, message: &impl Serialize, pass: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.fd.get_ref(), message, pass)
    }
}
