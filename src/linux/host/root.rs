//! A folder in place of `/`; no link leads out of it.
//!
//! Takes absolute paths of the node; resolves them below the folder. The kernel does this with
//! openat2(2). Before Linux 5.6, and in a sandbox that refuses the call, we resolve them
//! ourselves.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;

/// A path that never exists, for a path with too many links.
const NOWHERE: &str = "/dev/null/too-many-links";

#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    /// None if the folder is missing.
    folder: Option<OwnedFd>,
}

impl Root {
    pub(super) fn new(path: PathBuf) -> Root {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(&path, flags, Mode::empty()).ok();
        Root { path, folder }
    }

    /// `path` with links resolved, as a path of the node.
    pub(super) fn resolve(&self, path: &Path) -> Option<PathBuf> {
        follow(path, |link| std::fs::read_link(self.below(link)).ok())
    }

    /// The place of `path` on this machine.
    pub(super) fn place(&self, path: &Path) -> PathBuf {
        self.resolve(path).map_or_else(|| NOWHERE.into(), |real| self.below(&real))
    }

    fn below(&self, path: &Path) -> PathBuf {
        self.path.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(super) fn open(&self, path: &Path, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC;
        if let Some(folder) = &self.folder {
            match openat2(folder, path, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
                Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => {}
                found => return Ok(found?.into()),
            }
        }
        Ok(open(self.place(path), flags, Mode::empty())?.into())
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::new(self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        Ok(names)
    }
}

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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Resolution by the kernel, and by us.
    fn both(path: &Path) -> [Root; 2] {
        let root = Root::new(path.to_owned());
        assert!(root.folder.is_some());
        [root, Root { path: path.to_owned(), folder: None }]
    }

    fn read(root: &Root, path: &str) -> Option<String> {
        let mut text = String::new();
        root.open(Path::new(path), OFlags::RDONLY).ok()?.read_to_string(&mut text).ok()?;
        Some(text)
    }

    #[test]
    fn no_link_leads_out_of_the_root() {
        let machine = tempfile::tempdir().expect("a folder");
        let outside = machine.path().join("outside");
        std::fs::write(&outside, "outside").expect("a file");
        let node = machine.path().join("node");
        std::fs::create_dir_all(node.join("etc/deep")).expect("a folder");
        std::fs::write(node.join("etc/inside"), "inside").expect("a file");
        for (target, at) in [
            (outside.as_path(), "etc/absolute"),
            (Path::new("../../outside"), "etc/relative"),
            (Path::new("../../../../outside"), "etc/far"),
            (Path::new("/etc/inside"), "etc/deep/good"),
            (Path::new("/etc/deep"), "etc/folder"),
            (Path::new("/etc/loop"), "etc/loop"),
            (machine.path(), "etc/machine"),
        ] {
            symlink(target, node.join(at)).expect("a link");
        }
        for root in both(&node) {
            for (path, text) in [
                ("/etc/absolute", None),
                ("/etc/relative", None),
                ("/etc/far", None),
                ("/../../outside", None),
                ("/etc/machine/outside", None),
                ("/etc/loop", None),
                ("/etc/inside", Some("inside")),
                ("/etc/../../etc/inside", Some("inside")),
                ("/etc/deep/good", Some("inside")),
                ("/etc/folder/good", Some("inside")),
            ] {
                assert_eq!(read(&root, path).as_deref(), text, "{path} {root:?}");
                let place = root.place(Path::new(path));
                assert_eq!(std::fs::read_to_string(place).ok().as_deref(), text, "{path}");
            }
            let names = root.list(Path::new("/etc/folder")).expect("a list");
            assert_eq!(names, ["good"], "{root:?}");
            assert!(root.list(Path::new("/etc/machine")).is_err(), "{root:?}");
        }
    }
}
