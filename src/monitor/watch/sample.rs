//! One look at the node and its ranks.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::node::Reason;
use node::probe::NvmlGpu;
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
