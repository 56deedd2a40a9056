//! The messages between rank shims and agent, one JSON document per packet.

use serde::{Deserialize, Serialize};

use text::rank::{GlobalRank, LocalRank};
use verdict::outcome::End;

/// The variable that tells a shim its agent's socket: `<abstract name> <token> <grace in ms>`,
/// [`TERMINAL`] if the rank keeps the launcher's own streams, [`FREE_ENGINE`], and [`DEAF_ENGINE`] below an
/// engine that ignores the signals of [`super::forwarded::TWICE`]. The token proves that the
/// agent has started the shim: every process in the network namespace can read the name of a
/// socket, but not the environment of a process.
pub(super) const AGENT_SOCKET: &str = "RANKLAUNCH_AGENT_SOCKET";
/// A word of [`AGENT_SOCKET`].
pub(super) const TERMINAL: &str = "terminal";
/// A word of [`AGENT_SOCKET`]: the rank must not ignore the signals that the engine ignores, although it
/// inherits that.
pub(super) const DEAF_ENGINE: &str = "deaf-engine";
/// A word of [`AGENT_SOCKET`]: the engine sees a failed rank at once, since it decides what follows.
pub(super) const FREE_ENGINE: &str = "free-engine";
/// A word of [`AGENT_SOCKET`], with the number of attempts that may follow the first; not for a command.
pub(super) const RESTARTS: &str = "restarts=";
/// The file in which torch's `@record` writes down the exception that ends a rank. torchrun sets it for
/// each of its ranks; empty means none.
pub const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";
/// Maximum bytes of that file that are read.
pub const LARGEST_RECORD: u64 = 1024 * 1024;
/// `<rank> <local rank>`, without an engine that sets RANK and LOCAL_RANK. A shim without this variable is
/// below an engine, and waits for [`ToRank::Leave`] after a failure.
pub(super) const RANK_SLOT: &str = "RANKLAUNCH_SLOT";
pub(super) use linux::procfs::JOB_MARK;

/// Shim → agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum FromRank {
    /// The first packet. Carries the read ends of stdout and stderr, in this order, unless the
    /// rank gets the terminal.
    Hello {
        token: String,
        /// None if the shim's environment has no rank.
        rank: Option<GlobalRank>,
        local_rank: LocalRank,
        /// WORLD_SIZE as the rank will see it.
        world_size: Option<u32>,
        /// The program that the shim is about to execute.
        program: String,
    },
    Started {
        pid: i32,
    },
    NotExecuted {
        program: String,
        errno: i32,
    },
    /// The rank failed, and torch's `@record` has written down the exception. Carries a copy of that file
    /// in memory, since torchrun removes the file soon. Device and inode tell files apart: if the user has
    /// named one file for all ranks, it belongs to the rank that ended first.
    Recorded {
        device: u64,
        inode: u64,
    },
    /// Sent before the end by SIGKILL of a rank that had left the control group of its shim. Carries the
    /// rank's own group, as /proc names it.
    KilledIn {
        group: String,
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
    /// The answer to a Hello without pipes: stdin, stdout and stderr for the rank, and the
    /// process group that owns the terminal.
    Terminal { owner: i32 },
    /// Send this signal to the user's process.
    Signal { number: i32 },
    /// The job stops: send this signal to the user's process alone, unless it has had it.
    Stop { number: i32 },
    /// The rank has not ended after most of its time: see [`super::asked::Asked::late`].
    Late,
    /// The job stops for a reason on this node, so no manager signals the ranks as well.
    NoManager,
    /// All ranks of the node have ended, so the engine may learn that this one failed.
    Leave,
}
