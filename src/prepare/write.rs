//! Tests whether a file can be written in a folder, by writing one.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Why no file could be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteProblem {
    /// The folder that was tried: the folder itself or its nearest existing parent.
    pub folder: PathBuf,
    /// errno; 0 if there is none.
    pub code: i32,
    /// Our effective user.
    pub user: u32,
}

impl WriteProblem {
    pub fn of(folder: &Path, error: &io::Error) -> WriteProblem {
        let user = rustix::process::geteuid().as_raw();
        WriteProblem { folder: folder.to_owned(), code: error.raw_os_error().unwrap_or(0), user }
    }

    /// The kernel's error.
    pub fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.code)
    }
}

/// Creates a file, syncs a byte to the disk and removes the file, in `folder` or its nearest
/// existing parent. Gives that folder. Hangs if its mount is dead.
///
/// # Errors
/// The kernel's error, by which permissions, a read-only mount and a full disk are
/// distinguished.
pub(crate) fn try_write(folder: &Path) -> Result<PathBuf, WriteProblem> {
    let existing = folder.ancestors().find(|part| part.exists()).unwrap_or(Path::new("/"));
    // Nodes that share the folder may have equal pids, so the name is random.
    let file = crate::random::hex::<8>().map(|name| existing.join(format!(".ranklaunch-{name}")));
    match file.and_then(|file| write(&file)) {
        Ok(()) => Ok(existing.to_owned()),
        Err(error) => Err(WriteProblem::of(existing, &error)),
    }
}

fn write(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    // A full disk or quota may show only at the sync.
    let written = file.write_all(b"\n").and_then(|()| file.sync_all());
    drop(file);
    let removed = fs::remove_file(path);
    written.and(removed)
}
