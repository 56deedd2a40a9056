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

/// `Name = code, …`, in the order of the codes.
macro_rules! verdicts {
    ($($(#[$words:meta])* $name:ident = $code:literal,)*) => {
        /// The launcher's own verdicts, each with its exit code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Verdict { $($(#[$words])* $name,)* }

        impl Verdict {
            /// Every verdict, in the order of the codes.
            pub const ALL: &[Verdict] = &[$(Verdict::$name,)*];

            /// The process exit code, 64–127.
            pub const fn code(self) -> i32 {
                match self { $(Verdict::$name => $code,)* }
            }
        }
    };
}

verdicts! {
    /// 64: bad flag, profile or argument.
    Usage = 64,
    /// 65: membership half-given or contradictory.
    Membership = 65,
    /// 66: no legal layout.
    Layout = 66,
    /// 67: python or torch unusable.
    Python = 67,
    /// 68: the engine failed before any rank began.
    EngineStart = 68,
    /// 70: internal error.
    Internal = 70,
    /// 80: GPUs missing or fewer than asked for.
    GpuCount = 80,
    /// 81: GPU fault: lost, reset required, driver mismatch, NVML hung.
    GpuFault = 81,
    /// 82: NVSwitch fabric not ready.
    GpuFabric = 82,
    /// 83: a stale process cannot be killed, or GPU memory is still held.
    Stale = 83,
    /// 84: a limit of the container that was made a failure.
    Limit = 84,
    /// 85: the master's name does not resolve.
    MasterName = 85,
    /// 86: the master does not answer.
    MasterReach = 86,
    /// 87: port in use.
    PortInUse = 87,
    /// 88: muster failed.
    Muster = 88,
    /// 89: RDMA required and unusable.
    Rdma = 89,
    /// 91: no progress.
    NoProgress = 91,
    /// 92: stopped because another node failed for good.
    OtherNode = 92,
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
