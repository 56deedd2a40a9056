//! The configuration of the logs: folder, ranks, size limits.

use std::sync::Arc;

use super::backlog::Backlog;
use super::folder::LogFolder;
use settings::{ConsoleMode, ConsolePrefix};
use text::rank::GlobalRank;
use text::style::{self, END, Style};
use verdict::outcome::{Owner, Stream};

/// Text that the console shows before and after each line of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Marks {
    pub(super) before: String,
    pub(super) after: &'static str,
}

#[derive(Debug, Clone)]
pub struct LogsConfig {
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
    /// Receives a copy of all bytes that are read.
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

    /// The text before and after each line of this stream on the console.
    pub(super) fn console_marks(&self, owner: Owner, stream: Stream, colour: bool) -> Marks {
        if self.world_size <= 1 || self.prefix == ConsolePrefix::None {
            return Marks::default();
        }
        let width = (self.world_size - 1).to_string().len();
        let name = match owner {
            Owner::Engine => "engine".to_owned(),
            Owner::Rank(rank) => format!("r{rank:0width$}"),
            Owner::Command(node) => format!("n{node:0width$}"),
        };
        let is_err = owner != Owner::Engine && stream == Stream::Err;
        let mark = if is_err { "!" } else { "" };
        if !colour {
            return Marks { before: format!("[{name}{mark}] "), after: "" };
        }
        let rank = match owner {
            // The whole line is dimmed relative to those of the ranks.
            Owner::Engine => {
                return Marks { before: format!("{}[{name}] ", Style::Dim.begins()), after: END };
            }
            Owner::Rank(rank) => rank,
            Owner::Command(node) => GlobalRank(node),
        };
        let (begin, mark) = (format!("\x1b[{}m", style::of_rank(rank)), mark);
        let mark =
            if is_err { format!("{END}{}{mark}", Style::Fail.begins()) } else { mark.into() };
        Marks { before: format!("{begin}[{name}{mark}{END}{begin}]{END} "), after: "" }
    }
}
