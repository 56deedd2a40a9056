//! The process that reads ahead what the interpreter will import, so that it waits for no file: `ahead.py`, forked from
//! the scout.
//!
//! A process and not a thread: on a mount that hangs a thread could not be ended, and would hold the end of the agent.
//! It runs at a lower priority and is killed before the first rank begins.

use std::path::{Path, PathBuf};

use super::kill::kill;
use crate::procfs;

/// The process, until it is ended.
#[derive(Debug)]
pub(super) struct Reader {
    process: procfs::Process,
    /// In which it tells at its end why, and how many bytes it has read. Its exit status may go to whoever supervises
    /// the ranks.
    report: PathBuf,
}

impl Reader {
    /// `folder`: that of its files.
    pub(super) fn of(pid: i32, folder: &Path) -> Option<Reader> {
        let process = procfs::process("/proc".as_ref(), pid)?;
        Some(Reader { process, report: folder.join("ahead") })
    }

    /// Ends it, and notes what it has done. Waits a moment for its end.
    pub(super) fn end(self) {
        let so_far = read_bytes(self.process.pid);
        kill(&self.process);
        let report = std::fs::read_to_string(&self.report).unwrap_or_default();
        let (bytes, why) = report.split_once(' ').unwrap_or_default();
        let why = match why {
            "done" => "all was read",
            "cached" => "the page cache had it",
            "not kept" => "the file system keeps nothing",
            "bound" => "the limit of memory",
            _ => "ended by us",
        };
        tracing::info!(bytes = bytes.parse().ok().or(so_far), why, "read ahead");
    }
}

/// Bytes that it has read, its own start included.
fn read_bytes(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}
