//! One attempt from the first fork to the last reaped process.
//!
//! A single task owns the state and puts everything that can happen (a shim
//! speaks, a child ends, the guard speaks, a deadline passes) in one order.
//! The rules of a stop: TERM to the engine, which passes it on; after its share
//! of the grace TERM to every process of the tree; then KILL until a scan finds
//! nothing. The loss of the guard is a KILL at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::engine::{self, Launch, Start};
use super::link::{AgentEar, GuardWord};
use super::message::{FromRank, ToRank};
use super::outcome::{End, Notice, Outcome, RankEnd, StopReason};
use super::socket::{Connection, Listener};
use super::terminal;
use super::tree::{self, Process};

/// Part of the grace, in tenths, in which the engine may end its ranks by itself.
const ENGINE_TENTHS: u32 = 6;
/// Part of the grace, in tenths, after which SIGKILL begins; the rest is for the
/// kernel to take memory back and for the last lines to be written.
const KILL_TENTHS: u32 = 9;
/// After SIGKILL, how long until a process counts as unkillable.
const UNKILLABLE: Duration = Duration::from_secs(5);
/// How long an engine without a single rank may take to end once a stop has begun.
/// torchrun's exit barrier waits for other nodes up to 300 s inside a call into
/// C++, in which no Python signal handler runs.
const ENGINE_ALONE: Duration = Duration::from_secs(2);
/// Pause between two scans while something is being killed.
const KILL_PAUSE: Duration = Duration::from_millis(10);
/// Pause between two scans while leftovers may end by themselves.
const LEFTOVER_PAUSE: Duration = Duration::from_millis(100);

/// Whose output a pipe carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    Engine,
    /// Global rank.
    Rank(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

/// Who takes the pipes' read ends.
pub trait Streams {
    fn attach(&mut self, owner: Owner, stream: Stream, pipe: OwnedFd);
}

/// Runs one attempt. An error means that nothing of it is running: the program
/// that could not be started and why.
///
/// `elsewhere` completes when another node of the job has failed.
pub async fn run(
    launch: &Launch,
    ear: &AgentEar,
    streams: &mut (dyn Streams + Send),
    notice: &mut (dyn FnMut(Notice) + Send),
    elsewhere: impl Future<Output = ()>,
) -> Result<Outcome, (PathBuf, io::Error)> {
    tokio::pin!(elsewhere);
    let mut stopped_elsewhere = false;
    let nowhere = |error| (PathBuf::new(), error);
    let listener = Listener::bind().map_err(nowhere)?;
    let mut ended =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()).map_err(nowhere)?;
    let (sender, mut said) = mpsc::unbounded_channel();
    let started = match engine::start(launch, listener.name()) {
        Ok(started) => started,
        Err(error) => {
            kill_all_descendants().await;
            return Err(error);
        }
    };
    streams.attach(Owner::Engine, Stream::Out, started.out);
    streams.attach(Owner::Engine, Stream::Err, started.err);
    let mut state = Supervisor {
        grace: launch.grace,
        interactive: launch.interactive,
        has_engine: matches!(launch.start, Start::Engine { .. }),
        children: started.children.iter().copied().collect(),
        shims: HashMap::new(),
        mute: Vec::new(),
        childless: false,
        given_up: false,
        ranks: BTreeMap::new(),
        outcome: Outcome::default(),
        stop: None,
        leftovers: None,
        streams,
        notice,
    };
    if state.has_engine {
        for (pid, _) in &started.children {
            (state.notice)(Notice::EngineStarted { pid: *pid });
        }
    }

    let mut next_id = 0u64;
    let mut guard_gone = false;
    loop {
        state.reap();
        // After the reaping, so that the connection of a shim that has ended is known.
        while let Some(connection) = listener.accept_waiting() {
            next_id += 1;
            state.shims.insert(next_id, Shim::new(connection, next_id, sender.clone()));
        }
        state.name_the_mute();
        if state.finished() {
            break;
        }
        let wake = state.next_deadline();
        tokio::select! {
            accepted = listener.accept() => if let Ok(connection) = accepted {
                next_id += 1;
                state.shims.insert(next_id, Shim::new(connection, next_id, sender.clone()));
            },
            Some((id, word)) = said.recv() => state.shim_said(id, word),
            word = ear.hear(), if !guard_gone => {
                guard_gone = word == GuardWord::Gone;
                state.guard_said(word);
            }
            () = &mut elsewhere, if !stopped_elsewhere => {
                stopped_elsewhere = true;
                state.begin_stop(StopReason::OtherNode);
            }
            _ = ended.recv() => {}
            () = tokio::time::sleep_until(wake) => {}
        }
        state.advance();
    }
    Ok(state.into_outcome())
}

/// A shim's packets, or None once: it is gone.
type Said = (u64, Option<(FromRank, Vec<OwnedFd>)>);

struct Shim {
    connection: Arc<Connection>,
    /// Known after its Hello.
    identity: Option<Identity>,
}

#[derive(Clone, Copy)]
struct Identity {
    rank: u32,
    session: i32,
}

impl Shim {
    fn new(connection: Connection, id: u64, sender: mpsc::UnboundedSender<Said>) -> Shim {
        let connection = Arc::new(connection);
        let reader = Arc::clone(&connection);
        tokio::spawn(async move {
            // A packet that cannot be read is a shim that cannot be trusted: as gone.
            while let Ok(Some(packet)) = reader.receive::<FromRank>().await {
                if sender.send((id, Some(packet))).is_err() {
                    return;
                }
            }
            let _ = sender.send((id, None));
        });
        Shim { connection, identity: None }
    }
}

/// How far a stop has come.
struct Stopping {
    /// When every process of the tree gets TERM; None once they had it.
    term_tree: Option<Instant>,
    kill: Instant,
    killing: bool,
    /// When an engine that has no rank any more is killed.
    kill_engine: Option<Instant>,
}

/// After the engine and all shims: what is still below us.
struct Leftovers {
    termed: HashSet<(i32, u64)>,
    kill: Instant,
    next: Instant,
    announced: bool,
}

struct Supervisor<'a> {
    grace: Duration,
    interactive: bool,
    has_engine: bool,
    /// The engine, or our shims: pid → rank, until reaped.
    children: HashMap<i32, Option<u32>>,
    shims: HashMap<u64, Shim>,
    /// Shims of ours that ended, until their connections were looked through: (pid, rank, end).
    mute: Vec<(i32, u32, End)>,
    /// Nothing is below us any more, zombies included.
    childless: bool,
    /// What is left cannot be ended by anybody.
    given_up: bool,
    ranks: BTreeMap<u32, RankEnd>,
    outcome: Outcome,
    stop: Option<Stopping>,
    leftovers: Option<Leftovers>,
    streams: &'a mut (dyn Streams + Send),
    notice: &'a mut (dyn FnMut(Notice) + Send),
}

impl Supervisor<'_> {
    fn shim_said(&mut self, id: u64, word: Option<(FromRank, Vec<OwnedFd>)>) {
        let Some((word, pipes)) = word else {
            return self.shim_gone(id);
        };
        let identity = self.shims.get(&id).and_then(|shim| shim.identity);
        match (word, identity) {
            (FromRank::Hello { rank, local_rank, session, .. }, None) => {
                if let Some(shim) = self.shims.get_mut(&id) {
                    shim.identity = Some(Identity { rank, session });
                    if self.interactive {
                        give_terminal(&shim.connection);
                    }
                }
                for (stream, pipe) in [Stream::Out, Stream::Err].into_iter().zip(pipes) {
                    self.streams.attach(Owner::Rank(rank), stream, pipe);
                }
                let at = SystemTime::now();
                self.ranks.insert(rank, RankEnd { rank, local_rank, pid: None, end: None, at });
                if let Some(end) = self.outcome.engine {
                    // The engine died while it was starting this rank.
                    self.engine_gone(end);
                }
            }
            (FromRank::Started { pid }, Some(Identity { rank, .. })) => {
                if let Some(seen) = self.ranks.get_mut(&rank) {
                    seen.pid = Some(pid);
                }
                (self.notice)(Notice::RankStarted { rank, pid });
                if self.stop.as_ref().is_some_and(|stop| stop.term_tree.is_none())
                    && let Some(rank) = tree::process(pid)
                {
                    // It was not there yet when the tree had its TERM.
                    tree::signal(&rank, Signal::TERM);
                }
            }
            (FromRank::NotExecuted { program, errno }, Some(_)) => {
                self.outcome.not_executed = Some((program, errno));
            }
            (FromRank::Ended { end }, Some(Identity { rank, .. })) => {
                self.rank_ended(rank, Some(end));
                if let Some(shim) = self.shims.get_mut(&id) {
                    // Its end is known; that it vanishes from now on is no news.
                    shim.identity = None;
                }
            }
            // Out of order: not our shim's doing, and nothing to act on.
            _ => {}
        }
    }

    fn shim_gone(&mut self, id: u64) {
        let Some(shim) = self.shims.remove(&id) else { return };
        let Some(Identity { rank, session }) = shim.identity else { return };
        // It died without a report: nobody watches this rank any more. Where ranks
        // share a session (deepspeed's is the launcher's own, and a rank that has
        // the terminal is in the user's) it must not be hit.
        let engines = self.has_engine && self.children.contains_key(&session);
        let users = nix::unistd::getsid(None).is_ok_and(|own| own.as_raw() == session);
        let shared = self
            .shims
            .values()
            .any(|other| other.identity.is_some_and(|other| other.session == session));
        if session > 1 && !engines && !users && !shared {
            for process in tree::snapshot().values().filter(|process| process.session == session) {
                tree::signal(process, Signal::KILL);
            }
        }
        if let Some(process) = self.ranks.get(&rank).and_then(|seen| tree::process(seen.pid?)) {
            tree::signal(&process, Signal::KILL);
        }
        self.rank_ended(rank, None);
    }

    fn rank_ended(&mut self, rank: u32, end: Option<End>) {
        if let Some(seen) = self.ranks.get_mut(&rank) {
            seen.end = end;
            seen.at = SystemTime::now();
        }
        (self.notice)(Notice::RankEnded { rank, end });
        if !end.is_some_and(End::success) && self.outcome.stop.is_none() {
            self.outcome.first_failure.get_or_insert(rank);
            self.begin_stop(StopReason::RankFailed(rank));
        }
    }

    fn guard_said(&mut self, word: GuardWord) {
        self.outcome.told |= !matches!(word, GuardWord::Pass(_));
        match word {
            GuardWord::Stop(signal) => self.begin_stop(StopReason::Signal(signal)),
            GuardWord::KillNow => self.kill_now(),
            GuardWord::Pass(number) => {
                let mut taken = false;
                for shim in self.shims.values().filter(|shim| shim.identity.is_some()) {
                    // A shim that does not read is stopped or dying: nothing to pass on to.
                    taken |= shim.connection.send(&ToRank::Signal { number }, &[]).is_ok();
                }
                // A Ctrl-C before the rank began or after its end is meant for us.
                if !taken && number == Signal::INT.as_raw() {
                    self.begin_stop(StopReason::Signal(number));
                }
            }
            GuardWord::Gone => {
                self.begin_stop(StopReason::GuardGone);
                self.kill_now();
            }
        }
    }

    /// Reaps our children, adopted ones included.
    fn reap(&mut self) {
        loop {
            let (pid, status) = match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(ended)) => ended,
                Err(Errno::INTR) => continue,
                Ok(None) => return,
                Err(_no_child) => {
                    self.childless = true;
                    return;
                }
            };
            let Some(end) = End::from_wait(status) else { continue };
            let pid = pid.as_raw_nonzero().get();
            match self.children.remove(&pid) {
                Some(None) => self.engine_ended(end),
                Some(Some(rank)) => self.mute.push((pid, rank, end)),
                None => {}
            }
        }
    }

    /// A shim of ours that ended and never said Hello: its rank never began. Asked
    /// once every connection that it may have made has been accepted.
    fn name_the_mute(&mut self) {
        for (pid, rank, end) in std::mem::take(&mut self.mute) {
            if self.ranks.contains_key(&rank) {
                continue;
            }
            if self.shims.values().any(|shim| shim.connection.peer() == pid) {
                // Its last words are under way.
                self.mute.push((pid, rank, end));
                continue;
            }
            let at = SystemTime::now();
            self.ranks
                .insert(rank, RankEnd { rank, local_rank: rank, pid: None, end: Some(end), at });
            self.rank_ended(rank, Some(end));
        }
    }

    fn engine_ended(&mut self, end: End) {
        self.outcome.engine = Some(end);
        (self.notice)(Notice::EngineEnded { end });
        let alive = self.shims.values().any(|shim| shim.identity.is_some());
        if alive {
            self.engine_gone(end);
        }
    }

    fn engine_gone(&mut self, end: End) {
        self.begin_stop(StopReason::EngineGone(end));
        // Its share of the grace is of no use to anybody now.
        if let Some(stop) = &mut self.stop
            && stop.term_tree.is_some()
        {
            stop.term_tree = Some(Instant::now());
        }
    }

    /// The first reason counts.
    fn begin_stop(&mut self, reason: StopReason) {
        if self.outcome.stop.is_some() {
            return;
        }
        self.outcome.stop = Some(reason);
        (self.notice)(Notice::Stopping { reason });
        let now = Instant::now();
        let engine_alive = self.has_engine && !self.children.is_empty();
        if engine_alive && matches!(reason, StopReason::Signal(_) | StopReason::OtherNode) {
            for pid in self.children.keys() {
                if let Some(engine) = tree::process(*pid) {
                    tree::signal(&engine, Signal::TERM);
                }
            }
        }
        // An engine that lost a rank ends the others without being told.
        let share = if engine_alive { self.grace * ENGINE_TENTHS / 10 } else { Duration::ZERO };
        self.stop = Some(Stopping {
            term_tree: Some(now + share),
            kill: now + self.grace * KILL_TENTHS / 10,
            killing: false,
            kill_engine: None,
        });
    }

    fn kill_now(&mut self) {
        if let Some(stop) = &mut self.stop {
            stop.term_tree = None;
            stop.kill = Instant::now();
        }
    }

    /// Does what the clock demands.
    fn advance(&mut self) {
        let now = Instant::now();
        let Some(stop) = &mut self.stop else { return };
        if self.has_engine && !self.children.is_empty() && self.shims.is_empty() {
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
            for process in tree::descendants(&all, own_pid()) {
                tree::signal(process, Signal::TERM);
            }
        }
        if now >= stop.kill {
            if !stop.killing {
                stop.killing = true;
                (self.notice)(Notice::Killing);
            }
            let all = tree::snapshot();
            let left = tree::descendants(&all, own_pid());
            if now >= stop.kill + UNKILLABLE {
                self.outcome.survivors = tree::survivors(left);
                self.give_up();
                return;
            }
            for process in left {
                tree::signal(process, Signal::KILL);
            }
            tree::kill_children();
        }
    }

    /// What is left cannot be ended by anybody: the report names it.
    fn give_up(&mut self) {
        self.children.clear();
        self.shims.clear();
        self.mute.clear();
        self.leftovers = None;
        self.given_up = true;
    }

    fn next_deadline(&self) -> Instant {
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
    fn finished(&mut self) -> bool {
        if !self.children.is_empty() || !self.shims.is_empty() || !self.mute.is_empty() {
            return false;
        }
        // Every orphan below us becomes our child, so without one nothing is left.
        // A scan would overlook what forks and exits faster than it reads.
        if self.childless || self.given_up {
            return true;
        }
        let all = tree::snapshot();
        self.end_leftovers(&tree::descendants(&all, own_pid()));
        false
    }

    /// The ranks are over; what the engine or they left behind gets TERM and the
    /// grace if all went well, and KILL otherwise.
    fn end_leftovers(&mut self, left: &[&Process]) {
        let now = Instant::now();
        let well = self.outcome.stop.is_none() && self.outcome.engine.is_none_or(End::success);
        let grace = if well { self.grace } else { Duration::ZERO };
        let leftovers = self.leftovers.get_or_insert_with(|| Leftovers {
            termed: HashSet::new(),
            kill: now + grace,
            next: now,
            announced: false,
        });
        if !leftovers.announced && !left.is_empty() {
            leftovers.announced = true;
            (self.notice)(Notice::Leftovers { count: left.len() });
        }
        let kill = now >= leftovers.kill;
        if kill && now >= leftovers.kill + UNKILLABLE {
            self.outcome.survivors = tree::survivors(left.iter().copied());
            self.given_up = true;
            return;
        }
        if kill {
            tree::kill_children();
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

    fn into_outcome(self) -> Outcome {
        Outcome { ranks: self.ranks.into_values().collect(), ..self.outcome }
    }
}

/// Hands our own streams on. A shim that is gone meanwhile is noticed by its end of file.
fn give_terminal(connection: &Connection) {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let owner = terminal::guards_group().unwrap_or(0);
    let _ = connection.send(&ToRank::Terminal { owner }, &streams);
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// After a start that failed half-way: what did start must not stay.
async fn kill_all_descendants() {
    let deadline = Instant::now() + UNKILLABLE;
    loop {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        let all = tree::snapshot();
        let left = tree::descendants(&all, own_pid());
        if left.is_empty() || Instant::now() >= deadline {
            return;
        }
        for process in left {
            tree::signal(process, Signal::KILL);
        }
        tokio::time::sleep(KILL_PAUSE).await;
    }
}
