//! The socket between guard and agent. Each learns of the other's death by its end of file.
//! (Parent-death signals are bound to threads and lost on re-parenting, so they cannot serve.)

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::unix::AsyncFd;

use linux::sys::Signal;
use verdict::outcome::Halt;

/// Guard → agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuardCommand {
    /// The first stop signal.
    Stop(i32),
    /// Stop at once: a second Ctrl-C.
    KillNow,
    /// A signal for every rank: USR1, USR2, and those of the terminal if a rank has it.
    Pass(i32),
    /// The guard is lost.
    Gone,
}

impl GuardCommand {
    /// The halt that a command asks for. None for a command that concerns ranks only.
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentReport {
    /// The whole stop budget, after which the guard no longer waits for the agent.
    Grace(Duration),
    /// A rank has the terminal from now on: its Ctrl-C belongs to that rank, and is no stop.
    Interactive,
    /// The agent draws a line at the end of the terminal, which must go when the agent is lost or
    /// the job is suspended.
    StatusLine,
    /// Closing block and termination message are written. If the agent hangs or is killed after
    /// that, this exit code is final and nothing more is printed.
    Reported(i32),
    /// Everything is done; this is the exit code. From now on the guard waits only a moment.
    Verdict(i32),
    /// These processes outlived SIGKILL, and this was reported, so the guard does not wait for them.
    Left(Vec<i32>),
    /// Settings that a report for a lost agent needs; opaque to the guard.
    ReportSettings(Value),
    /// The agent runs although the kernel has counted so many kills for memory, so that none of
    /// these kills was its own.
    Outlived(u64),
    /// The agent runs. Unless it says so again within this time, other nodes may go on without this one, so its ranks must
    /// have ended by then. None: its ranks have ended.
    Runs(Option<Duration>),
}

/// The longest packet of the guard, in bytes.
const LONGEST_COMMAND: usize = 64;

/// The longest packet of the agent, in bytes.
pub(super) const LONGEST: usize = 32 << 10;

/// A pair of connected packet sockets: the guard's end, the agent's end.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// A packet of either end.
pub(super) fn encode(word: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(word).unwrap_or_default()
}

/// A packet of the guard, or the end of file.
fn decode(packet: &[u8]) -> Option<GuardCommand> {
    if packet.is_empty() { Some(GuardCommand::Gone) } else { serde_json::from_slice(packet).ok() }
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

    /// Tells the guard something. A report above 32 KiB is not sent.
    pub fn say(&self, report: &AgentReport) {
        let packet = encode(report);
        if packet.len() <= LONGEST {
            // The loss of the guard is noticed by the end of file.
            let _ = send(&self.fd, &packet, SendFlags::NOSIGNAL);
        }
    }

    /// Turns the socket into a stream of commands. Call within the runtime.
    /// `taker` is asked about each signal for the ranks; one that it takes is not passed on.
    pub fn listen(
        &self,
        taker: impl Fn(i32) -> bool + Send + Sync + 'static,
    ) -> io::Result<GuardCommands> {
        let fd = self.fd.as_fd().try_clone_to_owned()?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(GuardCommands { fd: linux::sys::watch(fd)?, taker: Box::new(taker) })
    }
}

/// Receives the guard's commands.
pub struct GuardCommands {
    fd: AsyncFd<OwnedFd>,
    taker: Taker,
}

impl fmt::Debug for GuardCommands {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("GuardCommands").field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// Takes the number of a signal that would be passed on to the ranks. Whether it has another meaning.
type Taker = Box<dyn Fn(i32) -> bool + Send + Sync>;

impl GuardCommands {
    /// The next command; after [`GuardCommand::Gone`] every call gives it again. Cancel-safe.
    pub async fn next(&self) -> GuardCommand {
        let mut packet = [0u8; LONGEST_COMMAND];
        loop {
            let Ok(mut ready) = self.fd.readable().await else { return GuardCommand::Gone };
            let read = ready
                .try_io(|fd| recv(fd, &mut packet, RecvFlags::empty()).map_err(io::Error::from));
            match read {
                Ok(Ok((length, _))) => match decode(packet.get(..length).unwrap_or_default()) {
                    Some(GuardCommand::Pass(number)) if (self.taker)(number) => {}
                    Some(word) => return word,
                    None => {}
                },
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
    fn rankless_phase_ends_on_stop_or_guard_loss() {
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
    fn guard_and_agent_messages_round_trip() {
        for word in [
            GuardCommand::Stop(15),
            GuardCommand::KillNow,
            GuardCommand::Pass(i32::MIN),
            GuardCommand::Gone,
        ] {
            assert!(encode(&word).len() <= LONGEST_COMMAND);
            assert_eq!(decode(&encode(&word)), Some(word));
        }
        for word in [
            AgentReport::Grace(Duration::from_millis(2500)),
            AgentReport::Interactive,
            AgentReport::Reported(92),
            AgentReport::Verdict(143),
            AgentReport::Left(vec![7, 1 << 20]),
            AgentReport::Left(vec![]),
            AgentReport::ReportSettings(serde_json::json!({"lang": "en"})),
            AgentReport::Outlived(u64::MAX),
        ] {
            assert_eq!(serde_json::from_slice(&encode(&word)).ok(), Some(word));
        }
        assert!(serde_json::from_slice::<AgentReport>(b"").is_err());
        assert_eq!(decode(b""), Some(GuardCommand::Gone));
        assert_eq!(decode(b"zzz"), None);
    }
}
