//! Exit codes ([`Verdict`]), the table of ids ([`Id`]), refusals and warnings.
//!
//! The codes are a public contract (docs/exit-codes.md, profiles' `[exit]`, podFailurePolicy rules). All are
//! below 128, since operators treat 128 and above as retryable. Their explanations are in
//! `src/report/findings/`, the choice of a job's verdict is in `src/report/ending.rs`.

#![deny(unsafe_code)]

mod ids;
mod kinds;
pub mod outcome;
mod why;

use serde::{Deserialize, Serialize};

pub use ids::{Exit, Family, Id, Use, Usual, Where};
pub use kinds::IdKind;
use text::lang::Text;
use text::letters;
use text::order::Ordered;
use text::text;
pub use why::{AlsoFailed, Confidence, Owner, Retry, Victims, Why, code_by_cause};

/// `Name = code, …`, in the order of the codes.
macro_rules! verdicts {
    ($($(#[$words:meta])* $name:ident = $code:literal,)*) => {
        /// ranklaunch's own verdicts, each with its exit code.
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
    /// 65: membership incomplete or contradictory.
    Membership = 65,
    /// 66: no legal layout.
    Layout = 66,
    /// 67: python or torch unusable.
    Python = 67,
    /// 68: the engine failed before any rank started.
    EngineStart = 68,
    /// 70: internal error.
    Internal = 70,
    /// 80: GPUs missing or fewer than requested.
    GpuCount = 80,
    /// 81: GPU fault: lost, reset required, driver mismatch, NVML hung.
    GpuFault = 81,
    /// 82: NVSwitch fabric not ready.
    GpuFabric = 82,
    /// 83: a stale process cannot be killed, or GPU memory is still held.
    Stale = 83,
    /// 84: a limit of the container whose check has the severity fail.
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
    /// 90: the job needs another node in place of this one.
    ReplaceNode = 90,
    /// 91: no progress.
    NoProgress = 91,
    /// 92: stopped because another node failed for good.
    OtherNode = 92,
    /// 93: restarts without progress.
    WithoutProgress = 93,
}

/// The kind of an end: distinguishes a script's own exit code 66 from ranklaunch's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// All ranks ended well.
    Done,
    /// A rank ended by itself, with its own code or signal.
    Script,
    /// Stopped from outside.
    Stopped,
    /// The engine (torchrun, accelerate or deepspeed) failed, or started another job than
    /// requested.
    Engine,
    /// ranklaunch itself, or another node.
    Launcher,
}

/// A refused launch, with the reason.
///
/// `text` names what was read, where, its value and what is allowed; `hint` names one action,
/// with the flag that overrides the check if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}", text.en)]
pub struct Refusal {
    pub verdict: Verdict,
    pub id: Id,
    pub text: Text,
    pub hint: Text,
}

impl Refusal {
    /// A refusal with the verdict from the table of ids.
    pub fn new(id: Id, text: Text, hint: Text) -> Refusal {
        debug_assert!(id.verdicts().next().is_some(), "{id} refuses nothing");
        debug_assert!(id.verdicts().all(|one| one == id.verdict()), "{id} has several verdicts");
        Refusal { verdict: id.verdict(), id, hint: with_unmeant(&text, hint), text }
    }

    /// A refusal with one of the verdicts that the table of ids allows.
    pub fn with(verdict: Verdict, id: Id, text: Text, hint: Text) -> Refusal {
        debug_assert!(id.verdicts().any(|one| one == verdict), "{id}: never {verdict:?}");
        Refusal { verdict, id, hint: with_unmeant(&text, hint), text }
    }

    /// What ends all nodes before they start, told as a refusal of one of them: `id` has an exit code of its own.
    pub fn of_ending(id: Id, text: Text, hint: Text) -> Refusal {
        Refusal { verdict: Verdict::Muster, id, text, hint }
    }

    /// An internal error.
    pub fn internal(what: &str) -> Refusal {
        Refusal::new(
            Id::Internal,
            text!("internal error: {what}", "内部错误：{what}"),
            text!("please report this", "请报告此问题"),
        )
    }
}

/// The hint, with the first letter of the refused text that only looks like the intended letter.
fn with_unmeant(text: &Text, hint: Text) -> Text {
    let Some((letter, meant)) = letters::unmeant(&text.en) else { return hint };
    let Text { en, zh } = hint;
    let named = letters::named(letter);
    let (meant, meant_zh) = match meant {
        ' ' => ("a plain space".to_owned(), "普通空格".to_owned()),
        meant => (format!("a plain {meant}"), format!("半角 {meant}")),
    };
    let (join, join_zh) = if en.is_empty() { ("", "") } else { ("; ", "；") };
    text!("{en}{join}{named} is not {meant}", "{zh}{join_zh}其中的 {named} 不是{meant_zh}")
}

/// A warning, which does not stop a launch.
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

    /// A number that is the same for the same warning, on every node of a job and in every version (FNV-1a).
    pub fn key(&self) -> u64 {
        let bytes = self.id.as_str().bytes().chain([0]).chain(self.text.en.bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// What refuses a launch is a warning for a command that only reads.
impl From<Refusal> for Warning {
    fn from(Refusal { id, text, hint, .. }: Refusal) -> Warning {
        Warning { id, text, hint }
    }
}

/// The warnings in the order in which people should read them: first warnings that would refuse a launch by default,
/// then warnings that may change the result, then advice. Warnings with one id stay together.
pub fn by_importance(warnings: &[Warning]) -> Vec<&Warning> {
    let first = |id: Id| warnings.iter().position(|one| one.id == id);
    let mut ordered: Vec<&Warning> = warnings.iter().collect();
    ordered.order_by_key(|one| (one.id.is_advice(), !one.id.refuses_by_default(), first(one.id)));
    ordered
}

/// The effect of a check's finding on a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Fail,
    Warn,
    Off,
}
