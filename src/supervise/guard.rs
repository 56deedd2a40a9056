//! The guard: the one process that must outlive everything else of ours.
//!
//! PID 1 of a container or a subreaper. One thread, no runtime: it counts and
//! forwards signals, reaps, and when the agent is gone ends what the agent left.
//! It decides nothing about the job and never signals a process that merely
//! came into the container from outside.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{MsgFlags, recv, send};
use rustix::io::Errno;
use rustix::process::{Signal as Kill, WaitOptions};

use super::link::{self, AgentLink, GuardWord};
use super::message::JOB_MARK;
use super::outcome::End;
use super::tree::{self, Process};
use crate::sys::{self, Dispositions, Fork};

/// Until the agent has said its own, the stop budget that the guard allows it.
const FIRST_GRACE: Duration = Duration::from_secs(30);
/// How much longer than the agent's budget the guard waits before it takes over.
const MARGIN: Duration = Duration::from_millis(500);
/// After SIGKILL, how long to wait for processes to go before they are given up.
const LAST_WAIT: Duration = Duration::from_secs(5);
/// How long the agent may take for the KILL that a second interrupt demands.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
/// Two interrupts closer than this are one key press seen twice.
const SECOND_INTERRUPT: Duration = Duration::from_secs(1);

/// Forks the agent and guards it; gives the exit code of the whole program.
///
/// `agent` runs in the child with its end of the link and the signal state that
/// the program was started with. Call before any thread exists.
pub fn guarded(agent: impl FnOnce(AgentLink, Dispositions) -> i32) -> io::Result<i32> {
    let inherited = Dispositions::inherited();
    // Children that an exec'ing shell left us are not the job's.
    let strangers = children_of_self();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;

    let mut watched = SigSet::empty();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ] {
        // What was ignored when we were started (nohup) stays ignored.
        if !inherited.ignored.contains(signal) {
            watched.add(signal);
        }
    }
    watched.add(Signal::SIGCHLD);
    watched.thread_block()?;
    let (ours, theirs) = link::pair()?;

    let child = match sys::fork_single_threaded()? {
        Fork::Child => {
            drop(ours);
            // Own group: a Ctrl-C at the terminal reaches the guard alone, which counts it.
            let _ =
                nix::unistd::setpgid(nix::unistd::Pid::from_raw(0), nix::unistd::Pid::from_raw(0));
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
            sys::unblock_in_this_thread(Signal::SIGCHLD);
            let code = agent(AgentLink::new(theirs), inherited);
            sys::exit_now(code)
        }
        Fork::Parent { child } => child,
    };
    drop(theirs);
    let signals = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut guard = Guard {
        agent: child.as_raw(),
        agent_end: None,
        strangers,
        link: ours,
        signals,
        grace: FIRST_GRACE,
        stop: None,
        interrupted: None,
        kill_by: None,
    };
    Ok(guard.watch())
}

struct Guard {
    agent: i32,
    agent_end: Option<End>,
    /// Children that were there before the agent.
    strangers: HashSet<i32>,
    link: OwnedFd,
    signals: SignalFd,
    grace: Duration,
    /// First stop signal and when it came.
    stop: Option<(i32, Instant)>,
    interrupted: Option<Instant>,
    /// After a second interrupt even an agent that hangs must be through by then.
    kill_by: Option<Instant>,
}

impl Guard {
    fn watch(&mut self) -> i32 {
        loop {
            self.reap();
            if let Some(end) = self.agent_end {
                return self.after_agent(end);
            }
            let whole = self.stop.map(|(_, since)| since + self.grace + MARGIN);
            let deadline = [whole, self.kill_by].into_iter().flatten().min();
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                // The agent had its whole budget and more: it hangs, and is swept
                // with all it has started.
                return self.after_agent(End::Signal(Kill::KILL.as_raw()));
            }
            self.sleep_until(deadline);
            self.hear_agent();
            self.forward_signals();
        }
    }

    fn sleep_until(&self, deadline: Option<Instant>) {
        let timeout = deadline.map_or(PollTimeout::NONE, |deadline| {
            let left = deadline.saturating_duration_since(Instant::now()).as_millis() + 1;
            PollTimeout::from(u16::try_from(left).unwrap_or(u16::MAX))
        });
        let signals: BorrowedFd<'_> = self.signals.as_fd();
        let mut waits = vec![PollFd::new(signals, PollFlags::POLLIN)];
        if self.agent_end.is_none() {
            waits.push(PollFd::new(self.link.as_fd(), PollFlags::POLLIN));
        }
        // An end of file that was seen already would turn this into a busy loop;
        // the agent's SIGCHLD follows it within the kernel's exit path.
        let _ = poll(&mut waits, timeout);
    }

    fn hear_agent(&mut self) {
        let mut packet = [0u8; 16];
        while let Ok(length) = recv(self.link.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
            let Ok(millis) = <[u8; 8]>::try_from(packet.get(..length).unwrap_or_default()) else {
                return;
            };
            self.grace = Duration::from_millis(u64::from_le_bytes(millis));
        }
    }

    fn forward_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let Ok(number) = i32::try_from(info.ssi_signo) else { continue };
            let Ok(signal) = Signal::try_from(number) else { continue };
            match signal {
                Signal::SIGCHLD => {}
                Signal::SIGUSR1 | Signal::SIGUSR2 => self.tell(GuardWord::Pass(number)),
                Signal::SIGINT => {
                    let now = Instant::now();
                    let again =
                        self.interrupted.is_some_and(|first| now - first >= SECOND_INTERRUPT);
                    self.interrupted.get_or_insert(now);
                    if again {
                        self.kill_by.get_or_insert(now + KILL_PATIENCE);
                        self.tell(GuardWord::KillNow);
                    } else {
                        self.stop_by(number);
                    }
                }
                _ => self.stop_by(number),
            }
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

    /// Reaps whatever is to be reaped; only the agent's status matters.
    /// True when no child is left at all, and so, of a subreaper, no descendant.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if pid.as_raw_nonzero().get() == self.agent {
                        self.agent_end = End::from_wait(status);
                    }
                    self.strangers.remove(&pid.as_raw_nonzero().get());
                }
                Ok(None) => return false,
                Err(Errno::INTR) => {}
                Err(_no_child) => return true,
            }
        }
    }

    fn after_agent(&mut self, end: End) -> i32 {
        // An agent that ended by itself has swept; one that was killed has not,
        // and nobody is left who could grant its ranks a grace or take their logs.
        self.sweep();
        match (end, self.stop) {
            (End::Signal(_), Some((signal, _))) => 128 + signal,
            _ => end.shell_code(),
        }
    }

    fn sweep(&mut self) {
        let deadline = Instant::now() + LAST_WAIT;
        // Other children than the job's: there only a scan can tell. PID 1 takes
        // everything with it when it ends.
        let shared = rustix::process::getpid().is_init() || !self.strangers.is_empty();
        loop {
            if self.reap() {
                return;
            }
            let all = tree::snapshot();
            let left = self.of_the_job(&all);
            if shared && left.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                for survivor in tree::survivors(left) {
                    say_last(&survivor);
                }
                return;
            }
            for process in left {
                tree::signal(process, Kill::KILL);
            }
            if !shared {
                tree::kill_children();
            }
            self.sleep_until(Some(Instant::now() + Duration::from_millis(20)));
            while let Ok(Some(_)) = self.signals.read_signal() {}
        }
    }

    /// Below a subreaper everything but earlier children is the job's. PID 1
    /// also adopts what others started in the container, so there the job's are
    /// those that carry its mark, and their descendants.
    fn of_the_job<'a>(&self, all: &'a [Process]) -> Vec<&'a Process> {
        let me = rustix::process::getpid().as_raw_nonzero().get();
        let mut job = Vec::new();
        for child in all.iter().filter(|process| process.parent == me) {
            let ours = child.pid == self.agent || me != 1 || self.marked(child, all);
            if self.strangers.contains(&child.pid) || !ours {
                continue;
            }
            if !child.gone() {
                job.push(child);
            }
            job.extend(tree::descendants(all, child.pid));
        }
        job
    }

    fn marked(&self, child: &Process, all: &[Process]) -> bool {
        let mark = format!("{JOB_MARK}=");
        let agent = format!(":{}:", self.agent);
        let carries = |pid: i32| {
            std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
                environ.split(|&byte| byte == 0).any(|entry| {
                    String::from_utf8_lossy(entry)
                        .strip_prefix(&mark)
                        .is_some_and(|value| value.contains(&agent))
                })
            })
        };
        carries(child.pid)
            || tree::descendants(all, child.pid).iter().any(|below| carries(below.pid))
    }
}

/// The guard's own last words. The agent's console is gone by now.
fn say_last(survivor: &super::outcome::Survivor) {
    use std::io::Write;
    let _ = writeln!(
        io::stderr(),
        "ranklaunch: process {} ({}) outlived SIGKILL in state {}{}",
        survivor.pid,
        survivor.comm,
        survivor.state,
        survivor.wait_channel.as_deref().map(|name| format!(", in {name}")).unwrap_or_default(),
    );
}

/// Usually none. The kernel's own list, where it is built with one
/// (CONFIG_PROC_CHILDREN), spares every launch a scan of /proc.
fn children_of_self() -> HashSet<i32> {
    if let Ok(list) = std::fs::read_to_string("/proc/thread-self/children") {
        return list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    }
    let me = rustix::process::getpid().as_raw_nonzero().get();
    tree::snapshot()
        .iter()
        .filter(|process| process.parent == me)
        .map(|process| process.pid)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_that_were_there_before_are_known() {
        let mut child = std::process::Command::new("sleep").arg("300").spawn().expect("it starts");
        let known = children_of_self();
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
        assert!(known.contains(&i32::try_from(child.id()).expect("a pid")), "{known:?}");
    }
}
