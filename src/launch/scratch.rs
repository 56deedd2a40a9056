//! A local folder for what an engine insists on writing; gone with the job.
//!
//! Named before the agent is forked, so that the guard can remove what an agent that
//! was killed has left. Only we may enter it.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::deadline::{io_with_deadline, with_deadline};

/// How long the local disk may take.
const ANSWER: Duration = Duration::from_secs(3);

/// The name, which nobody else can have guessed.
#[derive(Debug, Clone)]
pub(super) struct ScratchName(PathBuf);

impl ScratchName {
    pub(super) fn new() -> ScratchName {
        let token = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
        ScratchName(std::env::temp_dir().join(format!("ranklaunch-{token:016x}")))
    }

    /// Makes the folder. Without one the engine makes its own and leaves it behind.
    pub(super) fn make(&self) -> Scratch {
        let path = self.0.clone();
        let make = move || std::fs::DirBuilder::new().mode(0o700).create(&path).map(|()| path);
        Scratch(io_with_deadline(ANSWER, make).ok())
    }

    /// Removes what is left of it. For a process in which nothing else runs any more.
    pub(super) fn sweep(self) {
        with_deadline(ANSWER, move || remove(&self.0));
    }
}

/// The folder, removed when dropped.
#[derive(Debug)]
pub(super) struct Scratch(Option<PathBuf>);

impl Scratch {
    pub(super) fn path(&self) -> Option<PathBuf> {
        self.0.clone()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            with_deadline(ANSWER, move || remove(&path));
        }
    }
}

fn remove(path: &std::path::Path) {
    // Mostly it is not there, or gone already.
    let _ = std::fs::remove_dir_all(path);
}
