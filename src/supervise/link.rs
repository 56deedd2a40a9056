//! The socket between guard and agent. Each learns of the other's death by its end of file.
//! (Parent-death signals are bound to threads and lost on re-parenting, so they cannot serve.)

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use tokio::io::unix::AsyncFd;

use linux::deadline::millis;
use linux::sys::Signal;
use verdict::outcome::Halt;

/// Guard → agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AgentReport {
    /// The whole stop budget.
    Grace(Duration),
    /// A rank has the terminal from now on, and its Ctrl-C belongs to that rank.
    Interactive,
    /// The agent draws a line at the end of the terminal, which must go when the agent is lost or
    /// the job is suspended.
    StatusLine,
    /// Closing block and termination message are written, so this exit code is final even if the
    /// agent is lost.
    Reported(i32),
    /// Everything is done; this is the exit code.
    Verdict(i32),
    /// These processes outlived SIGKILL, and this was reported.
    Left(Vec<i32>),
    /// Settings that a report for a lost agent needs; opaque to the guard.
    ReportSettings(Vec<u8>),
    /// The kernel's count of kills for memory that the agent has outlived.
    Outlived(u64),
}

/// The longest packet of the agent, in bytes.
pub(super) const LONGEST: usize = 16 << 10;

impl AgentReport {
    fn encode(&self) -> Vec<u8> {
        let word = |kind: u8, rest: &[u8]| [&[kind], rest].concat();
        match self {
            AgentReport::Grace(grace) => word(b'g', &millis(*grace).to_le_bytes()),
            AgentReport::Interactive => word(b'i', &[]),
            AgentReport::StatusLine => word(b't', &[]),
            AgentReport::Reported(code) => word(b's', &code.to_le_bytes()),
            AgentReport::Verdict(code) => word(b'v', &code.to_le_bytes()),
            AgentReport::Left(pids) => {
                let bytes: Vec<u8> =
                    pids.iter().take(LONGEST / 8).flat_map(|pid| pid.to_le_bytes()).collect();
                word(b'l', &bytes)
            }
            AgentReport::ReportSettings(report_settings) => word(b'w', report_settings),
            AgentReport::Outlived(count) => word(b'o', &count.to_le_bytes()),
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
            b't' => AgentReport::StatusLine,
            b's' => AgentReport::Reported(number()?),
            b'v' => AgentReport::Verdict(number()?),
            b'l' => AgentReport::Left(
                rest.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect(),
            ),
            b'w' => AgentReport::ReportSettings(rest.to_vec()),
            b'o' => AgentReport::Outlived(u64::from_le_bytes(rest.try_into().ok()?)),
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

    /// Tells the guard that a rank gets the terminal, so that Ctrl-C is no longer a stop.
    pub fn announce_interactive(&self) {
        self.say(AgentReport::Interactive);
    }

    /// Tells the guard that this agent draws a line at the end of the terminal.
    pub fn announce_status_line(&self) {
        self.say(AgentReport::StatusLine);
    }

    /// Tells the guard the exit code. From now on it waits for us only a moment.
    pub(crate) fn announce_verdict(&self, code: i32) {
        self.say(AgentReport::Verdict(code));
    }

    /// Tells the guard that closing block and termination message are written, with the exit code.
    /// If this process hangs or is killed after that, the code is final and nothing more is
    /// printed.
    pub fn announce_reported(&self, code: i32) {
        self.say(AgentReport::Reported(code));
    }

    /// Sends the guard the settings for a report about this agent, if it is killed. At most 16 KiB;
    /// a longer message is not sent.
    pub fn send_report_settings(&self, report_settings: &[u8]) {
        if report_settings.len() < LONGEST {
            self.say(AgentReport::ReportSettings(report_settings.to_vec()));
        }
    }

    /// Tells the guard that this process runs although the kernel has counted so many kills for
    /// memory, so that none of these kills was its own.
    pub fn announce_outlived(&self, count: u64) {
        self.say(AgentReport::Outlived(count));
    }

    /// Tells the guard of processes that outlived SIGKILL, so that it does not wait for them.
    pub(super) fn announce_left(&self, pids: Vec<i32>) {
        self.say(AgentReport::Left(pids));
    }

    fn say(&self, word: AgentReport) {
        // The loss of the guard is noticed by the end of file.
        let _ = send(&self.fd, &word.encode(), SendFlags::NOSIGNAL);
    }

    /// Turns the socket into a stream of commands. Call within the runtime.
    pub fn listen(&self) -> io::Result<GuardCommands> {
        let fd = self.fd.as_fd().try_clone_to_owned()?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(GuardCommands { fd: linux::sys::watch(fd)? })
    }
}

/// Receives the guard's commands.
#[derive(Debug)]
pub struct GuardCommands {
    fd: AsyncFd<OwnedFd>,
}

impl GuardCommands {
    /// The next command; after [`GuardCommand::Gone`] every call gives it again. Cancel-safe.
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
            GuardCommand::Pass(10),
            GuardCommand::Gone,
        ] {
            assert_eq!(decode(&encode(word)), Some(word));
        }
        for word in [
            AgentReport::Grace(Duration::from_millis(2500)),
            AgentReport::Interactive,
            AgentReport::Reported(92),
            AgentReport::Verdict(143),
            AgentReport::Left(vec![7, 1 << 20]),
            AgentReport::Left(vec![]),
            AgentReport::ReportSettings(b"{}".to_vec()),
            AgentReport::Outlived(u64::MAX),
        ] {
            assert_eq!(AgentReport::decode(&word.encode()), Some(word));
        }
        assert_eq!(AgentReport::decode(b""), None);
        assert_eq!(decode(b""), Some(GuardCommand::Gone));
        assert_eq!(decode(b"zzz"), None);
    }
}
