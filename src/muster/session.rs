//! The interface of a node to the muster: its configuration, and the session in which its conductor receives events
//! from the other nodes and sends reports while the job runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::keepalive;
use crate::protocol::{
    Again, Cause, Electorate, Hello, JobKey, MemberKind, Memory, Purpose, Secret,
};
use crate::questions::{Desk, Questions};
use crate::succession::Succession;
use linux::host::Host;
use linux::pace::{Live, Pace};

/// The action to take if another node runs without ranklaunch or without a muster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// When proven, this node continues without a muster too (`--muster auto`).
    Follow,
    /// When proven, the launch is refused (`--muster required`).
    Refuse,
    /// The other node does not belong to this job, whose nodes all run one command or agreed before.
    Wait,
}

/// What decides which node gets a seat, and who is awaited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seating {
    /// Nodes that may come beside those with a seat.
    pub spares: u32,
    /// The seat of this node in the last attempt.
    pub held: Option<u32>,
    /// The nodes of the last attempt that are not lost: they return once their ranks have ended.
    pub returning: BTreeSet<u32>,
    /// Nodes that are known to be lost.
    pub lost: BTreeSet<u32>,
    /// Ranges of the nodes that met last; empty: not known.
    pub met: Vec<(u32, u32)>,
    /// Nodes that get a seat only where no other is there.
    pub avoided: BTreeSet<u32>,
}

impl Seating {
    /// The nodes that had a seat in the last attempt and are not lost are awaited. `attempt`: the one that follows what
    /// this node knows of lost nodes.
    pub fn may_return(&mut self, last: &Electorate, attempt: u32) {
        if last.attempt >= attempt {
            // What it knows is older.
            self.lost.clear();
        }
        self.met.clone_from(&last.met);
        let seats = last.seats.iter().copied();
        self.returning = seats.filter(|node| !self.lost.contains(node)).collect();
    }

    /// Whether the node may come in the next moment: it was there last, and is not lost.
    pub(crate) fn may_come(&self, node: u32) -> bool {
        let met = |(first, last): &(u32, u32)| (*first..=*last).contains(&node);
        !self.lost.contains(&node) && (self.met.is_empty() || self.met.iter().any(met))
    }
}

/// The configuration of one node.
#[derive(Clone)]
pub struct Config {
    pub purpose: Purpose,
    pub unit: MemberKind,
    pub node: u32,
    /// The node that leads: it gathers the others and decides for them.
    pub leader: u32,
    /// Where another leader than that of the platform gathers.
    pub at: Option<SocketAddr>,
    /// Only in a job with spares.
    pub succession: Option<Succession>,
    /// Number of nodes that start ranks.
    pub nnodes: u32,
    pub seating: Seating,
    /// The machines that failed in the last days, each with the id of the failure.
    pub remembered: BTreeMap<String, String>,
    /// The names of all nodes in their order if `--nodes` lists them; otherwise empty.
    pub hosts: Vec<String>,
    /// The platform's id of the job, if it has one. Without an id, port and node count identify the job.
    pub job: Option<String>,
    pub master_addr: String,
    /// The port on which node 0 listens: the master port, or `--muster-port`.
    pub port: u16,
    /// Maximum time that nodes wait for each other.
    pub wait_timeout: Duration,
    /// The times at which a wait prints the missing nodes.
    pub pace: Pace,
    /// The display that shows the progress in place of lines.
    pub live: Option<Live>,
    /// Network partitions shorter than this are survived.
    pub peer_timeout: Duration,
    pub secret: Option<Secret>,
    pub without: Without,
    /// The grace period of the ranks. The store of an attempt may live that much longer.
    pub grace: Duration,
    /// The number of nodes came from WORLD_SIZE alone, which counts processes on some platforms.
    pub is_world_size: bool,
    /// This node's memory, read for every heartbeat.
    pub memory: Arc<dyn Fn() -> Option<Memory> + Send + Sync>,
}

impl fmt::Debug for Config {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Config")
            .field("node", &self.node)
            .field("nnodes", &self.nnodes)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// The interval of heartbeats: at least four within the peer timeout.
    pub fn heartbeat(&self) -> Duration {
        keepalive::heartbeat(self.peer_timeout)
    }

    /// Where the leader gathers the nodes: name or address, and port.
    pub(crate) fn leader_address(&self) -> (String, u16) {
        let of_platform = || (self.master_addr.clone(), self.port);
        self.at.map_or_else(of_platform, |at| (at.ip().to_string(), at.port()))
    }

    /// The silence after which a node that has not started yet is lost.
    pub(crate) fn silence_before_start(&self) -> Duration {
        self.peer_timeout * keepalive::BEFORE_THE_START
    }

    /// Time after which a store that still answers does not belong to an attempt that is being ended.
    pub fn proof(&self) -> Duration {
        keepalive::proof(self.peer_timeout, self.grace)
    }

    /// The silence after which a node is lost.
    pub fn longest_silence(&self) -> Duration {
        keepalive::longest_silence(self.peer_timeout)
    }

    /// Where the leader listens for the others: on the port of the job, which is found there at node 0; another leader
    /// where it listened before, or on any port.
    pub(crate) fn listens(&self) -> u16 {
        let before = self.succession.as_ref().and_then(Succession::gathered_at);
        if self.node == 0 { self.port } else { before.unwrap_or(0) }
    }

    /// What this launcher keeps so that the job goes on when its leader is lost.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn succession_of(&self, host: &Arc<Host>, hostname: &str) -> std::io::Result<Succession> {
        let hello = Hello { purpose: Purpose::Succession, ..self.hello(hostname) };
        let found = (Arc::clone(host), self.master_addr.clone());
        Succession::start((hello, self.secret.clone(), self.all()), found)
    }

    pub fn key(&self) -> JobKey {
        JobKey { job: self.job.clone(), port: self.port, nnodes: self.nnodes }
    }

    /// The number of nodes that may come, with this one.
    pub fn all(&self) -> u32 {
        self.nnodes.saturating_add(self.seating.spares)
    }

    /// The number of other nodes that may come.
    pub fn others(&self) -> usize {
        usize::try_from(self.all().saturating_sub(1)).unwrap_or(usize::MAX)
    }

    /// The first frame of this node.
    pub fn hello(&self, hostname: &str) -> Hello {
        Hello {
            node: self.node,
            key: self.key(),
            hostname: hostname.to_owned(),
            purpose: self.purpose,
            resume: None,
            held: self.seating.held,
        }
    }
}

/// Time limit for sending the last frames.
const LAST_FRAMES: Duration = Duration::from_secs(3);

/// An event from the other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// A node failed, so the ranks of this node must stop. The verdict follows.
    Stop,
    /// The first failure of the job, and whether all nodes start again.
    Verdict { cause: Box<Cause>, again: Option<Again> },
    /// All ranks of all nodes succeeded.
    AllDone,
}

/// A report of the conductor.
#[derive(Debug)]
pub enum SessionCommand {
    Failed(Box<Cause>),
    Done,
}

/// The nodes that the leader has lost in this attempt.
pub type LostNodes = Arc<Mutex<BTreeSet<u32>>>;

/// The session of one attempt with the other nodes.
#[derive(Debug)]
pub struct Session {
    events: mpsc::UnboundedReceiver<SessionEvent>,
    commands: Option<mpsc::UnboundedSender<SessionCommand>>,
    lost: LostNodes,
    returns: Arc<AtomicBool>,
    questions: Questions,
    task: JoinHandle<()>,
}

/// The ends of the channels that the session's task holds.
#[derive(Debug)]
pub struct Ends {
    pub events: mpsc::UnboundedSender<SessionEvent>,
    pub commands: mpsc::UnboundedReceiver<SessionCommand>,
    pub lost: LostNodes,
    /// This node takes part in the next attempt.
    pub returns: Arc<AtomicBool>,
    pub desk: Desk,
}

impl Session {
    /// Starts the session of `node` among `nodes`, those that start ranks; `run` is its task.
    pub fn start<F>(
        (node, leader): (u32, u32),
        nodes: Arc<[u32]>,
        run: impl FnOnce(Ends) -> F,
    ) -> Session
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (event_sender, events) = mpsc::unbounded_channel();
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let desk = Desk::new((node, leader), Arc::clone(&nodes));
        let questions = Questions::of(&desk, node, nodes);
        let (lost, returns) = (LostNodes::default(), Arc::<AtomicBool>::default());
        let ends = Ends {
            events: event_sender,
            commands: command_receiver,
            lost: Arc::clone(&lost),
            returns: Arc::clone(&returns),
            desk,
        };
        let task = tokio::spawn(run(ends));
        Session { events, commands: Some(commands), lost, returns, questions, task }
    }

    /// The nodes that the leader loses, also after the verdict; on other nodes none.
    pub fn lost(&self) -> LostNodes {
        Arc::clone(&self.lost)
    }

    /// The handle with which any thread asks all nodes, until the session ends.
    pub fn questions(&self) -> Questions {
        self.questions.clone()
    }

    /// The next event; after the last event this never returns. Cancel-safe.
    pub async fn next_event(&mut self) -> SessionEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    /// Reports a failure of this node. May be called twice: at once, and with [`Cause::whole`] when the last lines are
    /// known.
    pub fn failed(&self, cause: Cause) {
        self.tell(SessionCommand::Failed(Box::new(cause)));
    }

    /// Reports that all ranks of this node succeeded. Stops no other node.
    pub fn done(&self) {
        self.tell(SessionCommand::Done);
    }

    fn tell(&self, command: SessionCommand) {
        if let Some(commands) = &self.commands {
            // A task that has ended has already given its verdict.
            let _ = commands.send(command);
        }
    }

    /// Waits until the leader has left, at most `limit`. It may still ask questions.
    pub async fn stay(&mut self, limit: Duration) {
        let _ = timeout(limit, &mut self.task).await;
    }

    /// Ends like an agent that is killed.
    #[cfg(test)]
    pub(crate) fn die(self) {
        self.task.abort();
    }

    /// Like [`close`](Self::close), before the next attempt.
    pub async fn close_to_return(self) {
        self.returns.store(true, Ordering::Relaxed);
        self.close().await;
    }

    /// Closes the session after the last frames were sent.
    pub async fn close(mut self) {
        self.commands = None;
        if self.task.is_finished() {
            return;
        }
        if timeout(LAST_FRAMES, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}
