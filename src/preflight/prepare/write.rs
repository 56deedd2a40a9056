//! Tests whether a file can be written in a folder, by writing one.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The reason why no file could be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteProblem {
    /// The folder that was tried: the folder itself or its nearest existing parent.
    pub folder: PathBuf,
    /// The errno; None if the error does not come from the kernel.
    pub code: Option<i32>,
    /// The error as text, if it has no errno.
    #[serde(default)]
    pub text: String,
    /// Our effective user.
    pub user: u32,
}

impl WriteProblem {
    pub fn of(folder: &Path, error: &io::Error) -> WriteProblem {
        let user = rustix::process::geteuid().as_raw();
        let (code, text) = (error.raw_os_error(), error.to_string());
        WriteProblem { folder: folder.to_owned(), code, text, user }
    }

    /// The error of the write.
    pub fn error(&self) -> io::Error {
        // Captures of 0.1 have 0 if there is no errno.
        match self.code.filter(|code| *code != 0) {
            Some(code) => io::Error::from_raw_os_error(code),
            None if self.text.is_empty() => io::Error::other("the system gave no reason"),
            None => io::Error::other(self.text.clone()),
        }
    }
}

/// Creates a file, syncs a byte to the disk and removes the file, in `folder` or its nearest
/// existing parent. Gives that folder. Hangs if its mount is dead.
///
/// # Errors
/// The kernel's error, by which permissions, a read-only mount and a full disk are
/// distinguished.
pub fn try_write(folder: &Path) -> Result<PathBuf, WriteProblem> {
    let existing = folder.ancestors().find(|part| part.exists()).unwrap_or(Path::new("/"));
    // Nodes that share the folder may have equal pids, so the name is random.
    let file = linux::random::hex::<8>().map(|name| existing.join(format!(".ranklaunch-{name}")));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_without_errno_keeps_its_text() {
        let again = |problem: &WriteProblem| {
            let text = serde_json::to_string(problem).expect("JSON");
            serde_json::from_str::<WriteProblem>(&text).expect("the same").error().to_string()
        };
        let of = |error: io::Error| WriteProblem::of(Path::new("/logs"), &error);
        let full = || io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        assert_eq!(again(&of(full())), full().to_string());
        assert_eq!(again(&of(io::Error::other("getrandom: refused"))), "getrandom: refused");
        let earlier = r#"{"folder":"/logs","code":0,"user":1000}"#;
        let earlier: WriteProblem = serde_json::from_str(earlier).expect("an earlier capture");
        assert!(!earlier.error().to_string().contains("Success"), "{}", earlier.error());
    }
}
