//! Helpers for files of Python environments: small files, executables, folders.

use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use linux::host::Host;

/// The search path of execvp without PATH (confstr _CS_PATH), with the usual local folder.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

pub(super) fn path_variable(host: &Host) -> String {
    host.variable("PATH").unwrap_or_else(|| DEFAULT_PATH.to_owned())
}

/// The folders of PATH.
pub(super) fn path_folders(host: &Host) -> Vec<PathBuf> {
    let path = path_variable(host);
    let folders = path.split(':').filter(|folder| !folder.is_empty());
    folders.map(|folder| absolute(host, Path::new(folder))).collect()
}

/// The value of a variable that is set and not empty.
pub(super) fn set(host: &Host, name: &str) -> Option<String> {
    host.variable(name).filter(|value| !value.is_empty())
}

pub(super) fn home(host: &Host) -> PathBuf {
    set(host, "HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from)
}

/// A folder as people write it: `~/` is the home folder, and other relative paths begin at the working directory.
pub(super) fn written(host: &Host, folder: &str) -> PathBuf {
    match folder.strip_prefix("~/") {
        Some(below) => home(host).join(below),
        None => absolute(host, Path::new(folder)),
    }
}

/// The files of a folder whose names have this ending, by name.
pub(super) fn with_ending(host: &Host, folder: &Path, ending: &str) -> Vec<PathBuf> {
    let names = host.list(folder).into_iter().filter(|name| name.ends_with(ending));
    names.map(|name| folder.join(name)).collect()
}

/// These paths, each once.
pub(super) fn once(paths: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut once = Vec::new();
    for path in paths {
        if !once.contains(&path) {
            once.push(path);
        }
    }
    once
}

/// `path`, made absolute with the working directory.
pub(super) fn absolute(host: &Host, path: &Path) -> PathBuf {
    working_directory(host).join(path)
}

pub(super) fn working_directory(host: &Host) -> PathBuf {
    host.working_directory().unwrap_or_else(|| PathBuf::from("/"))
}

pub(super) fn exists(host: &Host, path: &Path) -> bool {
    host.seen(path);
    host.metadata(path).is_some()
}

pub(super) fn is_folder(host: &Host, path: &Path) -> bool {
    host.seen(path);
    host.metadata(path).is_some_and(|found| found.is_dir())
}

/// Whether a file is executable for its owner or for others.
pub(super) fn is_executable(host: &Host, path: &Path) -> bool {
    host.seen(path);
    host.metadata(path)
        .is_some_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The file's text; None if it is missing, unreadable or too large.
pub(super) fn read_small(host: &Host, path: &Path) -> Option<String> {
    const LARGEST: u64 = 1 << 20;
    let size = host.metadata(path).filter(Metadata::is_file)?.len();
    (size <= LARGEST).then(|| host.read(path).ok()).flatten()
}

/// `bin/python` of an environment, or `bin/python3`.
pub(super) fn interpreter_in(host: &Host, prefix: &Path) -> Option<PathBuf> {
    ["bin/python", "bin/python3"]
        .into_iter()
        .map(|name| prefix.join(name))
        .find(|path| is_executable(host, path))
}

/// The variables of activated environments that are set, the strongest first.
pub(super) fn active(host: &Host) -> impl Iterator<Item = (&'static str, String)> {
    ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(|variable| Some((variable, set(host, variable)?)))
}
