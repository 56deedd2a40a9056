//! The node as the program sees it: the one seam between us and /proc, /sys,
//! /dev, /etc and the environment.
//!
//! Live, every path is itself. With `--host-root DIR`, and in tests, every path
//! is looked up below DIR, so that a folder of copied files is a whole node.
//! What cannot be replayed (routes, sockets, probes) asks [`Host::is_live`].
//! What is read can be recorded, so that another machine can replay it.

mod links;
mod recorder;
mod root;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::sys;
use links::follow;
use root::Root;

pub(crate) use links::normal;
use recorder::ANSWERS;
pub use recorder::Recorder;

/// Where a capture keeps the environment, in the kernel's own form (proc_pid_environ(5)).
pub const ENVIRONMENT: &str = "/proc/self/environ";

fn answer_path(name: &str) -> String {
    format!("{ANSWERS}/{name}.json")
}

/// What [`Host::hide`] took out of the environment.
static HIDDEN: OnceLock<(OsString, OsString)> = OnceLock::new();

/// Root path and environment of one node.
#[derive(Debug, Clone)]
pub struct Host {
    root: Option<Arc<Root>>,
    environment: Arc<BTreeMap<OsString, OsString>>,
    recorder: Option<Arc<Recorder>>,
    trail: Option<Trail>,
    folder: Option<PathBuf>,
}

/// The path that is being looked at, so that a look which never ends can be named.
#[derive(Debug, Clone, Default)]
pub struct Trail(Arc<Mutex<Option<PathBuf>>>);

impl Trail {
    /// The last path that was begun, as a path of the host.
    pub fn last(&self) -> Option<PathBuf> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn at(&self, path: &Path) {
        *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(path.to_owned());
    }
}

impl Host {
    /// Takes a variable out of this process's environment, so that neither its children nor
    /// /proc/PID/environ show it; [`Host::live`] still answers with it. One variable per
    /// process, before any thread exists.
    pub fn hide(name: &str) {
        if let Some(value) = sys::take_variable(name) {
            let _ = HIDDEN.set((name.into(), value));
        }
    }

    /// This node, with this process's environment.
    pub fn live() -> Host {
        let environment = Arc::new(std::env::vars_os().chain(HIDDEN.get().cloned()).collect());
        Host { root: None, environment, recorder: None, trail: None, folder: None }
    }

    /// A node whose files lie below `root`.
    pub fn replayed(root: impl Into<PathBuf>, environment: BTreeMap<OsString, OsString>) -> Host {
        let (root, environment) = (Some(Arc::new(Root::new(root.into()))), Arc::new(environment));
        Host { root, environment, recorder: None, trail: None, folder: None }
    }

    /// The same environment with the files below `root`. A capture brings its own
    /// environment; then only what is said to us now stays of this process's.
    pub fn with_root(self, root: impl Into<PathBuf>) -> Host {
        let mut host = Host { root: Some(Arc::new(Root::new(root.into()))), ..self };
        if let Ok(block) = host.bytes(Path::new(ENVIRONMENT)) {
            let ours = |name: &OsString| name.as_bytes().starts_with(b"RANKLAUNCH_");
            let environment = Arc::make_mut(&mut host.environment);
            environment.retain(|name, _| ours(name));
            let captured = block.split(|byte| *byte == 0).filter_map(|entry| {
                let at = entry.iter().position(|byte| *byte == b'=')?;
                let (name, value) = (entry.get(..at)?, entry.get(at + 1..)?);
                Some((OsString::from_vec(name.to_vec()), OsString::from_vec(value.to_vec())))
            });
            environment.extend(captured.filter(|(name, _)| !ours(name)));
        }
        host
    }

    /// The same host, with everything that is read of it kept in the recorder.
    pub fn recorded(self) -> (Host, Arc<Recorder>) {
        let recorder = Arc::new(Recorder::default());
        (Host { recorder: Some(Arc::clone(&recorder)), ..self }, recorder)
    }

    /// The same host, with what it looks at noted: a source that does not come back
    /// is asked where it stands.
    pub fn traced(&self) -> (Host, Trail) {
        let trail = Trail::default();
        (Host { trail: Some(trail.clone()), ..self.clone() }, trail)
    }

    /// The same host, whose relative paths count from `folder`, before this process is there.
    pub fn working_in(&self, folder: impl Into<PathBuf>) -> Host {
        Host { folder: Some(folder.into()), ..self.clone() }
    }

    /// Where a path of the command line lies: an absolute one as [`Host::path`] has it, a
    /// relative one in the working directory, which only a live node has.
    pub fn argument(&self, path: &Path) -> PathBuf {
        self.at(path);
        match &self.folder {
            _ if path.is_absolute() => self.path(path),
            Some(folder) => folder.join(path),
            None => path.to_owned(),
        }
    }

    /// Notes what is looked at now; for looks that do not go through this type.
    pub fn at(&self, path: impl AsRef<Path>) {
        if let Some(trail) = &self.trail {
            trail.at(path.as_ref());
        }
    }

    /// Whether what is read is kept for others.
    pub fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    /// Whether facts that only the kernel can give (routes, open devices) may be asked for.
    pub fn is_live(&self) -> bool {
        self.root.is_none()
    }

    /// Where the absolute path `path` lies on this host; whoever asks looks there next.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.at(path);
        match &self.root {
            None => path.to_owned(),
            Some(root) => root.place(path),
        }
    }

    /// `path` without links. A part that does not exist stays as it is.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.at(path);
        let real = match &self.root {
            Some(root) => root.resolve(path),
            None => follow(path, |link| {
                let target = std::fs::read_link(link).ok()?;
                self.seen(link);
                Some(target)
            }),
        };
        real.unwrap_or_else(|| path.to_owned())
    }

    /// The target of a link, as it is in the link.
    pub fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let folder = path.parent().unwrap_or(path);
        std::fs::read_link(self.path(folder).join(path.file_name().unwrap_or_default()))
    }

    fn bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.at(path);
        let Some(root) = &self.root else { return std::fs::read(path) };
        let mut bytes = Vec::new();
        root.open(path, OFlags::RDONLY)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The file's bytes as text, invalid UTF-8 replaced.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let path = path.as_ref();
        let bytes = self.bytes(path)?;
        if let Some(recorder) = &self.recorder {
            recorder.read(path, &bytes);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The names in a folder, sorted; empty when the folder is missing or unreadable.
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let path = path.as_ref();
        self.at(path);
        let names: io::Result<Vec<OsString>> = match &self.root {
            None => std::fs::read_dir(path)
                .map(|entries| entries.flatten().map(|entry| entry.file_name()).collect()),
            Some(root) => root.list(path),
        };
        let Ok(names) = names else { return Vec::new() };
        let mut names: Vec<String> =
            names.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        if let Some(recorder) = &self.recorder {
            recorder.listed(path, &names);
        }
        names
    }

    /// Whether something is there, links followed.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        let there = self.metadata(&path).is_some();
        if there {
            self.seen(path);
        }
        there
    }

    /// What is there, links followed.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Option<Metadata> {
        let path = path.as_ref();
        self.at(path);
        match &self.root {
            None => std::fs::metadata(path).ok(),
            Some(root) => root.open(path, OFlags::PATH).ok()?.metadata().ok(),
        }
    }

    /// The folder or file behind `path`, links followed, as a path of this host.
    pub fn real_path(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let path = path.as_ref();
        self.at(path);
        let real = match &self.root {
            None => std::fs::canonicalize(path).ok()?,
            Some(root) => root.resolve(path).filter(|_| self.metadata(path).is_some())?,
        };
        self.seen(path);
        Some(real)
    }

    /// Tells the recorder of something whose being there counts, and not its content.
    pub fn seen(&self, path: impl AsRef<Path>) {
        if let Some(recorder) = &self.recorder {
            recorder.seen(path.as_ref());
        }
    }

    /// Tells the recorder of something that is there and cannot be used, which a
    /// copied file cannot show.
    pub fn unusable(&self, path: impl AsRef<Path>) {
        if let Some(recorder) = &self.recorder {
            recorder.unusable(path.as_ref());
        }
    }

    /// Gives the recorder what the kernel or a driver said, for a replay to read at `path`.
    pub fn note(&self, path: impl AsRef<Path>, content: impl FnOnce() -> Vec<u8>) {
        if let Some(recorder) = &self.recorder {
            recorder.read(path.as_ref(), &content());
        }
    }

    /// What the kernel answers to a call: asked on a live node, and kept by its recorder;
    /// elsewhere what was kept, or None.
    pub fn answer<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        ask: impl FnOnce() -> T,
    ) -> Option<T> {
        if !self.is_live() {
            return serde_json::from_str(&self.read(answer_path(name)).ok()?).ok();
        }
        let answer = ask();
        self.keep(name, &answer);
        Some(answer)
    }

    /// Gives the recorder an answer, for [`Host::answer`] of a replay.
    pub fn keep<T: Serialize>(&self, name: &str, answer: &T) {
        self.note(answer_path(name), || serde_json::to_vec(answer).unwrap_or_default());
    }

    /// The working directory; of a copied root the one that it was captured in, else PWD.
    pub fn working_directory(&self) -> Option<PathBuf> {
        let kept = self.answer("working-directory", || std::env::current_dir().ok()).flatten();
        let named = || self.variable("PWD").map(PathBuf::from).filter(|path| path.is_absolute());
        kept.or_else(named)
    }

    /// A variable's value as text, invalid UTF-8 replaced. `Some("")` when it is set and empty.
    pub fn variable(&self, name: &str) -> Option<String> {
        self.environment.get(OsStr::new(name)).map(|value| value.to_string_lossy().into_owned())
    }

    pub fn environment(&self) -> &BTreeMap<OsString, OsString> {
        &self.environment
    }
}
