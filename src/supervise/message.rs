//! What a rank shim and its agent tell each other, one JSON document a packet.

use serde::{Deserialize, Serialize};

use super::outcome::End;
use crate::rank::{GlobalRank, LocalRank};

/// Name of the variable that tells a shim its agent's socket: `<abstract name> <token> <grace
/// in ms>`, and [`TERMINAL`] where the rank keeps the launcher's own streams. The token proves
/// that the agent has started it: the name of a socket can be read by anybody in its network
/// namespace, the environment of a process cannot.
pub(super) const AGENT_SOCKET: &str = "RANKLAUNCH_AGENT_SOCKET";
/// The fourth word of [`AGENT_SOCKET`].
pub(super) const TERMINAL: &str = "terminal";
/// `<rank> <local rank>` where no engine sets RANK and LOCAL_RANK.
pub(super) const RANK_SLOT: &str = "RANKLAUNCH_SLOT";
pub use crate::procfs::JOB_MARK;

/// Shim → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum FromRank {
    /// First packet; carries the read ends of stdout and stderr, in this order,
    /// unless the rank is to have the terminal.
    Hello {
        token: String,
        /// None where nothing in its environment says so.
        rank: Option<GlobalRank>,
        local_rank: LocalRank,
        /// WORLD_SIZE as the rank will see it.
        world_size: Option<u32>,
        /// What it is about to execute.
        program: String,
    },
    Started {
        pid: i32,
    },
    NotExecuted {
        program: String,
        errno: i32,
    },
    Ended {
        end: End,
    },
    /// The rank ended with 0 and left these behind; they are being ended.
    Leftovers {
        names: Vec<String>,
        count: usize,
    },
}

/// Agent → shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum ToRank {
    /// The answer to a Hello without pipes: stdin, stdout and stderr for the rank,
    /// and the process group whose terminal it is.
    Terminal { owner: i32 },
    /// Send this signal to the user's process.
    Signal { number: i32 },
}
