//! The state of an attempt, and the events that change it: packets of the shims, commands of the
//! guard, ends of children.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;
use rustix::process::WaitOptions;
use tokio::sync::mpsc;

use super::super::asked;
use super::super::budget::Sweep;
use super::super::engine::{Launch, Launching};
use super::super::link::GuardCommand;
use super::super::socket::{FromRank, LARGEST_RECORD, ShimSocket, ToRank};
use super::super::{terminal, tree};
use linux::deadline::millis;
use linux::sys::{Session, Signal, own_pid};
use text::rank::{GlobalRank, RankId};
use verdict::Verdict;
use verdict::outcome::{
    End, KillReason, Notice, OtherWorld, Outcome, Owner, RankEnd, StopReason, Stream,
};

/// Receives the read ends of the pipes.
pub trait Streams {
    fn attach(&mut self, owner: Owner, stream: Stream, pipe: OwnedFd);

    /// Receives the record that torch's `@record` wrote of the exception that ended a rank.
    fn recorded(&mut self, owner: Owner, record: Vec<u8>);
}

/// A shim's packet, or None once, when it has disconnected.
pub(super) type ShimMessage = (u64, Option<(FromRank, Vec<OwnedFd>)>);

pub(super) struct ShimConnection {
    pub(super) connection: Arc<ShimSocket>,
    pub(super) phase: ShimPhase,
}

/// Knowledge about the peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShimPhase {
    /// Not identified yet; nothing waits for it.
    New,
    /// A shim of ours, with its rank.
    Rank(Identity),
    /// The end of its rank is known, so its disconnection means nothing.
    Ended(RankId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) rank: RankId,
    session: i32,
}

/// Time limit for a peer to send the token. A shim does so at once.
const HELLO: Duration = Duration::from_secs(5);

impl ShimConnection {
    pub(super) fn new(
        connection: ShimSocket,
        id: u64,
        sender: mpsc::UnboundedSender<ShimMessage>,
    ) -> ShimConnection {
        let connection = Arc::new(connection);
        let reader = Arc::clone(&connection);
        tokio::spawn(async move {
            let mut next =
                tokio::time::timeout(HELLO, reader.receive::<FromRank>()).await.unwrap_or(Ok(None));
            // A shim that sends an invalid packet counts as disconnected.
            while let Ok(Some(packet)) = next {
                if sender.send((id, Some(packet))).is_err() {
                    return;
                }
                next = reader.receive::<FromRank>().await;
            }
            let _ = sender.send((id, None));
        });
        ShimConnection { connection, phase: ShimPhase::New }
    }

    /// A shim that does not read is stopped or dying.
    pub(super) fn tell(&self, word: &ToRank) {
        let _ = self.connection.send(word, &[]);
    }

    pub(super) fn identity(&self) -> Option<Identity> {
        match self.phase {
            ShimPhase::Rank(identity) => Some(identity),
            ShimPhase::New | ShimPhase::Ended(_) => None,
        }
    }
}

/// Knowledge about the attempt. [`super`] contains the rules for its stop.
pub(super) struct Supervisor<'a> {
    pub(super) launch: &'a Launch,
    /// The token that a shim of ours sends first.
    pub(super) token: String,
    /// Descendants from before the job; they are left alone.
    pub(super) others: HashSet<i32>,
    pub(super) companion: Option<Companion>,
    /// Device and inode of the files that `@record` wrote.
    pub(super) records: HashSet<(u64, u64)>,
    /// The engine, or our shims: pid → rank, until reaped.
    pub(super) children: HashMap<i32, Option<RankId>>,
    pub(super) shims: HashMap<u64, ShimConnection>,
    /// Shims of ours that ended and whose connections are not read yet.
    pub(super) unreported: Vec<Unreported>,
    /// No process of the job is left, or only ones that cannot be ended.
    pub(super) nothing_left: bool,
    pub(super) launching: Launching,
    pub(super) ranks: BTreeMap<GlobalRank, RankEnd>,
    pub(super) outcome: Outcome,
    pub(super) engine_weighed: bool,
    /// The end of the time for which the others go on after a rank failed.
    pub(super) failed_until: Option<Instant>,
    pub(super) stop: Option<Stopping>,
    /// The notice for which only some of the ranks have been signalled.
    pub(super) announced: Option<Announced>,
    pub(super) leftovers: Option<Leftovers>,
    pub(super) streams: &'a mut (dyn Streams + Send),
    pub(super) notice: &'a mut (dyn FnMut(Notice) + Send),
}

/// A shim of ours that has ended before any report about its rank.
pub(super) struct Unreported {
    pid: i32,
    rank: RankId,
    end: End,
    /// The newest connection that the shim may have made. Each connection gets its own time limit to speak,
    /// so this wait ends although others connect again and again.
    newest: Option<u64>,
}

/// State of a stop.
pub(super) struct Stopping {
    /// The sweep of every process of the tree.
    pub(super) sweep: Sweep,
    pub(super) killing: bool,
    /// The reason for SIGKILL, once it is sent.
    pub(super) why_kill: KillReason,
    /// Time at which an engine without ranks is killed.
    pub(super) kill_engine: Option<Instant>,
    /// The shims of failed ranks that may leave, once there are any.
    pub(super) released: Option<Released>,
}

/// A notice whose signal goes only to ranks that handle it.
pub(super) struct Announced {
    pub(super) signal: i32,
    /// The shims of ranks that got it.
    pub(super) asked: HashSet<u64>,
    /// Time of the next look at the ranks.
    pub(super) look_at: Instant,
    /// All that were asked have ended, and the others end by themselves until then.
    pub(super) rest_until: Option<Instant>,
}

impl Announced {
    pub(super) fn new(signal: i32) -> Announced {
        let look_at = Instant::now();
        Announced { signal, asked: HashSet::new(), look_at, rest_until: None }
    }
}

/// The shims of failed ranks that may leave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Released {
    /// The shim of the rank that failed first may leave since this time.
    pub(super) first: Instant,
    pub(super) all: bool,
}

/// The process among `others` that ends with the ranks.
pub(super) struct Companion {
    pub(super) process: tree::Process,
    /// The companion was killed, and is not waited for after this time.
    pub(super) given_up: Option<Instant>,
}

/// The sweep of processes that are left after the engine and all shims.
pub(super) struct Leftovers {
    pub(super) sweep: Sweep,
    pub(super) announced: bool,
}

impl Unreported {
    fn new(pid: i32, rank: RankId, end: End) -> Unreported {
        Unreported { pid, rank, end, newest: None }
    }
}

impl Supervisor<'_> {
    pub(super) fn on_shim_message(&mut self, id: u64, word: Option<(FromRank, Vec<OwnedFd>)>) {
        let Some((word, pipes)) = word else {
            return self.shim_gone(id);
        };
        let Some(shim) = self.shims.get_mut(&id) else { return };
        match (word, shim.phase) {
            (FromRank::Hello { token, .. }, ShimPhase::New) if token != self.token => {
                self.shims.remove(&id);
            }
            (FromRank::Hello { rank, local_rank, world_size, program, .. }, ShimPhase::New) => {
                let planned = self.outcome.planned;
                let rank = match rank {
                    Some(global) => RankId { global, local: local_rank },
                    None => planned.rank(local_rank),
                };
                // The pid comes from the kernel, not from the packet.
                let session = Session::of(shim.connection.peer).map_or(0, |session| session.0);
                shim.phase = ShimPhase::Rank(Identity { rank, session });
                if self.launch.interactive {
                    give_terminal(&shim.connection);
                } else if pipes.len() < 2 {
                    // We are out of descriptors, so the kernel closed those of the packet.
                    (self.notice)(Notice::Unread { rank });
                }
                for (stream, pipe) in [Stream::Out, Stream::Err].into_iter().zip(pipes) {
                    self.streams.attach(planned.owner(rank.global), stream, pipe);
                }
                let at = SystemTime::now();
                if self.launch.engine_restarts {
                    // The new rank replaces the previous one, which may have had another number.
                    self.ranks.retain(|_, before| before.id.local != rank.local);
                }
                self.ranks.insert(rank.global, RankEnd { id: rank, pid: None, end: None, at });
                self.launching.rank_begins(rank, program);
                if planned.is_other(world_size) && self.outcome.other_world.is_none() {
                    let other = OtherWorld { rank: rank.global, world_size };
                    self.outcome.other_world = Some(other);
                    (self.notice)(Notice::OtherWorld(other));
                }
            }
            (FromRank::Started { pid }, ShimPhase::Rank(Identity { rank, .. })) => {
                // The rank is the shim's child, or ours after the shim has ended.
                let parents = [shim.connection.peer, own_pid()];
                if tree::process(pid).is_some_and(|seen| !parents.contains(&seen.ppid)) {
                    return;
                }
                if let Some(seen) = self.ranks.get_mut(&rank.global) {
                    seen.pid = Some(pid);
                }
                self.launching.rank_is_through(rank.global);
                (self.notice)(Notice::RankStarted { rank, pid });
                if let Some(reason) = self.outcome.stop
                    && self.announced.is_none()
                {
                    // The rank did not exist yet when the others were asked.
                    let number = asked::signal_of(reason);
                    shim.tell(&ToRank::Stop { number });
                }
            }
            (FromRank::NotExecuted { program, errno }, ShimPhase::Rank(_)) => {
                self.outcome.not_executed = Some((program, errno));
            }
            (FromRank::Recorded { device, inode }, ShimPhase::Rank(Identity { rank, .. })) => {
                if self.records.insert((device, inode))
                    && let Some(record) = pipes.into_iter().next().and_then(in_memory)
                {
                    self.streams.recorded(self.outcome.planned.owner(rank.global), record);
                }
            }
            (FromRank::KilledIn { group }, ShimPhase::Rank(Identity { rank, .. })) => {
                if let Some(pid) = self.ranks.get(&rank.global).and_then(|seen| seen.pid) {
                    (self.notice)(Notice::KilledIn { pid, group });
                }
            }
            (FromRank::Ended { end }, ShimPhase::Rank(Identity { rank, .. })) => {
                shim.phase = ShimPhase::Ended(rank);
                self.rank_ended(rank, Some(end));
            }
            (FromRank::Leftovers { names, count }, ShimPhase::Ended(rank)) => {
                let grace_ms = millis(self.launch.grace);
                (self.notice)(Notice::Leftovers { rank: Some(rank), names, count, grace_ms });
            }
            // The peer is not a shim of ours, and this packet ends its time limit: nothing may wait for it.
            (_, ShimPhase::New) => {
                self.shims.remove(&id);
            }
            // Out of order: our shim does not send this, so it is ignored.
            _ => {}
        }
    }

    fn shim_gone(&mut self, id: u64) {
        let Some(shim) = self.shims.remove(&id) else { return };
        let Some(Identity { rank, session }) = shim.identity() else { return };
        // The shim died without a report, so its rank is unsupervised and is killed. If ranks
        // share a session (deepspeed's is the launcher's own, and a rank with the terminal is in
        // the user's), the session must not be signalled.
        let engines = self.launch.has_engine() && self.children.contains_key(&session);
        let users = Session::own() == Some(Session(session));
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
        if self.launch.engine_restarts && self.outcome.engine.is_none() {
            // The engine ends the others, and starts all again or ends itself.
            return;
        }
        if !end.is_some_and(End::success) && self.outcome.stop.is_none() {
            self.outcome.first_failure.get_or_insert(rank.global);
            let until = Instant::now() + (self.launch.patience.0)();
            self.failed_until.get_or_insert(until);
            self.stop_after_failure();
        }
    }

    pub(super) fn on_guard_command(&mut self, word: GuardCommand) {
        self.outcome.told |= !matches!(word, GuardCommand::Pass(_));
        match word {
            GuardCommand::Stop(signal) => match self.outcome.stop {
                Some(StopReason::Noticed(stop)) => self.stop_sooner(stop, signal),
                _ => self.begin_stop(StopReason::Signal(signal)),
            },
            GuardCommand::KillNow => self.kill_now(KillReason::Interrupt),
            GuardCommand::Pass(number) => {
                let mut taken = false;
                for shim in self.shims.values().filter(|shim| shim.identity().is_some()) {
                    // A shim that does not read is stopped or dying.
                    taken |= shim.connection.send(&ToRank::Signal { number }, &[]).is_ok();
                }
                // A Ctrl-C before the start or after the end of the rank is meant for us.
                if !taken && number == Signal::INT.as_raw() {
                    self.begin_stop(StopReason::Signal(number));
                }
            }
            GuardCommand::Gone => {
                self.begin_stop(StopReason::GuardGone);
                self.kill_now(KillReason::GuardGone);
            }
        }
    }

    /// Reaps our children, adopted ones included.
    pub(super) fn reap(&mut self) {
        loop {
            let (pid, status) = match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(ended)) => ended,
                Err(Errno::INTR) => continue,
                Ok(None) => return,
                Err(_no_child) => {
                    self.nothing_left = true;
                    // No child should be left here; any that is has ended, and its status was taken
                    // elsewhere.
                    for (_, rank) in self.children.drain().collect::<Vec<_>>() {
                        let end = End::Code(Verdict::Internal.code());
                        match rank {
                            None => self.engine_ended(end),
                            Some(rank) => self.unreported.push(Unreported::new(0, rank, end)),
                        }
                    }
                    return;
                }
            };
            let Some(end) = End::from_wait(status) else { continue };
            let pid = pid.as_raw_pid();
            match self.children.remove(&pid) {
                Some(None) => self.engine_ended(end),
                Some(Some(rank)) => self.unreported.push(Unreported::new(pid, rank, end)),
                None => {
                    self.others.remove(&pid);
                }
            }
        }
    }

    /// Handles a shim that ended without a Hello: its rank never started. Called after every
    /// connection that it may have made was accepted.
    pub(super) fn report_unreported(&mut self) {
        for mut one in std::mem::take(&mut self.unreported) {
            let Unreported { pid, rank, end, .. } = one;
            if self.ranks.contains_key(&rank.global) {
                continue;
            }
            let accepted = self.shims.keys().copied().max().unwrap_or(0);
            let newest = *one.newest.get_or_insert(accepted);
            let may_be_its = |(id, shim): (&u64, &ShimConnection)| {
                // The shim of a forked rank is another process.
                *id <= newest && (shim.connection.peer == pid || shim.phase == ShimPhase::New)
            };
            if self.shims.iter().any(may_be_its) {
                // The last packets of the shim are not read yet.
                self.unreported.push(one);
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

    /// Decides whether the engine ended before its ranks. The last packets of a shim may not be
    /// read yet, and an engine ends right after its last rank: an agent that was slow or stopped
    /// sees both at once.
    pub(super) fn weigh_engine(&mut self) {
        let Some(end) = self.outcome.engine.filter(|_| !self.engine_weighed) else { return };
        let lives = |shim: &ShimConnection| tree::is_running(shim.connection.peer);
        if self.shims.values().any(|shim| shim.identity().is_some() && lives(shim)) {
            self.engine_weighed = true;
            self.begin_stop(StopReason::EngineGone(end));
        } else if self.launch.engine_restarts && !end.success() && self.shims.is_empty() {
            self.engine_weighed = true;
            // The ranks that the engine ended because of a failure ended after that failure.
            let failed = self.ranks.values().filter(|rank| rank.failed());
            if let Some(rank) = failed.min_by_key(|rank| rank.at).map(|rank| rank.id.global) {
                self.outcome.first_failure.get_or_insert(rank);
                self.begin_stop(StopReason::RankFailed(rank));
            }
        }
    }
}

/// Sends our own streams to the shim. A disconnected shim is noticed by its end of file.
fn give_terminal(connection: &ShimSocket) {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let owner = terminal::guards_group().map_or(0, |group| group.0);
    let _ = connection.send(&ToRank::Terminal { owner }, &streams);
}

/// The beginning of a file, which only a file in memory gives without waiting.
fn in_memory(file: OwnedFd) -> Option<Vec<u8>> {
    // F_GET_SEALS fails for every other file.
    rustix::fs::fcntl_get_seals(&file).ok()?;
    let mut bytes = Vec::new();
    let mut file = std::fs::File::from(file);
    file.rewind().ok()?;
    file.take(LARGEST_RECORD).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Start;
    use crate::socket::{ShimListener, dial, send};
    use linux::sys::Dispositions;
    use text::rank::LocalRank;
    use verdict::outcome::Planned;

    struct Nowhere;

    impl Streams for Nowhere {
        fn attach(&mut self, _: Owner, _: Stream, _: OwnedFd) {}

        fn recorded(&mut self, _: Owner, _: Vec<u8>) {}
    }

    fn launch() -> Launch {
        Launch {
            start: Start::Ranks { shim: "shim".into(), argv: Vec::new(), ranks: Vec::new() },
            planned: Planned::default(),
            env: BTreeMap::new(),
            dispositions: Dispositions::inherited(),
            engine_restarts: false,
            forks_engine: false,
            grace: Duration::from_secs(1),
            exec_timeout: Duration::from_secs(60),
            interactive: false,
            attempt: 0,
            restarts: 0,
            job: "job".to_owned(),
            bindings: Vec::new(),
            companion: None,
            patience: crate::Patience::default(),
        }
    }

    fn supervisor<'a>(
        launch: &'a Launch,
        token: &str,
        streams: &'a mut Nowhere,
        notice: &'a mut (dyn FnMut(Notice) + Send),
    ) -> Supervisor<'a> {
        let launching = Launching::new(Vec::new(), launch.exec_timeout).expect("nothing begun");
        Supervisor {
            launch,
            token: token.to_owned(),
            others: HashSet::new(),
            companion: None,
            records: HashSet::new(),
            children: HashMap::new(),
            shims: HashMap::new(),
            unreported: Vec::new(),
            nothing_left: false,
            launching,
            ranks: BTreeMap::new(),
            outcome: Outcome::default(),
            engine_weighed: false,
            failed_until: None,
            stop: None,
            announced: None,
            leftovers: None,
            streams,
            notice,
        }
    }

    #[tokio::test]
    async fn foreign_connection_does_not_hold_back_an_end() {
        let listener = ShimListener::bind().expect("a socket");
        let (sender, mut said) = mpsc::unbounded_channel();
        let (mut streams, mut notice) = (Nowhere, |_: Notice| {});
        let launch = launch();
        let mut state = supervisor(&launch, &listener.token, &mut streams, &mut notice);
        let dialed = |id: u64| {
            let peer = dial(&listener.name).expect("it listens");
            let connection = listener.accept_waiting().expect("it is in the queue");
            (peer, ShimConnection::new(connection, id, sender.clone()))
        };
        let (first, connection) = dialed(1);
        state.shims.insert(1, connection);
        let rank = RankId { global: GlobalRank(0), local: LocalRank(0) };
        state.unreported.push(Unreported::new(0, rank, End::Code(3)));
        state.report_unreported();
        assert!(state.ranks.is_empty(), "it may be that of the shim, and its packets are not read");
        // Later connections are from somebody else, and a peer that sends anything but the token is not a
        // shim.
        let (_second, connection) = dialed(2);
        state.shims.insert(2, connection);
        send(&first, &FromRank::Started { pid: 1 }, &[]).expect("it is open");
        let (id, word) = said.recv().await.expect("it is read");
        state.on_shim_message(id, word);
        state.report_unreported();
        assert_eq!(state.ranks.get(&rank.global).and_then(|seen| seen.end), Some(End::Code(3)));
        assert!(state.unreported.is_empty());
    }
}
