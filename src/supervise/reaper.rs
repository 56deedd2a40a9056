//! What guard and init have in common: one child, everything below it, and the
//! signals of a process that must outlive both.
//!
//! Takes the signals to be told of and the child; gives one event after the
//! other, and at the end a sweep after which nothing of the job is left. One
//! thread, no runtime. Decides nothing about what a signal means, and never
//! signals a process that merely came in from outside.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::process::WaitOptions;

use super::outcome::{End, Survivor};
use super::sweep::{Newcomers, Step, Sweep};
use super::tree::{self, Process};
use crate::sys::{
    self, Dispositions, PollFd, PollFlags, Signal, SignalQueue, SignalSet, Taken, own_pid, poll,
};
use crate::verdict::Verdict;

/// Two interrupts closer than this are one key press seen twice.
const SECOND_INTERRUPT: Duration = Duration::from_secs(1);

/// Everything that has to be in place before the child is made.
pub(super) struct ChildWatch {
    /// As the program was started; the child gets it back.
    pub(super) inherited: Dispositions,
    signals: SignalQueue,
    foreign_pids: HashSet<i32>,
}

impl ChildWatch {
    /// Becomes a subreaper and from now on takes `wanted` (and SIGCHLD) through a
    /// descriptor. What was ignored when we were started (nohup) stays ignored.
    pub(super) fn begin(wanted: SignalSet) -> io::Result<ChildWatch> {
        let inherited = Dispositions::inherited();
        // Children that an exec'ing shell left us are not the job's.
        let foreign_pids = children_of_self();
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        // We write to terminals, and hand them over, from the background.
        sys::ignore(&[Signal::TTIN, Signal::TTOU]);
        let signals = SignalQueue::begin(wanted.without(&inherited.ignored))?;
        Ok(ChildWatch { inherited, signals, foreign_pids })
    }

    /// True when orphans of others come to us as well: PID 1 adopts what is
    /// started in the container, and earlier children may leave orphans too. The
    /// job's processes then need a mark.
    pub(super) fn adopts_outsiders(&self) -> bool {
        own_pid() == 1 || !self.foreign_pids.is_empty()
    }

    pub(super) fn keep(self, child: i32, mark: Mark) -> Reaper {
        Reaper {
            child,
            end: None,
            stopped: None,
            adopts_outsiders: self.adopts_outsiders(),
            foreign_pids: self.foreign_pids,
            mark,
            given_up: false,
            signals: self.signals,
            interrupted: None,
        }
    }
}

/// What the environment of the job's processes holds: this variable, with this in its value.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) variable: &'static str,
    pub(super) part: String,
}

impl Mark {
    fn is_on(&self, pid: i32) -> bool {
        std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
            environ.split(|&byte| byte == 0).any(|entry| {
                String::from_utf8_lossy(entry)
                    .strip_prefix(self.variable)
                    .and_then(|rest| rest.strip_prefix('='))
                    .is_some_and(|value| value.contains(&self.part))
            })
        })
    }
}

/// What can happen while the child is kept.
pub(super) enum Event {
    /// The child ended.
    Ended(End),
    /// The child was stopped by this signal.
    Stopped(i32),
    Signal(Taken),
    /// The deadline has passed.
    Deadline,
    /// The other descriptor can be read.
    Readable,
}

pub(super) struct Reaper {
    child: i32,
    end: Option<End>,
    stopped: Option<i32>,
    /// Children that were there before the child.
    foreign_pids: HashSet<i32>,
    adopts_outsiders: bool,
    /// The child has done its work and cannot end; nobody waits for it.
    given_up: bool,
    mark: Mark,
    signals: SignalQueue,
    interrupted: Option<Instant>,
}

impl Reaper {
    pub(super) fn child(&self) -> i32 {
        self.child
    }

    /// The child itself is no longer waited for: it has done its work, and a thread of
    /// it is where no signal reaches. What it started is swept as ever.
    pub(super) fn give_up_child(&mut self) {
        self.given_up = true;
    }

    /// Sleeps until something happens. Reaps all the while; after the child's
    /// end every call gives that end.
    pub(super) fn next(
        &mut self,
        deadline: Option<Instant>,
        other: Option<BorrowedFd<'_>>,
    ) -> Event {
        loop {
            if !self.reap() && self.end.is_none() {
                // Somebody else took its status (a library, a debugger): it is gone.
                self.end = Some(End::Code(Verdict::Internal.code()));
            }
            if let Some(end) = self.end {
                return Event::Ended(end);
            }
            if let Some(signal) = self.stopped.take() {
                return Event::Stopped(signal);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Event::Deadline;
            }
            match self.signals.take() {
                // Read after the last reaping, so it may tell of a newer end.
                Some(taken) if taken.is(Signal::CHILD) => {}
                Some(taken) => return Event::Signal(taken),
                _ if self.sleep(deadline, other) => return Event::Readable,
                _ => {}
            }
        }
    }

    /// Counts an interrupt; true from the second one on.
    pub(super) fn interrupted_again(&mut self) -> bool {
        let now = Instant::now();
        let first = *self.interrupted.get_or_insert(now);
        now - first >= SECOND_INTERRUPT
    }

    /// These are not waited for: they outlived SIGKILL, and the child has said so.
    pub(super) fn leave_behind(&mut self, pids: &[i32]) {
        self.foreign_pids.extend(pids);
    }

    /// True when `other` can be read; a signal and the deadline wake as well.
    fn sleep(&self, deadline: Option<Instant>, other: Option<BorrowedFd<'_>>) -> bool {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut waits = vec![PollFd::new(&self.signals, PollFlags::IN)];
        waits.extend(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
        let _ = poll(&mut waits, left);
        waits.get(1).is_some_and(|wait| !wait.revents().is_empty())
    }

    /// Reaps whatever is to be reaped; only the child's status matters. False
    /// when no child is left at all.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) => {
                    let pid = pid.as_raw_pid();
                    match End::from_wait(status) {
                        Some(end) if pid == self.child => self.end = Some(end),
                        Some(_) => {
                            self.foreign_pids.remove(&pid);
                        }
                        None if pid == self.child => self.stopped = status.stopping_signal(),
                        None => {}
                    }
                }
                Ok(None) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_none) => return false,
            }
        }
    }

    /// Ends what is left of the job: TERM once for each process and the grace,
    /// then KILL until a scan finds nothing, for `last_wait` at most. A second
    /// interrupt ends the grace.
    pub(super) fn sweep(&mut self, grace: Duration, last_wait: Duration) {
        let asked = Newcomers::Asked;
        let mut sweep = Sweep::begin(Instant::now(), asked, Duration::ZERO, grace, last_wait);
        while self.reap() {
            let all = tree::snapshot();
            let left = self.of_the_job(&all);
            // Without /proc only wait(2) knows our children: all of them are the job's, since
            // their parents were. PID 1 cannot tell them from others'.
            let unseen = if tree::has_proc() || self.adopts_outsiders {
                Vec::new()
            } else {
                // Children that were there before the child have older pids.
                tree::children_without_proc(self.child)
            };
            // A scan is not atomic: a process may fork and go while it runs. Where
            // every child is the job's, only the kernel's "no child" is the end;
            // PID 1 takes everything with it when it ends.
            let others = self.adopts_outsiders || self.given_up || !self.foreign_pids.is_empty();
            if others && left.is_empty() && unseen.is_empty() {
                return;
            }
            let (step, wake) = sweep.step(Instant::now());
            match step {
                Step::Wait => {}
                Step::Term => {
                    for process in left {
                        if sweep.is_new((process.pid, process.start_ticks)) {
                            tree::signal(process, Signal::TERM);
                            // One that a shell had stopped cannot end before it goes on.
                            tree::signal(process, Signal::CONT);
                        }
                    }
                    let new = unseen.into_iter().filter(|pid| sweep.is_new((*pid, 0)));
                    new.for_each(|pid| sys::send(pid, Signal::TERM.as_raw()));
                }
                Step::Kill => {
                    tree::signal_all(&left, Signal::KILL);
                    unseen.into_iter().for_each(|pid| sys::send(pid, Signal::KILL.as_raw()));
                    if !self.adopts_outsiders {
                        tree::kill_children(&self.foreign_pids);
                    }
                }
                Step::GiveUp => return tree::survivors(left).iter().for_each(say_last),
            }
            self.sleep(Some(wake), None);
            while let Some(taken) = self.signals.take() {
                if taken.is(Signal::INT) && self.interrupted_again() {
                    sweep.kill_now(Instant::now(), last_wait);
                }
            }
        }
    }

    /// What descends from the child. Where others' orphans come to us too, that
    /// is who carries the job's mark, with its descendants.
    fn of_the_job<'a>(&self, all: &'a BTreeMap<i32, Process>) -> Vec<&'a Process> {
        let mut job = Vec::new();
        for child in all.values().filter(|process| process.ppid == own_pid()) {
            let ours = child.pid == self.child || !self.adopts_outsiders || self.marked(child, all);
            if self.foreign_pids.contains(&child.pid) || !ours {
                continue;
            }
            let done = child.is_dead() || (self.given_up && child.pid == self.child);
            if !done {
                job.push(child);
            }
            job.extend(tree::descendants(all, child.pid));
        }
        job
    }

    fn marked(&self, child: &Process, all: &BTreeMap<i32, Process>) -> bool {
        self.mark.is_on(child.pid)
            || tree::descendants(all, child.pid).iter().any(|below| self.mark.is_on(below.pid))
    }
}

/// Nobody else is left who could say it.
fn say_last(survivor: &Survivor) {
    use std::io::Write;
    let _ = writeln!(
        io::stderr(),
        "ranklaunch: process {} ({}) {} in state {}{}",
        survivor.pid,
        survivor.comm,
        if survivor.forbidden { "may not be signalled by us and is" } else { "outlived SIGKILL" },
        survivor.state,
        survivor.wait_channel.as_deref().map(|name| format!(", in {name}")).unwrap_or_default(),
    );
}

/// Usually none. The kernel's own list, where it is built with one
/// (CONFIG_PROC_CHILDREN), spares every launch a scan of /proc. It is of this
/// thread, and no other exists yet.
pub(super) fn children_of_self() -> HashSet<i32> {
    if let Ok(list) = std::fs::read_to_string("/proc/thread-self/children") {
        return list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    }
    tree::snapshot()
        .values()
        .filter(|process| process.ppid == own_pid())
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
