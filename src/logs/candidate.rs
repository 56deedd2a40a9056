//! Candidates for the log folder: their paths, their permissions, and why one cannot be used.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

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

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Unusable {
        Unusable::Io(error)
    }
}

impl From<rustix::io::Errno> for Unusable {
    fn from(error: rustix::io::Errno) -> Unusable {
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

impl fmt::Display for Unusable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text().en)
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
