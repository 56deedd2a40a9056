//! The probe's answer: one JSON document, or one per line, with the same types on both sides.
//!
//! The launcher compiles this file too, so that writer and reader cannot differ. Plain data; every field may be
//! missing, since drivers lack calls.

use serde::{Deserialize, Serialize};

/// Paths of NVML's library: first its SONAME for the loader's own search, then the places outside of that search where
/// container runtimes, GKE, distributions, cluster managers and WSL put it.
pub const LIBRARIES: &[&str] = &[
    "libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/lib64/nvidia/libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1",
    "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib/aarch64-linux-gnu/nvidia/current/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib/libnvidia-ml.so.1",
    "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1",
    "/cm/local/apps/cuda/libs/current/lib64/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
];

/// The whole JSON document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Nvml(NvmlAnswer),
    Names(NamesAnswer),
    /// The probe got invalid arguments.
    Usage(String),
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NvmlAnswer {
    /// The loaded file with links resolved (`…/libnvidia-ml.so.570.86.15`).
    pub library: Option<String>,
    /// Each name that could not be loaded, with the loader's message.
    pub not_loaded: Vec<(String, String)>,
    /// The failed call that made all other calls impossible.
    pub failure: Option<CallError>,
    pub driver_version: Option<String>,
    /// (major, minor)
    pub cuda_driver_version: Option<(u32, u32)>,
    pub gpus: Vec<NvmlGpu>,
    /// Failed calls about the node that did not stop the query.
    pub errors: Vec<CallError>,
}

/// A GPU. A GPU that could not be opened has only an index and errors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NvmlGpu {
    pub index: u32,
    pub uuid: Option<String>,
    pub name: Option<String>,
    /// `0000:18:00.0`, lower case; NVML knows only function 0.
    pub pci: Option<String>,
    pub minor: Option<u32>,
    /// Bytes.
    pub memory_total: Option<u64>,
    /// Bytes, without the driver's reserve if the driver reports it.
    pub memory_used: Option<u64>,
    pub mig: Option<bool>,
    /// Field 230 (driver 570 and later): 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset.
    pub recovery_action: Option<u64>,
    /// (state, status): state 0 unsupported, 1 not started, 2 in progress, 3 completed;
    /// status is an NVML code that counts only in state 3.
    pub fabric: Option<(u32, u32)>,
    /// `healthMask` of the fabric (driver 550 and later): two bits each for degraded bandwidth (0), route recovery (2),
    /// unhealthy route (4), access timeout (6). The value 1 means yes, 2 means no.
    pub fabric_health: Option<u32>,
    #[serde(default)]
    pub health: Health,
    pub errors: Vec<CallError>,
}

/// Health, links and use of a GPU. None: unknown; [`Health::unknown`] has the reason.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.
    pub compute_mode: Option<u32>,
    pub persistence: Option<bool>,
    /// 0 none, 1 passed through, 2 vGPU, 3 host of vGPUs, 4 host of vSGAs.
    pub virtualization: Option<u32>,
    pub ecc: Option<bool>,
    /// The ECC mode after the next reset.
    pub ecc_pending: Option<bool>,
    /// Uncorrected errors since the driver was loaded. None also if ECC is off.
    pub ecc_volatile: Option<u64>,
    /// Uncorrected errors in the lifetime of the GPU.
    pub ecc_aggregate: Option<u64>,
    /// Ampere and later.
    pub remapped_rows: Option<RemappedRows>,
    /// Before Ampere: pages will be retired at the next reset.
    pub retired_pages_pending: Option<bool>,
    /// Bits of nvmlClocksEventReason: 0x8 HW slowdown, 0x20 SW thermal, 0x40 HW
    /// thermal, 0x80 power brake.
    pub throttle_reasons: Option<u64>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    pub load: Load,
    pub pcie: PcieLink,
    /// None without NVLink.
    pub nvlinks: Option<NvLinks>,
    /// Compute and graphics processes. With current drivers the pids are those of our pid namespace, with old drivers
    /// those of the host, and they may be 0. So they must never be signalled.
    pub processes: Option<Vec<GpuProcess>>,
    /// None if MIG is off.
    pub mig_devices: Option<Instances>,
    /// The calls did not return in time; the last one is in `unknown`.
    pub late: bool,
    /// Calls without an answer.
    pub unknown: Vec<CallError>,
}

/// The current activity of a GPU, and the errors that its links repaired.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Percent of the last sample period in which a kernel ran. A kernel that waits for other ranks counts too.
    pub utilization: Option<u32>,
    /// Milliwatts.
    pub power: Option<u32>,
    /// Milliwatts.
    pub power_limit: Option<u32>,
    /// Millijoules since the driver was loaded. Volta and later.
    pub energy: Option<u64>,
    /// MHz of the multiprocessors.
    pub sm_clock: Option<u32>,
    pub max_sm_clock: Option<u32>,
    /// Packets that PCIe resent since the driver was loaded.
    pub pcie_replays: Option<u64>,
    /// Replays since the driver was loaded, over all NVLinks.
    pub nvlink_replays: Option<u64>,
    pub nvlink_recoveries: Option<u64>,
    pub nvlink_crc_errors: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    pub correctable: u32,
    pub uncorrectable: u32,
    /// Some rows wait for a reset to be remapped.
    pub pending: bool,
    /// A row could not be remapped.
    pub failed: bool,
}

/// The PCIe link. Only its width is reliable, since the generation drops at idle to save power.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Lanes.
    pub width: Option<u32>,
    /// The maximum of GPU and slot.
    pub max_width: Option<u32>,
    pub generation: Option<u32>,
    pub max_generation: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLinks {
    pub up: u32,
    /// Numbers of the links that are not active.
    pub down: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    pub pid: u32,
    pub kind: ProcessKind,
    /// Bytes; None if the driver does not report it.
    pub memory: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessKind {
    Compute,
    Graphics,
}

/// The usable MIG instances of one GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instances {
    /// Maximum number of instances of the GPU.
    pub most: u32,
    pub devices: Vec<MigDevice>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigDevice {
    pub index: u32,
    /// `MIG-…`
    pub uuid: Option<String>,
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
    /// Bytes.
    pub memory_total: Option<u64>,
    pub memory_used: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallError {
    /// `nvmlInit_v2`
    pub call: String,
    /// NVML's return code; None if the call was impossible (symbol or library missing).
    pub code: Option<u32>,
    pub text: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamesAnswer {
    pub addresses: Vec<std::net::IpAddr>,
    /// getaddrinfo's error code and message.
    pub error: Option<(i32, String)>,
}

/// A line of `node-probe watch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchLine {
    /// The driver agreed to report events of this many GPUs.
    Watching(u32),
    /// The driver reports a critical Xid, once for each number of a GPU.
    Xid {
        /// The address as it was requested, such as `0000:18:00.0`. None: the driver names a GPU that was not
        /// requested.
        pci: Option<String>,
        number: u64,
    },
    /// The current state of each GPU, after a request: memory, temperature and load. A GPU is identified by its PCI
    /// address.
    Gpus(Vec<NvmlGpu>),
    /// A call failed, for one GPU or for all GPUs.
    Failed { pci: Option<String>, error: CallError },
}
