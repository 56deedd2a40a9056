//! Questions between the nodes of a job about ranks that hold the others back.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use monitor::watch::{Cut, SampledNode, now_ns};
use text::rank::GlobalRank;

/// A question of node 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SlowQuestion {
    /// Answered with the time of the node, in ns since 1970.
    Time,
    /// Answered with a [`NodeSample`](monitor::watch::NodeSample).
    Sample {
        /// The same moment by the clock of each member. A member that is not listed shows nothing. This is
        /// a list, since a tagged enum cannot read a map by numbers.
        until_ns: Vec<(u32, i64)>,
        window: Duration,
        /// Maximum number of entries of each rank.
        most: u32,
    },
    /// Answered with the [`Reason`](monitor::watch::Reason)s on the node of this rank; other nodes give no
    /// answer.
    Reasons(GlobalRank),
}

/// The answer of member `member` of the job; None to a question that is not for it.
pub(super) fn answer(member: u32, node: &SampledNode, question: &SlowQuestion) -> Option<Vec<u8>> {
    match question {
        SlowQuestion::Time => serde_json::to_vec(&now_ns()).ok(),
        SlowQuestion::Sample { until_ns, window, most } => {
            let (_, until_ns) = *until_ns.iter().find(|(of, _)| *of == member)?;
            serde_json::to_vec(&node.sample(Cut { until_ns, window: *window, most: *most })).ok()
        }
        SlowQuestion::Reasons(rank) => serde_json::to_vec(&node.reasons(*rank)?).ok(),
    }
}
