//! Ends an attempt: the rules of a stop and of leftovers.
//!
//! A stop sends TERM to the engine, which forwards it; after its share of the grace period TERM
//! to every process of the tree; then KILL until a scan finds nothing.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::WaitOptions;
use tokio::signal::unix::Signal as Signals;

use super::super::budget::{EndBudget, EndStep, UNKILLABLE};
use super::super::message::ToRank;
use super::super::outcome::{End, Notice, StopReason};
use super::super::sweep::{KILL_PAUSE, Newcomers, SETTLE, Sweep, SweepStep};
use super::super::tree;
use super::supervisor::{Companion, Leftovers, ShimConnection, ShimPhase, Stopping, Supervisor};
use crate::sys::{Signal, own_pid};

/// Time for SIGKILL to take effect after a second interrupt: the user waits, and the guard waits
/// only little longer.
const UNKILLABLE_NOW: Duration = Duration::from_secs(1);
/// Time limit for an engine without any rank to end after a stop has begun. torchrun's exit
/// barrier waits for other nodes up to 300 s inside a call into C++, in which no Python signal
/// handler runs.
const ENGINE_ALONE: Duration = Duration::from_secs(2);
/// Time limit for the killed companion to end. Otherwise it is stuck in a driver.
const COMPANION: Duration = Duration::from_millis(250);
/// Interval of the loop without a deadline.
const FAR: Duration = Duration::from_secs(3600);

impl Supervisor<'_> {
    /// The first reason counts.
    pub(super) fn begin_stop(&mut self, reason: StopReason) {
        if self.outcome.stop.is_some() {
            return;
        }
        self.outcome.stop = Some(reason);
        (self.notice)(Notice::Stopping { reason });
        let now = Instant::now();
        self.outcome.stopped_at = Some(now);
        let budget = EndBudget::of(self.grace);
        let engine_alive = self.has_engine && !self.children.is_empty();
        if engine_alive && matches!(reason, StopReason::Signal(_) | StopReason::OtherNode) {
            self.signal_engine(Signal::TERM);
        }
        // An engine that lost a rank ends the others by itself.
        let share = if engine_alive { budget.until(EndStep::Engine) } else { Duration::ZERO };
        let kill = match reason {
            StopReason::Signal(_) => budget.until(EndStep::Ranks),
            _ => budget.own_kill(),
        };
        let last_wait = budget.until(EndStep::Kill).saturating_sub(kill);
        self.stop = Some(Stopping {
            // A process that a rank starts in order to shut down gets no TERM of its own.
            sweep: Sweep::begin(now, Newcomers::Spared, share, kill, last_wait),
            killing: false,
            kill_engine: None,
        });
    }

    fn signal_engine(&self, signal: Signal) {
        for engine in self.children.keys().filter_map(|pid| tree::process(*pid)) {
            tree::signal(&engine, signal);
        }
    }

    pub(super) fn kill_now(&mut self) {
        if let Some(stop) = &mut self.stop {
            stop.sweep.kill_now(Instant::now(), UNKILLABLE_NOW);
        }
    }

    /// Performs the steps that are due.
    pub(super) fn advance(&mut self) {
        let now = Instant::now();
        let engine_alone = self.has_engine && !self.children.is_empty() && !self.has_shims();
        let Some(stop) = &mut self.stop else { return };
        stop.kill_engine = engine_alone.then(|| stop.kill_engine.unwrap_or(now + ENGINE_ALONE));
        let kill_engine = stop.kill_engine.is_some_and(|at| now >= at);
        let (step, _) = stop.sweep.step(now);
        if matches!(step, SweepStep::Kill | SweepStep::GiveUp) && !stop.killing {
            stop.killing = true;
            (self.notice)(Notice::Killing);
        }
        if kill_engine {
            self.signal_engine(Signal::KILL);
        }
        if step == SweepStep::Wait {
            return;
        }
        let all = tree::snapshot();
        let left = tree::job(&all, own_pid(), &self.others);
        match step {
            SweepStep::Wait => {}
            SweepStep::Term => {
                tree::signal_all(&left, Signal::TERM);
                // A rank that hidepid hides from us (it is not dumpable) can be signalled by its
                // parent.
                for shim in self.shims.values() {
                    let Some(identity) = shim.identity() else { continue };
                    let pid = self.ranks.get(&identity.rank.global).and_then(|rank| rank.pid);
                    if pid.is_some_and(|pid| !all.contains_key(&pid)) {
                        let number = Signal::TERM.as_raw();
                        let _ = shim.connection.send(&ToRank::Signal { number }, &[]);
                    }
                }
            }
            SweepStep::Kill => {
                tree::signal_all(&left, Signal::KILL);
                tree::kill_children(&self.others);
            }
            SweepStep::GiveUp => {
                self.outcome.survivors = tree::survivors(left);
                self.give_up();
            }
        }
    }

    /// Whether a shim of ours is connected, or a packet of one may be unread: a short rank and
    /// its engine can both end before the first packet of the shim was read. A connection
    /// without a packet does not count.
    fn has_shims(&self) -> bool {
        let counts =
            |shim: &ShimConnection| shim.phase != ShimPhase::New || shim.connection.has_message();
        self.shims.values().any(counts)
    }

    /// Gives up the remaining processes, which outlived SIGKILL; the report names them.
    fn give_up(&mut self) {
        self.children.clear();
        self.shims.clear();
        self.unreported.clear();
        self.leftovers = None;
        self.nothing_left = true;
    }

    pub(super) fn next_deadline(&self) -> Instant {
        let now = Instant::now();
        let stop = self.stop.as_ref().map(|stop| stop.sweep.wake(now));
        // At least one pause from now, since a killed engine may take a while to end.
        let engine = self.stop.as_ref().and_then(|stop| stop.kill_engine);
        let engine = engine.map(|at| at.max(now + KILL_PAUSE));
        let leftovers = self.leftovers.as_ref().map(|leftovers| leftovers.wake);
        let companion = self.companion.as_ref().and_then(|companion| companion.given_up);
        let companion = companion.filter(|at| *at > now);
        [stop, engine, leftovers, companion].into_iter().flatten().min().unwrap_or(now + FAR)
    }

    /// True if no process of the job is left, or only ones that cannot be ended.
    pub(super) fn finished(&self) -> bool {
        self.nothing_left && self.ranks_are_over()
    }

    fn ranks_are_over(&self) -> bool {
        self.children.is_empty() && !self.has_shims() && self.unreported.is_empty()
    }

    /// After the ranks have ended: leftovers of the engine or the ranks get TERM and the grace
    /// period after a success, and KILL otherwise.
    pub(super) fn end_leftovers(&mut self) {
        // Every orphan below us becomes our child, so without a child nothing is left. A scan
        // could miss processes that fork and exit faster than it reads.
        if self.nothing_left || !self.ranks_are_over() {
            return;
        }
        let waits = self.end_companion();
        let all = tree::snapshot();
        let left = tree::job(&all, own_pid(), &self.others);
        if left.is_empty() && !self.others.is_empty() && !waits {
            self.nothing_left = true;
            return;
        }
        let now = Instant::now();
        let well = self.outcome.stop.is_none() && self.outcome.engine.is_none_or(End::success);
        let budget = EndBudget::of(self.grace);
        let grace = if well { budget.until(EndStep::Ranks) } else { Duration::ZERO };
        let leftovers = self.leftovers.get_or_insert_with(|| {
            let last_wait = budget.after_kill();
            let sweep = Sweep::begin(now, Newcomers::Asked, SETTLE, grace, last_wait);
            Leftovers { sweep, wake: now, announced: false }
        });
        let (step, wake) = leftovers.sweep.step(now);
        leftovers.wake = wake;
        if step != SweepStep::Wait && !left.is_empty() && !leftovers.announced {
            leftovers.announced = true;
            let names = tree::names(&left, Notice::NAMED);
            let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            (self.notice)(Notice::Leftovers { rank: None, names, count: left.len(), grace_ms });
        }
        match step {
            SweepStep::Wait => {}
            SweepStep::Term => {
                let new = |one: &&tree::Process| leftovers.sweep.is_new((one.pid, one.start_ticks));
                let new: Vec<&tree::Process> = left.into_iter().filter(new).collect();
                tree::signal_all(&new, Signal::TERM);
            }
            SweepStep::Kill => {
                tree::signal_all(&left, Signal::KILL);
                tree::kill_children(&self.others);
            }
            SweepStep::GiveUp => {
                self.outcome.survivors = tree::survivors(left);
                self.nothing_left = true;
            }
        }
    }
}

impl Supervisor<'_> {
    /// Kills the companion. True: it may still end, and then only the kernel's word that no child
    /// is left proves the end of the job.
    fn end_companion(&mut self) -> bool {
        let Some(Companion { process, given_up }) = &mut self.companion else { return false };
        if !self.others.contains(&process.pid) {
            return false;
        }
        let now = Instant::now();
        let until = *given_up.get_or_insert_with(|| {
            tree::signal(process, Signal::KILL);
            now + COMPANION
        });
        now < until
    }
}

/// After a start that failed half-way: kills what did start. `ended` is SIGCHLD.
pub(super) async fn kill_all_descendants(others: &HashSet<i32>, ended: &mut Signals) {
    let (now, asked) = (Instant::now(), Newcomers::Asked);
    let mut sweep = Sweep::begin(now, asked, Duration::ZERO, Duration::ZERO, UNKILLABLE);
    loop {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        let all = tree::snapshot();
        let left = tree::job(&all, own_pid(), others);
        let (step, wake) = sweep.step(Instant::now());
        if left.is_empty() || step == SweepStep::GiveUp {
            return;
        }
        tree::signal_all(&left, Signal::KILL);
        let _ = tokio::time::timeout_at(wake.into(), ended.recv()).await;
    }
}
