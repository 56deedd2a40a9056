//! How long a node may be silent, and what lets it speak again in time.
//!
//! Owns the promise that a partition shorter than the peer timeout is survived. Two
//! things lie between the length of a partition and the silence that it makes:
//! the last frame may have been a heartbeat old when it began, and what was sent
//! meanwhile is sent again by the kernel only after pauses that double. A frame of
//! the first second is tried again after 0.2, 0.6, 1.4, 3.0, 6.2, 12.6 and 25.4 s: after
//! a cut of 13 s the connection would stay mute for 12 s more.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};

use super::types::Config;
use crate::sys;

/// Between two heartbeats.
pub(super) const BEAT: Duration = Duration::from_secs(3);
/// The longest pause before the kernel sends again; the least that it takes.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the kernel may try, in milliseconds: we decide when a node is lost.
/// With a capped pause its own 15 attempts (tcp_retries2) are over after 14.4 s.
const KERNEL: u32 = 120_000;
/// For a busy node on either side.
const ALLOWANCE: Duration = Duration::from_secs(1);

impl Config {
    /// Between two heartbeats: four within the peer timeout at least.
    pub(super) fn beat(&self) -> Duration {
        BEAT.min(self.peer_timeout / 4)
    }

    /// After so long without a frame a node is lost: the peer timeout, the age that
    /// the last heartbeat may have had, and the time until the kernel tries again.
    pub(super) fn longest_silence(&self) -> Duration {
        let again = if is_capped() { AGAIN } else { self.peer_timeout };
        self.peer_timeout + self.beat() + again + ALLOWANCE
    }
}

/// To be called once for each connection.
pub(super) fn prepare(stream: &TcpStream) {
    // Each makes the connection better and none is needed to speak at all.
    let _ = stream.set_nodelay(true);
    let _ = sys::cap_retransmission(stream, AGAIN);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, KERNEL);
}

/// Whether this kernel can cap the pause (Linux 6.15).
fn is_capped() -> bool {
    static CAPPED: OnceLock<bool> = OnceLock::new();
    *CAPPED.get_or_init(|| {
        TcpSocket::new_v4().is_ok_and(|socket| sys::cap_retransmission(&socket, AGAIN).is_ok())
    })
}
