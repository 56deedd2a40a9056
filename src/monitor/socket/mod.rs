//! The run's control socket, by which `ps`, `logs`, `top`, `stacks` and `dump` ask the agent of a job.
//!
//! [`RunServer`] is the agent's side: a thread that answers from the first moment of a launch to its end, and never
//! holds the supervision. [`jobs`] and [`ask`] are the command's side. Both decide who is believed: the server
//! whom it answers, the client what it takes from the socket of another user.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, PipeWriter, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::held;
use diagnose::stacks::{RankStacks, RunningRank, collect};
use linux::deadline::millis;
use linux::random;
use linux::sys::{self, PollFd, PollFlags};
use text::lang::Text;
use text::rank::{GlobalRank, RankId};
use text::run_id::RunId;

mod client;

pub use client::{Listener, ask, ask_all, jobs};

/// Command → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// The job of the agent.
    Job,
    /// The stacks of these ranks, on all nodes.
    Stacks(Selection),
    /// The evidence of all nodes, for a bug report.
    Dump,
    /// A question from a viewer of the job: its state, its plan, its output. This module does not
    /// interpret it.
    View { of: Value },
}

/// Ranks of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Selects only the ranks of this node.
    #[serde(default)]
    pub node: Option<u32>,
    /// Selects only these ranks, if the list is not empty.
    #[serde(default)]
    pub ranks: Vec<GlobalRank>,
}

/// Agent → command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Job(Job),
    Stacks(JobStacks),
    Dump(JobDump),
    View { what: Value },
    Refused(Refused),
}

/// A job on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub run_id: RunId,
    pub attempt: u32,
    /// Rank of this node.
    pub node: u32,
    pub nodes: u32,
    /// Ranks of the job on this node that run now.
    #[serde(default)]
    pub ranks: Vec<GlobalRank>,
    #[serde(default)]
    pub about: About,
}

/// What tells a job from another one that runs beside it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// The file or module of the program, without arguments. Empty in answers of version 0.2.0.
    pub program: String,
    /// Name or path of the profile.
    pub profile: Option<String>,
    /// The working folder.
    pub folder: String,
    /// Start of the agent, in milliseconds since 1970.
    pub started_ms: u64,
}

/// Answers of the nodes of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStacks {
    pub nodes: Vec<NodeStacks>,
    pub unanswered: Vec<Unanswered>,
    /// Whether the agent reaches the other nodes: with `--muster off` each node is on its own.
    pub reaches_all: bool,
    pub took_ms: u64,
}

/// A node, or a task of a node, that gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// `node 3`
    pub who: Text,
    pub why: Text,
}

/// The evidence of the nodes of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDump {
    pub nodes: Vec<NodeDump>,
    pub unanswered: Vec<Unanswered>,
}

/// The evidence of one node, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDump {
    pub node: u32,
    pub files: Vec<DumpFile>,
    pub missing: Vec<Missing>,
}

impl NodeDump {
    /// Adds a file that was read now.
    pub fn add(&mut self, name: String, text: String) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let read_ms = millis(since.unwrap_or_default());
        self.files.push(DumpFile { name, text, read_ms });
    }

    /// Adds an item that is missing, with the reason.
    pub fn miss(&mut self, what: Text, why: Text) {
        self.missing.push(Missing { what, why });
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpFile {
    pub name: String,
    pub text: String,
    /// Time at which the file was read, in milliseconds since 1970.
    pub read_ms: u64,
}

/// An item that belongs to a dump and is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub what: Text,
    pub why: Text,
}

/// Stacks that one agent read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStacks {
    /// The job with all its ranks.
    pub job: Job,
    /// Ranks that were requested.
    pub ranks: Vec<RankStacks>,
    /// Duration of the reading.
    pub took_ms: u64,
}

/// The reason why the agent gives no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Refused {
    /// The agent answers only the job's own user and root.
    User { uid: u32, owner: u32 },
    /// The peer is in another PID namespace: with the host's network every container of the node
    /// can connect.
    Container,
    /// The question was not understood: it comes from another version of this program.
    Question,
    /// No ranks run: the job waits for other nodes, or is between two attempts.
    NotRunning,
}

/// Prefix of the names of these sockets; the agent's pid and random digits follow.
const PREFIX: &str = "ranklaunch-stacks-";
/// Time limit for reading all ranks.
pub const READING: Duration = Duration::from_secs(5);
/// Time limit for the way to the other nodes and back.
pub const OTHERS: Duration = Duration::from_secs(3);
/// Time limit for a peer to send its question, and to take each part of the answer.
const PEER: Duration = Duration::from_secs(2);
/// Maximum bytes of a question, which may name many ranks.
const LONGEST_QUESTION: u64 = 64 * 1024;

/// The running ranks of this node, for reading their stacks. Clones share the ranks.
#[derive(Debug, Clone)]
pub struct RunningRanks {
    job: Job,
    ranks: Arc<Mutex<BTreeMap<GlobalRank, RunningRank>>>,
}

impl RunningRanks {
    pub fn of(job: Job) -> RunningRanks {
        RunningRanks { job, ranks: Arc::default() }
    }

    pub fn began(&self, rank: RankId, pid: i32) {
        let running = RunningRank { rank: rank.global, local_rank: rank.local, pid };
        self.ranks().insert(rank.global, running);
    }

    pub fn ended(&self, rank: RankId) {
        self.ranks().remove(&rank.global);
    }

    /// The job with the ranks that run now.
    pub fn job(&self) -> Job {
        Job { ranks: self.ranks().keys().copied().collect(), ..self.job.clone() }
    }

    /// The processes of the ranks.
    pub fn pids(&self) -> Vec<(GlobalRank, i32)> {
        self.ranks().values().map(|one| (one.rank, one.pid)).collect()
    }

    /// The stacks of the selected ranks, within [`READING`].
    pub fn read(&self, selection: &Selection) -> NodeStacks {
        let Selection { node, ranks } = selection;
        let is_here = node.is_none_or(|node| node == self.job.node);
        let is_meant =
            |one: &&RunningRank| is_here && (ranks.is_empty() || ranks.contains(&one.rank));
        let meant: Vec<RunningRank> = self.ranks().values().filter(is_meant).copied().collect();
        let began = Instant::now();
        let ranks = collect(Path::new("/proc"), &meant, READING);
        NodeStacks { job: self.job(), ranks, took_ms: millis(began.elapsed()) }
    }

    fn ranks(&self) -> std::sync::MutexGuard<'_, BTreeMap<GlobalRank, RunningRank>> {
        held(&self.ranks)
    }
}

/// Gets the answers of all nodes to a question.
pub type Everywhere = Arc<dyn Fn(Ask) -> Answer + Send + Sync>;
/// Gives the present job.
type WhichJob = Arc<dyn Fn() -> Job + Send + Sync>;

/// A server that answers until it is dropped.
#[derive(Debug)]
pub struct RunServer {
    /// Pipe that closes at the end, which wakes the thread.
    _open: Option<PipeWriter>,
}

impl RunServer {
    /// Starts the thread. Without a socket or a thread the job runs on, and the command finds
    /// nothing.
    pub fn start(job: WhichJob, everywhere: Everywhere) -> RunServer {
        RunServer { _open: serve(job, everywhere).ok() }
    }
}

fn serve(job: WhichJob, everywhere: Everywhere) -> io::Result<PipeWriter> {
    let name = format!("{PREFIX}{}-{}", std::process::id(), random::hex::<8>()?);
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    // A peer that leaves between poll and accept must not hold the thread.
    listener.set_nonblocking(true)?;
    let (closed, open) = io::pipe()?;
    let run = move || {
        loop {
            let mut fds =
                [PollFd::new(&listener, PollFlags::IN), PollFd::new(&closed, PollFlags::IN)];
            let polled = sys::poll(&mut fds, None);
            let [asked, ended] = fds.map(|fd| !fd.revents().is_empty());
            if polled.is_ok() && ended {
                return;
            }
            if polled.is_ok() && asked {
                match listener.accept() {
                    // A failure concerns only the peer.
                    Ok((peer, _)) => drop(answer(peer, &job, &everywhere)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // No descriptors are left: the peer stays in the queue, so poll would spin.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        }
    };
    std::thread::Builder::new().name("stacks".into()).stack_size(512 * 1024).spawn(run)?;
    Ok(open)
}

/// Reads one question. Questions to all nodes take seconds, so a separate thread answers them while this thread goes
/// on.
fn answer(peer: UnixStream, job: &WhichJob, everywhere: &Everywhere) -> io::Result<()> {
    peer.set_nonblocking(false)?;
    peer.set_read_timeout(Some(PEER))?;
    peer.set_write_timeout(Some(PEER))?;
    if let Some(refused) = refused(&peer)? {
        return say(&peer, &Answer::Refused(refused));
    }
    let mut line = String::new();
    BufReader::new((&peer).take(LONGEST_QUESTION)).read_line(&mut line)?;
    let ask = match serde_json::from_str(&line) {
        Ok(Ask::Job) => return say(&peer, &Answer::Job(job())),
        Ok(ask) => ask,
        Err(_) => return say(&peer, &Answer::Refused(Refused::Question)),
    };
    let everywhere = Arc::clone(everywhere);
    let work = move || say(&peer, &everywhere(ask));
    std::thread::Builder::new().name("stacks-answer".into()).spawn(work).map(drop)
}

fn say(mut peer: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    peer.write_all(&line)
}

fn refused(peer: &UnixStream) -> io::Result<Option<Refused>> {
    let (seen, owner) = (sys::Peer::of(peer)?, rustix::process::geteuid().as_raw());
    if seen.uid != owner && seen.uid != 0 {
        return Ok(Some(Refused::User { uid: seen.uid, owner }));
    }
    Ok((seen.pid == 0).then_some(Refused::Container))
}
