//! The knowledge of a node about the other nodes when it plans.

use settings::{Need, Settings};

/// Knowledge about the other nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scope {
    /// Nothing: this node is the only one, or the nodes have not met yet.
    #[default]
    Alone,
    /// The nodes hold no muster, so each makes the common choices by itself.
    WithoutMuster,
    /// Node 0 has the summaries of all nodes, and plans for all.
    ForAll {
        /// The smallest number of processes that one of them can run.
        fewest: u32,
        /// Attention heads, if any node knows the number.
        heads: Option<u32>,
    },
    /// Node 0 has proposed these values.
    Agreed {
        /// Processes of each node.
        nproc: u32,
        heads: Option<u32>,
    },
}

impl Scope {
    /// Whether the nodes agree on one plan, as far as settings decide that.
    pub(crate) fn has_muster(self, settings: &Settings) -> bool {
        self != Scope::WithoutMuster && settings.muster.value != Need::Off
    }

    /// The most processes that the other nodes allow.
    pub fn most(self) -> Option<u32> {
        match self {
            Scope::Alone | Scope::WithoutMuster => None,
            Scope::ForAll { fewest, .. } => Some(fewest),
            Scope::Agreed { nproc, .. } => Some(nproc),
        }
    }

    pub fn heads(self) -> Option<u32> {
        match self {
            Scope::Alone | Scope::WithoutMuster => None,
            Scope::ForAll { heads, .. } | Scope::Agreed { heads, .. } => heads,
        }
    }
}
