//! Socket options that rustix does not have.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// The peer of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    /// 0: a process of another PID namespace.
    pub pid: i32,
}

impl Peer {
    /// `SO_PEERCRED`. In rustix the pid cannot be 0.
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        let peer = getsockopt(&socket, PeerCredentials)?;
        Ok(Peer { uid: peer.uid(), pid: peer.pid() })
    }
}

/// `TCP_RTO_MAX_MS` of include/uapi/linux/tcp.h, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Sets the longest pause between two retransmissions. The kernel accepts 1 s to 120 s; by
/// default it doubles the pause up to 120 s.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.15.
pub fn cap_retransmission(socket: impl AsFd, longest: Duration) -> io::Result<()> {
    let millis = libc::c_int::try_from(longest.as_millis()).unwrap_or(libc::c_int::MAX);
    let length = libc::socklen_t::try_from(size_of_val(&millis)).unwrap_or_default();
    // SAFETY: the descriptor is borrowed and so stays open, and the kernel reads
    // `length` bytes of an integer that outlives the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const millis).cast(),
            length,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
