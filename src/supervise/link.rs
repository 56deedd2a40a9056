//! The socket between guard and agent; its end of file is how each learns of
//! the other's death. (Parent-death signals are bound to threads and lost on
//! re-parenting, so they cannot serve.)

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use tokio::io::unix::AsyncFd;

/// Guard → agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardWord {
    /// The first signal that asks us to stop.
    Stop(i32),
    /// Stop at once: a second Ctrl-C.
    KillNow,
    /// For every rank: USR1, USR2, and what belongs to a rank that has the terminal.
    Pass(i32),
    /// The guard is gone.
    Gone,
}

/// Agent → guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgentWord {
    /// The whole stop budget.
    Grace(Duration),
    /// A rank has the terminal from now on, and what is typed there is its own.
    Interactive,
    /// All is done and said; this is the exit code.
    Verdict(i32),
}

impl AgentWord {
    fn encode(self) -> Vec<u8> {
        match self {
            AgentWord::Grace(grace) => {
                u64::try_from(grace.as_millis()).unwrap_or(u64::MAX).to_le_bytes().to_vec()
            }
            AgentWord::Interactive => b"i".to_vec(),
            AgentWord::Verdict(code) => [b"v".as_slice(), &code.to_le_bytes()].concat(),
        }
    }

    pub(super) fn decode(packet: &[u8]) -> Option<AgentWord> {
        if packet == b"i" {
            return Some(AgentWord::Interactive);
        }
        if let Some(code) = packet.strip_prefix(b"v").and_then(|code| code.try_into().ok()) {
            return Some(AgentWord::Verdict(i32::from_le_bytes(code)));
        }
        let millis = u64::from_le_bytes(packet.try_into().ok()?);
        Some(AgentWord::Grace(Duration::from_millis(millis)))
    }
}

/// A pair of connected packet sockets: the guard's end, the agent's end.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

pub(super) fn encode(word: GuardWord) -> [u8; 2] {
    let number = |signal: i32| u8::try_from(signal).unwrap_or(0);
    match word {
        GuardWord::Stop(signal) => [b's', number(signal)],
        GuardWord::KillNow => [b'k', 0],
        GuardWord::Pass(signal) => [b'p', number(signal)],
        GuardWord::Gone => [b'g', 0],
    }
}

fn decode(packet: &[u8]) -> Option<GuardWord> {
    match *packet {
        [b's', signal] => Some(GuardWord::Stop(i32::from(signal))),
        [b'k', _] => Some(GuardWord::KillNow),
        [b'p', signal] => Some(GuardWord::Pass(i32::from(signal))),
        [] | [b'g', _] => Some(GuardWord::Gone),
        _ => None,
    }
}

/// The agent's end.
#[derive(Debug)]
pub struct AgentLink {
    fd: OwnedFd,
}

impl AgentLink {
    pub(super) fn new(fd: OwnedFd) -> AgentLink {
        AgentLink { fd }
    }

    /// Tells the guard the whole stop budget, after which it no longer waits for us.
    pub fn announce_grace(&self, grace: Duration) {
        self.say(AgentWord::Grace(grace));
    }

    /// Tells the guard that a rank gets the terminal: Ctrl-C is no stop any more.
    pub fn announce_interactive(&self) {
        self.say(AgentWord::Interactive);
    }

    /// Tells the guard the exit code: from now on it waits for us only a moment.
    pub fn announce_verdict(&self, code: i32) {
        self.say(AgentWord::Verdict(code));
    }

    fn say(&self, word: AgentWord) {
        // A guard that is gone is noticed by the end of file.
        let _ = send(self.fd.as_raw_fd(), &word.encode(), MsgFlags::MSG_NOSIGNAL);
    }

    /// Turns the socket into a stream of words. Call within the runtime.
    pub fn listen(&self) -> io::Result<AgentEar> {
        let fd = self.fd.as_fd().try_clone_to_owned()?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(AgentEar { fd: crate::sys::watch(fd)? })
    }
}

/// Receives the guard's words.
#[derive(Debug)]
pub struct AgentEar {
    fd: AsyncFd<OwnedFd>,
}

impl AgentEar {
    /// The next word; after [`GuardWord::Gone`] every call gives it again. Cancel-safe.
    pub async fn hear(&self) -> GuardWord {
        let mut packet = [0u8; 16];
        loop {
            let Ok(mut ready) = self.fd.readable().await else { return GuardWord::Gone };
            let read = ready.try_io(|fd| {
                recv(fd.as_raw_fd(), &mut packet, MsgFlags::empty()).map_err(io::Error::from)
            });
            match read {
                Ok(Ok(length)) => {
                    if let Some(word) = decode(packet.get(..length).unwrap_or_default()) {
                        return word;
                    }
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return GuardWord::Gone,
                Err(_would_block) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_wire() {
        for word in [GuardWord::Stop(15), GuardWord::KillNow, GuardWord::Pass(10), GuardWord::Gone]
        {
            assert_eq!(decode(&encode(word)), Some(word));
        }
        for word in [
            AgentWord::Grace(Duration::from_millis(2500)),
            AgentWord::Interactive,
            AgentWord::Verdict(143),
        ] {
            assert_eq!(AgentWord::decode(&word.encode()), Some(word));
        }
        assert_eq!(AgentWord::decode(b""), None);
        assert_eq!(decode(b""), Some(GuardWord::Gone));
        assert_eq!(decode(b"zzz"), None);
    }
}
