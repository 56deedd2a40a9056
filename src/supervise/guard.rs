//! The guard: the one process that must outlive everything else of ours.
//!
//! PID 1 of a container or a subreaper. It counts signals and tells the agent,
//! holds the agent to its stop budget, and when the agent is gone ends what the
//! agent left. It decides nothing about the job.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::{Pid, getpgrp, setpgid};
use rustix::process::Signal as Kill;

use super::apart;
use super::budget::{EndBudget, EndStep};
use super::keeper::{Event, Keeper, Mark, Watch, number};
use super::link::{self, AgentLink, AgentWord, GuardWord};
use super::message::JOB_MARK;
use super::outcome::End;
use super::terminal::Terminal;
use crate::sys::{self, Dispositions, Fork};

/// Until the agent has said its own, the stop budget that the guard allows it.
const FIRST_GRACE: Duration = Duration::from_secs(30);
/// How long an agent that has said its verdict may take to be gone.
const LEAVE: Duration = Duration::from_secs(1);
/// How long the agent may take for the KILL that a second interrupt demands.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// The signals that mean something to a launch.
const WATCHED: [Signal; 8] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

/// Forks the agent and guards it; gives the exit code of the whole program.
///
/// `agent` runs in the child with its end of the link and the signal state that
/// the program was started with. `lost` is told of the signal that killed the agent,
/// once nothing of the job is left. Call before any thread exists.
pub fn guarded(
    agent: impl FnOnce(&AgentLink, Dispositions) -> i32,
    lost: impl Fn(i32),
) -> io::Result<i32> {
    let watch = Watch::begin(WATCHED.into_iter().collect::<SigSet>())?;
    let terminal = Terminal::of(io::stdin().as_fd(), getpgrp());
    let (ours, theirs) = link::pair()?;

    let child = match sys::fork_single_threaded()? {
        Fork::Child => {
            drop(ours);
            let inherited = watch.inherited;
            drop(watch);
            // Own group: a Ctrl-C at the terminal reaches the guard alone, which counts it.
            let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
            sys::unblock_in_this_thread(Signal::SIGCHLD);
            let link = AgentLink::new(theirs);
            let code = agent(&link, inherited);
            // A thread of ours that is stuck in a dead mount keeps this process from
            // ending. Neither the guard nor a reader of our output has to wait for it.
            apart::let_go();
            link.announce_verdict(code);
            sys::exit_now(code)
        }
        Fork::Parent { child } => child.as_raw(),
    };
    drop(theirs);
    // The agent marks its processes with its own pid.
    let mark = Mark { variable: JOB_MARK, part: format!(":{child}:") };
    let mut guard = Guard {
        keeper: watch.keep(child, mark),
        link: ours,
        terminal,
        grace: FIRST_GRACE,
        stop: None,
        kill_by: None,
        verdict: None,
        interactive: false,
        killed: None,
    };
    let code = guard.watch();
    if let Some(signal) = guard.killed {
        lost(signal);
    }
    Ok(code)
}

struct Guard {
    keeper: Keeper,
    link: OwnedFd,
    /// Ours, where there is one.
    terminal: Option<Terminal>,
    grace: Duration,
    /// First stop signal and when it came.
    stop: Option<(i32, Instant)>,
    /// After a second interrupt even an agent that hangs must be through by then.
    kill_by: Option<Instant>,
    /// What the agent said at its end, and until when it may be gone.
    verdict: Option<(i32, Instant)>,
    /// A rank has the terminal.
    interactive: bool,
    /// The signal that ended the agent, where somebody else sent it.
    killed: Option<i32>,
}

impl Guard {
    fn watch(&mut self) -> i32 {
        loop {
            let budget = EndBudget::of(self.grace);
            let whole = self.stop.map(|(_, since)| since + budget.until(EndStep::Agent));
            let leave = self.verdict.map(|(_, by)| by);
            let deadline = [whole, self.kill_by, leave].into_iter().flatten().min();
            match self.keeper.next(deadline, Some(self.link.as_fd())) {
                Event::Ended(end) => {
                    if let End::Signal(signal) = end {
                        self.killed = Some(signal);
                    }
                    return self.after_agent(end);
                }
                // It has done everything, and something that no signal ends keeps it.
                Event::Deadline if leave.is_some_and(|by| Instant::now() >= by) => {
                    self.keeper.give_up_child();
                    return self.after_agent(End::Code(self.verdict.map_or(0, |(code, _)| code)));
                }
                // The agent had its whole budget and more: it hangs, and is swept
                // with all it has started.
                Event::Deadline => return self.after_agent(End::Signal(Kill::KILL.as_raw())),
                Event::Signal(info) => self.signalled(number(&info)),
                // An end of file stays readable: the agent's SIGCHLD follows it
                // within the kernel's exit path.
                Event::Readable => self.hear_agent(),
                // Whoever stopped the agent will continue it.
                Event::Stopped(_) => {}
            }
        }
    }

    fn hear_agent(&mut self) {
        let mut packet = [0u8; 16];
        while let Ok(length) = recv(self.link.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
            match AgentWord::decode(packet.get(..length).unwrap_or_default()) {
                Some(AgentWord::Grace(grace)) => self.grace = grace,
                Some(AgentWord::Interactive) => self.interactive = true,
                Some(AgentWord::Verdict(code)) => {
                    self.verdict = Some((code, Instant::now() + LEAVE));
                }
                None => return,
            }
        }
    }

    fn signalled(&mut self, number: i32) {
        match Signal::try_from(number) {
            Ok(Signal::SIGUSR1 | Signal::SIGUSR2) => self.tell(GuardWord::Pass(number)),
            // As under plain python these are the rank's own. The agent knows
            // whether there is a rank to take them.
            Ok(Signal::SIGINT | Signal::SIGWINCH | Signal::SIGCONT) if self.interactive => {
                self.tell(GuardWord::Pass(number));
            }
            Ok(Signal::SIGWINCH | Signal::SIGCONT) => {}
            Ok(Signal::SIGINT) if self.keeper.interrupted_again() => {
                self.kill_by.get_or_insert(Instant::now() + KILL_PATIENCE);
                self.tell(GuardWord::KillNow);
            }
            _ => self.stop_by(number),
        }
    }

    /// The first signal counts; repeating it never shortens the grace.
    fn stop_by(&mut self, number: i32) {
        if self.stop.is_none() {
            self.stop = Some((number, Instant::now()));
            self.tell(GuardWord::Stop(number));
        }
    }

    fn tell(&self, word: GuardWord) {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let _ = send(self.link.as_raw_fd(), &link::encode(word), flags);
    }

    fn after_agent(&mut self, end: End) -> i32 {
        // An agent that ended by itself has swept; one that was killed has not,
        // and nobody is left who could grant its ranks a grace or take their logs.
        self.keeper.sweep(Duration::ZERO);
        if let (Some(terminal), true) = (&self.terminal, self.interactive) {
            // Its shim has done this, unless it was killed.
            terminal.take_back_from_the_dead();
        }
        match (end, self.stop) {
            (End::Signal(_), Some((signal, _))) => 128 + signal,
            _ => end.shell_code(),
        }
    }
}
