//! Reads the contents of a [`Sample`]: memory, traffic, ranks and GPUs of the node, with rates since the last sample.
//!
//! A file system, or the counters of an HCA, that hangs once is not read again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sysinfo::{
    MemoryRefreshKind, NetworkData, Networks, Pid, ProcessRefreshKind, ProcessesToUpdate, System,
};

use super::collectives;
use super::node::{NodeReader, NodeReading, NodeSources, Parts, Reason};
use super::sample::{GpuSample, HcaSample, InterfaceSample, MemorySample, RankSample, Sample};
use linux::deadline::with_deadline;
use node::probe::NvmlGpu;
use text::rank::GlobalRank;

/// Time limit for reading the free space of the log file system.
const ANSWER: Duration = Duration::from_secs(2);
/// Time limit for reading the counters of the node.
const COUNTERS: Duration = Duration::from_secs(2);
/// Maximum number of interfaces in a sample; those with the most traffic are kept. A Kubernetes node may have
/// hundreds.
const INTERFACES: usize = 8;

/// The sampled parts of the node.
pub struct WatchedNode {
    /// The log folder; None if there is none.
    pub log_folder: Option<PathBuf>,
    /// The folder of the ranks' control sockets, if they have any.
    pub control: Option<PathBuf>,
    /// The sources of the counters whose abnormal values a sample tells.
    pub sources: NodeSources,
    /// Asks the driver for the current state of the job's GPUs, within a moment.
    pub live_gpus: Box<dyn Fn() -> Vec<NvmlGpu> + Send>,
    /// Reads bytes received and sent of the ports of the job's HCAs, if there are any.
    pub ports: Option<Ports>,
    /// Reads bytes in use and the limit of the memory control group.
    pub group_memory: Box<dyn Fn() -> Option<(u64, u64)> + Send>,
}

/// The name of each port (`mlx5_0:1`) and its bytes.
pub(crate) type Ports = Arc<dyn Fn() -> Vec<(String, u64, u64)> + Send + Sync>;

impl std::fmt::Debug for WatchedNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("log_folder", &self.log_folder).finish_non_exhaustive()
    }
}

/// The earlier readings that rates count from.
#[derive(Debug, Default)]
struct Baseline {
    /// CPU time, and when it was read.
    cpu: BTreeMap<GlobalRank, (Duration, Instant)>,
    /// Bytes received and sent, and when they were read.
    network: BTreeMap<String, (u64, u64)>,
    network_at: Option<Instant>,
    ports: BTreeMap<String, (u64, u64)>,
    ports_at: Option<Instant>,
}

pub(super) struct Readings {
    node: WatchedNode,
    reader: NodeReader,
    reading: Option<NodeReading>,
    /// The file system of the logs hung, so it is not read again.
    stuck: bool,
    /// The counters of the HCAs hung, so they are not read again.
    ports_stuck: bool,
    /// Pids with the time of their start.
    ranks: BTreeMap<GlobalRank, (Pid, Instant)>,
    system: System,
    networks: Networks,
    /// Baselines of the full samples, and of all samples.
    since_full: Baseline,
    since_last: Baseline,
}

impl Readings {
    pub(super) fn new(node: WatchedNode) -> Readings {
        let networks = Networks::new_with_refreshed_list();
        let totals = |(name, data): (&String, &NetworkData)| {
            (name.clone(), (data.total_received(), data.total_transmitted()))
        };
        let begin = || Baseline {
            network: networks.iter().map(totals).collect(),
            network_at: Some(Instant::now()),
            ..Baseline::default()
        };
        Readings {
            reader: NodeReader::new(node.sources.clone()),
            reading: None,
            node,
            stuck: false,
            ports_stuck: false,
            ranks: BTreeMap::new(),
            system: System::new(),
            since_full: begin(),
            since_last: begin(),
            networks,
        }
    }

    pub(super) fn began(&mut self, rank: GlobalRank, pid: i32) {
        let Ok(pid) = u32::try_from(pid) else { return };
        self.ranks.insert(rank, (Pid::from_u32(pid), Instant::now()));
        self.since_full.cpu.remove(&rank);
        self.since_last.cpu.remove(&rank);
    }

    pub(super) fn ended(&mut self, rank: GlobalRank) {
        self.ranks.remove(&rank);
    }

    /// A full sample, with rates since the last full sample.
    pub(super) fn full(&mut self, parts: Parts) -> Sample {
        let began = Instant::now();
        let mut baseline = std::mem::take(&mut self.since_full);
        let mut sample = self.quick(&mut baseline);
        self.since_full = baseline;
        (sample.abnormal, sample.gpus) = self.abnormal(parts);
        sample.collectives = self.node.control.as_deref().map(collectives::rows);
        sample.log_folder_free = self.log_free();
        sample.took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        sample
    }

    /// The quantities that change from second to second and cost little, with rates since the last sample.
    pub(super) fn live(&mut self) -> Sample {
        let began = Instant::now();
        let mut baseline = std::mem::take(&mut self.since_last);
        let mut sample = self.quick(&mut baseline);
        self.since_last = baseline;
        sample.gpus = (self.node.live_gpus)().iter().map(GpuSample::of).collect();
        sample.took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        sample
    }

    fn quick(&mut self, since: &mut Baseline) -> Sample {
        self.system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        let group = (self.node.group_memory)();
        let memory = MemorySample {
            used: self.system.used_memory(),
            available: self.system.available_memory(),
            group_used: group.map(|(used, _)| used),
            group_limit: group.map(|(_, limit)| limit),
        };
        let (ranks, network, hcas) = (self.ranks(since), self.network(since), self.hcas(since));
        Sample { memory, ranks, network, hcas, ..Sample::default() }
    }

    /// The abnormal findings about the node since the last full sample, and its GPUs.
    fn abnormal(&mut self, parts: Parts) -> (Option<Vec<Reason>>, Vec<GpuSample>) {
        let pid = |pid: &Pid| i32::try_from(pid.as_u32()).unwrap_or(-1);
        let ranks: Vec<_> = self.ranks.iter().map(|(number, (of, _))| (*number, pid(of))).collect();
        let reading = self.reader.read(&ranks, parts, COUNTERS);
        let change = self.reading.as_ref().map(|earlier| reading.since(earlier));
        let gpus = reading.gpus().iter().map(|one| GpuSample::of(&one.gpu)).collect();
        self.reading = Some(reading);
        let reasons = change.map(|change| change.reasons().to_vec()).unwrap_or_default();
        (Some(reasons), gpus)
    }

    fn ranks(&mut self, since: &mut Baseline) -> Vec<RankSample> {
        let pids: Vec<Pid> = self.ranks.values().map(|(pid, _)| *pid).collect();
        let what = ProcessRefreshKind::nothing().with_cpu().with_memory();
        self.system.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), true, what);
        let mut rows = Vec::new();
        for (rank, (pid, began)) in &self.ranks {
            // The rank has just ended.
            let Some(process) = self.system.process(*pid) else { continue };
            let (cpu, at) = (Duration::from_millis(process.accumulated_cpu_time()), Instant::now());
            let (before, then) =
                since.cpu.insert(*rank, (cpu, at)).unwrap_or((Duration::ZERO, *began));
            let (spent, passed) = (cpu.saturating_sub(before), at.saturating_duration_since(then));
            let share = spent.as_secs_f64() / passed.as_secs_f64().max(0.001);
            rows.push(RankSample {
                rank: *rank,
                pid: pid.as_u32(),
                cpu_percent: (share * 100.0).round(),
                cpu_seconds: cpu.as_secs_f64(),
                memory: process.memory(),
            });
        }
        rows
    }

    fn hcas(&mut self, since: &mut Baseline) -> Vec<HcaSample> {
        let Some(ports) = self.node.ports.clone().filter(|_| !self.ports_stuck) else {
            return Vec::new();
        };
        let Some(ports) = with_deadline(ANSWER, move || ports()) else {
            self.ports_stuck = true;
            return Vec::new();
        };
        let now = Instant::now();
        let then = since.ports_at.replace(now).unwrap_or(now);
        let seconds = now.saturating_duration_since(then).as_secs_f64().max(0.001);
        let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds).round();
        let row = |(port, received_total, sent_total): (String, u64, u64)| {
            let now = (received_total, sent_total);
            let before = since.ports.insert(port.clone(), now).unwrap_or(now);
            let (received, sent) = (rate(now.0, before.0), rate(now.1, before.1));
            HcaSample { port, received, sent, received_total, sent_total }
        };
        ports.into_iter().map(row).collect()
    }

    fn network(&mut self, since: &mut Baseline) -> Vec<InterfaceSample> {
        self.networks.refresh(true);
        let now = Instant::now();
        let then = since.network_at.replace(now).unwrap_or(now);
        let seconds = now.saturating_duration_since(then).as_secs_f64().max(0.001);
        let mut busy = Vec::new();
        for (name, data) in self.networks.iter().filter(|(name, _)| *name != "lo") {
            let (received_total, sent_total) = (data.total_received(), data.total_transmitted());
            let now = (received_total, sent_total);
            // A new interface counts from its first sight.
            let before = since.network.insert(name.clone(), now).unwrap_or(now);
            let grown = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
            let sum = grown.0.saturating_add(grown.1);
            if sum > 0 {
                let rate = |bytes: u64| (bytes as f64 / seconds).round();
                let (received, sent) = (rate(grown.0), rate(grown.1));
                let interface = name.clone();
                let row = InterfaceSample { interface, received, sent, received_total, sent_total };
                busy.push((sum, row));
            }
        }
        busy.sort_by_key(|(sum, _)| std::cmp::Reverse(*sum));
        busy.truncate(INTERFACES);
        busy.into_iter().map(|(_, row)| row).collect()
    }

    /// Free space of the log folder's own file system. sysinfo's list of disks omits network
    /// file systems and reads all others.
    fn log_free(&mut self) -> Option<u64> {
        let folder = self.node.log_folder.clone().filter(|_| !self.stuck)?;
        let answer = with_deadline(ANSWER, move || rustix::fs::statvfs(&folder));
        self.stuck = answer.is_none();
        let found = answer?.ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }
}
