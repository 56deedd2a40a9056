//! What the program says at its end: exit codes, refusals and warnings.
//!
//! The codes are a public contract (README, profiles' `[exit]`, podFailurePolicy
//! rules). All stay below 128, since operators treat 128 and above as retryable.

mod family;
mod ids;

use serde::{Deserialize, Serialize};

use crate::lang::Text;
use crate::text;
pub use family::Family;
pub use ids::{Exit, Id, Use, Usual, Where};

/// The launcher's own verdicts, each with its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// 64: bad flag, profile or argument.
    Usage,
    /// 65: membership half-given or contradictory.
    Membership,
    /// 66: no legal layout.
    Layout,
    /// 67: python or torch unusable.
    Python,
    /// 68: the engine failed before any rank began.
    EngineStart,
    /// 70: internal error.
    Internal,
    /// 80: GPUs missing or fewer than asked for.
    GpuCount,
    /// 81: GPU fault: lost, reset required, driver mismatch, NVML hung.
    GpuFault,
    /// 82: NVSwitch fabric not ready.
    GpuFabric,
    /// 83: a stale process cannot be killed, or GPU memory is still held.
    Stale,
    /// 84: a limit of the container that was made a failure.
    Limit,
    /// 85: the master's name does not resolve.
    MasterName,
    /// 86: the master does not answer.
    MasterReach,
    /// 87: port in use.
    PortInUse,
    /// 88: muster failed.
    Muster,
    /// 89: RDMA required and unusable.
    Rdma,
    /// 91: no progress.
    NoProgress,
    /// 92: stopped because another node failed for good.
    OtherNode,
}

impl Verdict {
    /// Every verdict, in the order of the codes.
    pub const ALL: &[Verdict] = &[
        Verdict::Usage,
        Verdict::Membership,
        Verdict::Layout,
        Verdict::Python,
        Verdict::EngineStart,
        Verdict::Internal,
        Verdict::GpuCount,
        Verdict::GpuFault,
        Verdict::GpuFabric,
        Verdict::Stale,
        Verdict::Limit,
        Verdict::MasterName,
        Verdict::MasterReach,
        Verdict::PortInUse,
        Verdict::Muster,
        Verdict::Rdma,
        Verdict::NoProgress,
        Verdict::OtherNode,
    ];

    /// The process exit code, 64–127.
    pub const fn code(self) -> i32 {
        match self {
            Verdict::Usage => 64,
            Verdict::Membership => 65,
            Verdict::Layout => 66,
            Verdict::Python => 67,
            Verdict::EngineStart => 68,
            Verdict::Internal => 70,
            Verdict::GpuCount => 80,
            Verdict::GpuFault => 81,
            Verdict::GpuFabric => 82,
            Verdict::Stale => 83,
            Verdict::Limit => 84,
            Verdict::MasterName => 85,
            Verdict::MasterReach => 86,
            Verdict::PortInUse => 87,
            Verdict::Muster => 88,
            Verdict::Rdma => 89,
            Verdict::NoProgress => 91,
            Verdict::OtherNode => 92,
        }
    }
}

/// Whose end a verdict speaks of: tells a script's own code 66 from the launcher's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// All ranks ended well.
    Done,
    /// A rank ended by itself, with the code or signal of its own.
    Script,
    /// Stopped from outside.
    Stopped,
    /// torchrun, accelerate or deepspeed failed, or did not do what it was asked for.
    Engine,
    /// The launcher, or another node.
    Launcher,
}

/// A launch that will not happen, or not go on, and why.
///
/// `text` says what was read, where, its value and what is allowed; `hint` says
/// the one thing to do, with the flag that overrides the check where there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", text.en)]
pub struct Refusal {
    pub verdict: Verdict,
    pub id: Id,
    pub text: Text,
    pub hint: Text,
}

impl Refusal {
    /// With the verdict of the table of ids.
    pub fn new(id: Id, text: Text, hint: Text) -> Refusal {
        debug_assert!(id.verdicts().next().is_some(), "{id} refuses nothing");
        debug_assert!(id.verdicts().all(|one| one == id.verdict()), "{id} has several verdicts");
        Refusal { verdict: id.verdict(), id, text, hint }
    }

    /// With one of the verdicts that the table of ids allows.
    pub fn with(verdict: Verdict, id: Id, text: Text, hint: Text) -> Refusal {
        debug_assert!(id.verdicts().any(|one| one == verdict), "{id}: never {verdict:?}");
        Refusal { verdict, id, text, hint }
    }

    /// A mistake of ours.
    pub fn internal(what: &str) -> Refusal {
        Refusal::new(
            Id::Internal,
            text!("internal error: {what}", "内部错误：{what}"),
            text!("please report this", "请报告此问题"),
        )
    }
}

/// Something that does not stop a launch and that a person should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    pub id: Id,
    pub text: Text,
    pub hint: Text,
}

impl Warning {
    pub fn new(id: Id, text: Text, hint: Text) -> Warning {
        Warning { id, text, hint }
    }
}

/// What a finding of a check does to a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Fail,
    Warn,
    Off,
}
