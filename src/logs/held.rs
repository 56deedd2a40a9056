//! The folders of one attempt, held open.
//!
//! Owns descriptors of the node's and the attempt's folder. Every file is opened
//! relative to one of them and never through a link, so whoever may write in a
//! folder above cannot lead our writes elsewhere by renaming ours. A folder that
//! was removed is made again at its old place. All of it may hang with the mount:
//! for threads that nobody waits for.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, fstat, mkdirat, open, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::folder::{Access, Candidate, Unusable};

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::WRONLY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
/// Less the umask.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);

/// `<base>/<run-id>/node-<k>/attempt-<n>`, which exists.
#[derive(Debug)]
pub struct LogFolder {
    base: Candidate,
    /// Run, node, attempt.
    below: Vec<String>,
    held: Mutex<Held>,
}

#[derive(Debug, Clone)]
struct Held {
    node: Arc<OwnedFd>,
    attempt: Arc<OwnedFd>,
}

/// Which of the two folders a file lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// For files of all attempts.
    Node,
    Attempt,
}

impl LogFolder {
    /// Makes the folders and proves that a byte can be written there.
    pub(super) fn make(base: &Candidate, below: &[String]) -> Result<LogFolder, Unusable> {
        let base = Candidate { path: std::path::absolute(&base.path)?, access: base.access };
        let held = Held::make(&base, below)?;
        let folder = LogFolder { base, below: below.to_vec(), held: Mutex::new(held) };
        let probe = format!(".writable-{}", std::process::id());
        let attempt = folder.held().attempt;
        let new = FILE | OFlags::CREATE | OFlags::EXCL;
        let written =
            File::from(openat(&attempt, probe.as_str(), new, FILE_MODE)?).write_all(b"\n");
        let removed = unlinkat(&attempt, probe.as_str(), AtFlags::empty());
        written?;
        removed?;
        Ok(folder)
    }

    /// A folder that exists, as node's and attempt's at once.
    #[cfg(test)]
    pub(super) fn flat(path: &Path) -> Arc<LogFolder> {
        let base = Candidate { path: path.to_owned(), access: Access::AsItIs };
        Arc::new(LogFolder::make(&base, &[]).expect("a folder"))
    }

    /// The attempt's folder, as people find it.
    pub fn path(&self) -> PathBuf {
        self.below.iter().fold(self.base.path.clone(), |path, name| path.join(name))
    }

    /// The node's folder, as people find it.
    pub fn node_path(&self) -> PathBuf {
        self.below.iter().take(2).fold(self.base.path.clone(), |path, name| path.join(name))
    }

    /// Opens `name` for appending; makes it, and its folder, where they are not there.
    pub fn append(&self, level: Level, name: &str) -> io::Result<File> {
        self.try_both(level, |folder| {
            let flags = FILE | OFlags::APPEND | OFlags::CREATE;
            Ok(File::from(openat(folder, name, flags, FILE_MODE)?))
        })
    }

    /// Opens a file of the attempt that is there, to write anywhere in it.
    pub(super) fn rewrite(&self, name: &str) -> io::Result<File> {
        Ok(openat(self.held().attempt, name, FILE, Mode::empty())?.into())
    }

    /// Removes a file of the attempt, if it is there.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(self.held().attempt, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts `bytes` in the place of `name`: a reader sees the old file or the new one.
    pub fn replace(&self, level: Level, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.try_both(level, |folder| {
            let fresh = format!(".{name}.new");
            match unlinkat(folder, fresh.as_str(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
            let new = FILE | OFlags::CREATE | OFlags::EXCL;
            let mut file = File::from(openat(folder, fresh.as_str(), new, FILE_MODE)?);
            file.write_all(bytes)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            renameat(folder, fresh.as_str(), folder, name)
        })
    }

    /// Points `<log-dir>/latest` at the run. Best effort: where links are not
    /// supported, or `latest` is a folder of somebody's, nothing is lost.
    pub(super) fn point_latest(&self) {
        let Some(run) = self.below.first() else { return };
        let Ok(base) = open_base(&self.base) else { return };
        // Renamed into place, as the nodes of a job may share the folder.
        let fresh = format!(".latest-{run}-{}", std::process::id());
        let placed = rustix::fs::symlinkat(run.as_str(), &base, fresh.as_str())
            .and_then(|()| renameat(&base, fresh.as_str(), &base, "latest"));
        if placed.is_err() {
            let _ = unlinkat(&base, fresh.as_str(), AtFlags::empty());
        }
    }

    fn held(&self) -> Held {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `work` in the folder; where that was removed, in the one that replaces it.
    fn try_both<T>(
        &self,
        level: Level,
        work: impl Fn(&OwnedFd) -> Result<T, Errno>,
    ) -> io::Result<T> {
        match work(self.held().at(level)) {
            // A handle from before an NFS server went is stale.
            Err(Errno::NOENT | Errno::STALE) => {
                let again = Held::make(&self.base, &self.below).map_err(|error| match error {
                    Unusable::Io(error) => error,
                    other => io::Error::other(other.to_string()),
                })?;
                *self.held.lock().unwrap_or_else(PoisonError::into_inner) = again.clone();
                Ok(work(again.at(level))?)
            }
            done => Ok(done?),
        }
    }
}

impl Held {
    fn at(&self, level: Level) -> &OwnedFd {
        match level {
            Level::Node => &self.node,
            Level::Attempt => &self.attempt,
        }
    }

    fn make(base: &Candidate, below: &[String]) -> Result<Held, Unusable> {
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
        Ok(Held { node: folders.pop().unwrap_or_else(|| Arc::clone(&attempt)), attempt })
    }
}

/// The other nodes of a job may make the same folder.
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
