//! The node as the program sees it: the one seam between us and /proc, /sys,
//! /dev, /etc and the environment.
//!
//! Live, every path is itself. With `--host-root DIR`, and in tests, every path
//! is looked up below DIR, so that a folder of copied files is a whole node.
//! What cannot be replayed (routes, sockets, probes) asks [`Host::is_live`].

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

/// Root path and environment of one node.
#[derive(Debug, Clone)]
pub struct Host {
    root: Option<PathBuf>,
    environment: BTreeMap<OsString, OsString>,
}

impl Host {
    /// This node, with this process's environment.
    pub fn live() -> Host {
        Host { root: None, environment: std::env::vars_os().collect() }
    }

    /// A node whose files lie below `root`.
    pub fn replayed(root: impl Into<PathBuf>, environment: BTreeMap<OsString, OsString>) -> Host {
        Host { root: Some(root.into()), environment }
    }

    /// The same environment with the files below `root`.
    pub fn with_root(self, root: impl Into<PathBuf>) -> Host {
        Host { root: Some(root.into()), ..self }
    }

    /// Whether facts that only the kernel can give (routes, open devices) may be asked for.
    pub fn is_live(&self) -> bool {
        self.root.is_none()
    }

    /// Where the absolute path `path` lies on this host.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        match &self.root {
            None => path.to_owned(),
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }

    /// The file's bytes as text, invalid UTF-8 replaced.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        std::fs::read(self.path(path)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The names in a folder, sorted; empty when the folder is missing or unreadable.
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(path)) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// A variable's value as text, invalid UTF-8 replaced. `Some("")` when it is set and empty.
    pub fn variable(&self, name: &str) -> Option<String> {
        self.environment.get(OsStr::new(name)).map(|value| value.to_string_lossy().into_owned())
    }

    pub fn environment(&self) -> &BTreeMap<OsString, OsString> {
        &self.environment
    }
}
