//! The record that torch's `@record` wrote of the exception that ended a rank.
//!
//! Takes the end of a rank; gives a packet for the agent and the file that goes with it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustix::fs::MemfdFlags;

use super::message::{ERROR_FILE, FromRank, LARGEST_RECORD};
use linux::deadline::with_deadline;
use linux::regular_file;
use verdict::outcome::End;

/// Time limit for reading the record that a rank wrote of its exception.
const RECORD: Duration = Duration::from_millis(500);
/// Maximum error of a file's time.
const CLOCK_SKEW: Duration = Duration::from_secs(5);

/// A copy in memory of the record that torch's `@record` wrote for a failed rank that began at
/// `began`.
pub(super) fn recorded(end: End, began: SystemTime) -> Option<(FromRank, OwnedFd)> {
    let path = PathBuf::from(std::env::var_os(ERROR_FILE)?);
    if end.success() || path.as_os_str().is_empty() {
        return None;
    }
    // The file may be on a dead mount, which must not delay the end of the rank.
    let read = move || -> io::Result<_> {
        let (file, _) = regular_file::open(&path)?;
        let metadata = file.metadata()?;
        // The file is from an earlier attempt, or from another job. The clock of a file server may
        // be behind, and a file may have any time.
        let is_old = began.duration_since(metadata.modified()?).is_ok_and(|age| age > CLOCK_SKEW);
        let mut bytes = Vec::new();
        file.take(if is_old { 0 } else { LARGEST_RECORD }).read_to_end(&mut bytes)?;
        Ok((FromRank::Recorded { device: metadata.dev(), inode: metadata.ino() }, bytes))
    };
    let (said, bytes) = with_deadline(RECORD, read)?.ok()?;
    if bytes.is_empty() {
        return None;
    }
    let copy = rustix::fs::memfd_create("error.json", MemfdFlags::CLOEXEC).ok()?;
    let mut copy = File::from(copy);
    copy.write_all(&bytes).ok()?;
    Some((said, copy.into()))
}
