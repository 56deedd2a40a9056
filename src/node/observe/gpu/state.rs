//! NVML's numeric states as enums (nvml.h).

use serde::{Deserialize, Serialize};

/// Bits of nvmlClocksEventReason that indicate a problem. An idle or power-capped GPU is healthy.
pub const THROTTLED: &[(u64, &str, &str)] = &[
    (0x8, "hardware slowdown", "硬件降频"),
    (0x20, "too hot, slowed down by the driver", "过热，驱动降频"),
    (0x40, "too hot, slowed down by the hardware", "过热，硬件降频"),
    (0x80, "power brake of the power supply", "供电触发 power brake"),
];

/// Registration of a GPU with its NVSwitch fabric (`nvmlGpuFabricInfo_t`, fields state and
/// status).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
