//! One look at the node and its ranks: memory, traffic, ranks and GPUs, with rates since the last sample.
//!
//! A file system, or the counters of an HCA, that hangs once is not read again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sysinfo::{
    MemoryRefreshKind, NetworkData, Networks, Pid, ProcessRefreshKind, ProcessesToUpdate, System,
};

use super::node::{NodeReader, NodeReading, NodeSources, Parts, Reason};
use super::recorders;
use linux::deadline::with_deadline;
use node::probe::NvmlGpu;
use text::order::Ordered;
use text::rank::{GlobalRank, LocalRank};

/// The sample of one moment. In agent.jsonl it is an event of this form with the message `sampled`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    pub memory: MemorySample,
    pub ranks: Vec<RankSample>,
    /// Interfaces with traffic since the sample before, those with the most.
    pub network: Vec<InterfaceSample>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hcas: Vec<HcaSample>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuSample>,
    /// The abnormal findings about the node since the last sample. None if this sample did not look for them.
    #[serde(skip_serializing_if = "nothing_abnormal")]
    pub abnormal: Option<Vec<Reason>>,
    /// The position of each rank in its process groups, if it has a worker server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collectives: Option<Vec<Value>>,
    /// Free bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_folder_free: Option<u64>,
    /// Duration of the look, in microseconds.
    pub took_us: u64,
}

/// Memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemorySample {
    pub used: u64,
    pub available: u64,
    /// Use of the control group, if it has a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_used: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_limit: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankSample {
    pub rank: GlobalRank,
    pub pid: u32,
    /// Percent of one CPU, since the last sample.
    pub cpu_percent: f64,
    /// CPU time since the start of the process.
    pub cpu_seconds: f64,
    /// Resident bytes.
    pub memory: u64,
}

/// Bytes per second since the last sample, and bytes since the interface came up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterfaceSample {
    pub interface: String,
    pub received: f64,
    pub sent: f64,
    pub received_total: u64,
    pub sent_total: u64,
}

/// The same for a port of an HCA (`mlx5_0:1`), which the interfaces do not count.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HcaSample {
    pub port: String,
    pub received: f64,
    pub sent: f64,
    pub received_total: u64,
    pub sent_total: u64,
}

/// A GPU of the job. None if NVML does not report the value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuSample {
    /// NVML's index.
    pub gpu: u32,
    /// This field and the next two come from the plan: a sample has none of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_rank: Option<LocalRank>,
    /// Percent of the last moment in which a kernel ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<u32>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total: Option<u64>,
    /// Watts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit: Option<f64>,
    /// Joules since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<f64>,
    /// MHz of the multiprocessors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_clock: Option<u32>,
    /// Degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<u32>,
}

impl GpuSample {
    pub(super) fn of(gpu: &NvmlGpu) -> GpuSample {
        let load = gpu.health.load;
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1000.0;
        let joules = |millijoules: u64| millijoules as f64 / 1000.0;
        GpuSample {
            gpu: gpu.index,
            utilization: load.utilization,
            memory_used: gpu.memory_used,
            memory_total: gpu.memory_total,
            power: load.power.map(watts),
            power_limit: load.power_limit.map(watts),
            energy: load.energy.map(joules),
            clock: load.sm_clock,
            max_clock: load.max_sm_clock,
            temperature: gpu.health.temperature,
            ..GpuSample::default()
        }
    }
}

fn nothing_abnormal(reasons: &Option<Vec<Reason>>) -> bool {
    reasons.as_ref().is_none_or(Vec::is_empty)
}

impl Sample {
    /// The event for agent.jsonl.
    pub fn event(&self) -> Value {
        let mut event = serde_json::Map::from_iter([("message".to_owned(), "sampled".into())]);
        if let Ok(Value::Object(fields)) = serde_json::to_value(self) {
            event.extend(fields);
        }
        event.into()
    }
}

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
    network: Traffic,
    ports: Traffic,
}

/// Bytes received and sent by name, and when they were read.
#[derive(Debug, Default)]
struct Traffic {
    bytes: BTreeMap<String, (u64, u64)>,
    at: Option<Instant>,
}

impl Traffic {
    /// The bytes since the last call, and bytes per second. A name counts from its first sight.
    fn grown(&mut self, now: Vec<(String, u64, u64)>) -> Vec<LinkGrowth> {
        let at = Instant::now();
        let then = self.at.replace(at).unwrap_or(at);
        let seconds = at.saturating_duration_since(then).as_secs_f64().max(0.001);
        let grown = |(name, received_total, sent_total): (String, u64, u64)| {
            let now = (received_total, sent_total);
            let before = self.bytes.insert(name.clone(), now).unwrap_or(now);
            let (received, sent) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
            let rate = |bytes: u64| (bytes as f64 / seconds).round();
            let bytes = received.saturating_add(sent);
            LinkGrowth { name, bytes, rates: (rate(received), rate(sent)), totals: now }
        };
        now.into_iter().map(grown).collect()
    }
}

/// The growth of received and sent bytes.
struct LinkGrowth {
    name: String,
    bytes: u64,
    rates: (f64, f64),
    totals: (u64, u64),
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
            network: Traffic {
                bytes: networks.iter().map(totals).collect(),
                at: Some(Instant::now()),
            },
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
        sample.collectives = self.node.control.as_deref().map(recorders::rows);
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
        let row = |LinkGrowth { name: port, rates: (received, sent), totals, .. }: LinkGrowth| {
            let (received_total, sent_total) = totals;
            HcaSample { port, received, sent, received_total, sent_total }
        };
        since.ports.grown(ports).into_iter().map(row).collect()
    }

    fn network(&mut self, since: &mut Baseline) -> Vec<InterfaceSample> {
        self.networks.refresh(true);
        let all =
            self.networks.iter().filter(|(name, _)| *name != "lo").map(|(name, data)| {
                (name.clone(), data.total_received(), data.total_transmitted())
            });
        let mut busy = since.network.grown(all.collect());
        busy.retain(|one| one.bytes > 0);
        busy.order_by_key(|one| std::cmp::Reverse(one.bytes));
        busy.truncate(INTERFACES);
        let row =
            |LinkGrowth { name: interface, rates: (received, sent), totals, .. }: LinkGrowth| {
                let (received_total, sent_total) = totals;
                InterfaceSample { interface, received, sent, received_total, sent_total }
            };
        busy.into_iter().map(row).collect()
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
