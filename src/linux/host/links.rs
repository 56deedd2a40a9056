//! Resolves `..` and links in paths without the kernel.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The kernel's own limit of links in one path (path_resolution(7)).
const LINKS: usize = 40;

/// The path without `.` and `..`: `/a/b/../c` is `/a/c`. Does not follow links.
pub fn normal(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

/// `path` with links resolved; `link` gives their targets, all from `/`. Parts that do not exist
/// are unchanged. None: too many links.
pub(super) fn follow(
    path: &Path,
    mut link: impl FnMut(&Path) -> Option<PathBuf>,
) -> Option<PathBuf> {
    let mut done = PathBuf::from("/");
    let mut left = parts(path);
    let mut links = 0;
    while let Some(part) = left.pop() {
        if part.as_bytes() == b".." {
            done.pop();
            continue;
        }
        done.push(&part);
        let Some(target) = link(&done) else { continue };
        links += 1;
        if links > LINKS {
            return None;
        }
        done.pop();
        if target.is_absolute() {
            done = PathBuf::from("/");
        }
        left.extend(parts(&target));
    }
    Some(done)
}

/// The parts of a path, last first.
fn parts(path: &Path) -> Vec<OsString> {
    let mut parts: Vec<OsString> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect();
    parts.reverse();
    parts
}
