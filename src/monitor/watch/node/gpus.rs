//! The GPUs as NVML shows them, and the owners of the processes on them.

use serde::{Deserialize, Serialize};

use linux::host::Host;
use node::probe::{NvmlGpu, ProcessKind};
use text::lang::Text;
use text::rank::GlobalRank;
use text::text;

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
    pub(super) fn of(reading: &GpuReading) -> Option<GpuUse> {
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

pub(super) fn readings(
    host: &Host,
    gpus: Vec<NvmlGpu>,
    ranks: &[(GlobalRank, i32)],
) -> Vec<GpuReading> {
    let owner = |pid: i32| -> Option<Owner> {
        let mut at = host.process(pid).stat()?;
        if at.comm.starts_with(MPS) {
            return None;
        }
        // A rank's shim is the child of the agent, so a chain is short; a loop cannot be longer.
        for _ in 0..64 {
            if let Some((rank, _)) = ranks.iter().find(|(_, of)| *of == at.pid) {
                return Some(Owner::Rank(*rank));
            }
            match host.process(at.ppid).stat().filter(|_| at.ppid > 0) {
                Some(parent) => at = parent,
                None => break,
            }
        }
        Some(Owner::Stranger)
    };
    gpus.into_iter()
        .map(|gpu| {
            let mut reading = GpuReading { gpu, ..GpuReading::default() };
            let processes = reading.gpu.health.processes.iter().flatten();
            for process in processes.filter(|process| process.kind == ProcessKind::Compute) {
                let pid = i32::try_from(process.pid).ok().filter(|pid| *pid > 0);
                match pid.and_then(owner) {
                    Some(Owner::Rank(rank)) => reading.ranks.push(rank),
                    Some(Owner::Stranger) => reading.strangers.push(process.pid),
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

enum Owner {
    Rank(GlobalRank),
    Stranger,
}
