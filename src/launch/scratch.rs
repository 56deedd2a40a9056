//! A local scratch folder for files that an engine insists on writing and for those that the ranks'
//! Python imports; removed with the job.
//!
//! Its name is chosen before the agent is forked, so that the guard can remove it if the agent
//! is killed. Only the own user may enter it.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::deadline::{io_with_deadline, with_deadline};
use crate::inject::Injection;

/// Time limit for the local disk.
const ANSWER: Duration = Duration::from_secs(3);

/// An unpredictable name.
#[derive(Debug, Clone)]
pub(super) struct ScratchName(PathBuf);

impl ScratchName {
    pub(super) fn new() -> ScratchName {
        let token = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
        ScratchName(std::env::temp_dir().join(format!("ranklaunch-{token:016x}")))
    }

    /// Creates the folder, and in it what the ranks' Python imports. Without a folder the engine
    /// creates its own and leaves it behind.
    pub(super) fn make(&self, inject: bool) -> Scratch {
        let path = self.0.clone();
        let make = move || {
            std::fs::DirBuilder::new().mode(0o700).create(&path)?;
            let injection = inject.then(|| Injection::write(&path).ok()).flatten();
            Ok((path, injection))
        };
        let (path, injection) = io_with_deadline(ANSWER, make).ok().unzip();
        Scratch { path, injection: injection.flatten() }
    }

    /// That of the warmed interpreter, which lives longer than an attempt.
    pub(super) fn of_warmed(&self) -> PathBuf {
        self.0.with_extension("warm")
    }

    /// Removes the folders synchronously. For the guard, in which nothing else runs any more.
    pub(super) fn sweep(self) {
        with_deadline(ANSWER, move || {
            remove(&self.0);
            remove(&self.of_warmed());
        });
    }
}

/// The folder, removed when dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    path: Option<PathBuf>,
    injection: Option<Injection>,
}

impl Scratch {
    pub(super) fn path(&self) -> Option<PathBuf> {
        self.path.clone()
    }

    /// None if the ranks start as they are.
    pub(super) fn injection(&self) -> Option<&Injection> {
        self.injection.as_ref()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            with_deadline(ANSWER, move || remove(&path));
        }
    }
}

fn remove(path: &std::path::Path) {
    // Usually the folder was never created or is removed already.
    let _ = std::fs::remove_dir_all(path);
}
