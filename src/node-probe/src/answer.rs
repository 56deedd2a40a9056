//! What the probe answers: one JSON document, the same types on both sides.
//!
//! The launcher compiles this file too, so that writer and reader cannot drift
//! apart. Plain data only; every field may be missing, because drivers are.

use serde::{Deserialize, Serialize};

/// The whole document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Nvml(NvmlAnswer),
    Names(NamesAnswer),
    /// The probe was called with arguments that it does not know.
    Usage(String),
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NvmlAnswer {
    /// The file that the loader took, links resolved (`…/libnvidia-ml.so.570.86.15`).
    pub library: Option<String>,
    /// Each name that was tried in vain, with the loader's words.
    pub not_loaded: Vec<(String, String)>,
    /// The call after which nothing more could be asked.
    pub failure: Option<CallError>,
    pub driver_version: Option<String>,
    /// (major, minor)
    pub cuda_driver_version: Option<(u32, u32)>,
    pub gpus: Vec<NvmlGpu>,
    /// Calls about the node that failed and stopped nothing.
    pub errors: Vec<CallError>,
}

/// A GPU that could not be opened has an index and errors, and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NvmlGpu {
    pub index: u32,
    pub uuid: Option<String>,
    pub name: Option<String>,
    /// `0000:18:00.0`, lower case; NVML knows no functions but 0.
    pub pci: Option<String>,
    pub minor: Option<u32>,
    /// Bytes.
    pub memory_total: Option<u64>,
    /// Bytes, without the driver's reserve where the driver tells them apart.
    pub memory_used: Option<u64>,
    pub mig: Option<bool>,
    /// Field 230 (driver 570 and later): 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset.
    pub recovery_action: Option<u64>,
    /// (state, status): state 0 unsupported, 1 not started, 2 in progress, 3 completed;
    /// status is an NVML code that counts only in state 3.
    pub fabric: Option<(u32, u32)>,
    pub errors: Vec<CallError>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallError {
    /// `nvmlInit_v2`
    pub call: String,
    /// NVML's return code; None when the call never happened (symbol or library missing).
    pub code: Option<u32>,
    pub text: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamesAnswer {
    pub addresses: Vec<std::net::IpAddr>,
    /// getaddrinfo's code and words.
    pub error: Option<(i32, String)>,
}
