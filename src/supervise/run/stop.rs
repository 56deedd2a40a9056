//! How an attempt is brought to its end, and when.
//!
//! The rules of a stop: TERM to the engine, which passes it on; after its share
//! of the grace TERM to every process of the tree; then KILL until a scan finds
//! nothing.

use std::collections::HashSet;
use std::time::Duration;

use rustix::process::WaitOptions;
use tokio::time::Instant;

use super::super::budget::{EndBudget, EndStep};
use super::super::message::ToRank;
use super::super::outcome::{End, Notice, StopReason};
use super::super::tree::{self, Process};
use super::{Phase, Shim, Supervisor};
use crate::sys::{Signal, own_pid};

/// How long SIGKILL may take after a start that failed half-way.
const UNKILLABLE: Duration = Duration::from_secs(5);
/// The same after a second interrupt: a person waits, and the guard not much longer.
const UNKILLABLE_NOW: Duration = Duration::from_secs(1);
/// How long an engine without a single rank may take to end once a stop has begun.
/// torchrun's exit barrier waits for other nodes up to 300 s inside a call into
/// C++, in which no Python signal handler runs.
const ENGINE_ALONE: Duration = Duration::from_secs(2);
/// Pause between two scans while something is being killed.
const KILL_PAUSE: Duration = Duration::from_millis(10);
/// What ends by itself so soon after the engine was about to: it is no leftover.
const SETTLE: Duration = Duration::from_millis(200);
/// Pause between two scans while leftovers may end by themselves.
const LEFTOVER_PAUSE: Duration = Duration::from_millis(100);

/// How far a stop has come.
pub(super) struct Stopping {
    /// When every process of the tree gets TERM; None once they had it.
    pub(super) term_tree: Option<Instant>,
    kill: Instant,
    killing: bool,
    /// When what outlived SIGKILL is named.
    give_up: Instant,
    /// When an engine that has no rank any more is killed.
    kill_engine: Option<Instant>,
}

/// After the engine and all shims: what is still below us.
pub(super) struct Leftovers {
    termed: HashSet<(i32, u64)>,
    kill: Instant,
    give_up: Instant,
    next: Instant,
    since: Instant,
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
        self.outcome.stopped_at = Some(now.into_std());
        let budget = EndBudget::of(self.grace);
        let engine_alive = self.has_engine && !self.children.is_empty();
        if engine_alive && matches!(reason, StopReason::Signal(_) | StopReason::OtherNode) {
            for pid in self.children.keys() {
                if let Some(engine) = tree::process(*pid) {
                    tree::signal(&engine, Signal::TERM);
                }
            }
        }
        // An engine that lost a rank ends the others without being told.
        let share = if engine_alive { budget.until(EndStep::Engine) } else { Duration::ZERO };
        let kill = match reason {
            StopReason::Signal(_) => budget.until(EndStep::Ranks),
            _ => budget.own_kill(),
        };
        self.stop = Some(Stopping {
            term_tree: Some(now + share),
            kill: now + kill,
            killing: false,
            give_up: now + budget.until(EndStep::Kill),
            kill_engine: None,
        });
    }

    pub(super) fn kill_now(&mut self) {
        if let Some(stop) = &mut self.stop {
            stop.term_tree = None;
            stop.kill = stop.kill.min(Instant::now());
            stop.give_up = stop.give_up.min(stop.kill + UNKILLABLE_NOW);
        }
    }

    /// Does what the clock demands.
    pub(super) fn advance(&mut self) {
        let now = Instant::now();
        let has_shims = self.has_shims();
        let Some(stop) = &mut self.stop else { return };
        if self.has_engine && !self.children.is_empty() && !has_shims {
            let at = *stop.kill_engine.get_or_insert(now + ENGINE_ALONE);
            for engine in self.children.keys().filter(|_| now >= at) {
                if let Some(engine) = tree::process(*engine) {
                    tree::signal(&engine, Signal::KILL);
                }
            }
        } else {
            stop.kill_engine = None;
        }
        if stop.term_tree.is_some_and(|at| now >= at) {
            stop.term_tree = None;
            let all = tree::snapshot();
            for process in tree::job(&all, own_pid(), &self.others) {
                tree::signal(process, Signal::TERM);
            }
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
        if now >= stop.kill {
            if !stop.killing {
                stop.killing = true;
                (self.notice)(Notice::Killing);
            }
            let all = tree::snapshot();
            let left = tree::job(&all, own_pid(), &self.others);
            if now >= stop.give_up {
                self.outcome.survivors = tree::survivors(left);
                self.give_up();
                return;
            }
            for process in left {
                tree::signal(process, Signal::KILL);
            }
            tree::kill_children(&self.others);
        }
    }

    /// Whether a shim of ours is connected, or a word of one may be under way: a short rank
    /// and its engine can both be over before its shim's first packet was read. Whoever
    /// has said nothing does not count.
    fn has_shims(&self) -> bool {
        let counts = |shim: &Shim| shim.phase != Phase::New || shim.connection.has_words();
        self.shims.values().any(counts)
    }

    /// What is left cannot be ended by anybody: the report names it.
    fn give_up(&mut self) {
        self.children.clear();
        self.shims.clear();
        self.mute.clear();
        self.leftovers = None;
        self.given_up = true;
    }

    pub(super) fn next_deadline(&self) -> Instant {
        let now = Instant::now();
        let far = now + Duration::from_secs(3600);
        let stop = self.stop.as_ref().map(|stop| {
            if stop.killing {
                return now + KILL_PAUSE;
            }
            // Never earlier than a pause from now: an engine that was killed may take a while.
            let engine = stop.kill_engine.map(|at| at.max(now + KILL_PAUSE));
            [stop.term_tree, engine].into_iter().flatten().fold(stop.kill, Instant::min)
        });
        let leftovers = self.leftovers.as_ref().map(|leftovers| leftovers.next);
        [stop, leftovers].into_iter().flatten().min().unwrap_or(far)
    }

    /// True when nothing of the job is left, or nothing that can be ended.
    pub(super) fn finished(&mut self) -> bool {
        if !self.children.is_empty() || self.has_shims() || !self.mute.is_empty() {
            return false;
        }
        // Every orphan below us becomes our child, so without one nothing is left.
        // A scan would overlook what forks and exits faster than it reads.
        if self.childless || self.given_up {
            return true;
        }
        let all = tree::snapshot();
        let left = tree::job(&all, own_pid(), &self.others);
        if left.is_empty() && !self.others.is_empty() {
            return true;
        }
        self.end_leftovers(&left);
        false
    }

    /// The ranks are over; what the engine or they left behind gets TERM and the
    /// grace if all went well, and KILL otherwise.
    fn end_leftovers(&mut self, left: &[&Process]) {
        let now = Instant::now();
        let well = self.outcome.stop.is_none() && self.outcome.engine.is_none_or(End::success);
        let budget = EndBudget::of(self.grace);
        let grace = if well { budget.until(EndStep::Ranks) } else { Duration::ZERO };
        let leftovers = self.leftovers.get_or_insert_with(|| Leftovers {
            termed: HashSet::new(),
            kill: now + grace,
            give_up: now + grace + budget.after_kill(),
            next: now,
            since: now,
            announced: false,
        });
        if now < leftovers.kill && now < leftovers.since + SETTLE {
            leftovers.next = now + KILL_PAUSE;
            return;
        }
        if !leftovers.announced && !left.is_empty() {
            leftovers.announced = true;
            let names = tree::names(left, Notice::NAMED);
            let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            (self.notice)(Notice::Leftovers { rank: None, names, count: left.len(), grace_ms });
        }
        let kill = now >= leftovers.kill;
        if kill && now >= leftovers.give_up {
            self.outcome.survivors = tree::survivors(left.iter().copied());
            self.given_up = true;
            return;
        }
        if kill {
            tree::kill_children(&self.others);
        }
        for process in left {
            if kill {
                tree::signal(process, Signal::KILL);
            } else if leftovers.termed.insert((process.pid, process.start_ticks)) {
                tree::signal(process, Signal::TERM);
            }
        }
        leftovers.next = now + if kill { KILL_PAUSE } else { LEFTOVER_PAUSE };
    }
}

/// After a start that failed half-way: what did start must not stay.
pub(super) async fn kill_all_descendants(others: &HashSet<i32>) {
    let deadline = Instant::now() + UNKILLABLE;
    loop {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        let all = tree::snapshot();
        let left = tree::job(&all, own_pid(), others);
        if left.is_empty() || Instant::now() >= deadline {
            return;
        }
        for process in left {
            tree::signal(process, Signal::KILL);
        }
        tokio::time::sleep(KILL_PAUSE).await;
    }
}
