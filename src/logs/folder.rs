//! The log folder of one attempt, held open.
//!
//! Owns descriptors of the run's, the node's and the attempt's folder. Every file is opened relative to one of these
//! folders and never through a link, so another user who may write in a parent folder cannot redirect our writes by
//! renaming ours. A folder that was removed is created again at the same path. Every call may hang with the mount, so
//! calls are made only from threads that may be abandoned.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, fstat, mkdirat, open, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::candidate::{Access, Candidate, Unusable};
use super::file_names::LATEST;

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::WRONLY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
/// Permissions before the umask is applied.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);

/// An existing folder `<base>/<run-id>/node-<k>/attempt-<n>`.
#[derive(Debug)]
pub struct LogFolder {
    base: Candidate,
    /// Names of the run, node and attempt folders.
    below: Vec<String>,
    opened: Mutex<OpenFolders>,
}

#[derive(Debug, Clone)]
struct OpenFolders {
    run: Arc<OwnedFd>,
    node: Arc<OwnedFd>,
    attempt: Arc<OwnedFd>,
}

/// The folder that holds a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderLevel {
    /// For files of all launchers, which may share the folder. Node 0 writes them.
    Run,
    /// For files of all attempts.
    Node,
    Attempt,
}

impl LogFolder {
    /// Creates the folders and proves that a byte can be written there.
    pub(super) fn make(base: &Candidate, below: &[String]) -> Result<LogFolder, Unusable> {
        let base = Candidate { path: std::path::absolute(&base.path)?, access: base.access };
        let opened = OpenFolders::make(&base, below)?;
        let folder = LogFolder { base, below: below.to_vec(), opened: Mutex::new(opened) };
        let probe = format!(".writable-{}", std::process::id());
        let attempt = folder.opened().attempt;
        absent(unlinkat(&attempt, probe.as_str(), AtFlags::empty()))?;
        let new = FILE | OFlags::CREATE | OFlags::EXCL;
        let written =
            File::from(openat(&attempt, probe.as_str(), new, FILE_MODE)?).write_all(b"\n");
        let removed = unlinkat(&attempt, probe.as_str(), AtFlags::empty());
        written?;
        removed?;
        Ok(folder)
    }

    /// An existing folder that serves as node and attempt folder.
    #[cfg(test)]
    pub(super) fn flat(path: &Path) -> Arc<LogFolder> {
        let base = Candidate { path: path.to_owned(), access: Access::AsItIs };
        Arc::new(LogFolder::make(&base, &[]).expect("a folder"))
    }

    /// Path of the attempt's folder.
    pub fn path(&self) -> PathBuf {
        self.below.iter().fold(self.base.path.clone(), |path, name| path.join(name))
    }

    /// Path of the node's folder.
    pub fn node_path(&self) -> PathBuf {
        self.below.iter().take(2).fold(self.base.path.clone(), |path, name| path.join(name))
    }

    /// Opens `name` for appending; creates it and its folder if they do not exist.
    pub fn append(&self, level: FolderLevel, name: &str) -> io::Result<File> {
        self.try_both(level, |folder| {
            let flags = FILE | OFlags::APPEND | OFlags::CREATE;
            Ok(File::from(openat(folder, name, flags, FILE_MODE)?))
        })
    }

    /// Opens an existing file of the attempt, to write at any position.
    pub(super) fn rewrite(&self, name: &str) -> io::Result<File> {
        Ok(openat(self.opened().attempt, name, FILE, Mode::empty())?.into())
    }

    /// Removes a file of the attempt, if it exists.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(absent(unlinkat(self.opened().attempt, name, AtFlags::empty()))?)
    }

    /// Replaces `name` by `bytes` atomically: a reader sees the old file or the new one.
    pub fn replace(&self, level: FolderLevel, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.try_both(level, |folder| {
            let fresh = format!(".{name}.new");
            absent(unlinkat(folder, fresh.as_str(), AtFlags::empty()))?;
            let new = FILE | OFlags::CREATE | OFlags::EXCL;
            let mut file = File::from(openat(folder, fresh.as_str(), new, FILE_MODE)?);
            let placed = file
                .write_all(bytes)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
                .and_then(|()| renameat(folder, fresh.as_str(), folder, name));
            if placed.is_err() {
                // A partly written file takes up room on a full disk.
                let _ = unlinkat(folder, fresh.as_str(), AtFlags::empty());
            }
            placed
        })
    }

    /// Points `<log-dir>/latest` at the run. Best effort: the file system may not support links,
    /// and a user may have a folder of that name.
    pub(super) fn point_latest(&self) {
        let [run, launcher, ..] = self.below.as_slice() else { return };
        let Ok(base) = open_base(&self.base) else { return };
        // Renamed into place, since the nodes of a job may share the folder. In containers all launchers may have the
        // same pid, including a launcher that was killed here.
        let fresh = format!(".latest-{run}-{launcher}-{}", std::process::id());
        let placed = absent(unlinkat(&base, fresh.as_str(), AtFlags::empty()))
            .and_then(|()| rustix::fs::symlinkat(run.as_str(), &base, fresh.as_str()))
            .and_then(|()| renameat(&base, fresh.as_str(), &base, LATEST));
        if placed.is_err() {
            let _ = unlinkat(&base, fresh.as_str(), AtFlags::empty());
        }
    }

    fn opened(&self) -> OpenFolders {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs `work` in the folder; if the folder was removed, creates it again and repeats.
    fn try_both<T>(
        &self,
        level: FolderLevel,
        work: impl Fn(&OwnedFd) -> Result<T, Errno>,
    ) -> io::Result<T> {
        match work(self.opened().at(level)) {
            // ESTALE: the handle is from before the restart of an NFS server.
            Err(Errno::NOENT | Errno::STALE) => {
                let again =
                    OpenFolders::make(&self.base, &self.below).map_err(|error| match error {
                        Unusable::Io(error) => error,
                        other => io::Error::other(other.to_string()),
                    })?;
                *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = again.clone();
                Ok(work(again.at(level))?)
            }
            done => Ok(done?),
        }
    }
}

impl OpenFolders {
    fn at(&self, level: FolderLevel) -> &OwnedFd {
        match level {
            FolderLevel::Run => &self.run,
            FolderLevel::Node => &self.node,
            FolderLevel::Attempt => &self.attempt,
        }
    }

    fn make(base: &Candidate, below: &[String]) -> Result<OpenFolders, Unusable> {
        match base.access {
            Access::AsItIs => std::fs::create_dir_all(&base.path)?,
            Access::OursAlone => {
                // An empty root has no /tmp.
                base.path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                made(rustix::fs::mkdir(&base.path, Mode::RWXU))?;
            }
        }
        let base = Arc::new(open_base(base)?);
        let mut folders = vec![base];
        for name in below {
            let above = folders.last().map(AsFd::as_fd).ok_or(Errno::NOENT)?;
            made(mkdirat(above, name.as_str(), FOLDER_MODE))?;
            let flags = FOLDER | OFlags::NOFOLLOW;
            let folder = openat(above, name.as_str(), flags, Mode::empty())?;
            folders.push(Arc::new(folder));
        }
        let attempt = folders.pop().ok_or(Errno::NOENT)?;
        let node = folders.pop().unwrap_or_else(|| Arc::clone(&attempt));
        Ok(OpenFolders { run: folders.pop().unwrap_or_else(|| Arc::clone(&node)), node, attempt })
    }
}

/// Treats a file that does not exist as removed.
fn absent(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Treats an existing folder as created: another node of the job may have created it.
fn made(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

fn open_base(base: &Candidate) -> Result<OwnedFd, Unusable> {
    match base.access {
        Access::AsItIs => Ok(open(&base.path, FOLDER, Mode::empty())?),
        Access::OursAlone => {
            let folder = open(&base.path, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
            let stat = fstat(&folder)?;
            let mode = stat.st_mode & 0o7777;
            let own = rustix::process::geteuid().as_raw();
            if stat.st_uid == own && mode & 0o077 == 0 {
                Ok(folder)
            } else {
                Err(Unusable::NotOurs { owner: stat.st_uid, mode })
            }
        }
    }
}
