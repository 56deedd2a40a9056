//! One attempt from the first fork to the last reaped process.
//!
//! A single task owns the state and puts everything that can happen (a shim
//! speaks, a child ends, the guard speaks, a deadline passes) in one order.
//! The state is in [`supervisor`]. The loss of the guard is a KILL at once.
//!
//! A stop has the shims signal the main process of each rank, once; that of a notice only those that handle its signal.
//! Their helpers are asked when that process has ended ([`super::asked`]), and the engine when its ranks have. KILL
//! follows until a scan finds nothing.

mod supervisor;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::WaitOptions;
use tokio::signal::unix::Signal as Signals;
use tokio::sync::mpsc;

use super::asked;
use super::budget::{
    EndBudget, EndStep, KILL_PAUSE, Newcomers, SETTLE, Sweep, SweepStep, UNKILLABLE,
};
use super::engine::{self, Launch, Launching};
use super::link::{GuardCommand, GuardCommands};
use super::socket::{ShimListener, ToRank};
use super::tree;
use linux::deadline::millis;
use linux::sys::Signal;
pub use supervisor::Streams;
use supervisor::{
    Announced, Companion, Leftovers, Released, ShimConnection, ShimPhase, Stopping, Supervisor,
};
use verdict::outcome::{End, KillReason, Notice, NoticedStop, Outcome, Owner, StopReason, Stream};

/// Time for SIGKILL to take effect after a second interrupt: the user waits, and the guard waits
/// only little longer.
const UNKILLABLE_NOW: Duration = Duration::from_secs(1);
/// Time limit for an engine without any rank to end after a stop has begun. torchrun's exit
/// barrier waits for other nodes up to 300 s inside a call into C++, in which no Python signal
/// handler runs.
const ENGINE_ALONE: Duration = Duration::from_secs(2);
/// The same after a stop from outside, when nobody needs the engine's report about its ranks: torchrun
/// takes one to three seconds.
const ENGINE_STOPPED: Duration = Duration::from_millis(400);
/// Time in which every engine has seen that a rank ended: torchrun looks each 100 ms, DeepSpeed each
/// second.
const ENGINE_LOOKS: Duration = Duration::from_millis(1500);
/// Time limit for the killed companion to end. Otherwise it is stuck in a driver.
const COMPANION: Duration = Duration::from_millis(250);
/// Interval at which ranks are asked whether they handle the signal of a notice by now.
const LOOK: Duration = Duration::from_millis(250);
/// Interval of the loop without a deadline.
const FAR: Duration = Duration::from_secs(3600);

/// Runs one attempt. An error names the program that could not be started and the reason; then nothing
/// of the attempt is running.
///
/// `halts` gives a reason when the job is to end for one that these ranks do not show: another node has failed, the job
/// stands still, a notice came. The first one counts; a later notice may shorten the stop of the first.
pub async fn run(
    launch: &Launch,
    guard_commands: &GuardCommands,
    streams: &mut (dyn Streams + Send),
    notice: &mut (dyn FnMut(Notice) + Send),
    mut halts: mpsc::UnboundedReceiver<StopReason>,
) -> Result<Outcome, (PathBuf, io::Error)> {
    // Existing descendants do not belong to the job, such as a probe that a driver blocks.
    let others: HashSet<i32> = tree::living_below().into_iter().collect();
    let nowhere = |error| (PathBuf::new(), error);
    let listener = ShimListener::bind().map_err(nowhere)?;
    let mut ended =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()).map_err(nowhere)?;
    let (sender, mut said) = mpsc::unbounded_channel();
    let started = engine::start(launch, &listener.name, &listener.token).await;
    let started = started.and_then(|mut started| {
        let reports = std::mem::take(&mut started.reports);
        Ok((Launching::new(reports, launch.exec_timeout).map_err(nowhere)?, started))
    });
    let (launching, started) = match started {
        Ok(started) => started,
        Err(error) => {
            kill_all_descendants(&others, &mut ended).await;
            return Err(error);
        }
    };
    streams.attach(Owner::Engine, Stream::Out, started.out);
    streams.attach(Owner::Engine, Stream::Err, started.err);
    let mut state = Supervisor {
        launch,
        token: listener.token.clone(),
        companion: launch
            .companion
            .filter(|pid| others.contains(pid))
            .and_then(tree::process)
            .map(|process| Companion { process, given_up: None }),
        others,
        records: HashSet::new(),
        children: started.children.iter().copied().collect(),
        shims: HashMap::new(),
        unreported: Vec::new(),
        nothing_left: false,
        launching,
        ranks: BTreeMap::new(),
        outcome: Outcome { planned: launch.planned, ..Outcome::default() },
        engine_weighed: false,
        failed_until: None,
        stop: None,
        announced: None,
        leftovers: None,
        streams,
        notice,
    };
    if launch.has_engine() {
        for (pid, _) in &started.children {
            (state.notice)(Notice::EngineStarted { pid: *pid });
        }
    }

    let mut next_id = 0u64;
    let mut connected = |shims: &mut HashMap<u64, ShimConnection>, connection| {
        next_id += 1;
        shims.insert(next_id, ShimConnection::new(connection, next_id, sender.clone()));
    };
    let mut guard_gone = false;
    loop {
        state.reap();
        // Connections are accepted after the reaping, so that the connection of a shim that has ended
        // is included.
        while let Some(connection) = listener.accept_waiting() {
            connected(&mut state.shims, connection);
        }
        while let Ok((id, word)) = said.try_recv() {
            state.on_shim_message(id, word);
        }
        // Launches are checked first, since the end of a child whose execve failed would be taken for
        // the engine's own end.
        match state.launching.look() {
            // A stop may have ended the program before execve.
            Err(error) if state.outcome.stop.is_none() => {
                kill_all_descendants(&state.others, &mut ended).await;
                return Err(error);
            }
            _ => state.launching.tell(state.notice),
        }
        state.report_unreported();
        state.weigh_engine();
        // All events are handled first, since nothing else may wake this loop before a deadline.
        state.advance();
        state.end_leftovers();
        if state.finished() {
            break;
        }
        let launched = state.launching.next_deadline().filter(|_| state.stop.is_none());
        let wake =
            launched.into_iter().fold(state.next_deadline().into(), tokio::time::Instant::min);
        tokio::select! {
            accepted = listener.accept() => if let Ok(connection) = accepted {
                connected(&mut state.shims, connection);
            },
            Some((id, word)) = said.recv() => state.on_shim_message(id, word),
            word = guard_commands.next(), if !guard_gone => {
                guard_gone = word == GuardCommand::Gone;
                state.on_guard_command(word);
            }
            Some(reason) = halts.recv() => match reason {
                StopReason::Noticed(stop) if state.outcome.stop.is_some() => state.end_sooner(stop),
                reason => state.begin_stop(reason),
            },
            () = state.launching.changed(), if !state.launching.is_through() => {}
            _ = ended.recv() => {}
            () = tokio::time::sleep_until(wake) => {}
        }
    }
    Ok(Outcome { ranks: state.ranks.into_values().collect(), ..state.outcome })
}

impl Supervisor<'_> {
    /// The first reason counts.
    fn begin_stop(&mut self, reason: StopReason) {
        if self.outcome.stop.is_some() {
            return;
        }
        self.outcome.stop = Some(reason);
        (self.notice)(Notice::Stopping { reason });
        let now = Instant::now();
        self.outcome.stopped_at = Some(now);
        let noticed = match reason {
            StopReason::Noticed(stop) => Some(stop.within),
            _ => None,
        };
        self.outcome.stop_within = noticed;
        let budget = EndBudget::of(noticed.unwrap_or(self.launch.grace));
        // A stop of all nodes may come from a manager that signals all of them. A notice comes before any signal.
        if !is_from_outside(reason) || noticed.is_some() {
            for shim in self.shims.values() {
                shim.tell(&ToRank::NoManager);
            }
        }
        let kill = match reason {
            StopReason::Signal(_) | StopReason::Noticed(_) => budget.until(EndStep::Ranks),
            _ => budget.own_kill(),
        };
        // After a notice nothing but its one signal disturbs a save.
        let late = if noticed.is_some() { kill } else { budget.until(EndStep::Main) };
        let last_wait = budget.until(EndStep::Kill).saturating_sub(kill);
        let sweep = Sweep::begin(now, Newcomers::Spared, late, kill, last_wait);
        let why_kill = KillReason::Grace;
        self.stop =
            Some(Stopping { sweep, killing: false, why_kill, kill_engine: None, released: None });
        if let StopReason::Noticed(stop) = reason {
            self.announced = Some(Announced::new(stop.signal));
            return self.ask_those_that_handle(now);
        }
        if reason == StopReason::GivenUp {
            return self.kill_now(KillReason::GivenUp);
        }
        self.ask_all(asked::signal_of(reason));
    }

    /// Stops the other ranks of one that failed, once they have had their time.
    fn stop_after_failure(&mut self) {
        let is_due = self.failed_until.is_some_and(|until| until <= Instant::now());
        if let Some(rank) = self.outcome.first_failure.filter(|_| is_due) {
            self.begin_stop(StopReason::RankFailed(rank));
        }
    }

    /// Signals the main process of each rank, and what ranks have left.
    fn ask_all(&self, number: i32) {
        self.tell_ranks(&ToRank::Stop { number });
        let all = tree::snapshot();
        let strays = self.strays(&all);
        tree::signal_all(&strays, Signal::TERM);
    }

    /// Signals the ranks that handle the signal of a notice by now. The others go on: a save may need them, and they may
    /// set a handler yet. When those that were asked have ended, the rest has the grace period to end by itself.
    fn ask_those_that_handle(&mut self, now: Instant) {
        let Some(announced) = &mut self.announced else { return };
        if announced.look_at > now && announced.rest_until.is_none() {
            return;
        }
        announced.look_at = now + LOOK;
        let number = announced.signal;
        for (id, shim) in &self.shims {
            let pid = shim.identity().and_then(|shim| self.ranks.get(&shim.rank.global)?.pid);
            let is_new = pid.is_some_and(|pid| asked::handles(pid, number));
            if is_new && announced.asked.insert(*id) {
                shim.tell(&ToRank::Stop { number });
            }
        }
        let lives = |id: &u64| self.shims.get(id).is_some_and(|shim| shim.identity().is_some());
        if announced.asked.is_empty() || announced.asked.iter().any(lives) {
            return;
        }
        let rest_until = *announced.rest_until.get_or_insert(now + self.launch.grace);
        if now >= rest_until {
            self.announced = None;
            self.ask_all(Signal::TERM.as_raw());
        }
    }

    /// A stop signal during the stop of a notice: the platform did not wait for the deadline, and gives the grace
    /// period from now on. Ranks that had another signal get this one too.
    pub(super) fn stop_sooner(&mut self, stop: NoticedStop, signal: i32) {
        let (now, budget) = (Instant::now(), EndBudget::of(self.launch.grace));
        let end = self.outcome.stopped_at.unwrap_or(now) + stop.within;
        let left = end.saturating_duration_since(now).min(self.launch.grace);
        (self.notice)(Notice::Sooner { signal, within: left });
        if self.outcome.stop_within.is_none() || left < self.launch.grace {
            return;
        }
        (self.outcome.stopped_at, self.outcome.stop_within) = (Some(now), None);
        let kill = now + budget.until(EndStep::Ranks);
        if let Some(stopping) = &mut self.stop {
            stopping.sweep.kill_by(kill, now + budget.until(EndStep::Kill));
        }
        let asked = self.announced.take().map(|announced| announced.asked);
        for (id, shim) in self.shims.iter().filter(|(_, shim)| shim.identity().is_some()) {
            let has_it = asked.as_ref().is_none_or(|asked| asked.contains(id));
            if stop.signal != signal || !has_it {
                shim.tell(&ToRank::Stop { number: signal });
            }
        }
    }

    /// A notice with an earlier deadline during the stop of a notice.
    fn end_sooner(&mut self, stop: NoticedStop) {
        let now = Instant::now();
        let begun = self.outcome.stopped_at.unwrap_or(now);
        let is_sooner = |within: Duration| now + stop.within < begun + within;
        if !self.outcome.stop_within.is_some_and(is_sooner) {
            return;
        }
        self.outcome.stop = Some(StopReason::Noticed(stop));
        (self.outcome.stopped_at, self.outcome.stop_within) = (Some(now), Some(stop.within));
        let budget = EndBudget::of(stop.within);
        if let Some(stopping) = &mut self.stop {
            let kill = now + budget.until(EndStep::Ranks);
            stopping.sweep.kill_by(kill, now + budget.until(EndStep::Kill));
        }
    }

    fn signal_engine(&self, signal: Signal) {
        for engine in self.children.keys().filter_map(|pid| tree::process(*pid)) {
            tree::signal(&engine, signal);
        }
    }

    fn kill_now(&mut self, why: KillReason) {
        if let Some(stop) = &mut self.stop {
            stop.why_kill = if stop.killing { stop.why_kill } else { why };
            stop.sweep.kill_now(Instant::now(), UNKILLABLE_NOW);
        }
    }

    /// Performs the steps that are due.
    fn advance(&mut self) {
        let now = Instant::now();
        self.stop_after_failure();
        self.ask_those_that_handle(now);
        let engine_alone =
            self.launch.has_engine() && !self.children.is_empty() && !self.has_shims();
        let reason = self.outcome.stop;
        let Some(stop) = &mut self.stop else { return };
        let is_stopped = reason.is_some_and(is_from_outside);
        let ask_engine = engine_alone && stop.kill_engine.is_none() && is_stopped;
        let most = if is_stopped { ENGINE_STOPPED } else { ENGINE_ALONE };
        stop.kill_engine = engine_alone.then(|| stop.kill_engine.unwrap_or(now + most));
        let kill_engine = stop.kill_engine.is_some_and(|at| now >= at);
        let (step, _) = stop.sweep.step(now);
        if matches!(step, SweepStep::Kill | SweepStep::GiveUp) && !stop.killing {
            stop.killing = true;
            (self.notice)(Notice::Killing { why: stop.why_kill });
        }
        self.release_failed(now);
        // An engine that lost a rank ends by itself, and names the rank in its log.
        if ask_engine {
            self.signal_engine(Signal::TERM);
        }
        if kill_engine {
            self.signal_engine(Signal::KILL);
        }
        if step == SweepStep::Wait {
            return;
        }
        let all = tree::snapshot();
        let left = tree::job(&all, &self.others);
        match step {
            SweepStep::Term => self.tell_ranks(&ToRank::Late),
            step => self.kill_or_give_up(step, &left),
        }
    }

    fn kill_or_give_up(&mut self, step: SweepStep, left: &[&tree::Process]) {
        match step {
            SweepStep::Wait | SweepStep::Term => {}
            SweepStep::Kill => {
                tree::signal_all(left, Signal::KILL);
                tree::kill_children(&self.others);
            }
            // They outlived SIGKILL; the report names them.
            SweepStep::GiveUp => {
                self.outcome.survivors = tree::survivors(left.iter().copied());
                self.children.clear();
                self.shims.clear();
                self.unreported.clear();
                self.leftovers = None;
                self.nothing_left = true;
            }
        }
    }

    /// The shims know which rank has had a signal, and can signal a rank that hidepid hides from us (it
    /// is not dumpable).
    fn tell_ranks(&self, word: &ToRank) {
        for shim in self.shims.values().filter(|shim| shim.identity().is_some()) {
            shim.tell(word);
        }
    }

    /// Processes that ranks have left, without the engine and its own helpers: an engine would signal its
    /// ranks one after the other (DeepSpeed), only the shim (torchrun before 2.1), or kill the ranks after
    /// a time of its own.
    fn strays<'a>(&self, all: &'a BTreeMap<i32, tree::Process>) -> Vec<&'a tree::Process> {
        let mut left = tree::job(all, &self.others);
        let shims = self.shims.values().map(|shim| shim.connection.peer);
        let roots: Vec<i32> = self.children.keys().copied().chain(shims).collect();
        let known = tree::family(all, &roots);
        left.retain(|process| !known.contains(&process.pid));
        left
    }

    /// Lets the shims of failed ranks end when no rank runs any more: first the shim of the rank that
    /// failed first, which the engine is to report as the cause. The others leave when the engine ends
    /// them for that, or after a time in which every engine has looked.
    fn release_failed(&mut self, now: Instant) {
        if self.shims.values().any(|shim| shim.identity().is_some()) {
            return;
        }
        let first = match self.outcome.stop {
            Some(StopReason::RankFailed(rank)) => Some(rank),
            _ => None,
        };
        let Some(stop) = &mut self.stop else { return };
        let before = stop.released;
        let since = before.map_or(now, |released| released.first);
        let begins_again = self.launch.engine_restarts && !self.children.is_empty();
        let all = (first.is_none() && !begins_again) || now >= since + ENGINE_LOOKS;
        if before.is_some_and(|released| released.all == all) {
            return;
        }
        stop.released = Some(Released { first: since, all });
        if begins_again && before.is_none() {
            // The engine would start the ranks again; TERM ends it, and it ends the shims.
            self.signal_engine(Signal::TERM);
        }
        for shim in self.shims.values() {
            let is_first =
                matches!(shim.phase, ShimPhase::Ended(rank) if Some(rank.global) == first);
            if all || is_first {
                shim.tell(&ToRank::Leave);
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

    fn next_deadline(&self) -> Instant {
        let now = Instant::now();
        let stop = self.stop.as_ref().map(|stop| stop.sweep.wake(now));
        // At least one pause from now, since a killed engine may take a while to end.
        let engine = self.stop.as_ref().and_then(|stop| stop.kill_engine);
        let engine = engine.map(|at| at.max(now + KILL_PAUSE));
        let released = self.stop.as_ref().and_then(|stop| stop.released);
        let released =
            released.filter(|released| !released.all).map(|released| released.first + ENGINE_LOOKS);
        let leftovers = self.leftovers.as_ref().map(|leftovers| leftovers.sweep.wake(now));
        let failed = self.failed_until.filter(|_| self.stop.is_none());
        let announced = self.announced.as_ref().map(|announced| announced.look_at.max(now));
        let companion = self.companion.as_ref().and_then(|companion| companion.given_up);
        let companion = companion.filter(|at| *at > now);
        [stop, engine, released, leftovers, failed, announced, companion]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(now + FAR)
    }

    /// True if no process of the job is left, or only ones that cannot be ended.
    fn finished(&self) -> bool {
        self.nothing_left && self.ranks_are_over()
    }

    fn ranks_are_over(&self) -> bool {
        self.children.is_empty() && !self.has_shims() && self.unreported.is_empty()
    }

    /// Called after the ranks have ended: leftovers of the engine or the ranks get TERM and the grace
    /// period after a success, and KILL otherwise.
    fn end_leftovers(&mut self) {
        // Every orphan below us becomes our child, so without a child nothing is left. A scan
        // could miss processes that fork and exit faster than it reads.
        if self.nothing_left || !self.ranks_are_over() {
            return;
        }
        let waits = self.end_companion();
        let all = tree::snapshot();
        let left = tree::job(&all, &self.others);
        if left.is_empty() && !self.others.is_empty() && !waits {
            self.nothing_left = true;
            return;
        }
        let now = Instant::now();
        let well = self.outcome.stop.is_none() && self.outcome.engine.is_none_or(End::success);
        let budget = EndBudget::of(self.launch.grace);
        let grace = if well { budget.until(EndStep::Ranks) } else { Duration::ZERO };
        let leftovers = self.leftovers.get_or_insert_with(|| {
            let last_wait = budget.after_kill();
            let sweep = Sweep::begin(now, Newcomers::Asked, SETTLE, grace, last_wait);
            Leftovers { sweep, announced: false }
        });
        let (step, _) = leftovers.sweep.step(now);
        if step != SweepStep::Wait && !left.is_empty() && !leftovers.announced {
            leftovers.announced = true;
            let names = tree::names(&left, Notice::NAMED);
            let grace_ms = millis(grace);
            (self.notice)(Notice::Leftovers { rank: None, names, count: left.len(), grace_ms });
        }
        match step {
            SweepStep::Term => {
                let new = |one: &&tree::Process| leftovers.sweep.is_new((one.pid, one.start_ticks));
                let new: Vec<&tree::Process> = left.into_iter().filter(new).collect();
                tree::signal_all(&new, Signal::TERM);
            }
            step => self.kill_or_give_up(step, &left),
        }
    }

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

/// Whether the ranks have to end although none of them failed.
fn is_from_outside(reason: StopReason) -> bool {
    match reason {
        StopReason::Signal(_)
        | StopReason::OtherNode
        | StopReason::GivenUp
        | StopReason::StoodStill
        | StopReason::RuleBroken
        | StopReason::Noticed(_) => true,
        StopReason::RankFailed(_) | StopReason::EngineGone(_) | StopReason::GuardGone => false,
    }
}

/// Called after a start that failed half-way: kills the processes that did start. `ended` is SIGCHLD.
async fn kill_all_descendants(others: &HashSet<i32>, ended: &mut Signals) {
    let (now, asked) = (Instant::now(), Newcomers::Asked);
    let mut sweep = Sweep::begin(now, asked, Duration::ZERO, Duration::ZERO, UNKILLABLE);
    loop {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        let all = tree::snapshot();
        let left = tree::job(&all, others);
        let (step, wake) = sweep.step(Instant::now());
        if left.is_empty() || step == SweepStep::GiveUp {
            return;
        }
        tree::signal_all(&left, Signal::KILL);
        let _ = tokio::time::timeout_at(wake.into(), ended.recv()).await;
    }
}
