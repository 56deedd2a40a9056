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
