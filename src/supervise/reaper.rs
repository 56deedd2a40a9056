//! The common part of guard and `init`: supervises one child and its descendants, and takes the
//! signals.
//!
//! Takes the signals to watch and the child; gives one event after the other, and at the end a
//! sweep that leaves nothing of the job. One thread, no runtime. Does not interpret signals, and
//! never signals an adopted process that does not belong to the job.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::process::WaitOptions;

use super::bind;
use super::budget::{Newcomers, Sweep, SweepStep};
use super::tree::{self, Process};
use linux::sys::{
    self, Dispositions, PollFd, PollFlags, Signal, SignalQueue, SignalSet, Taken, own_pid, poll,
};
use text::lang::Text;
use text::text;
use verdict::Verdict;
use verdict::outcome::{End, Survivor};

/// Two interrupts closer than this count as one key press.
const SECOND_INTERRUPT: Duration = Duration::from_secs(1);

/// State that must be set up before the child is forked.
pub(super) struct ChildWatch {
    /// The signal state with which the program was started; the child gets it back.
    pub(super) inherited: Dispositions,
    signals: SignalQueue,
    foreign_pids: HashSet<i32>,
}

impl ChildWatch {
    /// Becomes a subreaper and from now on takes `wanted` (and SIGCHLD) through a descriptor.
    /// Signals that were ignored at our start (nohup) stay ignored.
    pub(super) fn begin(wanted: SignalSet) -> io::Result<ChildWatch> {
        let inherited = Dispositions::inherited();
        // Children that a shell left us by exec do not belong to the job.
        let foreign_pids = children_of_self();
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        // We write to terminals, and change their foreground, from the background.
        Dispositions::ignore(&[Signal::TTIN, Signal::TTOU]);
        let signals = SignalQueue::begin(wanted.without(&inherited.ignored))?;
        Ok(ChildWatch { inherited, signals, foreign_pids })
    }

    /// True if we adopt orphans of others as well: PID 1 adopts everything in the container, and
    /// earlier children may leave orphans. Then the processes of the job need a mark.
    pub(super) fn adopts_outsiders(&self) -> bool {
        own_pid() == 1 || !self.foreign_pids.is_empty()
    }

    pub(super) fn keep(self, child: i32, mark: ProcessMark) -> Reaper {
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

/// Marks the processes of the job: their environment has this variable with this part in its
/// value.
#[derive(Debug)]
pub(super) struct ProcessMark {
    pub(super) variable: &'static str,
    pub(super) part: String,
}

impl ProcessMark {
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

/// An event while the child is supervised.
pub(super) enum ChildEvent {
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
    pub(super) child: i32,
    end: Option<End>,
    stopped: Option<i32>,
    /// Children that existed before the child.
    foreign_pids: HashSet<i32>,
    adopts_outsiders: bool,
    /// The child has done its work and cannot end, since one of its threads is stuck in the kernel, so it is not waited
    /// for. Processes that it started are swept as usual.
    pub(super) given_up: bool,
    mark: ProcessMark,
    signals: SignalQueue,
    interrupted: Option<Instant>,
}

impl Reaper {
    /// Waits for the next event, and reaps meanwhile. After the child's end every call gives
    /// that end.
    pub(super) fn next(
        &mut self,
        deadline: Option<Instant>,
        other: Option<BorrowedFd<'_>>,
    ) -> ChildEvent {
        loop {
            if !self.reap() && self.end.is_none() {
                // A library or a debugger took the status of the child, which has ended.
                self.end = Some(End::Code(Verdict::Internal.code()));
            }
            if let Some(end) = self.end {
                return ChildEvent::Ended(end);
            }
            if let Some(signal) = self.stopped.take() {
                return ChildEvent::Stopped(signal);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return ChildEvent::Deadline;
            }
            match self.signals.take() {
                // The signal arrived after the last reaping, so it may be for a newer end.
                Some(taken) if taken.is(Signal::CHILD) => {}
                Some(taken) => return ChildEvent::Signal(taken),
                _ if self.sleep(deadline, other) => return ChildEvent::Readable,
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

    /// Stops waiting for these: they outlived SIGKILL, and the child has reported that.
    pub(super) fn leave_behind(&mut self, pids: &[i32]) {
        self.foreign_pids.extend(pids);
    }

    /// True when `other` can be read; a signal and the deadline also wake.
    fn sleep(&self, deadline: Option<Instant>, other: Option<BorrowedFd<'_>>) -> bool {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut waits = vec![PollFd::new(&self.signals, PollFlags::IN)];
        waits.extend(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
        let _ = poll(&mut waits, left);
        waits.get(1).is_some_and(|wait| !wait.revents().is_empty())
    }

    /// Reaps all zombies; only the child's status is kept. False if no child is left at all.
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

    /// Ends the remaining processes of the job: TERM once for each process, the grace period, then
    /// KILL until a scan finds nothing, for at most `last_wait`. A second interrupt ends the grace
    /// period.
    pub(super) fn sweep(&mut self, grace: Duration, last_wait: Duration) {
        let asked = Newcomers::Asked;
        let mut sweep = Sweep::begin(Instant::now(), asked, Duration::ZERO, grace, last_wait);
        while self.reap() {
            let all = tree::snapshot();
            let left = self.of_the_job(&all);
            // Without /proc only wait(2) knows our children. All of them belong to the job,
            // since their parents did; PID 1 cannot tell them from others.
            let unseen = if tree::has_proc() || self.adopts_outsiders {
                Vec::new()
            } else {
                // Children that existed before the child have older pids.
                tree::children_without_proc(self.child)
            };
            // A scan is not atomic: a process may fork and exit during it. If every child
            // belongs to the job, only the kernel's ECHILD proves the end. PID 1 takes all
            // processes with it anyway.
            let others = self.adopts_outsiders || self.given_up || !self.foreign_pids.is_empty();
            if others && left.is_empty() && unseen.is_empty() {
                return;
            }
            let (step, wake) = sweep.step(Instant::now());
            match step {
                SweepStep::Wait => {}
                SweepStep::Term => {
                    for process in left {
                        if sweep.is_new((process.pid, process.start_ticks)) {
                            tree::signal(process, Signal::TERM);
                            // A process that a shell stopped cannot end before it continues.
                            tree::signal(process, Signal::CONT);
                        }
                    }
                    let new = unseen.into_iter().filter(|pid| sweep.is_new((*pid, 0)));
                    new.for_each(|pid| sys::send(pid, Signal::TERM.as_raw()));
                }
                SweepStep::Kill => {
                    tree::signal_all(&left, Signal::KILL);
                    unseen.into_iter().for_each(|pid| sys::send(pid, Signal::KILL.as_raw()));
                    if !self.adopts_outsiders {
                        tree::kill_children(&self.foreign_pids);
                    }
                }
                SweepStep::GiveUp => return tree::survivors(left).iter().for_each(say_last),
            }
            self.sleep(Some(wake), None);
            while let Some(taken) = self.signals.take() {
                if taken.is(Signal::INT) && self.interrupted_again() {
                    sweep.kill_now(Instant::now(), last_wait);
                }
            }
        }
    }

    /// The descendants of the child. If we adopt orphans of others too: the processes with the
    /// job's mark, and their descendants.
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

/// Printed by the guard, as the agent has ended.
fn say_last(survivor: &Survivor) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "ranklaunch: {}", last_words(survivor).get(bind::language()));
}

fn last_words(survivor: &Survivor) -> Text {
    let Survivor { pid, comm, forbidden, state, wait_channel } = survivor;
    let (place, place_zh) = match wait_channel {
        Some(name) => (format!(", in {name}"), format!("，位于 {name}")),
        None => (String::new(), String::new()),
    };
    if *forbidden {
        return text!(
            "process {pid} ({comm}) may not be signalled by us and is in state {state}{place}",
            "无权向进程 {pid}（{comm}）发送信号，其状态为 {state}{place_zh}"
        );
    }
    text!(
        "process {pid} ({comm}) outlived SIGKILL in state {state}{place}",
        "进程 {pid}（{comm}）收到 SIGKILL 后仍未退出，其状态为 {state}{place_zh}"
    )
}

/// Our children, usually none. The kernel's list (CONFIG_PROC_CHILDREN) saves a scan of /proc.
/// It covers only this thread, but no other exists yet.
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
    fn survivor_is_named_in_both_languages() {
        let of = |forbidden, wait_channel| Survivor {
            pid: 7,
            comm: "python".to_owned(),
            forbidden,
            state: 'D',
            wait_channel,
        };
        let Text { en, zh } = last_words(&of(false, Some("nfs_wait".to_owned())));
        assert_eq!(en, "process 7 (python) outlived SIGKILL in state D, in nfs_wait");
        assert_eq!(zh, "进程 7（python）收到 SIGKILL 后仍未退出，其状态为 D，位于 nfs_wait");
        let Text { en, zh } = last_words(&of(true, None));
        assert_eq!(en, "process 7 (python) may not be signalled by us and is in state D");
        assert_eq!(zh, "无权向进程 7（python）发送信号，其状态为 D");
    }

    #[test]
    fn existing_children_are_known() {
        let mut child = std::process::Command::new("sleep").arg("300").spawn().expect("it starts");
        let known = children_of_self();
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
        assert!(known.contains(&i32::try_from(child.id()).expect("a pid")), "{known:?}");
    }
}
