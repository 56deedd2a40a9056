//! What a node knows of the others when it plans.

use crate::settings::{MusterMode, Settings};

/// What is known of the other nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scope {
    /// Nothing: this node is the only one, or they have not met yet.
    #[default]
    Alone,
    /// They do not meet, so each makes by itself the choices that they would have agreed on.
    WithoutMuster,
    /// Node 0 has heard of all of them, and plans for all.
    ForAll {
        /// The least that one of them can carry, in processes.
        fewest: u32,
        /// Attention heads, where any of them knows the number.
        heads: Option<u32>,
    },
    /// Node 0 has proposed this.
    Agreed {
        /// Processes of each node.
        nproc: u32,
        heads: Option<u32>,
    },
}

impl Scope {
    /// Whether the nodes agree on one plan, as far as settings decide that.
    pub(crate) fn has_muster(self, settings: &Settings) -> bool {
        self != Scope::WithoutMuster && settings.muster.value != MusterMode::Off
    }

    /// The most processes that the other nodes leave to this one.
    pub(crate) fn most(self) -> Option<u32> {
        match self {
            Scope::Alone | Scope::WithoutMuster => None,
            Scope::ForAll { fewest, .. } => Some(fewest),
            Scope::Agreed { nproc, .. } => Some(nproc),
        }
    }

    pub(crate) fn heads(self) -> Option<u32> {
        match self {
            Scope::Alone | Scope::WithoutMuster => None,
            Scope::ForAll { heads, .. } | Scope::Agreed { heads, .. } => heads,
        }
    }
}
