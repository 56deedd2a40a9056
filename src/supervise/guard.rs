//! The guard: the one process that must outlive everything else of ours.
//!
//! PID 1 of a container or a subreaper. It counts signals and tells the agent,
//! holds the agent to its stop budget, and when the agent is gone ends what the
//! agent left. It decides nothing about the job.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::budget::{EndBudget, EndStep, UNKILLABLE};
use super::isolate;
use super::link::{self, AgentLink, AgentReport, GuardCommand};
use super::message::JOB_MARK;
use super::outcome::End;
use super::reaper::{ChildWatch, Event, Mark, Reaper};
use super::relay::isolate_from_foreign_children;
use super::terminal::Terminal;
use super::tree;
use crate::sys::{self, Dispositions, Fork, Signal, SignalSet};

/// Until the agent has said its own, the stop budget that the guard allows it.
const FIRST_GRACE: Duration = Duration::from_secs(30);
/// How long an agent that has said its verdict may take to be gone.
const LEAVE: Duration = Duration::from_secs(1);
/// What SIGKILL is given to work after the budget of a stop is used up.
const LEAST_WAIT: Duration = Duration::from_millis(100);
/// How long the agent may take for the KILL that a second interrupt demands.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The named signals that mean something to a launch. Those after SIGWINCH have no
/// meaning of their own: by default they would end the guard, and the ranks with it at
/// once, so they are stops like TERM.
const WATCHED: [Signal; 13] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::CONT,
    Signal::WINCH,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::POWER,
];

/// An agent that was lost before it had said how the job ended.
#[derive(Debug)]
pub struct Lost {
    pub how: HowLost,
    /// What it has left with [`AgentLink::leave_will`].
    pub will: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HowLost {
    /// This signal ended it.
    Killed { signal: i32, stopped_by: Option<i32> },
    /// It did not end within the budget of a stop by this signal.
    Hung { stopped_by: i32 },
}

/// Forks the agent and guards it; gives the exit code of the whole program.
///
/// `agent` runs in the child with its end of the link and the signal state that
/// the program was started with. `lost` speaks in place of an agent that was lost before
/// it did, and gives the exit code. Call before any thread exists.
pub fn guarded(
    agent: impl FnOnce(&AgentLink, Dispositions) -> i32,
    lost: impl Fn(&Lost) -> i32,
) -> io::Result<i32> {
    // The agent ends the job when its guard is gone.
    if let Some(code) = isolate_from_foreign_children(Signal::KILL)? {
        return Ok(code);
    }
    let watch = ChildWatch::begin(SignalSet::and_real_time(&WATCHED))?;
    // `ulimit -f` would end the agent with its first long log file. Ignored, the write
    // fails with EFBIG, as on a full disk; the ranks get it back as it was.
    sys::ignore(&[Signal::XFSZ]);
    let terminal = Terminal::of(io::stdin().as_fd(), sys::own_group());
    let (ours, theirs) = link::pair()?;

    let child = match sys::fork_single_threaded()? {
        Fork::Child => {
            drop(ours);
            let inherited = watch.inherited;
            drop(watch);
            // Own group: a Ctrl-C at the terminal reaches the guard alone, which counts it.
            let _ = sys::new_group();
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
            sys::unblock_in_this_thread(Signal::CHILD);
            let link = AgentLink::new(theirs);
            let code = agent(&link, inherited);
            // A thread of ours that is stuck in a dead mount keeps this process from
            // ending. Neither the guard nor a reader of our output has to wait for it.
            isolate::detach_stdio();
            let left = tree::living_below();
            if !left.is_empty() {
                link.announce_left(left);
            }
            link.announce_verdict(code);
            sys::exit_now(code)
        }
        Fork::Parent { child } => child,
    };
    drop(theirs);
    // The agent marks its processes with its own pid.
    let mark = Mark { variable: JOB_MARK, part: format!(":{child}:") };
    let mut guard = Guard {
        reaper: watch.keep(child, mark),
        link: ours,
        terminal,
        grace: FIRST_GRACE,
        stop: None,
        kill_by: None,
        said: None,
        verdict: None,
        interactive: false,
        will: None,
    };
    let over = guard.watch();
    Ok(guard.after_agent(over, lost))
}

/// How the watch over the agent ended.
enum Over {
    /// By itself, or it said its verdict and cannot end.
    Code(i32),
    Lost(HowLost),
}

struct Guard {
    reaper: Reaper,
    link: OwnedFd,
    /// Ours, where there is one.
    terminal: Option<Terminal>,
    grace: Duration,
    /// First stop signal and when it came.
    stop: Option<(i32, Instant)>,
    /// After a second interrupt even an agent that hangs must be through by then.
    kill_by: Option<Instant>,
    /// The exit code, once the agent has told people all that matters.
    said: Option<i32>,
    /// What the agent said at its end, and until when it may be gone.
    verdict: Option<(i32, Instant)>,
    /// A rank has the terminal.
    interactive: bool,
    will: Option<Vec<u8>>,
}

impl Guard {
    fn watch(&mut self) -> Over {
        loop {
            let budget = EndBudget::of(self.grace);
            let whole = self.stop.map(|(_, since)| since + budget.until(EndStep::Agent));
            let leave = self.verdict.map(|(_, by)| by);
            let deadline = [whole, self.kill_by, leave].into_iter().flatten().min();
            match self.reaper.next(deadline, Some(self.link.as_fd())) {
                Event::Ended(End::Code(code)) => {
                    // The agent's last words are in the socket, unless they were read.
                    self.read_agent();
                    return Over::Code(code);
                }
                Event::Ended(End::Signal(signal)) => {
                    self.read_agent();
                    let stopped_by = self.stop.map(|(signal, _)| signal);
                    return Over::Lost(HowLost::Killed { signal, stopped_by });
                }
                // It has done everything, and something that no signal ends keeps it.
                Event::Deadline if leave.is_some_and(|by| Instant::now() >= by) => {
                    self.reaper.give_up_child();
                    return Over::Code(self.verdict.map_or(0, |(code, _)| code));
                }
                // The agent had its whole budget and more: it hangs, and is swept
                // with all it has started.
                Event::Deadline => {
                    let stopped_by = self.stop.map_or(Signal::INT.as_raw(), |(signal, _)| signal);
                    return Over::Lost(HowLost::Hung { stopped_by });
                }
                Event::Signal(taken) => self.signalled(taken.number),
                // An end of file stays readable: the agent's SIGCHLD follows it
                // within the kernel's exit path.
                Event::Readable => self.read_agent(),
                // Whoever stopped the agent will continue it.
                Event::Stopped(_) => {}
            }
        }
    }

    fn read_agent(&mut self) {
        let mut packet = [0u8; link::LONGEST];
        while let Ok((length, _)) = recv(&self.link, &mut packet, RecvFlags::DONTWAIT) {
            match AgentReport::decode(packet.get(..length).unwrap_or_default()) {
                Some(AgentReport::Grace(grace)) => self.grace = grace,
                Some(AgentReport::Interactive) => self.interactive = true,
                Some(AgentReport::Said(code)) => self.said = Some(code),
                Some(AgentReport::Left(pids)) => self.reaper.leave_behind(&pids),
                Some(AgentReport::Will(will)) => self.will = Some(will),
                Some(AgentReport::Verdict(code)) => {
                    self.verdict = Some((code, Instant::now() + LEAVE));
                }
                None => return,
            }
        }
    }

    fn signalled(&mut self, number: i32) {
        match Signal::from_named_raw(number) {
            Some(Signal::USR1 | Signal::USR2) => self.tell(GuardCommand::Pass(number)),
            // As under plain python these are the rank's own. The agent knows
            // whether there is a rank to take them.
            Some(Signal::INT | Signal::WINCH | Signal::CONT) if self.interactive => {
                self.tell(GuardCommand::Pass(number));
            }
            Some(Signal::WINCH | Signal::CONT) => {}
            Some(Signal::INT) if self.reaper.interrupted_again() => {
                self.kill_by.get_or_insert(Instant::now() + KILL_TIMEOUT);
                self.tell(GuardCommand::KillNow);
            }
            // Real-time: a program's own, whatever it means by it.
            None => self.tell(GuardCommand::Pass(number)),
            Some(_) => self.stop_by(number),
        }
    }

    /// The first signal counts; repeating it never shortens the grace.
    fn stop_by(&mut self, number: i32) {
        if self.stop.is_none() {
            self.stop = Some((number, Instant::now()));
            self.tell(GuardCommand::Stop(number));
        }
    }

    fn tell(&self, word: GuardCommand) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = send(&self.link, &link::encode(word), flags);
    }

    fn after_agent(mut self, over: Over, lost: impl Fn(&Lost) -> i32) -> i32 {
        // An agent that ended by itself has swept; one that was killed has not,
        // and nobody is left who could grant its ranks a grace or take their logs.
        let last_wait = self.stop.map_or(UNKILLABLE, |(_, since)| {
            UNKILLABLE.min(self.grace.saturating_sub(since.elapsed())).max(LEAST_WAIT)
        });
        let (said, will) = (self.said, self.will.take());
        let speak = |how| said.unwrap_or_else(|| lost(&Lost { how, will }));
        let code = match over {
            // The time is used up: what people read comes before what may take long.
            Over::Lost(how @ HowLost::Hung { .. }) => {
                let code = speak(how);
                self.reaper.sweep(Duration::ZERO, last_wait);
                code
            }
            Over::Lost(how) => {
                self.reaper.sweep(Duration::ZERO, last_wait);
                speak(how)
            }
            Over::Code(code) => {
                self.reaper.sweep(Duration::ZERO, last_wait);
                code
            }
        };
        if let (Some(terminal), true) = (&self.terminal, self.interactive) {
            // Its shim has done this, unless it was killed.
            terminal.take_back_from_the_dead();
        }
        code
    }
}
