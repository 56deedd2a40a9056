//! Evidence from NCCL and the node about ranks that stand still.
//!
//! Only changes of the node's counters say something, so the counters are read each time a rank has moved.
//! The changes since the last such reading belong to the time in which nothing moves.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::node::{GpuUse, NodeReader, NodeReading, NodeSources, Parts, Reason};
use super::ras::{self, RasReport, RasSource, RasVerdict};
use linux::deadline::spawn_detached;
use text::lang::Text;
use text::rank::GlobalRank;

/// Time limit for NCCL, and for the node with its driver.
const READING: Duration = Duration::from_secs(4);
/// Time limit for the counters of the kernel alone.
const COUNTERS: Duration = Duration::from_secs(2);
/// Minimum time between two readings of a job that may move.
const MOMENT: Duration = Duration::from_secs(1);

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
pub struct Reading {
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
        let known = self.before().as_ref().is_some_and(|(at, _)| *at == moved);
        if !known {
            let reading = self.reader.read(ranks, Parts::Kernel, COUNTERS);
            *self.before() = Some((moved, reading));
        }
    }

    /// Begins a reading in parallel with the caller's own.
    pub fn begin(&self, ranks: &Pids) -> Reading {
        let (tell_ras, ras) = channel();
        let (source, world, own) = (self.ras, self.world, ranks.to_vec());
        spawn_detached(move || {
            let _ = tell_ras.send(ras::verdict(source, world, &own, READING));
        });
        let (tell_node, node) = channel();
        let (reader, own) = (self.reader.clone(), ranks.to_vec());
        spawn_detached(move || drop(tell_node.send(reader.read(&own, Parts::All, READING))));
        Reading { ras, node, until: Instant::now() + READING }
    }

    /// The result of the reading. A source that has not answered in time is missing.
    pub fn end(&self, reading: Reading) -> Around {
        let Reading { ras, node, until } = reading;
        let left = || until.saturating_duration_since(Instant::now());
        let ras = ras.recv_timeout(left()).ok().flatten();
        let now = node.recv_timeout(left()).ok();
        let before = self.before();
        let change = now.zip(before.as_ref()).map(|(now, (_, before))| now.since(before));
        let Some(change) = change else { return Around { ras, ..Around::default() } };
        Around { ras, reasons: change.reasons().to_vec(), gpus: change.gpu_use() }
    }

    fn before(&self) -> std::sync::MutexGuard<'_, Option<(Instant, NodeReading)>> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
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
