//! Between shims and agent: the messages, and packets with descriptors over an abstract Unix socket, one JSON document
//! per packet.
//!
//! Abstract, because a name in the file system needs a writable folder, which a root may not
//! have. Every process in the network namespace can connect; with the host's network that is
//! every container of the node. So each end checks the user id of the other, the agent checks
//! that the peer is in its PID namespace, and the supervisor checks that the first packet has
//! the token that only our children got.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;

use linux::random;
use linux::sys;
use text::rank::{GlobalRank, LocalRank};
use verdict::outcome::End;

/// The variable that tells a shim its agent's socket: `<abstract name> <token> <grace in ms>`,
/// [`TERMINAL`] if the rank keeps the launcher's own streams, [`FREE_ENGINE`], and [`DEAF_ENGINE`] below an
/// engine that ignores the signals of [`super::forwarded::TWICE`]. The token proves that the
/// agent has started the shim: every process in the network namespace can read the name of a
/// socket, but not the environment of a process.
pub(super) const AGENT_SOCKET: &str = "RANKLAUNCH_AGENT_SOCKET";
/// A word of [`AGENT_SOCKET`].
pub(super) const TERMINAL: &str = "terminal";
/// A word of [`AGENT_SOCKET`]: the rank must not ignore the signals that the engine ignores, although it
/// inherits that.
pub(super) const DEAF_ENGINE: &str = "deaf-engine";
/// A word of [`AGENT_SOCKET`]: the engine sees a failed rank at once, since it decides what follows.
pub(super) const FREE_ENGINE: &str = "free-engine";
/// A word of [`AGENT_SOCKET`], with the number of attempts that may follow the first; not for a command.
pub(super) const RESTARTS: &str = "restarts=";
/// The file in which torch's `@record` writes down the exception that ends a rank. torchrun sets it for
/// each of its ranks; empty means none.
pub const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";
/// Maximum bytes of that file that are read.
pub const LARGEST_RECORD: u64 = 1024 * 1024;
/// `<rank> <local rank>`, without an engine that sets RANK and LOCAL_RANK. A shim without this variable is
/// below an engine, and waits for [`ToRank::Leave`] after a failure.
pub(super) const RANK_SLOT: &str = "RANKLAUNCH_SLOT";

/// Shim → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum FromRank {
    /// The first packet. Carries the read ends of stdout and stderr, in this order, unless the
    /// rank gets the terminal.
    Hello {
        token: String,
        /// None if the shim's environment has no rank.
        rank: Option<GlobalRank>,
        local_rank: LocalRank,
        /// WORLD_SIZE as the rank will see it.
        world_size: Option<u32>,
        /// The program that the shim is about to execute.
        program: String,
    },
    Started {
        pid: i32,
    },
    NotExecuted {
        program: String,
        errno: i32,
    },
    /// The rank failed, and torch's `@record` has written down the exception. Carries a copy of that file
    /// in memory, since torchrun removes the file soon. Device and inode tell files apart: if the user has
    /// named one file for all ranks, it belongs to the rank that ended first.
    Recorded {
        device: u64,
        inode: u64,
    },
    /// Sent before the end by SIGKILL of a rank that had left the control group of its shim. Carries the
    /// rank's own group, as /proc names it.
    KilledIn {
        group: String,
    },
    Ended {
        end: End,
    },
    /// The rank ended with 0 and left these behind; they are being ended.
    Leftovers {
        names: Vec<String>,
        count: usize,
    },
}

/// Agent → shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum ToRank {
    /// The answer to a Hello without pipes: stdin, stdout and stderr for the rank, and the
    /// process group that owns the terminal.
    Terminal { owner: i32 },
    /// Send this signal to the user's process.
    Signal { number: i32 },
    /// The job stops: send this signal to the user's process alone, unless it has had it.
    Stop { number: i32 },
    /// The rank has not ended after most of its time: see [`super::asked::Asked::late`].
    Late,
    /// The job stops for a reason on this node, so no manager signals the ranks as well.
    NoManager,
    /// All ranks of the node have ended, so the engine may learn that this one failed.
    Leave,
}

/// The number of the attempt, from 0; the folders of the logs contain it too.
pub(crate) const ATTEMPT: &str = "RANKLAUNCH_ATTEMPT";

/// Maximum size of a packet; a path of PATH_MAX fits.
const PACKET: usize = 8192;
/// Maximum number of descriptors in one packet: three standard streams, a folder and a file in
/// memory.
const MOST: usize = 5;
/// Flags of an accepted connection.
const TAKEN: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn packet_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// The pid of a peer with our user id.
fn same_user(fd: &impl AsFd) -> io::Result<i32> {
    let peer = sys::Peer::of(fd)?;
    if peer.uid == rustix::process::geteuid().as_raw() {
        Ok(peer.pid)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer belongs to another user"))
    }
}

/// The pid of a shim that connected; a process of another PID namespace has no pid here.
fn own_process(fd: &impl AsFd) -> io::Result<i32> {
    let pid = same_user(fd)?;
    if pid > 0 { Ok(pid) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Pause after accept(2) failed for want of descriptors. Connections in the queue can wait.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connects to the agent's socket. Blocking; for the shim.
pub(super) fn dial(name: &str) -> io::Result<OwnedFd> {
    let fd = packet_socket()?;
    connect(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    same_user(&fd)?;
    Ok(fd)
}

/// Sends one packet, with descriptors. Blocks if the socket is blocking.
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

/// Prefix of the name of an agent's socket, before the digits.
const PREFIX: &str = "ranklaunch-";
/// Number of random bytes in the name, each of two digits.
const RANDOM: usize = 12;

/// Whether an agent has ranks, by the table of unix(7).
pub fn have_ranks(table: &str) -> bool {
    table.lines().any(|line| {
        let name = line.split_ascii_whitespace().nth(7).and_then(|name| name.strip_prefix('@'));
        let digits = name.and_then(|name| name.strip_prefix(PREFIX)).unwrap_or_default();
        digits.len() == 2 * RANDOM && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// The agent's listening socket.
#[derive(Debug)]
pub(super) struct ShimListener {
    fd: AsyncFd<OwnedFd>,
    pub(super) name: String,
    /// The token that a shim of ours sends first.
    pub(super) token: String,
}

impl ShimListener {
    /// Listens under an unpredictable name. Call within the runtime.
    pub(super) fn bind() -> io::Result<ShimListener> {
        let name = format!("{PREFIX}{}", random::hex::<RANDOM>()?);
        let fd = packet_socket()?;
        bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&fd, 1024)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(ShimListener { fd: sys::watch(fd)?, name, token: random::hex::<12>()? })
    }

    /// Accepts a connection that is already in the queue.
    pub(super) fn accept_waiting(&self) -> Option<ShimSocket> {
        loop {
            let fd = accept_with(&self.fd, TAKEN).ok()?;
            // A connection that is dropped may precede that of a shim.
            if let Ok(peer) = own_process(&fd) {
                return Some(ShimSocket { fd: sys::watch(fd).ok()?, peer });
            }
        }
    }

    /// The next connection. Cancel-safe.
    pub(super) async fn accept(&self) -> io::Result<ShimSocket> {
        loop {
            let mut ready = self.fd.readable().await?;
            match ready.try_io(|fd| Ok(accept_with(fd, TAKEN)?)) {
                Ok(Ok(fd)) => {
                    // Connections of other users or PID namespaces are dropped.
                    if let Ok(peer) = own_process(&fd) {
                        return Ok(ShimSocket { fd: sys::watch(fd)?, peer });
                    }
                }
                Ok(Err(error)) => {
                    // The listener stays readable; without a pause this would spin.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    return Err(error);
                }
                Err(_would_block) => {}
            }
        }
    }
}

/// The agent's end of a shim's connection.
#[derive(Debug)]
pub(super) struct ShimSocket {
    fd: AsyncFd<OwnedFd>,
    /// The shim's pid at the time of the connection.
    pub(super) peer: i32,
}

impl ShimSocket {
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

    /// Sends a packet. Packets are small, so a full buffer means that the peer is stopped.
    pub(super) fn send(&self, message: &impl Serialize, pass: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.fd.get_ref(), message, pass)
    }
}
