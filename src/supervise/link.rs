//! The socket between guard and agent; its end of file is how each learns of
//! the other's death. (Parent-death signals are bound to threads and lost on
//! re-parenting, so they cannot serve.)

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use tokio::io::unix::AsyncFd;

use crate::sys::Signal;

/// Guard → agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardCommand {
    /// The first signal that asks us to stop.
    Stop(i32),
    /// Stop at once: a second Ctrl-C.
    KillNow,
    /// For every rank: USR1, USR2, and what belongs to a rank that has the terminal.
    Pass(i32),
    /// The guard is gone.
    Gone,
}

/// What ends a phase in which no rank runs: a stop from outside, or the loss of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    Signal(i32),
    GuardGone,
}

impl GuardCommand {
    /// None: no rank is there to take what it passes on.
    pub fn halt(self) -> Option<Halt> {
        match self {
            GuardCommand::Stop(signal) => Some(Halt::Signal(signal)),
            GuardCommand::KillNow => Some(Halt::Signal(Signal::KILL.as_raw())),
            GuardCommand::Gone => Some(Halt::GuardGone),
            GuardCommand::Pass(_) => None,
        }
    }
}

/// Agent → guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AgentReport {
    /// The whole stop budget.
    Grace(Duration),
    /// A rank has the terminal from now on, and what is typed there is its own.
    Interactive,
    /// Closing block and termination message are written; this is the exit code,
    /// whatever becomes of the agent from now on.
    Said(i32),
    /// All is done and said; this is the exit code.
    Verdict(i32),
    /// These outlived SIGKILL, and who has to know it was told.
    Left(Vec<i32>),
    /// What whoever speaks for a lost agent needs; nothing that the guard understands.
    Will(Vec<u8>),
}

/// The longest word of the agent, in bytes.
pub(super) const LONGEST: usize = 16 << 10;

impl AgentReport {
    fn encode(&self) -> Vec<u8> {
        let word = |kind: u8, rest: &[u8]| [&[kind], rest].concat();
        match self {
            AgentReport::Grace(grace) => {
                word(b'g', &u64::try_from(grace.as_millis()).unwrap_or(u64::MAX).to_le_bytes())
            }
            AgentReport::Interactive => word(b'i', &[]),
            AgentReport::Said(code) => word(b's', &code.to_le_bytes()),
            AgentReport::Verdict(code) => word(b'v', &code.to_le_bytes()),
            AgentReport::Left(pids) => {
                let bytes: Vec<u8> =
                    pids.iter().take(LONGEST / 8).flat_map(|pid| pid.to_le_bytes()).collect();
                word(b'l', &bytes)
            }
            AgentReport::Will(will) => word(b'w', will),
        }
    }

    pub(super) fn decode(packet: &[u8]) -> Option<AgentReport> {
        let (kind, rest) = packet.split_first()?;
        let number = || Some(i32::from_le_bytes(rest.try_into().ok()?));
        Some(match kind {
            b'g' => {
                AgentReport::Grace(Duration::from_millis(u64::from_le_bytes(rest.try_into().ok()?)))
            }
            b'i' => AgentReport::Interactive,
            b's' => AgentReport::Said(number()?),
            b'v' => AgentReport::Verdict(number()?),
            b'l' => AgentReport::Left(
                rest.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect(),
            ),
            b'w' => AgentReport::Will(rest.to_vec()),
            _ => return None,
        })
    }
}

/// A pair of connected packet sockets: the guard's end, the agent's end.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

pub(super) fn encode(word: GuardCommand) -> [u8; 2] {
    let number = |signal: i32| u8::try_from(signal).unwrap_or(0);
    match word {
        GuardCommand::Stop(signal) => [b's', number(signal)],
        GuardCommand::KillNow => [b'k', 0],
        GuardCommand::Pass(signal) => [b'p', number(signal)],
        GuardCommand::Gone => [b'g', 0],
    }
}

fn decode(packet: &[u8]) -> Option<GuardCommand> {
    match *packet {
        [b's', signal] => Some(GuardCommand::Stop(i32::from(signal))),
        [b'k', _] => Some(GuardCommand::KillNow),
        [b'p', signal] => Some(GuardCommand::Pass(i32::from(signal))),
        [] | [b'g', _] => Some(GuardCommand::Gone),
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
        self.say(AgentReport::Grace(grace));
    }

    /// Tells the guard that a rank gets the terminal: Ctrl-C is no stop any more.
    pub fn announce_interactive(&self) {
        self.say(AgentReport::Interactive);
    }

    /// Tells the guard the exit code: from now on it waits for us only a moment.
    pub fn announce_verdict(&self, code: i32) {
        self.say(AgentReport::Verdict(code));
    }

    /// Tells the guard that closing block and termination message are written, with the
    /// exit code: should this process hang or be killed from now on, that code stands and
    /// nothing more is said.
    pub fn announce_said(&self, code: i32) {
        self.say(AgentReport::Said(code));
    }

    /// Leaves with the guard what whoever speaks for us needs, should we be killed.
    /// At most 16 KiB; a longer one is not left.
    pub fn leave_will(&self, will: &[u8]) {
        if will.len() < LONGEST {
            self.say(AgentReport::Will(will.to_vec()));
        }
    }

    /// Tells the guard of processes that nobody can end: it does not wait for them.
    pub(super) fn announce_left(&self, pids: Vec<i32>) {
        self.say(AgentReport::Left(pids));
    }

    fn say(&self, word: AgentReport) {
        // A guard that is gone is noticed by the end of file.
        let _ = send(&self.fd, &word.encode(), SendFlags::NOSIGNAL);
    }

    /// Turns the socket into a stream of words. Call within the runtime.
    pub fn listen(&self) -> io::Result<GuardCommands> {
        let fd = self.fd.as_fd().try_clone_to_owned()?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(GuardCommands { fd: crate::sys::watch(fd)? })
    }
}

/// Receives the guard's words.
#[derive(Debug)]
pub struct GuardCommands {
    fd: AsyncFd<OwnedFd>,
}

impl GuardCommands {
    /// The next word; after [`GuardCommand::Gone`] every call gives it again. Cancel-safe.
    pub async fn next(&self) -> GuardCommand {
        let mut packet = [0u8; 16];
        loop {
            let Ok(mut ready) = self.fd.readable().await else { return GuardCommand::Gone };
            let read = ready
                .try_io(|fd| recv(fd, &mut packet, RecvFlags::empty()).map_err(io::Error::from));
            match read {
                Ok(Ok((length, _))) => {
                    if let Some(word) = decode(packet.get(..length).unwrap_or_default()) {
                        return word;
                    }
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return GuardCommand::Gone,
                Err(_would_block) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_without_ranks_ends_by_a_stop_or_with_the_guard() {
        for (word, halt) in [
            (GuardCommand::Stop(15), Some(Halt::Signal(15))),
            (GuardCommand::KillNow, Some(Halt::Signal(9))),
            (GuardCommand::Gone, Some(Halt::GuardGone)),
            (GuardCommand::Pass(10), None),
        ] {
            assert_eq!(word.halt(), halt);
        }
    }

    #[test]
    fn words_survive_the_wire() {
        for word in [
            GuardCommand::Stop(15),
            GuardCommand::KillNow,
            GuardCommand::Pass(10),
            GuardCommand::Gone,
        ] {
            assert_eq!(decode(&encode(word)), Some(word));
        }
        for word in [
            AgentReport::Grace(Duration::from_millis(2500)),
            AgentReport::Interactive,
            AgentReport::Said(92),
            AgentReport::Verdict(143),
            AgentReport::Left(vec![7, 1 << 20]),
            AgentReport::Left(vec![]),
            AgentReport::Will(b"{}".to_vec()),
        ] {
            assert_eq!(AgentReport::decode(&word.encode()), Some(word));
        }
        assert_eq!(AgentReport::decode(b""), None);
        assert_eq!(decode(b""), Some(GuardCommand::Gone));
        assert_eq!(decode(b"zzz"), None);
    }
}
