//! The knowledge of one node about its ranks: the contents of their recorders, and the node's effects on them.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::watch::node::{NodeReader, NodeReading, NodeSources, Parts, Reason};
use crate::watch::records::{Cut, Recorded, recorded};
use text::rank::GlobalRank;

/// Time limits for the ranks' answers and for the counters of the node. A driver takes longer.
const RECORDS: Duration = Duration::from_secs(2);
const COUNTERS: Duration = Duration::from_secs(2);
const GPUS: Duration = Duration::from_secs(10);
/// Number of readings that are kept: those of the two looks that agree on a slow rank. At an earlier look the
/// rank may have been in another control group, or not yet slow.
const READINGS: usize = 2;

/// The recorded activity of the ranks of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeSample {
    pub(super) node: u32,
    pub(super) recorded: Vec<Recorded>,
}

/// The ranks of this node, for any thread that asks.
#[derive(Debug)]
pub struct SampledNode {
    node: u32,
    control: PathBuf,
    reader: NodeReader,
    pids: Mutex<BTreeMap<GlobalRank, i32>>,
    /// The oldest first.
    readings: Mutex<VecDeque<NodeReading>>,
}

impl SampledNode {
    /// `control`: the folder of the ranks' control sockets.
    pub fn new(node: u32, control: PathBuf, sources: NodeSources) -> SampledNode {
        SampledNode {
            node,
            control,
            reader: NodeReader::new(sources),
            pids: Mutex::default(),
            readings: Mutex::default(),
        }
    }

    pub(super) fn began(&self, rank: GlobalRank, pid: i32) {
        lock(&self.pids).insert(rank, pid);
    }

    pub(super) fn ended(&self, rank: GlobalRank) {
        lock(&self.pids).remove(&rank);
    }

    /// The contents of the ranks' recorders; none without `torch.distributed`. Also reads the counters of the
    /// node, for a later question. Blocks for four seconds at most.
    pub fn sample(&self, cut: Cut) -> NodeSample {
        let recorded = recorded(&self.control, cut, RECORDS);
        if !recorded.is_empty() {
            let reading = self.reader.read(&self.pids(), Parts::Kernel, COUNTERS);
            let mut readings = lock(&self.readings);
            readings.push_back(reading);
            while readings.len() > READINGS {
                readings.pop_front();
            }
        }
        NodeSample { node: self.node, recorded }
    }

    /// The abnormal findings since the oldest of the last samples, and about the GPUs now. None for a
    /// rank of another node. Blocks for ten seconds at most.
    pub fn reasons(&self, rank: GlobalRank) -> Option<Vec<Reason>> {
        let pids = self.pids();
        pids.iter().find(|(own, _)| *own == rank)?;
        let now = self.reader.read(&pids, Parts::All, GPUS);
        let readings = lock(&self.readings);
        let change = now.since(readings.front().unwrap_or(&now));
        Some(change.reasons_for(rank).into_iter().cloned().collect())
    }

    fn pids(&self) -> Vec<(GlobalRank, i32)> {
        lock(&self.pids).iter().map(|(rank, pid)| (*rank, *pid)).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
