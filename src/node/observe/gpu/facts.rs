//! The GPUs of a node as facts, NVML's numeric states as enums (nvml.h), and the name of a GPU in messages.

use serde::Serialize;

use crate::probe::{Health, NvmlGpu};
use text::lang::Text;
use text::text;
use verdict::Warning;

#[derive(Debug, Clone, Default, Serialize)]
pub struct GpuFacts {
    /// Every GPU that this container can use, in NVML (PCI) order, before CUDA_VISIBLE_DEVICES.
    pub gpus: Vec<Gpu>,
    /// The GPUs in CUDA_VISIBLE_DEVICES, in its order.
    pub visible: Vec<VisibleGpu>,
    /// Value of CUDA_VISIBLE_DEVICES, if set.
    pub cuda_visible_devices: Option<String>,
    /// The first element of CUDA_VISIBLE_DEVICES that names no device in a form that CUDA documents (`0-3`).
    pub unreadable_device: Option<String>,
    /// Minors N of existing /dev/nvidiaN that NVML does not count.
    pub uncounted: Vec<u32>,
    pub source: GpuSource,
    /// Each source that was tried before `source`, with its answer.
    pub attempts: Vec<(GpuSource, Text)>,
    /// Evidence that this node should have GPUs (`GPU_COUNT=8`, `/dev/nvidiactl`); empty if there is no evidence.
    pub requested_by: Vec<String>,
    /// Other vendors' accelerators, read only if there is no NVIDIA GPU.
    pub others: Vec<OtherAccelerator>,
    /// Driver states that make GPUs unusable (lost, mismatch, NVML hung…).
    pub faults: Vec<Warning>,
    /// NVSwitch fabric states with which CUDA fails with error 802.
    pub fabric_faults: Vec<Warning>,
    pub driver_version: Option<String>,
    /// CUDA version that the driver supports, (major, minor).
    pub cuda_driver_version: Option<(u32, u32)>,
}

/// Evidence of another vendor's accelerators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OtherAccelerator {
    pub vendor: Text,
    /// Device files and variables: `/dev/davinci0 × 8`, `HIP_VISIBLE_DEVICES=0,1`.
    pub evidence: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuSource {
    Nvml,
    /// `/dev/nvidia[0-9]+` that can be opened.
    DeviceNodes,
    /// `/proc/driver/nvidia/gpus`.
    ProcDriver,
    NvidiaSmi,
    /// Assumed rather than found: `plan --assume`.
    Assumed,
    #[default]
    None,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Gpu {
    /// NVML index, 0-based.
    pub index: u32,
    pub uuid: Option<String>,
    pub name: Option<String>,
    /// `0000:18:00.0`, lower case, four-digit domain.
    pub pci: Option<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Bytes.
    pub memory_total: Option<u64>,
    /// Bytes, without the driver's reserve.
    pub memory_used: Option<u64>,
    pub mig: bool,
    /// NUMA node of the GPU. None: unknown (-1 in sysfs, or no entry).
    pub numa_node: Option<u32>,
    /// The recovery action that the driver requests. None if the driver lacks the call.
    pub recovery_action: Option<RecoveryAction>,
    /// State of the GPU's NVSwitch fabric. None if the driver lacks the call.
    pub fabric: Option<FabricState>,
    /// Two bits each, as in [`crate::probe::NvmlGpu::fabric_health`].
    pub fabric_health: Option<u32>,
    /// From NVML; without NVML only the PCI link, from sysfs.
    pub health: Health,
    /// The PCI host bridge (`pci0000:17`) and every bridge between it and the GPU.
    pub bridges: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VisibleGpu {
    /// Position in [`GpuFacts::gpus`].
    pub gpu: usize,
    /// The element of CUDA_VISIBLE_DEVICES that selects the GPU, or its index.
    pub token: String,
}

/// Bits of nvmlClocksEventReason that indicate a problem. An idle or power-capped GPU is healthy.
pub const THROTTLED: &[(u64, &str, &str)] = &[
    (0x8, "hardware slowdown", "硬件降频"),
    (0x20, "too hot, slowed down by the driver", "过热，驱动降频"),
    (0x40, "too hot, slowed down by the hardware", "过热，硬件降频"),
    (0x80, "power brake of the power supply", "供电触发 power brake"),
];

/// Registration of a GPU with its NVSwitch fabric (`nvmlGpuFabricInfo_t`, fields state and
/// status).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricState {
    /// The GPU has no NVSwitch fabric.
    Unsupported,
    NotStarted,
    InProgress,
    Ready,
    Failed {
        /// `nvmlReturn_t`
        code: u32,
    },
    /// A value of a later driver.
    Unknown {
        state: u32,
    },
}

impl FabricState {
    /// The state for NVML's (state, status).
    pub fn of((state, status): (u32, u32)) -> FabricState {
        match (state, status) {
            (0, _) => FabricState::Unsupported,
            (1, _) => FabricState::NotStarted,
            (2, _) => FabricState::InProgress,
            (3, 0) => FabricState::Ready,
            (3, code) => FabricState::Failed { code },
            (state, _) => FabricState::Unknown { state },
        }
    }

    /// Whether the registration is still running. A failed registration is not pending.
    pub fn is_pending(self) -> bool {
        matches!(self, FabricState::NotStarted | FabricState::InProgress)
    }
}

/// The action that the driver requires before the GPU is used again (`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryAction {
    Nothing,
    Reset,
    Reboot,
    /// Peer-to-peer traffic must stop; computing continues.
    DrainPeers,
    DrainAndReset,
    /// A value of a later driver.
    Unknown {
        action: u64,
    },
}

impl RecoveryAction {
    /// The action for NVML's number.
    pub fn of(action: u64) -> RecoveryAction {
        match action {
            0 => RecoveryAction::Nothing,
            1 => RecoveryAction::Reset,
            2 => RecoveryAction::Reboot,
            3 => RecoveryAction::DrainPeers,
            4 => RecoveryAction::DrainAndReset,
            action => RecoveryAction::Unknown { action },
        }
    }
}

/// The processes that may use a GPU (`nvmlComputeMode_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeMode {
    Default,
    ExclusiveThread,
    Prohibited,
    ExclusiveProcess,
}

impl ComputeMode {
    /// The mode for NVML's number; None for a value of a later driver.
    pub fn of(mode: u32) -> Option<ComputeMode> {
        Some(match mode {
            0 => ComputeMode::Default,
            1 => ComputeMode::ExclusiveThread,
            2 => ComputeMode::Prohibited,
            3 => ComputeMode::ExclusiveProcess,
            _ => return None,
        })
    }

    /// The name in nvidia-smi if only one process at a time may use the GPU in this mode.
    pub fn exclusive(self) -> Option<&'static str> {
        match self {
            ComputeMode::ExclusiveThread => Some("EXCLUSIVE_THREAD"),
            ComputeMode::ExclusiveProcess => Some("EXCLUSIVE_PROCESS"),
            ComputeMode::Default | ComputeMode::Prohibited => None,
        }
    }
}

/// `GPU 3 (nvidia-smi index; 0000:48:00.0, GPU-fa4e0003-…, /dev/nvidia6)`
pub fn label(gpu: &Gpu) -> Text {
    of(gpu.index, &gpu.pci, &gpu.uuid, gpu.minor)
}

pub(super) fn of_nvml(gpu: &NvmlGpu) -> Text {
    of(gpu.index, &gpu.pci, &gpu.uuid, gpu.minor)
}

fn of(index: u32, pci: &Option<String>, uuid: &Option<String>, minor: Option<u32>) -> Text {
    let node = minor.map(|minor| format!("/dev/nvidia{minor}"));
    let names: Vec<&str> =
        [pci, uuid, &node].into_iter().filter_map(|name| name.as_deref()).collect();
    let (en, zh) = match names.join(", ") {
        none if none.is_empty() => (String::new(), String::new()),
        names => (format!("; {names}"), format!("；{names}")),
    };
    text!("GPU {index} (nvidia-smi index{en})", "GPU {index}（nvidia-smi 序号{zh}）")
}
