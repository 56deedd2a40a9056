//! How an attempt is brought to its end, and when.
//!
//! The rules of a stop: TERM to the engine, which passes it on; after its share
//! of the grace TERM to every process of the tree; then KILL until a scan finds
//! nothing.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::WaitOptions;
use tokio::signal::unix::Signal as Signals;

use super::super::budget::{EndBudget, EndStep, UNKILLABLE};
use super::super::message::ToRank;
use super::super::outcome::{End, Notice, StopReason};
use super::super::sweep::{KILL_PAUSE, Newcomers, SETTLE, Step, Sweep};
use super::super::tree;
use super::{Phase, Shim, Supervisor};
use crate::sys::{Signal, own_pid};

/// How long SIGKILL may take after a second interrupt: a person waits, and the guard not much
/// longer.
const UNKILLABLE_NOW: Duration = Duration::from_secs(1);
/// How long an engine without a single rank may take to end once a stop has begun.
/// torchrun's exit barrier waits for other nodes up to 300 s inside a call into
/// C++, in which no Python signal handler runs.
const ENGINE_ALONE: Duration = Duration::from_secs(2);
/// Without a deadline the loop still looks again now and then.
const FAR: Duration = Duration::from_secs(3600);

/// How far a stop has come.
pub(super) struct Stopping {
    /// Of every process of the tree.
    pub(super) sweep: Sweep,
    killing: bool,
    /// When an engine that has no rank any more is killed.
    kill_engine: Option<Instant>,
}

/// After the engine and all shims: what is still below us.
pub(super) struct Leftovers {
    sweep: Sweep,
    wake: Instant,
    announced: bool,
}

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
        // An engine that lost a rank ends the others without being told.
        let share = if engine_alive { budget.until(EndStep::Engine) } else { Duration::ZERO };
        let kill = match reason {
            StopReason::Signal(_) => budget.until(EndStep::Ranks),
            _ => budget.own_kill(),
        };
        let last_wait = budget.until(EndStep::Kill).saturating_sub(kill);
        self.stop = Some(Stopping {
            // What a rank starts in order to end well gets no TERM of its own.
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

    /// Does what the clock demands.
    pub(super) fn advance(&mut self) {
        let now = Instant::now();
        let engine_alone = self.has_engine && !self.children.is_empty() && !self.has_shims();
        let Some(stop) = &mut self.stop else { return };
        stop.kill_engine = engine_alone.then(|| stop.kill_engine.unwrap_or(now + ENGINE_ALONE));
        let kill_engine = stop.kill_engine.is_some_and(|at| now >= at);
        let (step, _) = stop.sweep.step(now);
        if matches!(step, Step::Kill | Step::GiveUp) && !stop.killing {
            stop.killing = true;
            (self.notice)(Notice::Killing);
        }
        if kill_engine {
            self.signal_engine(Signal::KILL);
        }
        if step == Step::Wait {
            return;
        }
        let all = tree::snapshot();
        let left = tree::job(&all, own_pid(), &self.others);
        match step {
            Step::Wait => {}
            Step::Term => {
                tree::signal_all(&left, Signal::TERM);
                // What hidepid hides from us (a rank that is not dumpable) its parent can reach.
                for shim in self.shims.values() {
                    let Some(identity) = shim.identity() else { continue };
                    let pid = self.ranks.get(&identity.rank.global).and_then(|rank| rank.pid);
                    if pid.is_some_and(|pid| !all.contains_key(&pid)) {
                        let number = Signal::TERM.as_raw();
                        let _ = shim.connection.send(&ToRank::Signal { number }, &[]);
                    }
                }
            }
            Step::Kill => {
                tree::signal_all(&left, Signal::KILL);
                tree::kill_children(&self.others);
            }
            Step::GiveUp => {
                self.outcome.survivors = tree::survivors(left);
                self.give_up();
            }
        }
    }

    /// Whether a shim of ours is connected, or a word of one may be under way: a short rank
    /// and its engine can both be over before its shim's first packet was read. Whoever
    /// has said nothing does not count.
    fn has_shims(&self) -> bool {
        let counts = |shim: &Shim| shim.phase != Phase::New || shim.connection.has_message();
        self.shims.values().any(counts)
    }

    /// What is left cannot be ended by anybody: the report names it.
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
        // Never earlier than a pause from now: an engine that was killed may take a while.
        let engine = self.stop.as_ref().and_then(|stop| stop.kill_engine);
        let engine = engine.map(|at| at.max(now + KILL_PAUSE));
        let leftovers = self.leftovers.as_ref().map(|leftovers| leftovers.wake);
        [stop, engine, leftovers].into_iter().flatten().min().unwrap_or(now + FAR)
    }

    /// True when nothing of the job is left, or nothing that can be ended.
    pub(super) fn finished(&self) -> bool {
        self.nothing_left && self.ranks_are_over()
    }

    fn ranks_are_over(&self) -> bool {
        self.children.is_empty() && !self.has_shims() && self.unreported.is_empty()
    }

    /// The ranks are over; what the engine or they left behind gets TERM and the
    /// grace if all went well, and KILL otherwise.
    pub(super) fn end_leftovers(&mut self) {
        // Every orphan below us becomes our child, so without one nothing is left.
        // A scan would overlook what forks and exits faster than it reads.
        if self.nothing_left || !self.ranks_are_over() {
            return;
        }
        let all = tree::snapshot();
        let left = tree::job(&all, own_pid(), &self.others);
        if left.is_empty() && !self.others.is_empty() {
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
        if step != Step::Wait && !left.is_empty() && !leftovers.announced {
            leftovers.announced = true;
            let names = tree::names(&left, Notice::NAMED);
            let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            (self.notice)(Notice::Leftovers { rank: None, names, count: left.len(), grace_ms });
        }
        match step {
            Step::Wait => {}
            Step::Term => {
                let new = |one: &&tree::Process| leftovers.sweep.is_new((one.pid, one.start_ticks));
                let new: Vec<&tree::Process> = left.into_iter().filter(new).collect();
                tree::signal_all(&new, Signal::TERM);
            }
            Step::Kill => {
                tree::signal_all(&left, Signal::KILL);
                tree::kill_children(&self.others);
            }
            Step::GiveUp => {
                self.outcome.survivors = tree::survivors(left);
                self.nothing_left = true;
            }
        }
    }
}

/// After a start that failed half-way: what did start must not stay. `ended` is SIGCHLD.
pub(super) async fn kill_all_descendants(others: &HashSet<i32>, ended: &mut Signals) {
    let (now, asked) = (Instant::now(), Newcomers::Asked);
    let mut sweep = Sweep::begin(now, asked, Duration::ZERO, Duration::ZERO, UNKILLABLE);
    loop {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        let all = tree::snapshot();
        let left = tree::job(&all, own_pid(), others);
        let (step, wake) = sweep.step(Instant::now());
        if left.is_empty() || step == Step::GiveUp {
            return;
        }
        tree::signal_all(&left, Signal::KILL);
        let _ = tokio::time::timeout_at(wake.into(), ended.recv()).await;
    }
}
