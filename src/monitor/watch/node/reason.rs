//! Reasons on a node for which a rank may be slow or stand still.

use serde::{Deserialize, Serialize};

use text::lang::Text;
use text::rank::GlobalRank;

/// Something abnormal about a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    pub kind: ReasonKind,
    /// The ranks that it concerns; empty: all ranks of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<GlobalRank>,
    /// NVML's index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The value in the unit of [`ReasonKind::least`].
    pub value: f64,
    /// A sentence without a full stop.
    pub text: Text,
}

impl Reason {
    /// Whether it concerns this rank of the node.
    pub fn concerns(&self, rank: GlobalRank) -> bool {
        self.ranks.is_empty() || self.ranks.contains(&rank)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasonKind {
    CpuThrottled,
    CpuWait,
    CpuPressure,
    MemoryPressure,
    MemoryLimit,
    OomKill,
    MajorFaults,
    IoPressure,
    InterfaceDown,
    LinkLost,
    InterfaceErrors,
    InterfaceDrops,
    TcpSentAgain,
    HcaErrors,
    GpuClocks,
    GpuPowerCap,
    GpuShared,
    GpuEcc,
    GpuNvlink,
    GpuNvlinkDown,
    GpuPcie,
    GpuSilent,
}

/// The value from which on something is abnormal. The first rows are shares of the time between the
/// two readings.
const LEAST: &[(ReasonKind, f64)] = &[
    // A rank that is throttled for this share costs the job as much.
    (ReasonKind::CpuThrottled, 0.05),
    // Time of the rank's main thread. On a node whose CPUs are all busy, this is the first sign.
    (ReasonKind::CpuWait, 0.10),
    // Time in which some task stood still: with data loading it is seldom below a fifth on a
    // healthy node.
    (ReasonKind::CpuPressure, 0.50),
    // Time in which some task stood still. A healthy node has almost none.
    (ReasonKind::MemoryPressure, 0.10),
    // Time in which all tasks of the node or of a group stood still: loading data alone stops some
    // of them.
    (ReasonKind::IoPressure, 0.25),
    // Share of TCP segments sent again. The throughput already falls at a tenth of this.
    (ReasonKind::TcpSentAgain, 0.01),
    // Share of the packets received and sent.
    (ReasonKind::InterfaceDrops, 0.001),
    // A clock below this part of the fastest GPU of the same model.
    (ReasonKind::GpuPowerCap, 0.90),
    // Events per second. Starting a program or mapping a data set causes tens for a moment.
    (ReasonKind::MajorFaults, 50.0),
    (ReasonKind::MemoryLimit, 50.0),
    // Events per minute: a healthy link has a few per day.
    (ReasonKind::GpuPcie, 10.0),
    (ReasonKind::GpuNvlink, 10.0),
    (ReasonKind::InterfaceErrors, 10.0),
];

impl ReasonKind {
    /// Whether the reason concerns a link that carries the ranks' messages.
    pub(crate) fn is_of_links(self) -> bool {
        matches!(
            self,
            ReasonKind::InterfaceDown
                | ReasonKind::LinkLost
                | ReasonKind::InterfaceErrors
                | ReasonKind::InterfaceDrops
                | ReasonKind::TcpSentAgain
                | ReasonKind::HcaErrors
                | ReasonKind::GpuNvlink
                | ReasonKind::GpuNvlinkDown
        )
    }

    /// The minimum value that is reported; for events that should never happen, one.
    pub(super) fn least(self) -> f64 {
        LEAST.iter().find(|(kind, _)| *kind == self).map_or(1.0, |(_, least)| *least)
    }
}

/// `37 %`
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
