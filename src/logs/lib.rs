//! Captures the output of the ranks: reads their pipes into files, the console, and a buffer of
//! the last lines of each rank ([`tail`](Logs::tail)).
//!
//! Code that searches the output for a cause takes a copy of the bytes from a [`Backlog`].
//!
//! Takes the read ends of the ranks' and the engine's pipes. Gives `rank-<rrrrr>.out|.err` with the raw bytes,
//! `engine.log`, prefixed whole lines on the console, the last lines of a rank and a count of the losses. Uses plain
//! threads only. Must never block a rank: a blocked console, a full disk or a hanging file system costs lines, which
//! are counted, not time.

#![deny(unsafe_code)]

mod attempt_files;
mod backlog;
mod capped;
mod choose_folder;
mod console;
mod file_names;
mod files;
mod folder;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod index;
mod lines;
mod output;
mod pages;
mod queue;
mod reader;
mod rows;
mod runs;
mod sink;
mod tail;
#[cfg(test)]
mod tests;
mod waiting;
mod write;

#[cfg(any(test, feature = "fixtures"))]
pub use backlog::Skipped;
pub use backlog::{Backlog, Piece};
pub use choose_folder::choose_folder;
pub use console::Console;
pub use file_names::{
    AttemptFolder, ErrorFile, JOURNAL, LATEST, LauncherFolder, REPORT, RUN_JSON, RankLog,
    continued, log_name, numbered, run_of,
};
pub use folder::{Candidate, FolderLevel, LogFolder, default_candidates};
pub use index::Writer;
pub use output::{Logs, LogsConfig, LogsSummary, OwnerNow};
pub use pages::{Cursor, LogLine, Page, Wanted, attempts, page};
pub use runs::{RunFolder, RunMark, holds_mark, keep_within, latest, runs};
pub use tail::TailLine;

/// Stack size in bytes of a thread, which keeps its buffers on the heap.
const STACK: usize = 256 * 1024;

/// Runs `work` in a detached thread of this name.
///
/// # Errors
/// When the system has no thread left.
fn start_thread(name: String, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name).stack_size(STACK).spawn(work).map(drop)
}
