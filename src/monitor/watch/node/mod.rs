//! The node's effects on its ranks: counters of pressure, limits, links and GPUs, read twice.
//!
//! Takes the [`Host`] and the pids of the ranks; gives a [`NodeReading`], and
//! from two of them a `NodeChange` with the `Reason`s for which a rank may be slow or stand still.
//! Names only abnormal findings. Never waits longer than its time limit, even if a file system or a
//! driver hangs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use counters::{
    GroupReading, InterfaceReading, Pressure, RankReading, TcpReading, groups, interfaces, tcp,
};
use linux::deadline::spawn_detached;
use linux::host::Host;
use node::observe::Counters;
use node::probe::{NvmlGpu, ProcessKind};
use text::lang::Text;
use text::rank::GlobalRank;
use text::text;

mod change;
mod counters;
#[cfg(test)]
mod tests;

pub use change::{Reason, ReasonKind};

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
    at: Instant,
    #[serde(flatten)]
    kernel: KernelReading,
    #[serde(skip)]
    hcas: Counters,
    gpus: Vec<GpuReading>,
    /// Parts that did not answer in time: `kernel`, `hcas`, `gpus`.
    late: Vec<&'static str>,
}

impl NodeReading {
    /// None if only the kernel was read, or the driver did not answer.
    pub(crate) fn gpus(&self) -> &[GpuReading] {
        &self.gpus
    }
}

/// Counters of the kernel.
#[derive(Debug, Clone, Default, Serialize)]
struct KernelReading {
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
    kernel: TimedPart,
    hcas: TimedPart,
    gpus: TimedPart,
}

impl NodeReader {
    pub(crate) fn new(sources: NodeSources) -> NodeReader {
        let part = |name| TimedPart { name, busy: Arc::default() };
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
        NodeReading { at, kernel, hcas, gpus, late }
    }
}

fn kernel(host: &Host, ranks: &[(GlobalRank, i32)]) -> KernelReading {
    let read = |(rank, pid): &(GlobalRank, i32)| RankReading::of(host, *rank, *pid);
    KernelReading {
        pressure: Pressure::of_node(host),
        groups: groups(host, ranks),
        ranks: ranks.iter().filter_map(read).collect(),
        interfaces: interfaces(host),
        tcp: tcp(host),
    }
}

#[derive(Debug, Clone)]
struct TimedPart {
    name: &'static str,
    busy: Arc<AtomicBool>,
}

impl TimedPart {
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

/// A GPU and its processes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct GpuReading {
    /// Ranks that use it, as far as NVML's pids are those of our namespace.
    pub ranks: Vec<GlobalRank>,
    /// Pids of our namespace that are not of the job.
    pub strangers: Vec<u32>,
    #[serde(flatten)]
    pub gpu: NvmlGpu,
}

/// The current use of a GPU that ranks use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUse {
    /// NVML's index.
    pub gpu: u32,
    pub ranks: Vec<GlobalRank>,
    /// Percent of the last moment in which a kernel ran.
    pub utilization: u32,
    /// Watts, and the limit. None if the driver does not report it.
    pub power: Option<(u32, u32)>,
}

/// Minimum percent at which a GPU counts as fully used.
const WITHOUT_PAUSE: u32 = 90;
/// Maximum percent at which a GPU counts as idle.
const IDLE: u32 = 5;

impl GpuUse {
    fn of(reading: &GpuReading) -> Option<GpuUse> {
        let load = reading.gpu.health.load;
        let utilization = load.utilization.filter(|_| !reading.ranks.is_empty())?;
        let watts = |milliwatts: Option<u32>| milliwatts.map(|power| power / 1000);
        let power = watts(load.power).zip(watts(load.power_limit).filter(|limit| *limit > 0));
        Some(GpuUse { gpu: reading.gpu.index, ranks: reading.ranks.clone(), utilization, power })
    }

    /// A kernel of NCCL that waits for other ranks counts as use, but takes little power; so neither use nor
    /// power proves that a rank computes.
    pub fn text(&self) -> Text {
        let GpuUse { gpu, utilization, power, .. } = self;
        let (at, at_zh) = power.map_or_else(Default::default, |(power, limit)| {
            (format!(" at {power} of {limit} W"), format!("，功耗 {power} W（上限 {limit} W）"))
        });
        let is_low = power.is_some_and(|(power, limit)| power < limit / 3);
        let is_high = power.is_some_and(|(power, limit)| power > limit / 2);
        match *utilization {
            ..=IDLE => text!("GPU {gpu} is idle{at}", "GPU {gpu} 空闲{at_zh}"),
            WITHOUT_PAUSE.. if is_low => text!(
                "GPU {gpu} is used {utilization} % of the time{at}, as by a kernel of NCCL that waits for other ranks",
                "GPU {gpu} 使用率 {utilization} %{at_zh}，如同 NCCL 的 kernel 在等待其他 rank"
            ),
            WITHOUT_PAUSE.. if is_high => text!(
                "GPU {gpu} is used {utilization} % of the time{at}, as by kernels that compute",
                "GPU {gpu} 使用率 {utilization} %{at_zh}，如同正在计算"
            ),
            _ => text!(
                "GPU {gpu} is used {utilization} % of the time{at}",
                "GPU {gpu} 使用率 {utilization} %{at_zh}"
            ),
        }
    }
}

/// Shares a GPU among its clients; it is in NVML's list beside them.
const MPS: &[u8] = b"nvidia-cuda-mps";

fn readings(host: &Host, gpus: Vec<NvmlGpu>, ranks: &[(GlobalRank, i32)]) -> Vec<GpuReading> {
    let owner = |pid: i32| -> Option<GpuUser> {
        let mut at = host.process(pid).stat()?;
        if at.comm.starts_with(MPS) {
            return None;
        }
        // A rank's shim is the child of the agent, so a chain is short; a loop cannot be longer.
        for _ in 0..64 {
            if let Some((rank, _)) = ranks.iter().find(|(_, of)| *of == at.pid) {
                return Some(GpuUser::Rank(*rank));
            }
            match host.process(at.ppid).stat().filter(|_| at.ppid > 0) {
                Some(parent) => at = parent,
                None => break,
            }
        }
        Some(GpuUser::Stranger)
    };
    gpus.into_iter()
        .map(|gpu| {
            let mut reading = GpuReading { gpu, ..GpuReading::default() };
            let processes = reading.gpu.health.processes.iter().flatten();
            for process in processes.filter(|process| process.kind == ProcessKind::Compute) {
                let pid = i32::try_from(process.pid).ok().filter(|pid| *pid > 0);
                match pid.and_then(owner) {
                    Some(GpuUser::Rank(rank)) => reading.ranks.push(rank),
                    Some(GpuUser::Stranger) => reading.strangers.push(process.pid),
                    // The process has ended, or NVML's pids are from another namespace.
                    None => {}
                }
            }
            reading.ranks.sort();
            reading.ranks.dedup();
            reading
        })
        .collect()
}

enum GpuUser {
    Rank(GlobalRank),
    Stranger,
}
