//! The shim while its rank runs: waits for the rank, forwards signals, reports the end, ends what the rank leaves
//! behind.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::{WaitId, WaitOptions, waitid};

use crate::asked::{self, Asked};
use crate::budget::{EndBudget, KILL_PAUSE, Newcomers, SETTLE, Sweep, SweepStep};
use crate::forwarded::{Forwarded, comes_twice};
use crate::isolate::take_over;
use crate::socket::{self, ERROR_FILE, FromRank, LARGEST_RECORD, ToRank};
use crate::terminal::{Terminal, Then};
use crate::tree;
use crate::warmed::RelaySocket;
use linux::deadline::with_deadline;
use linux::host::Host;
use linux::regular_file;
use linux::sys::{self, Pid, PollFd, PollFlags, ProcessGroup, Signal, SignalQueue, own_pid, poll};
use verdict::Verdict;
use verdict::outcome::{End, Notice};

/// Characters of a program's path that always fit into a packet.
pub(super) const NAMED: usize = 1000;

pub(super) struct Shim {
    pub(super) agent: Option<OwnedFd>,
    pub(super) signals: SignalQueue,
    pub(super) forwarded: Forwarded,
    /// The engine, if it signals our group in place of the rank's.
    pub(super) engine: Option<i32>,
    /// The process above us that signals all processes of the job.
    pub(super) manager: Option<i32>,
    /// A time before the start of the user's process.
    pub(super) began: SystemTime,
    /// The user's process.
    pub(super) child: i32,
    /// The user's process was reaped, so its pid may be reused.
    pub(super) reaped: bool,
    /// The control group in which SIGKILL met the user's process, if that is not ours.
    pub(super) killed_in: Option<String>,
    pub(super) grace: Duration,
    /// The shim has no descendant any more.
    pub(super) childless: bool,
    /// The terminal while it is lent to the rank; only in the launcher's session.
    pub(super) terminal: Option<Lent>,
    /// The engine must not see a failure before the other ranks have ended: true only below an engine
    /// that does not restart ranks and that the agent is not stopping.
    pub(super) waits: bool,
    pub(super) below_engine: bool,
    /// The job stops, and the rank has been told.
    pub(super) stop: Option<Asked>,
    /// The rank has failed, and the engine must not see it yet.
    pub(super) waits_for_others: bool,
    /// The agent has sent [`ToRank::Leave`], or the engine ends its ranks.
    pub(super) may_leave: bool,
    /// The relay that is the engine's child, if that is another process.
    pub(super) relay: Option<RelaySocket>,
}

pub(super) struct Lent {
    pub(super) terminal: Terminal,
    /// The launcher's group, for which a shell waits.
    pub(super) owner: ProcessGroup,
}

impl Lent {
    /// Stops the launcher's group as well, since its shell waits for that. SIGCONT to the group
    /// continues the rank.
    fn stopped(&self, rank: i32, signal: i32) {
        if self.terminal.stopped(ProcessGroup(rank), signal, false) == Then::StopOwner {
            let _ = self.owner.signal(Some(Signal::TSTP));
        }
    }
}

/// The control group of a child that SIGKILL has ended and that is not reaped yet, if it is not ours:
/// a rank may have entered another group, and the kernel counts kills for memory there.
fn killed_elsewhere(child: i32) -> Option<String> {
    let ended = waitid(WaitId::Pid(Pid::from_raw(child)?), tree::PEEK).ok()??;
    if ended.terminating_signal() != Some(Signal::KILL.as_raw()) {
        return None;
    }
    let host = Host::live();
    let group = host.process(child).unified_group()?;
    let is_own = host.process(own_pid()).unified_group().is_some_and(|own| own == group);
    (!is_own && group.len() <= NAMED).then_some(group)
}

impl Shim {
    /// Waits for the rank, reports its end, ends its leftovers. Gives the code to end with.
    pub(super) fn stay(&mut self) -> i32 {
        let end = loop {
            if let Some(end) = self.reap() {
                break end;
            }
            if self.childless {
                // The status of the rank was taken elsewhere, so its end is unknown.
                break End::Code(Verdict::Internal.code());
            }
            if self.agent.is_none() {
                // Repeated, since the rank may be forking.
                kill_descendants();
            }
            self.wait(if self.agent.is_none() { Some(KILL_PAUSE) } else { None });
        };
        if let Some(lent) = &self.terminal {
            lent.terminal.take_back(ProcessGroup(self.child));
            if matches!(end, End::Signal(_)) {
                lent.terminal.restore_modes();
            }
        }
        if let Some(agent) = &self.agent {
            if let Some((said, record)) = recorded(end, self.began) {
                let _ = socket::send(agent, &said, &[record.as_fd()]);
            }
            if let Some(group) = self.killed_in.take() {
                let _ = socket::send(agent, &FromRank::KilledIn { group }, &[]);
            }
            let _ = socket::send(agent, &FromRank::Ended { end }, &[]);
        }
        self.end_leftovers(end);
        self.stay_for_the_others(end);
        if let Some(relay) = &self.relay {
            relay.ended(end);
        }
        take_over(end)
    }

    /// Waits until the other ranks of the node have ended too. An engine that sees a failed rank ends
    /// the others by its own rules: DeepSpeed's launcher one after the other with 30 s for each
    /// (`terminate_process_tree` in its launch.py), torchrun before 2.15 after 30 s, and both send a
    /// TERM that the ranks may already have. The agent ends the ranks instead.
    fn stay_for_the_others(&mut self, end: End) {
        self.waits_for_others = self.waits && !end.success();
        while self.waits_for_others && !self.may_leave && self.agent.is_some() {
            self.reap();
            self.wait(None);
        }
    }

    /// Reaps all zombies. Gives the end of the rank if it is among them.
    fn reap(&mut self) -> Option<End> {
        let mut found = None;
        loop {
            if !self.reaped && self.killed_in.is_none() {
                self.killed_in = killed_elsewhere(self.child);
            }
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) => {
                    if pid.as_raw_pid() == self.child {
                        found = End::from_wait(status);
                        self.reaped |= found.is_some();
                        if let (Some(by), Some(lent)) = (status.stopping_signal(), &self.terminal) {
                            lent.stopped(self.child, by);
                        }
                    }
                }
                Ok(None) => return found,
                Err(Errno::INTR) => {}
                Err(_no_child) => {
                    self.childless = true;
                    return found;
                }
            }
        }
    }

    /// Waits until a child ends, the agent sends a packet, a signal is to be forwarded, or the time
    /// is over.
    fn wait(&mut self, timeout: Option<Duration>) {
        let forward = self.forwarded.wake();
        let forward = forward.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = [timeout, forward].into_iter().flatten().min();
        let mut waits = vec![PollFd::new(&self.signals, PollFlags::IN)];
        waits.extend(self.agent.as_ref().map(|agent| PollFd::new(agent, PollFlags::IN)));
        let of_relay = waits.len();
        waits.extend(self.relay.as_ref().map(|relay| PollFd::new(relay, PollFlags::IN)));
        let _ = poll(&mut waits, timeout);
        let spoke = |at: usize| waits.get(at).is_some_and(|wait| !wait.revents().is_empty());
        let agent_spoke = self.agent.is_some() && spoke(1);
        let relay_spoke = self.relay.is_some() && spoke(of_relay);
        while let Some(taken) = self.signals.take() {
            self.signalled(taken.number, taken.sender);
        }
        if agent_spoke {
            self.read_agent();
        }
        if relay_spoke {
            self.read_relay();
        }
        for number in self.forwarded.due(Instant::now()) {
            if asked::is_stop(number) { self.stop_now(number) } else { self.send(number) }
        }
    }

    fn signalled(&mut self, number: i32, sender: i32) {
        self.may_leave |= self.waits_for_others && number == Signal::TERM.as_raw();
        if self.engine == Some(sender) && asked::is_stop(number) {
            self.stop_rank(number);
        } else if self.manager == Some(sender) || comes_twice(number) {
            self.forwarded.came(number, Instant::now());
            if asked::is_stop(number) && self.stop.is_none() && !self.reaped {
                self.stop = Some(Asked::everybody(self.child, number));
            }
        }
    }

    fn read_relay(&mut self) {
        let Some(relay) = &self.relay else { return };
        match relay.signal() {
            Ok(number) => self.signalled(number, self.engine.unwrap_or(0)),
            // The engine has killed its child, which has the same effect as killing this shim.
            Err(_) => (self.relay, self.agent) = (None, None),
        }
    }

    fn read_agent(&mut self) {
        let Some(agent) = &self.agent else { return };
        match socket::receive::<ToRank>(agent) {
            Ok(Some((ToRank::Signal { number }, _))) => {
                // A shell continued the launcher's group.
                if let (Some(Signal::CONT), Some(lent)) =
                    (Signal::from_named_raw(number), &self.terminal)
                {
                    return lent.terminal.go_on(ProcessGroup(self.child));
                }
                if self.forwarded.asked(number, Instant::now()) {
                    self.send(number);
                }
            }
            Ok(Some((ToRank::Stop { number }, _))) => {
                self.waits |= self.below_engine;
                self.stop_rank(number);
            }
            Ok(Some((ToRank::Late, _))) => self.late(),
            Ok(Some((ToRank::NoManager, _))) => self.forwarded.no_manager(Instant::now()),
            Ok(Some((ToRank::Leave, _))) => self.may_leave = true,
            Ok(Some((ToRank::Terminal { .. }, _))) => {}
            // The agent is lost, and with it the reader of our pipes. The guard ends the job; the shim
            // does so too, in case the guard is lost as well.
            Ok(None) | Err(_) => self.agent = None,
        }
    }

    /// Stops the rank now or later, unless it gets the signal from elsewhere.
    fn stop_rank(&mut self, number: i32) {
        if self.forwarded.stops(number, Instant::now()) {
            self.stop_now(number);
        }
    }

    fn stop_now(&mut self, number: i32) {
        if self.stop.is_some() || self.reaped {
            return self.send(number);
        }
        let child = self.child;
        let suited = asked::suited(child, number);
        // A signal that stands in for another counts as received, too.
        self.forwarded.came(suited, Instant::now());
        self.stop = Some(Asked::begin(child, suited, || sys::send(child, suited)));
    }

    fn late(&mut self) {
        let child = self.child;
        let wants_term = self.stop.as_mut().is_some_and(|stop| !self.reaped && stop.late(child));
        if wants_term {
            self.stop_rank(Signal::TERM.as_raw());
        }
    }

    /// Signals the user's process. Its pid stays valid until we reap it, so no look-up is needed; with
    /// hidepid the process may not even be visible to us.
    fn send(&self, number: i32) {
        if !self.reaped {
            sys::send(self.child, number);
        }
    }

    /// Leftovers, such as uploads, get TERM and the grace period after a success, and after a main
    /// process that ended as the job's stop asked it to. After any other failure they are killed.
    fn end_leftovers(&mut self, end: End) {
        if let (None, End::Signal(number)) = (&self.stop, end)
            && asked::is_stop(number)
        {
            // The agent's message is on its way, or a stranger has signalled the main process alone.
            let has_manager = self.manager.is_some();
            let of = if has_manager { Asked::everybody } else { Asked::of };
            self.stop = Some(of(self.child, number));
        }
        let is_stopped =
            !end.success() && self.stop.as_ref().is_some_and(|stop| stop.ended(end.shell_code()));
        let grace = if end.success() || is_stopped { self.grace } else { Duration::ZERO };
        let settle = if is_stopped { Duration::ZERO } else { SETTLE };
        let in_stop = self.stop.is_some();
        let last_wait = EndBudget::of(self.grace).after_kill();
        let mut sweep = Sweep::begin(Instant::now(), Newcomers::Asked, settle, grace, last_wait);
        let mut told = false;
        loop {
            self.reap();
            // Every orphan below us becomes our child, so without a child nothing is left.
            if self.childless {
                return;
            }
            let now = Instant::now();
            if self.agent.is_none() {
                sweep.kill_now(now, last_wait);
            }
            let (step, wake) = sweep.step(now);
            if step != SweepStep::Wait && end.success() && !told {
                told = true;
                self.tell_of_leftovers();
            }
            match (step, &mut self.stop) {
                (SweepStep::Wait, _) => {}
                (SweepStep::Term, None) => {
                    let asked = Asked::everybody(self.child, Signal::TERM.as_raw());
                    signal_descendants(Signal::TERM);
                    self.stop = Some(asked);
                }
                (SweepStep::Term, Some(stop)) if !in_stop => stop.ask_helpers(),
                (SweepStep::Term, Some(stop)) => {
                    stop.ask_orphans();
                    if is_stopped || end.success() {
                        stop.kill_mute(now);
                    }
                }
                (SweepStep::Kill, _) => kill_descendants(),
                // A process that outlives SIGKILL sleeps in the kernel; the agent will report it.
                (SweepStep::GiveUp, _) => return,
            }
            self.wait(Some(wake.saturating_duration_since(now)));
        }
    }

    /// Reports that leftovers of a successful rank are ended too, since they may be the work itself
    /// (`train.py & exit 0`).
    fn tell_of_leftovers(&self) {
        let all = tree::snapshot();
        let left = tree::descendants(&all, own_pid());
        if let (Some(agent), false) = (&self.agent, left.is_empty()) {
            let said =
                FromRank::Leftovers { names: tree::names(&left, Notice::NAMED), count: left.len() };
            let _ = socket::send(agent, &said, &[]);
        }
    }
}

fn kill_descendants() {
    signal_descendants(Signal::KILL);
    tree::kill_children(&HashSet::new());
}

fn signal_descendants(signal: Signal) {
    let all = tree::snapshot();
    tree::signal_all(&tree::descendants(&all, own_pid()), signal);
}

/// Time limit for reading the record that a rank wrote of its exception.
const RECORD: Duration = Duration::from_millis(500);
/// Maximum error of a file's time.
const CLOCK_SKEW: Duration = Duration::from_secs(5);

/// A copy in memory of the record that torch's `@record` wrote for a failed rank that began at
/// `began`.
fn recorded(end: End, began: SystemTime) -> Option<(FromRank, OwnedFd)> {
    let path = PathBuf::from(std::env::var_os(ERROR_FILE)?);
    if end.success() || path.as_os_str().is_empty() {
        return None;
    }
    // The file may be on a dead mount, which must not delay the end of the rank.
    let read = move || -> io::Result<_> {
        let (file, _) = regular_file::open(&path)?;
        let metadata = file.metadata()?;
        // The file is from an earlier attempt, or from another job. The clock of a file server may
        // be behind, and a file may have any time.
        let is_old = began.duration_since(metadata.modified()?).is_ok_and(|age| age > CLOCK_SKEW);
        let mut bytes = Vec::new();
        file.take(if is_old { 0 } else { LARGEST_RECORD }).read_to_end(&mut bytes)?;
        Ok((FromRank::Recorded { device: metadata.dev(), inode: metadata.ino() }, bytes))
    };
    let (said, bytes) = with_deadline(RECORD, read)?.ok()?;
    if bytes.is_empty() {
        return None;
    }
    let copy = rustix::fs::memfd_create("error.json", MemfdFlags::CLOEXEC).ok()?;
    let mut copy = File::from(copy);
    copy.write_all(&bytes).ok()?;
    Some((said, copy.into()))
}
