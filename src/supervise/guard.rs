//! The guard: the process that must outlive all others of ours.
//!
//! It is PID 1 of a container or a subreaper. It takes signals and forwards them to the agent,
//! enforces the agent's stop budget, and after the agent's end kills what is left. It gives the
//! exit code of the program, and decides nothing about the job.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde_json::Value;

use super::budget::{EndBudget, EndStep, UNKILLABLE};
use super::isolate::{self, isolate_from_foreign_children};
use super::link::{self, AgentLink, AgentReport, GuardCommand};
use super::reaper::{ChildEvent, ChildWatch, ProcessMark, Reaper};
use super::terminal::Terminal;
use super::tree;
use linux::procfs::JOB_MARK;
use linux::sys::{self, Dispositions, Fork, ProcessGroup, Signal, SignalSet};
use linux::terminal;
use verdict::outcome::End;

/// The stop budget before the agent has announced its own.
const FIRST_GRACE: Duration = Duration::from_secs(30);
/// Time limit for the agent to end after it has sent its verdict.
const LEAVE: Duration = Duration::from_secs(1);
/// Another moment for an agent that is late to say that it runs.
const AGAIN: Duration = Duration::from_secs(2);
/// Time for SIGKILL to take effect after the budget of a stop is used up.
const LEAST_WAIT: Duration = Duration::from_millis(100);
/// Time limit for the agent to kill the ranks after a second interrupt.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The signals that the guard handles. SIGTSTP stops it as it would by default. The signals after SIGWINCH have no
/// special meaning here. By default they would kill the guard and all ranks at once, so they are stops like TERM.
const WATCHED: [Signal; 14] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::CONT,
    Signal::TSTP,
    Signal::WINCH,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::POWER,
];

/// An agent that was lost before it had reported how the job ended.
#[derive(Debug)]
pub struct LostAgent {
    pub how: HowLost,
    pub at: Instant,
    /// Settings that the agent sent as [`AgentReport::ReportSettings`].
    pub report_settings: Option<Value>,
    /// The last count that the agent sent as [`AgentReport::Outlived`].
    pub outlived: Option<Outlived>,
}

/// The kernel's count of kills for memory that the agent has outlived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outlived {
    pub count: u64,
    /// Time at which the agent reported a higher count; None if it never rose.
    pub rose: Option<Instant>,
}

impl Outlived {
    fn then(before: Option<Outlived>, count: u64) -> Outlived {
        let rose = match before {
            Some(before) if count > before.count => Some(Instant::now()),
            Some(before) => before.rose,
            None => None,
        };
        Outlived { count, rose }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HowLost {
    /// The agent was ended by this signal.
    Killed { signal: i32, stopped_by: Option<i32> },
    /// The agent did not end within the budget of a stop by this signal.
    Hung { stopped_by: i32 },
    /// The agent stood still for so long that other nodes may go on without this one.
    Still,
}

/// Forks the agent and guards it. Gives the exit code of the program.
///
/// `agent` runs in the child with its end of the link and the signal state with which the
/// program was started. `lost` reports in place of an agent that was lost before its own report,
/// and gives the exit code. Call before any thread exists.
pub fn guarded(
    agent: impl FnOnce(&AgentLink, Dispositions) -> i32,
    lost: impl Fn(&LostAgent) -> i32,
) -> io::Result<i32> {
    // The agent ends the job if it loses its guard.
    if let Some(code) = isolate_from_foreign_children(Signal::KILL)? {
        return Ok(code);
    }
    let watch = ChildWatch::begin(SignalSet::and_real_time(&WATCHED))?;
    // With `ulimit -f` SIGXFSZ would kill the agent at its first long log file. If it is
    // ignored, the write fails with EFBIG, as on a full disk. The ranks get the original
    // disposition.
    Dispositions::ignore(&[Signal::XFSZ]);
    let terminal = Terminal::of(io::stdin().as_fd(), ProcessGroup::own());
    let (ours, theirs) = link::pair()?;

    let child = match Fork::single_threaded()? {
        Fork::Child => {
            drop(ours);
            let inherited = watch.inherited;
            drop(watch);
            // A group of its own, so that Ctrl-C at the terminal reaches only the guard, which
            // counts it.
            let _ = ProcessGroup::begin();
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
            sys::unblock_in_this_thread(Signal::CHILD);
            let link = AgentLink::new(theirs);
            let code = agent(&link, inherited);
            // A thread that is stuck in a dead mount keeps this process alive. Neither the guard
            // nor a reader of our output may wait for that.
            isolate::detach_stdio();
            let mut left = tree::living_below();
            left.truncate(link::LONGEST / 16);
            if !left.is_empty() {
                link.say(&AgentReport::Left(left));
            }
            link.say(&AgentReport::Verdict(code));
            sys::exit_now(code)
        }
        Fork::Parent { child } => child,
    };
    drop(theirs);
    // The processes of the job carry the agent's own pid in their mark.
    let mark = ProcessMark { variable: JOB_MARK, part: format!(":{child}:") };
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
        status_line: false,
        report_settings: None,
        outlived: None,
        runs_until: None,
        was_late: false,
    };
    let over = guard.watch();
    Ok(guard.after_agent(over, lost))
}

/// The outcome of watching the agent.
enum AgentEnd {
    /// The agent ended by itself, or it sent its verdict and cannot end.
    Code(i32),
    Lost(HowLost),
}

struct Guard {
    reaper: Reaper,
    link: OwnedFd,
    /// Our terminal, if there is one.
    terminal: Option<Terminal>,
    grace: Duration,
    /// The first stop signal and its time.
    stop: Option<(i32, Instant)>,
    /// After a second interrupt, the time by which the agent must have ended.
    kill_by: Option<Instant>,
    /// The exit code, once the closing block and the termination message are written.
    said: Option<i32>,
    /// The agent's verdict, and the time by which it must have ended.
    verdict: Option<(i32, Instant)>,
    /// A rank has the terminal.
    interactive: bool,
    /// The agent draws a line at the end of the terminal.
    status_line: bool,
    report_settings: Option<Value>,
    outlived: Option<Outlived>,
    /// The time by which the agent must say again that it runs; later it has another moment, since this process may have
    /// stood still as well.
    runs_until: Option<Instant>,
    was_late: bool,
}

impl Guard {
    fn watch(&mut self) -> AgentEnd {
        loop {
            let budget = EndBudget::of(self.grace);
            let whole = self.stop.map(|(_, since)| since + budget.until(EndStep::Agent));
            let leave = self.verdict.map(|(_, by)| by);
            let ends = [whole, self.kill_by, leave, self.runs_until];
            let deadline = ends.into_iter().flatten().min();
            match self.reaper.next(deadline, Some(self.link.as_fd())) {
                ChildEvent::Ended(End::Code(code)) => {
                    // The agent's last packets may still be in the socket.
                    self.read_agent();
                    return AgentEnd::Code(code);
                }
                ChildEvent::Ended(End::Signal(signal)) => {
                    self.read_agent();
                    let stopped_by = self.stop.map(|(signal, _)| signal);
                    return AgentEnd::Lost(HowLost::Killed { signal, stopped_by });
                }
                // The agent has done everything, and a thread that no signal ends keeps it alive.
                ChildEvent::Deadline if leave.is_some_and(|by| Instant::now() >= by) => {
                    self.reaper.given_up = true;
                    return AgentEnd::Code(self.verdict.map_or(0, |(code, _)| code));
                }
                ChildEvent::Deadline if self.runs_until.is_some_and(|by| Instant::now() >= by) => {
                    if std::mem::replace(&mut self.was_late, true) {
                        return AgentEnd::Lost(HowLost::Still);
                    }
                    self.runs_until = Some(Instant::now() + AGAIN);
                }
                // The agent exceeded its whole budget: it hangs, and is killed with everything
                // that it started.
                ChildEvent::Deadline => {
                    let stopped_by = self.stop.map_or(Signal::INT.as_raw(), |(signal, _)| signal);
                    return AgentEnd::Lost(HowLost::Hung { stopped_by });
                }
                ChildEvent::Signal(taken) => self.signalled(taken.number),
                // At end of file the socket stays readable; the agent's SIGCHLD follows within
                // the kernel's exit path.
                ChildEvent::Readable => self.read_agent(),
                // A stopped agent is left to be continued by the same source.
                ChildEvent::Stopped(_) => {}
            }
        }
    }

    fn read_agent(&mut self) {
        let mut packet = [0u8; link::LONGEST];
        while let Ok((length, _)) = recv(&self.link, &mut packet, RecvFlags::DONTWAIT) {
            let Ok(report) = serde_json::from_slice(packet.get(..length).unwrap_or_default())
            else {
                return;
            };
            match report {
                AgentReport::Grace(grace) => self.grace = grace,
                AgentReport::Interactive => self.interactive = true,
                AgentReport::StatusLine => self.status_line = true,
                AgentReport::Reported(code) => self.said = Some(code),
                AgentReport::Left(pids) => self.reaper.leave_behind(&pids),
                AgentReport::ReportSettings(settings) => self.report_settings = Some(settings),
                AgentReport::Outlived(count) => {
                    self.outlived = Some(Outlived::then(self.outlived, count));
                }
                AgentReport::Runs(limit) => {
                    self.runs_until = limit.map(|limit| Instant::now() + limit);
                    self.was_late = false;
                }
                AgentReport::Verdict(code) => self.verdict = Some((code, Instant::now() + LEAVE)),
            }
        }
    }

    fn signalled(&mut self, number: i32) {
        match Signal::from_named_raw(number) {
            Some(Signal::USR1 | Signal::USR2) => self.tell(GuardCommand::Pass(number)),
            // These signals belong to the rank, as under plain python. The agent knows whether a rank runs.
            Some(Signal::INT | Signal::WINCH | Signal::CONT) if self.interactive => {
                self.tell(GuardCommand::Pass(number));
            }
            Some(Signal::WINCH | Signal::CONT) => {}
            Some(Signal::TSTP) => self.suspended(),
            Some(Signal::INT) if self.reaper.interrupted_again() => {
                self.kill_by.get_or_insert(Instant::now() + KILL_TIMEOUT);
                self.tell(GuardCommand::KillNow);
            }
            // Real-time signals: their meaning is the program's own.
            None => self.tell(GuardCommand::Pass(number)),
            Some(_) => self.stop_by(number),
        }
    }

    /// Stops this process as the signal does by default, and returns when it was continued. The
    /// shell writes its prompt where the agent's last line is.
    fn suspended(&self) {
        if self.status_line {
            terminal::erase_for_agent();
        }
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TSTP);
        sys::stop_by(Signal::TSTP);
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
        let _ = send(&self.link, &link::encode(&word), flags);
    }

    fn after_agent(mut self, over: AgentEnd, lost: impl Fn(&LostAgent) -> i32) -> i32 {
        // An agent that ended by itself has already swept. If it was killed, nothing captures the output of its ranks
        // any more, so they get no grace period.
        let last_wait = self.stop.map_or(UNKILLABLE, |(_, since)| {
            UNKILLABLE.min(self.grace.saturating_sub(since.elapsed())).max(LEAST_WAIT)
        });
        if self.status_line && matches!(over, AgentEnd::Lost(_)) {
            terminal::erase_for_agent();
        }
        let (said, report_settings) = (self.said, self.report_settings.take());
        let (at, outlived) = (Instant::now(), self.outlived);
        let speak =
            |how| said.unwrap_or_else(|| lost(&LostAgent { how, at, report_settings, outlived }));
        let code = match over {
            // The time is used up, so the report comes before the sweep, which may take long.
            AgentEnd::Lost(how @ (HowLost::Hung { .. } | HowLost::Still)) => {
                let code = speak(how);
                self.reaper.sweep(Duration::ZERO, last_wait);
                code
            }
            AgentEnd::Lost(how) => {
                self.reaper.sweep(Duration::ZERO, last_wait);
                speak(how)
            }
            AgentEnd::Code(code) => {
                self.reaper.sweep(Duration::ZERO, last_wait);
                code
            }
        };
        if let (Some(terminal), true) = (&self.terminal, self.interactive) {
            // Needed only if the shim was killed.
            terminal.take_back_from_the_dead();
        }
        code
    }
}
