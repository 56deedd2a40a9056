//! Access to the node: the only way to /proc, /sys, /dev, /etc and the environment.
//!
//! On a live node paths are used unchanged. With `--host-root DIR`, and in tests, every path is
//! looked up below DIR, so that a folder of captured files replays a node. Code that cannot be
//! replayed (routes, sockets, probes) tests [`Host::is_live`]. Reads can be recorded, so that
//! another machine can replay them.

#[cfg(any(test, feature = "fixtures"))]
mod fixtures;
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
use root::{Root, follow};

use recorder::ANSWERS;
pub use recorder::Recorder;
pub use root::normal;

/// The file of a capture with the environment, in the kernel's form (proc_pid_environ(5)).
pub const ENVIRONMENT: &str = "/proc/self/environ";

fn answer_path(name: &str) -> String {
    format!("{ANSWERS}/{name}.json")
}

/// The variable that [`Host::hide`] removed from the environment.
static HIDDEN: OnceLock<(OsString, OsString)> = OnceLock::new();

/// Root path and environment of one node.
#[derive(Debug, Clone, Default)]
pub struct Host {
    root: Option<Arc<Root>>,
    environment: Arc<BTreeMap<OsString, OsString>>,
    recorder: Option<Arc<Recorder>>,
    last_path: Option<LastPath>,
    folder: Option<PathBuf>,
    starts_nothing: bool,
}

/// The path that is being read, so that a read that hangs can be named.
#[derive(Debug, Clone, Default)]
pub struct LastPath(Arc<Mutex<Option<PathBuf>>>);

impl LastPath {
    /// The path of the last read that began, as a path of the host.
    pub fn get(&self) -> Option<PathBuf> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn set(&self, path: &Path) {
        *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(path.to_owned());
    }
}

impl Host {
    /// Removes a variable from this process's environment, so that neither its children nor
    /// /proc/PID/environ have it; [`Host::live`] still gives it. One variable per process,
    /// before any thread exists.
    pub fn hide(name: &str) {
        if let Some(value) = sys::take_variable(name) {
            let _ = HIDDEN.set((name.into(), value));
        }
    }

    /// This node, with this process's environment.
    pub fn live() -> Host {
        let environment = Arc::new(std::env::vars_os().chain(HIDDEN.get().cloned()).collect());
        Host { environment, ..Host::default() }
    }

    /// A node with its files below `root`.
    pub fn replayed(root: impl Into<PathBuf>, environment: BTreeMap<OsString, OsString>) -> Host {
        let (root, environment) = (Some(Arc::new(Root::new(root.into()))), Arc::new(environment));
        Host { root, environment, ..Host::default() }
    }

    /// The same environment with the files below `root`. If a capture has its own environment,
    /// only our own settings of this process remain.
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

    /// The same host, whose reads are kept in the recorder.
    pub fn recorded(self) -> (Host, Arc<Recorder>) {
        let recorder = Arc::new(Recorder::default());
        (Host { recorder: Some(Arc::clone(&recorder)), ..self }, recorder)
    }

    /// The same host, with a [`LastPath`] that tells at which path a source hangs.
    pub fn traced(&self) -> (Host, LastPath) {
        let last_path = LastPath::default();
        (Host { last_path: Some(last_path.clone()), ..self.clone() }, last_path)
    }

    /// The same host with the working directory `folder`, before this process changes to it.
    pub fn working_in(&self, folder: impl Into<PathBuf>) -> Host {
        Host { folder: Some(folder.into()), ..self.clone() }
    }

    /// The same host with this variable, as seen by a program that gets a variable of its own.
    pub fn with_variable(&self, name: &str, value: &OsStr) -> Host {
        let mut host = self.clone();
        Arc::make_mut(&mut host.environment).insert(name.into(), value.to_owned());
        host
    }

    /// The real path of a command-line argument: an absolute one as by [`Host::path`], a
    /// relative one in the working directory, which only a live node has.
    pub fn argument(&self, path: &Path) -> PathBuf {
        self.at(path);
        match &self.folder {
            _ if path.is_absolute() => self.path(path),
            Some(folder) => folder.join(path),
            None => path.to_owned(),
        }
    }

    /// The same host, on which no interpreter and no script of an environment is started.
    pub fn without_interpreters(self) -> Host {
        Host { starts_nothing: true, ..self }
    }

    /// Whether the job's interpreter and scripts of its environment may be started.
    pub fn starts_interpreters(&self) -> bool {
        self.is_live() && !self.starts_nothing
    }

    /// Records a path that the caller reads now without this type.
    pub fn at(&self, path: impl AsRef<Path>) {
        if let Some(last_path) = &self.last_path {
            last_path.set(path.as_ref());
        }
    }

    /// Whether reads are recorded.
    pub fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    /// Whether facts that only the kernel can give (routes, open devices) are available.
    pub fn is_live(&self) -> bool {
        self.root.is_none()
    }

    /// The real path of the absolute path `path`, and records it as the one that is read next.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.at(path);
        match &self.root {
            None => path.to_owned(),
            Some(root) => root.place(path),
        }
    }

    /// `path` with links resolved. Parts that do not exist are unchanged.
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

    /// The target of a link, unchanged.
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
        self.record(|recorder| recorder.read(path, &bytes));
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The names in a folder, sorted; empty if the folder is missing or unreadable.
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let path = path.as_ref();
        self.at(path);
        let names: io::Result<Vec<OsString>> = match &self.root {
            None => std::fs::read_dir(path)
                .map(|entries| entries.flatten().map(|entry| entry.file_name()).collect()),
            Some(root) => root.list(path),
        };
        let Ok(names) = names else { return Vec::new() };
        let names = names.iter().map(|name| name.to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        self.record(|recorder| recorder.listed(path, &names));
        names
    }

    /// Whether the path exists, following links.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        let there = self.metadata(&path).is_some();
        if there {
            self.seen(path);
        }
        there
    }

    /// The metadata of the path, following links.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Option<Metadata> {
        self.try_metadata(path).ok()
    }

    /// As [`metadata`](Self::metadata), for who has to tell an absent file from one that cannot be seen.
    pub fn try_metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        let path = path.as_ref();
        self.at(path);
        match &self.root {
            None => std::fs::metadata(path),
            Some(root) => root.open(path, OFlags::PATH)?.metadata(),
        }
    }

    /// The folder or file behind `path`, following links, as a path of this host.
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

    /// Records that a path exists, without its content.
    pub fn seen(&self, path: impl AsRef<Path>) {
        self.record(|recorder| recorder.seen(path.as_ref()));
    }

    fn record(&self, keep: impl FnOnce(&Recorder)) {
        if let Some(recorder) = &self.recorder {
            keep(recorder);
        }
    }

    /// Records that a path exists but cannot be used, which a captured file cannot show.
    pub fn unusable(&self, path: impl AsRef<Path>) {
        self.record(|recorder| recorder.unusable(path.as_ref()));
    }

    /// Records an answer of the kernel or a driver, for a replay to read at `path`.
    pub fn note(&self, path: impl AsRef<Path>, content: impl FnOnce() -> Vec<u8>) {
        self.record(|recorder| recorder.read(path.as_ref(), &content()));
    }

    /// The kernel's answer to a call: on a live node calls and records it; on a replayed node
    /// gives the recorded one, or None.
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

    /// Records an answer for [`Host::answer`] of a replay.
    pub fn keep<T: Serialize>(&self, name: &str, answer: &T) {
        self.note(answer_path(name), || serde_json::to_vec(answer).unwrap_or_default());
    }

    /// The working directory; on a replayed node the captured directory, else PWD.
    pub fn working_directory(&self) -> Option<PathBuf> {
        let kept = self.answer("working-directory", || std::env::current_dir().ok()).flatten();
        let named = || self.variable("PWD").map(PathBuf::from).filter(|path| path.is_absolute());
        kept.or_else(named)
    }

    /// A variable's value as text, invalid UTF-8 replaced. `Some("")` if it is set and empty.
    pub fn variable(&self, name: &str) -> Option<String> {
        self.environment.get(OsStr::new(name)).map(|value| value.to_string_lossy().into_owned())
    }

    pub fn environment(&self) -> &BTreeMap<OsString, OsString> {
        &self.environment
    }
}
