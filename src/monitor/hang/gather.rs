//! Collects evidence about the ranks of this node that shows why a job stands still.
//!
//! Stacks, records, NCCL, the kernel and the driver are read side by side. Only changes of the node's counters say
//! something, so the counters are read each time a rank has moved: the changes since the last such reading belong to
//! the time in which nothing moves. A source that does not answer is missing in the evidence, and costs no more than
//! the time limit. A rank whose memory is hidden is asked for its stacks by a signal, if it stands still.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{DeadChild, RankEvidence, dump_pipe, faulthandler};
use crate::held;
use crate::watch::ras::{self, RasReport};
use crate::watch::{
    ControlSocket, GpuUse, NodeReader, NodeReading, NodeSources, Parts, RasSource, RasVerdict,
    Reason, asked, now_ns, program, store_port,
};
use diagnose::recorder::{self, Job, RankRecord, Read};
use diagnose::stacks::{self, RankStacks, RunningRank, Unread};
use linux::deadline::spawn_detached;
use linux::procfs::Process;
use text::escape::printable;
use text::lang::Text;
use text::order::InOrder;
use text::rank::GlobalRank;

/// Time limit for the stacks and the records of all ranks, for NCCL, and for the node with its driver.
const READING: Duration = Duration::from_secs(4);
/// Time limit for one rank's record.
const RECORD: Duration = Duration::from_secs(3);
/// Time limit for the stacks of ranks whose memory is hidden. A handler writes them at once.
const HANDLER: Duration = Duration::from_secs(1);
/// The part of [`READING`] that is left for passing a record from one thread to another.
const SPARE: Duration = Duration::from_millis(200);
/// The whole record, without stacks.
const WHOLE: &str = "includecollectives=true";
/// Time limit for the counters of the kernel alone.
const COUNTERS: Duration = Duration::from_secs(2);
/// Minimum time between two readings of a job that may move.
const MOMENT: Duration = Duration::from_secs(1);

/// All evidence of these ranks. `still`: the ranks that neither compute nor read nor write.
pub(crate) fn evidence(
    ranks: &[RunningRank],
    still: &BTreeSet<GlobalRank>,
    control: Option<&Path>,
) -> Vec<RankEvidence> {
    let proc = Path::new("/proc");
    let (tell, told) = channel();
    let all = Process::scan(proc);
    let programs = programs(&all, ranks, control);
    if let Some(folder) = control.map(PathBuf::from) {
        let pids: Vec<i32> = programs.iter().map(|rank| rank.pid).collect();
        spawn_detached(move || drop(tell.send(records_by_pid(&folder, &pids))));
    } else {
        drop(tell);
    }
    let mut stacks = stacks::collect(proc, &programs, READING);
    if let Some(control) = control {
        ask_handlers(control, stacks.iter_mut().filter(|one| still.contains(&one.rank)));
    }
    let mut dead = dead_children(&all, &programs);
    let mut records = told.recv_timeout(READING + SPARE).unwrap_or_default();
    let mut stacks: BTreeMap<GlobalRank, _> =
        stacks.into_iter().map(|stacks| (stacks.rank, stacks)).in_map();
    programs
        .iter()
        .map(|running| {
            let (records, read_ns) = records.remove(&running.pid).unwrap_or_default();
            let stacks = stacks.remove(&running.rank);
            RankEvidence {
                asks_store: stacks.as_ref().is_some_and(|of| asks_store(proc, of)),
                stacks,
                dead_children: dead.remove(&running.pid).unwrap_or_default(),
                records,
                read_ns,
                ..RankEvidence::of(running.rank)
            }
        })
        .collect()
}

/// The ranks with the processes that their programs run in.
fn programs(
    all: &BTreeMap<i32, Process>,
    ranks: &[RunningRank],
    control: Option<&Path>,
) -> Vec<RunningRank> {
    let sockets = control.map(ControlSocket::all).unwrap_or_default();
    let servers: HashSet<i32> = sockets.into_iter().map(|socket| socket.pid).collect();
    let of = |rank: &RunningRank| RunningRank {
        pid: program(all, rank.pid, |pid| servers.contains(&pid)),
        ..*rank
    };
    ranks.iter().map(of).collect()
}

/// Asks the handlers of all ranks in parallel.
fn ask_handlers<'a>(control: &Path, ranks: impl Iterator<Item = &'a mut RankStacks>) {
    let asked = ranks.filter(|stacks| is_hidden(stacks)).map(|stacks| {
        let (tell, told) = channel();
        let (folder, pid) = (control.to_owned(), stacks.process.pid);
        spawn_detached(move || drop(tell.send(faulthandler::stacks(&folder, pid, HANDLER))));
        (stacks, told)
    });
    let asked: Vec<_> = asked.collect();
    let until = Instant::now() + 2 * HANDLER;
    for (stacks, told) in asked {
        let left = until.saturating_duration_since(Instant::now());
        if let Ok(Ok(words)) = told.recv_timeout(left) {
            stacks.take_traceback(&words);
        }
    }
}

/// Whether Python sleeps and its stacks cannot be read. A process that is stopped, or that cannot be interrupted,
/// would answer later.
fn is_hidden(stacks: &RankStacks) -> bool {
    let first = stacks.process.threads.first().and_then(|thread| thread.kernel.as_ref());
    let sleeps = first.is_some_and(|kernel| kernel.state == 'S');
    let hidden = matches!(
        stacks.process.unread,
        Some(
            Unread::Denied { .. }
                | Unread::Unlisted { .. }
                | Unread::Version { .. }
                | Unread::FreeThreaded { .. }
                | Unread::NoSymbol { .. }
        )
    );
    sleeps && hidden
}

/// The records of these processes with the time of the request, in ns since 1970: the answers of the worker
/// servers, and for a torch without one the record that it writes on request.
fn records_by_pid(control: &Path, pids: &[i32]) -> HashMap<i32, (Vec<String>, i64)> {
    let until = Instant::now() + READING;
    let read_ns = now_ns();
    let mut by_pid: HashMap<i32, (Vec<String>, i64)> = HashMap::new();
    let mut served = HashSet::new();
    for (socket, texts) in records(control) {
        if !socket.is_calls {
            served.insert(socket.pid);
        }
        by_pid.entry(socket.pid).or_insert((Vec::new(), read_ns)).0.extend(texts);
    }
    let (tell, told) = channel();
    for pid in pids.iter().copied().filter(|pid| !served.contains(pid)) {
        let tell = tell.clone();
        let until = until.checked_sub(SPARE).unwrap_or(until);
        spawn_detached(move || {
            if let Some(text) = dump_pipe::record(Path::new("/proc"), pid, until) {
                let _ = tell.send((pid, recorder::last_entries(text)));
            }
        });
    }
    drop(tell);
    while let Ok((pid, text)) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
        by_pid.entry(pid).or_insert((Vec::new(), read_ns)).0.push(text);
    }
    by_pid
}

/// The records of the processes that answer.
fn records(control: &Path) -> Vec<(ControlSocket, Vec<String>)> {
    let text = |dump| Some(recorder::last_entries(String::from_utf8(dump).ok()?));
    let answers = asked(control, WHOLE, RECORD, READING).into_iter();
    answers.map(|(socket, dumps)| (socket, dumps.into_iter().filter_map(text).collect())).collect()
}

/// The time at which torch gives up the first wait of these ranks, in ns since 1970.
pub(crate) fn gives_up_ns(control: &Path) -> Option<i64> {
    let record = |(socket, texts): (ControlSocket, Vec<String>)| {
        let dumps = texts.iter().filter_map(|text| recorder::read(text.as_bytes()).ok()).collect();
        Some(RankRecord { rank: socket.rank?.0, dumps, read: Read::At(now_ns()) })
    };
    let records = records(control).into_iter().filter_map(record).collect();
    recorder::judge(&Job { records, world: None, stood_still: true }).gives_up_ns
}

/// Whether the first thread of a rank waits for the port of torch's store: `MASTER_PORT`, also if the engine
/// serves it.
fn asks_store(proc: &Path, stacks: &RankStacks) -> bool {
    let call = || stacks.process.threads.first()?.kernel.as_ref()?.syscall.as_ref();
    let peer = || call()?.file.as_ref()?.connection.as_ref()?.peer.clone();
    let Some(peer) = peer() else { return false };
    let port = store_port(proc, stacks.process.pid).map(|port| port.to_string());
    port.is_some_and(|port| peer.rsplit_once(':').is_some_and(|(_, of_peer)| of_peer == port))
}

/// Zombies below each rank, by the rank's pid.
fn dead_children(
    all: &BTreeMap<i32, Process>,
    ranks: &[RunningRank],
) -> HashMap<i32, Vec<DeadChild>> {
    let of = |rank: &RunningRank| {
        let dead = Process::descendants(all, &[rank.pid])
            .into_iter()
            .filter(|process| process.is_dead())
            .map(|process| DeadChild {
                pid: process.pid,
                name: printable(&String::from_utf8_lossy(&process.comm)).into_owned(),
            });
        (rank.pid, dead.collect())
    };
    ranks.iter().map(of).collect()
}

/// Ranks with the pids of their processes.
type Pids = [(GlobalRank, i32)];

/// Reads the surroundings of a node's ranks: NCCL, the kernel and the driver.
#[derive(Debug)]
pub struct Surroundings {
    ras: RasSource,
    /// Number of ranks of the job, if known.
    world: Option<u32>,
    reader: NodeReader,
    /// The reading from the last movement of a rank.
    before: Mutex<Option<(Instant, NodeReading)>>,
}

/// The result of a reading.
#[derive(Debug, Default)]
pub struct Around {
    pub ras: Option<RasVerdict>,
    pub reasons: Vec<Reason>,
    pub gpus: Vec<GpuUse>,
}

/// A reading in progress.
#[derive(Debug)]
pub struct AroundReading {
    ras: Receiver<Option<RasVerdict>>,
    node: Receiver<NodeReading>,
    until: Instant,
}

impl Surroundings {
    pub fn new(sources: NodeSources, ras: RasSource, world: Option<u32>) -> Surroundings {
        Surroundings { ras, world, reader: NodeReader::new(sources), before: Mutex::new(None) }
    }

    /// `moved`: time of the last movement of a rank.
    pub fn note(&self, moved: Option<Instant>, ranks: &Pids) {
        let Some(moved) = moved else { return };
        let known = held(&self.before).as_ref().is_some_and(|(at, _)| *at == moved);
        if !known {
            let reading = self.reader.read(ranks, Parts::Kernel, COUNTERS);
            *held(&self.before) = Some((moved, reading));
        }
    }

    /// Begins a reading in parallel with the caller's own.
    pub fn begin(&self, ranks: &Pids) -> AroundReading {
        let (tell_ras, ras) = channel();
        let (source, world, own) = (self.ras, self.world, ranks.to_vec());
        spawn_detached(move || {
            let _ = tell_ras.send(ras::verdict(source, world, &own, READING));
        });
        let (tell_node, node) = channel();
        let (reader, own) = (self.reader.clone(), ranks.to_vec());
        spawn_detached(move || drop(tell_node.send(reader.read(&own, Parts::All, READING))));
        AroundReading { ras, node, until: Instant::now() + READING }
    }

    /// The result of the reading. A source that has not answered in time is missing.
    pub fn end(&self, reading: AroundReading) -> Around {
        let AroundReading { ras, node, until } = reading;
        let left = || until.saturating_duration_since(Instant::now());
        let ras = ras.recv_timeout(left()).ok().flatten();
        let now = node.recv_timeout(left()).ok();
        let before = held(&self.before);
        let change = now.zip(before.as_ref()).map(|(now, (_, before))| now.since(before));
        let Some(change) = change else { return Around { ras, ..Around::default() } };
        Around { ras, reasons: change.reasons().to_vec(), gpus: change.gpu_use() }
    }
}

/// All counters of the node now, and the abnormal findings within a moment, as evidence. Blocks for some
/// seconds at most.
pub fn node_document(sources: NodeSources, ranks: &Pids) -> Value {
    let reader = NodeReader::new(sources);
    let before = reader.read(ranks, Parts::Kernel, COUNTERS);
    std::thread::sleep(MOMENT);
    let now = reader.read(ranks, Parts::All, READING - MOMENT);
    json!({ "change": now.since(&before), "counters": now })
}

/// The whole report of NCCL's RAS; the error as text. None if RAS is not asked.
pub fn ras_report(source: RasSource, ranks: &Pids) -> Option<Result<RasReport, Text>> {
    Some(ras::report(source, ranks, READING)?.map_err(|error| error.text()))
}
