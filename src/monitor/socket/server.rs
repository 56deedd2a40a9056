//! The agent's side: answers questions about its ranks on an abstract Unix socket.
//!
//! The socket is abstract, like the socket of the shims: no folder has to be writable, and nothing is left behind.
//! Its name begins with [`PREFIX`], by which the command finds it in /proc/net/unix. Every process of the network
//! namespace can connect, so only the job's own user and root are answered, and only from this PID namespace or below
//! it. The server knows nothing about other nodes: a function that it is given asks them. It listens from the first
//! moment of a launch to its end.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, PipeWriter, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::answer::{Answer, Ask, Job, NodeStacks, Refused, Selection};
use diagnose::stacks::{RunningRank, collect};
use linux::deadline::millis;
use linux::random;
use linux::sys::{self, PollFd, PollFlags};
use text::rank::{GlobalRank, RankId};

/// Prefix of the names of these sockets; the agent's pid and random digits follow.
pub(super) const PREFIX: &str = "ranklaunch-stacks-";
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
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gets the answers of all nodes to a question.
pub type Everywhere = Arc<dyn Fn(Ask) -> Answer + Send + Sync>;
/// Gives the present job.
pub(super) type WhichJob = Arc<dyn Fn() -> Job + Send + Sync>;

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
