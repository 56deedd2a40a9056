//! The log folder of one attempt, held open, and the candidates for its place: their paths, their permissions, and why
//! one cannot be used.
//!
//! Owns descriptors of the run's, the node's and the attempt's folder. Every file is opened relative to one of these
//! folders and never through a link, so another user who may write in a parent folder cannot redirect our writes by
//! renaming ours. A folder that was removed is created again at the same path. Every call may hang with the mount, so
//! calls are made only from threads that may be abandoned.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, fstat, mkdirat, open, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::file_names::LATEST;
use text::lang::{Text, cause};
use text::text;

/// A folder in which runs may be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub path: PathBuf,
    pub access: Access,
}

/// The permissions of a folder for logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Unchanged, since the user chose the folder.
    AsItIs,
    /// Only our own user. The folder is in a place where every user may write, and another user could replace our files
    /// by links.
    OursAlone,
}

impl Candidate {
    pub(super) fn chosen(path: impl Into<PathBuf>) -> Candidate {
        Candidate { path: path.into(), access: Access::AsItIs }
    }

    /// `<folder>/ranklaunch-<uid>`.
    pub(super) fn temporary(folder: &Path) -> Candidate {
        let uid = rustix::process::geteuid().as_raw();
        Candidate { path: folder.join(format!("ranklaunch-{uid}")), access: Access::OursAlone }
    }
}

/// Why a folder cannot hold a run.
#[derive(Debug)]
pub(super) enum Unusable {
    Io(io::Error),
    /// The folder belongs to another user, or others may enter it.
    NotOurs {
        owner: u32,
        mode: u32,
    },
}

impl<E: Into<io::Error>> From<E> for Unusable {
    fn from(error: E) -> Unusable {
        Unusable::Io(error.into())
    }
}

impl Unusable {
    pub(super) fn text(&self) -> Text {
        match self {
            Unusable::Io(error) => cause(error),
            Unusable::NotOurs { owner, mode } => {
                let own = rustix::process::geteuid().as_raw();
                text!(
                    "it belongs to user {owner} with mode {mode:04o}, and only a folder of user {own} with mode 0700 is safe there",
                    "其属主为用户 {owner}，权限为 {mode:04o}；在此处只有属主为用户 {own} 且权限为 0700 的目录才安全"
                )
            }
        }
    }
}

/// The candidates in order: the folder of the flag, `./ranklaunch-logs`, `$TMPDIR/ranklaunch-<uid>`,
/// `/tmp/ranklaunch-<uid>`.
pub fn default_candidates(flag: Option<&Path>, tmpdir: Option<&OsStr>) -> Vec<Candidate> {
    let tmpdir = tmpdir.filter(|folder| !folder.is_empty()).map(Path::new);
    let mut candidates: Vec<Candidate> = flag
        .map(Candidate::chosen)
        .into_iter()
        .chain([Candidate::chosen("ranklaunch-logs")])
        .chain(tmpdir.map(Candidate::temporary))
        .chain([Candidate::temporary(Path::new("/tmp"))])
        .collect();
    candidates.dedup();
    candidates
}

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
        self.opened.lock().clone()
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
                        other => io::Error::other(other.text().en),
                    })?;
                *self.opened.lock() = again.clone();
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
