//! Paths as the host sees them: symlinks are followed inside its root.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use crate::host::Host;

/// The kernel's own limit of symlinks in one path (path_resolution(7)).
const LINKS: usize = 40;

/// `path` from the working directory on, where it is relative.
pub(super) fn absolute(host: &Host, path: &Path) -> PathBuf {
    working_directory(host).join(path)
}

pub(super) fn working_directory(host: &Host) -> PathBuf {
    host.working_directory().unwrap_or_else(|| PathBuf::from("/"))
}

/// `path` without symlinks. A part that does not exist stays as it is.
pub(super) fn resolve(host: &Host, path: &Path) -> PathBuf {
    let mut done = PathBuf::from("/");
    let mut left: VecDeque<OsString> = parts(path);
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            done.pop();
            continue;
        }
        done.push(&part);
        let Ok(target) = fs::read_link(host.path(&done)) else { continue };
        host.seen(&done);
        links += 1;
        if links > LINKS {
            return path.to_owned();
        }
        done.pop();
        if target.is_absolute() {
            done = PathBuf::from("/");
        }
        let mut further = parts(&target);
        further.append(&mut left);
        left = further;
    }
    done
}

/// Where `path` can be opened. The kernel follows the links of a living host; below another
/// root an absolute link would lead out of it.
fn place(host: &Host, path: &Path) -> PathBuf {
    if host.is_live() { host.path(path) } else { host.path(resolve(host, path)) }
}

/// Names in a folder, sorted; empty when there is none.
pub(super) fn list(host: &Host, folder: &Path) -> Vec<String> {
    if host.is_live() { host.list(folder) } else { host.list(resolve(host, folder)) }
}

fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

pub(super) fn exists(host: &Host, path: &Path) -> bool {
    host.seen(path);
    place(host, path).exists()
}

pub(super) fn is_folder(host: &Host, path: &Path) -> bool {
    host.seen(path);
    place(host, path).is_dir()
}

/// A file that somebody may execute.
pub(super) fn is_executable(host: &Host, path: &Path) -> bool {
    host.seen(path);
    fs::metadata(place(host, path))
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The file's text, symlinks followed inside the host's root; None when missing,
/// unreadable, or larger than such a file can be.
pub(super) fn read_small(host: &Host, path: &Path) -> Option<String> {
    const LARGEST: u64 = 1 << 20;
    let at = place(host, path);
    let size = fs::metadata(&at).ok().filter(fs::Metadata::is_file)?.len();
    let bytes = (size <= LARGEST).then(|| fs::read(&at).ok()).flatten()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    host.note(path, || bytes);
    Some(text)
}

/// `bin/python` of an environment, or `bin/python3`.
pub(super) fn interpreter_in(host: &Host, prefix: &Path) -> Option<PathBuf> {
    ["bin/python", "bin/python3"]
        .into_iter()
        .map(|name| prefix.join(name))
        .find(|path| is_executable(host, path))
}
