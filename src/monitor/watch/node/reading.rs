//! One reading of all counters, within a deadline.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::gpus::{GpuReading, readings};
use super::groups::{GroupReading, groups};
use super::kernel::{InterfaceReading, Pressure, RankReading, TcpReading, interfaces, tcp};
use linux::deadline::spawn_detached;
use linux::host::Host;
use node::observe::Counters;
use node::probe::NvmlGpu;
use text::rank::GlobalRank;

/// Asks the driver for the GPUs, within a time limit.
type AskGpus = dyn Fn(&Host, Duration) -> Vec<NvmlGpu> + Send + Sync;

/// The sources of the counters.
#[derive(Clone)]
pub struct NodeSources {
    pub host: Arc<Host>,
    /// The counters of the job's HCAs.
    pub hcas: Arc<dyn Fn(&Host) -> Counters + Send + Sync>,
    /// The GPUs as NVML shows them.
    pub gpus: Arc<AskGpus>,
}

impl std::fmt::Debug for NodeSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeSources").field("host", &self.host).finish_non_exhaustive()
    }
}

/// The parts of the node that a reading covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parts {
    /// Files of the kernel: well below a millisecond for each rank.
    Kernel,
    /// The GPUs as well. A separate process initialises the driver for this, which takes up to seconds.
    /// It is for callers with a reason to ask, not for each sample.
    All,
}

/// All counters at one moment. Serialized as evidence.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct NodeReading {
    #[serde(skip)]
    pub(super) at: Instant,
    pub(super) pressure: Pressure,
    pub(super) groups: BTreeMap<String, GroupReading>,
    pub(super) ranks: Vec<RankReading>,
    pub(super) interfaces: BTreeMap<String, InterfaceReading>,
    pub(super) tcp: Option<TcpReading>,
    #[serde(skip)]
    pub(super) hcas: Counters,
    pub(super) gpus: Vec<GpuReading>,
    /// Parts that did not answer in time: `kernel`, `hcas`, `gpus`.
    pub(super) late: Vec<&'static str>,
}

impl NodeReading {
    /// None if only the kernel was read, or the driver did not answer.
    pub(crate) fn gpus(&self) -> &[GpuReading] {
        &self.gpus
    }
}

#[derive(Debug, Default)]
struct Kernel {
    pressure: Pressure,
    groups: BTreeMap<String, GroupReading>,
    ranks: Vec<RankReading>,
    interfaces: BTreeMap<String, InterfaceReading>,
    tcp: Option<TcpReading>,
}

/// Reads a node again and again. A part that hangs is left out until it has returned, so that a dead
/// driver costs one thread instead of one per reading. Clones share this state.
#[derive(Debug, Clone)]
pub(crate) struct NodeReader {
    sources: NodeSources,
    kernel: Part,
    hcas: Part,
    gpus: Part,
}

impl NodeReader {
    pub(crate) fn new(sources: NodeSources) -> NodeReader {
        let part = |name| Part { name, busy: Arc::default() };
        NodeReader { sources, kernel: part("kernel"), hcas: part("hcas"), gpus: part("gpus") }
    }

    /// The counters, with those of the ranks' processes. Blocks at most for `timeout`.
    pub(crate) fn read(
        &self,
        ranks: &[(GlobalRank, i32)],
        parts: Parts,
        timeout: Duration,
    ) -> NodeReading {
        let at = Instant::now();
        let until = at + timeout;
        let begin = |sources: &NodeSources| (sources.clone(), ranks.to_vec());
        let (sources, list) = begin(&self.sources);
        let kernel = self.kernel.begin(move || kernel(&sources.host, &list));
        let (sources, _) = begin(&self.sources);
        let hcas = self.hcas.begin(move || (sources.hcas)(&sources.host));
        let gpus = (parts == Parts::All).then(|| {
            let (sources, list) = begin(&self.sources);
            self.gpus.begin(move || {
                let host = &sources.host;
                readings(host, (sources.gpus)(host, timeout), &list)
            })
        });
        let mut late = Vec::new();
        let kernel = self.kernel.end(kernel, until, &mut late).unwrap_or_default();
        let hcas = self.hcas.end(hcas, until, &mut late).unwrap_or_default();
        let gpus = gpus.and_then(|gpus| self.gpus.end(gpus, until, &mut late)).unwrap_or_default();
        let Kernel { pressure, groups, ranks, interfaces, tcp } = kernel;
        NodeReading { at, pressure, groups, ranks, interfaces, tcp, hcas, gpus, late }
    }
}

fn kernel(host: &Host, ranks: &[(GlobalRank, i32)]) -> Kernel {
    let read = |(rank, pid): &(GlobalRank, i32)| RankReading::of(host, *rank, *pid);
    Kernel {
        pressure: Pressure::of_node(host),
        groups: groups(host, ranks),
        ranks: ranks.iter().filter_map(read).collect(),
        interfaces: interfaces(host),
        tcp: tcp(host),
    }
}

#[derive(Debug, Clone)]
struct Part {
    name: &'static str,
    busy: Arc<AtomicBool>,
}

impl Part {
    /// None while the last reading has not returned.
    fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Receiver<T>> {
        if self.busy.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (done, result) = sync_channel(1);
        let busy = Arc::clone(&self.busy);
        spawn_detached(move || {
            let found = work();
            busy.store(false, Ordering::Release);
            let _ = done.send(found);
        });
        Some(result)
    }

    fn end<T>(
        &self,
        reading: Option<Receiver<T>>,
        until: Instant,
        late: &mut Vec<&'static str>,
    ) -> Option<T> {
        let left = until.saturating_duration_since(Instant::now());
        let found = reading.and_then(|reading| reading.recv_timeout(left).ok());
        if found.is_none() {
            late.push(self.name);
        }
        found
    }
}
