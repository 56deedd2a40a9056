//! One attempt from the first fork to the last reaped process.
//!
//! A single task owns the state and puts everything that can happen (a shim
//! speaks, a child ends, the guard speaks, a deadline passes) in one order.
//! The rules of a stop are in [`stop`]. The loss of the guard is a KILL at once.

mod launching;
mod stop;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use rustix::process::WaitOptions;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::engine::{self, Launch, Start};
use super::link::{GuardCommand, GuardCommands};
use super::message::{FromRank, ToRank};
use super::outcome::{End, Notice, OtherWorld, Outcome, Owner, RankEnd, StopReason, Stream};
use super::socket::{Connection, Listener};
use super::terminal;
use super::tree;
use crate::rank::{GlobalRank, RankId};
use crate::sys::{self, Signal, own_pid};
use crate::verdict::Verdict;
use launching::Launching;
use stop::{Leftovers, Stopping, kill_all_descendants};

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
    guard_commands: &GuardCommands,
    streams: &mut (dyn Streams + Send),
    notice: &mut (dyn FnMut(Notice) + Send),
    elsewhere: impl Future<Output = ()>,
) -> Result<Outcome, (PathBuf, io::Error)> {
    tokio::pin!(elsewhere);
    // What is below us already is not the job's: a probe of ours that a hung driver holds.
    let others: HashSet<i32> = tree::living_below().into_iter().collect();
    let mut stopped_elsewhere = false;
    let nowhere = |error| (PathBuf::new(), error);
    let listener = Listener::bind().map_err(nowhere)?;
    let mut ended =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()).map_err(nowhere)?;
    let (sender, mut said) = mpsc::unbounded_channel();
    let started =
        engine::start(launch, listener.name(), listener.token()).and_then(|mut started| {
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
        token: listener.token().to_owned(),
        others,
        grace: launch.grace,
        interactive: launch.interactive,
        has_engine: matches!(launch.start, Start::Engine { .. }),
        children: started.children.iter().copied().collect(),
        shims: HashMap::new(),
        unreported: Vec::new(),
        nothing_left: false,
        launching,
        ranks: BTreeMap::new(),
        outcome: Outcome { planned: launch.planned, ..Outcome::default() },
        engine_weighed: false,
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
        while let Ok((id, word)) = said.try_recv() {
            state.on_shim_message(id, word);
        }
        // Before the end of whoever was not executed is taken for the engine's own.
        match state.launching.look() {
            // What a stop has ended meanwhile could not begin any more.
            Err(error) if state.outcome.stop.is_none() => {
                kill_all_descendants(&state.others, &mut ended).await;
                return Err(error);
            }
            _ => state.launching.tell(state.notice),
        }
        state.report_unreported();
        state.weigh_engine();
        state.end_leftovers();
        if state.finished() {
            break;
        }
        let launched = state.launching.next_deadline().filter(|_| state.stop.is_none());
        let wake = launched.into_iter().fold(state.next_deadline().into(), Instant::min);
        tokio::select! {
            accepted = listener.accept() => if let Ok(connection) = accepted {
                next_id += 1;
                state.shims.insert(next_id, Shim::new(connection, next_id, sender.clone()));
            },
            Some((id, word)) = said.recv() => state.on_shim_message(id, word),
            word = guard_commands.next(), if !guard_gone => {
                guard_gone = word == GuardCommand::Gone;
                state.on_guard_command(word);
            }
            () = &mut elsewhere, if !stopped_elsewhere => {
                stopped_elsewhere = true;
                state.begin_stop(StopReason::OtherNode);
            }
            () = state.launching.changed(), if !state.launching.is_through() => {}
            _ = ended.recv() => {}
            () = tokio::time::sleep_until(wake) => {}
        }
        state.advance();
    }
    Ok(state.into_outcome())
}

/// A shim's packets, or None once: it is gone.
type ShimMessage = (u64, Option<(FromRank, Vec<OwnedFd>)>);

struct Shim {
    connection: Arc<Connection>,
    phase: Phase,
}

/// What is known of who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Anybody: nothing waits for it.
    New,
    /// A shim of ours, with its rank.
    Rank(Identity),
    /// The end of its rank is known; that it vanishes from now on is no news.
    Over(RankId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    rank: RankId,
    session: i32,
}

/// How long whoever connected may take to say the token. A shim does so at once.
const HELLO: Duration = Duration::from_secs(5);

impl Shim {
    fn new(connection: Connection, id: u64, sender: mpsc::UnboundedSender<ShimMessage>) -> Shim {
        let connection = Arc::new(connection);
        let reader = Arc::clone(&connection);
        tokio::spawn(async move {
            let mut next =
                tokio::time::timeout(HELLO, reader.receive::<FromRank>()).await.unwrap_or(Ok(None));
            // A packet that cannot be read is a shim that cannot be trusted: as gone.
            while let Ok(Some(packet)) = next {
                if sender.send((id, Some(packet))).is_err() {
                    return;
                }
                next = reader.receive::<FromRank>().await;
            }
            let _ = sender.send((id, None));
        });
        Shim { connection, phase: Phase::New }
    }

    fn identity(&self) -> Option<Identity> {
        match self.phase {
            Phase::Rank(identity) => Some(identity),
            Phase::New | Phase::Over(_) => None,
        }
    }
}

struct Supervisor<'a> {
    /// What a shim of ours begins with.
    token: String,
    /// Below us before anything of the job was; nothing is done to them.
    others: HashSet<i32>,
    grace: Duration,
    interactive: bool,
    has_engine: bool,
    /// The engine, or our shims: pid → rank, until reaped.
    children: HashMap<i32, Option<RankId>>,
    shims: HashMap<u64, Shim>,
    /// Shims of ours that ended, until their connections were looked through: (pid, rank, end).
    unreported: Vec<(i32, RankId, End)>,
    /// No process of the job is left, or none that can be ended.
    nothing_left: bool,
    launching: Launching,
    ranks: BTreeMap<GlobalRank, RankEnd>,
    outcome: Outcome,
    engine_weighed: bool,
    stop: Option<Stopping>,
    leftovers: Option<Leftovers>,
    streams: &'a mut (dyn Streams + Send),
    notice: &'a mut (dyn FnMut(Notice) + Send),
}

impl Supervisor<'_> {
    fn on_shim_message(&mut self, id: u64, word: Option<(FromRank, Vec<OwnedFd>)>) {
        let Some((word, pipes)) = word else {
            return self.shim_gone(id);
        };
        let Some(shim) = self.shims.get_mut(&id) else { return };
        match (word, shim.phase) {
            (FromRank::Hello { token, .. }, Phase::New) if token != self.token => {
                self.shims.remove(&id);
            }
            (FromRank::Hello { rank, local_rank, world_size, program, .. }, Phase::New) => {
                let planned = self.outcome.planned;
                let rank = match rank {
                    Some(global) => RankId { global, local: local_rank },
                    None => planned.rank(local_rank),
                };
                // The kernel says who it is, not the packet.
                let session = sys::session_of(shim.connection.peer()).unwrap_or(0);
                shim.phase = Phase::Rank(Identity { rank, session });
                if self.interactive {
                    give_terminal(&shim.connection);
                } else if pipes.len() < 2 {
                    // Descriptors are used up: the kernel has closed what we could not take.
                    (self.notice)(Notice::Unread { rank });
                }
                for (stream, pipe) in [Stream::Out, Stream::Err].into_iter().zip(pipes) {
                    self.streams.attach(planned.owner(rank.global), stream, pipe);
                }
                let at = SystemTime::now();
                self.ranks.insert(rank.global, RankEnd { id: rank, pid: None, end: None, at });
                self.launching.rank_begins(rank, program);
                if planned.is_other(world_size) && self.outcome.other_world.is_none() {
                    let other = OtherWorld { rank: rank.global, world_size };
                    self.outcome.other_world = Some(other);
                    (self.notice)(Notice::OtherWorld(other));
                }
            }
            (FromRank::Started { pid }, Phase::Rank(Identity { rank, .. })) => {
                // Its child, or ours once the shim is gone.
                let parents = [shim.connection.peer(), own_pid()];
                if tree::process(pid).is_some_and(|seen| !parents.contains(&seen.ppid)) {
                    return;
                }
                if let Some(seen) = self.ranks.get_mut(&rank.global) {
                    seen.pid = Some(pid);
                }
                self.launching.rank_is_through(rank.global);
                (self.notice)(Notice::RankStarted { rank, pid });
                if self.stop.as_ref().is_some_and(|stop| stop.sweep.has_asked()) {
                    // It was not there yet when the tree had its TERM.
                    let number = Signal::TERM.as_raw();
                    let _ = shim.connection.send(&ToRank::Signal { number }, &[]);
                }
            }
            (FromRank::NotExecuted { program, errno }, Phase::Rank(_)) => {
                self.outcome.not_executed = Some((program, errno));
            }
            (FromRank::Ended { end }, Phase::Rank(Identity { rank, .. })) => {
                shim.phase = Phase::Over(rank);
                self.rank_ended(rank, Some(end));
            }
            (FromRank::Leftovers { names, count }, Phase::Over(rank)) => {
                let grace_ms = u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX);
                (self.notice)(Notice::Leftovers { rank: Some(rank), names, count, grace_ms });
            }
            // Out of order: not our shim's doing, and nothing to act on.
            _ => {}
        }
    }

    fn shim_gone(&mut self, id: u64) {
        let Some(shim) = self.shims.remove(&id) else { return };
        let Some(Identity { rank, session }) = shim.identity() else { return };
        // It died without a report: nobody watches this rank any more. Where ranks
        // share a session (deepspeed's is the launcher's own, and a rank that has
        // the terminal is in the user's) it must not be hit.
        let engines = self.has_engine && self.children.contains_key(&session);
        let users = sys::own_session() == Some(session);
        let shared = self
            .shims
            .values()
            .any(|other| other.identity().is_some_and(|other| other.session == session));
        if session > 1 && !engines && !users && !shared {
            for process in tree::snapshot().values().filter(|process| process.session == session) {
                tree::signal(process, Signal::KILL);
            }
        }
        if let Some(process) =
            self.ranks.get(&rank.global).and_then(|seen| tree::process(seen.pid?))
        {
            tree::signal(&process, Signal::KILL);
        }
        self.rank_ended(rank, None);
    }

    fn rank_ended(&mut self, rank: RankId, end: Option<End>) {
        self.launching.rank_is_through(rank.global);
        if let Some(seen) = self.ranks.get_mut(&rank.global) {
            seen.end = end;
            seen.at = SystemTime::now();
        }
        (self.notice)(Notice::RankEnded { rank, end });
        if !end.is_some_and(End::success) && self.outcome.stop.is_none() {
            self.outcome.first_failure.get_or_insert(rank.global);
            self.begin_stop(StopReason::RankFailed(rank.global));
        }
    }

    fn on_guard_command(&mut self, word: GuardCommand) {
        self.outcome.told |= !matches!(word, GuardCommand::Pass(_));
        match word {
            GuardCommand::Stop(signal) => self.begin_stop(StopReason::Signal(signal)),
            GuardCommand::KillNow => self.kill_now(),
            GuardCommand::Pass(number) => {
                let mut taken = false;
                for shim in self.shims.values().filter(|shim| shim.identity().is_some()) {
                    // A shim that does not read is stopped or dying: nothing to pass on to.
                    taken |= shim.connection.send(&ToRank::Signal { number }, &[]).is_ok();
                }
                // A Ctrl-C before the rank began or after its end is meant for us.
                if !taken && number == Signal::INT.as_raw() {
                    self.begin_stop(StopReason::Signal(number));
                }
            }
            GuardCommand::Gone => {
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
                    self.nothing_left = true;
                    // None should be left here; one whose status somebody else took is gone.
                    for (_, rank) in self.children.drain().collect::<Vec<_>>() {
                        let end = End::Code(Verdict::Internal.code());
                        match rank {
                            None => self.engine_ended(end),
                            Some(rank) => self.unreported.push((0, rank, end)),
                        }
                    }
                    return;
                }
            };
            let Some(end) = End::from_wait(status) else { continue };
            let pid = pid.as_raw_pid();
            match self.children.remove(&pid) {
                Some(None) => self.engine_ended(end),
                Some(Some(rank)) => self.unreported.push((pid, rank, end)),
                None => {
                    self.others.remove(&pid);
                }
            }
        }
    }

    /// A shim of ours that ended and never said Hello: its rank never began. Asked
    /// once every connection that it may have made has been accepted.
    fn report_unreported(&mut self) {
        for (pid, rank, end) in std::mem::take(&mut self.unreported) {
            if self.ranks.contains_key(&rank.global) {
                continue;
            }
            if self.shims.values().any(|shim| shim.connection.peer() == pid) {
                // Its last words are under way.
                self.unreported.push((pid, rank, end));
                continue;
            }
            let at = SystemTime::now();
            self.ranks.insert(rank.global, RankEnd { id: rank, pid: None, end: Some(end), at });
            self.rank_ended(rank, Some(end));
        }
    }

    fn engine_ended(&mut self, end: End) {
        self.outcome.engine = Some(end);
        (self.notice)(Notice::EngineEnded { end });
    }

    /// Whether the engine ended before its ranks. The last words of a shim that has
    /// ended may still be under way, and an engine ends right after its last rank: a
    /// launcher that was slow or stopped for a moment sees both at once.
    fn weigh_engine(&mut self) {
        let Some(end) = self.outcome.engine.filter(|_| !self.engine_weighed) else { return };
        let lives = |shim: &Shim| tree::is_running(shim.connection.peer());
        if self.shims.values().any(|shim| shim.identity().is_some() && lives(shim)) {
            self.engine_weighed = true;
            self.engine_gone(end);
        }
    }

    fn engine_gone(&mut self, end: End) {
        self.begin_stop(StopReason::EngineGone(end));
        // Its share of the grace is of no use to anybody now.
        if let Some(stop) = &mut self.stop {
            stop.sweep.term_now(std::time::Instant::now());
        }
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
