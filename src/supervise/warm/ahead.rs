//! The process that reads ahead the files that the interpreter will import, so that it waits for no file: `ahead.py`,
//! forked from the scout.
//!
//! This is a process and not a thread: on a mount that hangs, a thread could not be ended, and would block the end of
//! the agent. It runs at a lower priority and is killed before the first rank begins.

use std::path::{Path, PathBuf};

use super::kill::kill;
use linux::procfs::Process;

/// The process, until it is ended.
#[derive(Debug)]
pub(super) struct Reader {
    process: Process,
    /// The file in which the process reports at its end the reason and the number of bytes read. Its exit status may go
    /// to whoever supervises the ranks.
    report: PathBuf,
}

impl Reader {
    /// `folder`: the folder of the process's files, in which it has written its pid and start time before reading
    /// anything. None if no such process exists, or it has ended.
    pub(super) fn of(folder: &Path) -> Option<Reader> {
        let named = std::fs::read_to_string(folder.join("reader")).ok()?;
        let (pid, started) = named.split_once(' ')?;
        let process = Process::at("/proc".as_ref(), pid.parse().ok()?)?;
        let is_it = started.parse::<u64>() == Ok(process.start_ticks);
        is_it.then(|| Reader { process, report: folder.join("ahead") })
    }

    /// Ends the process, and logs its report. Waits a moment for its end.
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

/// Bytes that the process has read, including its own start.
fn read_bytes(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_is_identified_by_pid_and_start_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let found = || Reader::of(folder.path()).map(|reader| reader.process.pid);
        let name = |text: &str| {
            std::fs::write(folder.path().join("reader"), text).expect("written");
        };
        assert_eq!(found(), None);
        let me = Process::at("/proc".as_ref(), linux::sys::own_pid()).expect("it lives");
        let (pid, started) = (me.pid, me.start_ticks);
        name(&format!("{pid} {started}"));
        assert_eq!(found(), Some(pid));
        // Another process has this pid by now, or the file was not completely written.
        for other in [format!("{pid} {}", started + 1), format!("{pid}"), String::new()] {
            name(&other);
            assert_eq!(found(), None, "{other:?}");
        }
    }
}
