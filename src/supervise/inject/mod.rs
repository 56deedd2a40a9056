//! Additions to the program of a Python rank. A `sitecustomize` starts torch's own worker server on a
//! Unix socket of the run, answers for gloo if gloo keeps no flight record, leaves faulthandler a file for
//! the stacks, and lets helper processes outlive a SIGTERM to every process. A folder takes the records of
//! torch's flight recorder.
//!
//! The launcher writes the files into a folder of its own; the rank shim adds that folder to the
//! environment of the rank alone, so that no engine imports it. A rank whose Python does not read
//! PYTHONPATH (`-I`, `-E`, `-S`), or that is no Python at all, runs as without it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Names the folder of an [`Injection`] to the rank shims.
pub const FOLDER: &str = "RANKLAUNCH_INJECTED";
/// Names the folder of the sockets to a rank, which removes it before starting other processes.
const CONTROL: &str = "RANKLAUNCH_CONTROL";
/// The beginning of the names of torch's records, as torch itself has it; the rank follows.
pub const RECORD: &str = "comm_lib_trace_rank_";
/// The beginning of the names of the pipes; the rank and `.pipe` follow.
pub const PIPE: &str = "comm_lib_trace_pipe_";
const PYTHON_PATH: &str = "PYTHONPATH";
/// The files of Python beside this one, as build.rs has deflated them.
static FILES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inject.zz"));

/// A folder with the files, one with the sockets, and one for torch's records.
#[derive(Debug, Clone)]
pub struct Injection(PathBuf);

impl Injection {
    /// Writes the files below `scratch`, a folder that only this user may enter.
    pub fn write(scratch: &Path) -> io::Result<Injection> {
        let injection = Injection(scratch.join("inject"));
        let folders =
            [injection.python(), injection.control(), injection.records(), injection.helpers()];
        for folder in folders {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        for (name, text) in embed::files(FILES)? {
            std::fs::write(injection.python().join(name), text)?;
        }
        Ok(injection)
    }

    /// The variable for the environment of the shims.
    pub fn variable(&self) -> (OsString, OsString) {
        (FOLDER.into(), self.0.clone().into())
    }

    /// The folder of the sockets `RANK-PID`, and `RANK-PID.calls` where gloo keeps no flight record.
    pub fn control(&self) -> PathBuf {
        self.0.join("control")
    }

    /// The folder into which torch writes the records of its collectives.
    pub fn records(&self) -> PathBuf {
        self.0.join("records")
    }

    /// A file for each helper process that outlives a SIGTERM to all; helpers.py has this name too.
    fn helpers(&self) -> PathBuf {
        self.0.join("helpers")
    }

    fn python(&self) -> PathBuf {
        self.0.join("python")
    }
}

/// Changes by a shim to the environment of its rank. `variable` reads the shim's own variables; None removes a
/// variable.
pub(crate) fn for_rank(
    variable: impl Fn(&str) -> Option<OsString>,
) -> Vec<(&'static str, Option<OsString>)> {
    let Some(folder) = variable(FOLDER).filter(|folder| !folder.is_empty()) else {
        return Vec::new();
    };
    let injection = Injection(folder.into());
    let mut path = injection.python().into_os_string();
    if let Some(users) = variable(PYTHON_PATH).filter(|path| !path.is_empty()) {
        path.push(OsStr::new(":"));
        path.push(users);
    }
    vec![
        (FOLDER, None),
        (PYTHON_PATH, Some(path)),
        (CONTROL, Some(injection.control().into_os_string())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Vec<(&'static str, Option<OsString>)> {
        for_rank(|name| {
            set.iter().find(|(set, _)| *set == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn user_pythonpath_follows_ours() {
        let folders = |path: &str| {
            vec![
                (FOLDER, None),
                (PYTHON_PATH, Some(path.into())),
                (CONTROL, Some("/tmp/x/control".into())),
            ]
        };
        assert_eq!(of(&[(FOLDER, "/tmp/x")]), folders("/tmp/x/python"));
        assert_eq!(of(&[(FOLDER, "/tmp/x"), (PYTHON_PATH, "")]), folders("/tmp/x/python"));
        let both = of(&[(FOLDER, "/tmp/x"), (PYTHON_PATH, "/a:/b")]);
        assert_eq!(both, folders("/tmp/x/python:/a:/b"));
        assert!(of(&[(PYTHON_PATH, "/a")]).is_empty(), "nothing without a launcher's folder");
    }
}
