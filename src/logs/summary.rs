//! The summary of an attempt's output: the bytes written and the losses.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use super::tail::TailLine;
use text::lang::Text;
use verdict::outcome::Owner;

/// The bytes written and the losses in an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogsSummary {
    pub folder: Option<PathBuf>,
    pub owners: BTreeMap<Owner, OwnerSummary>,
    /// Problems; each was reported when it occurred.
    pub problems: Vec<Text>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerSummary {
    pub bytes: u64,
    pub lines: u64,
    /// Bytes that never reached a file: the disk was too slow, full or gone.
    pub dropped_file_bytes: u64,
    /// Lines that the console did not accept in time.
    pub dropped_console_lines: u64,
    /// Bytes removed between head and tail because of the cap.
    pub truncated_bytes: u64,
    /// Bytes that another process removed from the files, or together with them.
    pub removed_file_bytes: u64,
}

/// One owner while the job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerNow {
    pub owner: Owner,
    pub summary: OwnerSummary,
    pub last_line: Option<TailLine>,
    /// Time of its last output.
    pub last_at: Option<Instant>,
}
