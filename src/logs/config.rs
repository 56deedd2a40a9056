//! The configuration of the logs: folder, ranks, size limits.

use std::sync::Arc;

use super::backlog::Backlog;
use super::folder::LogFolder;
use crate::rank::GlobalRank;
use crate::settings::{ConsoleMode, ConsolePrefix};
use crate::supervise::{Owner, Stream};

#[derive(Debug, Clone)]
pub(crate) struct LogsConfig {
    /// Folder of the files. None: memory and console only.
    pub folder: Option<Arc<LogFolder>>,
    pub world_size: u32,
    /// Ranks of this node, among which `cap_node` is divided.
    pub local_ranks: u32,
    pub console: ConsoleMode,
    pub prefix: ConsolePrefix,
    /// Bytes on disk per rank, half of it for each stream.
    pub cap_rank: u64,
    /// Bytes on disk for all files of this node.
    pub cap_node: u64,
    /// Where a copy of what is read goes.
    pub backlog: Option<Arc<Backlog>>,
}

impl LogsConfig {
    /// Bytes on disk for one owner, so that all owners together stay below the node's cap.
    pub(super) fn cap_owner(&self) -> u64 {
        self.cap_rank.min(self.cap_node / (u64::from(self.local_ranks) + 1))
    }

    pub(super) fn on_console(&self, owner: Owner, stream: Stream) -> bool {
        match self.console {
            ConsoleMode::All => true,
            ConsoleMode::Rank0 => {
                matches!(owner, Owner::Engine | Owner::Rank(GlobalRank(0)) | Owner::Command(0))
            }
            ConsoleMode::Errors => owner == Owner::Engine || stream == Stream::Err,
            ConsoleMode::None => false,
        }
    }

    pub(super) fn console_prefix(&self, owner: Owner, stream: Stream) -> String {
        if self.world_size <= 1 || self.prefix == ConsolePrefix::None {
            return String::new();
        }
        let width = (self.world_size - 1).to_string().len();
        match (owner, stream) {
            (Owner::Engine, _) => "[engine] ".to_owned(),
            (Owner::Rank(rank), Stream::Out) => format!("[r{rank:0width$}] "),
            (Owner::Rank(rank), Stream::Err) => format!("[r{rank:0width$}!] "),
            (Owner::Command(node), Stream::Out) => format!("[n{node:0width$}] "),
            (Owner::Command(node), Stream::Err) => format!("[n{node:0width$}!] "),
        }
    }
}
