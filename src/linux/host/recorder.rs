//! Records what was read of a node, so that another machine can replay it.
//!
//! Takes every read, listing and test of a [`Host`](super::Host); gives a folder for
//! `--host-root`. Links are kept as links, since sysfs shows the place of a device by them.
//! Device nodes become empty files. Secrets in command lines and environments are masked before
//! they are stored.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::root::{follow, normal};
use text::mask::{mask_args, mask_file, mask_value};

/// The folder of a capture for answers that are not the content of a file. A live node has no
/// such folder.
pub(super) const ANSWERS: &str = "/run/ranklaunch";

/// The recorded state of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Folder,
    /// The target as in the link.
    Link(PathBuf),
    /// Content None: only the existence of the file is recorded.
    File {
        content: Option<Vec<u8>>,
        executable: bool,
    },
    /// Exists, but must be missing in a replay.
    Absent,
}

/// Everything recorded so far.
#[derive(Debug, Default)]
pub struct Recorder {
    entries: Mutex<BTreeMap<PathBuf, Entry>>,
}

impl Recorder {
    pub(super) fn read(&self, path: &Path, bytes: &[u8]) {
        let content = masked(path, bytes);
        let real = self.walk(path);
        let executable = is_executable(&real);
        self.put(real, Entry::File { content: Some(content), executable });
    }

    pub(super) fn listed(&self, path: &Path, names: &[String]) {
        let real = self.walk(path);
        for name in names {
            self.keep(&real.join(name));
        }
        self.put(real, Entry::Folder);
    }

    pub(super) fn seen(&self, path: &Path) {
        let real = self.walk(path);
        self.keep(&real);
    }

    pub(super) fn unusable(&self, path: &Path) {
        let real = self.walk(path);
        self.put(real, Entry::Absent);
    }

    /// Records `path` itself, without following links.
    fn keep(&self, path: &Path) {
        let Ok(found) = fs::symlink_metadata(path) else { return };
        let entry = if found.is_dir() {
            Entry::Folder
        } else if found.is_symlink() {
            let Ok(target) = fs::read_link(path) else { return };
            // Record the folder, or a link to it would be dangling in the capture.
            if let Some(folder) = path.parent()
                && fs::metadata(path).is_ok_and(|target| target.is_dir())
            {
                self.put(normal(&folder.join(&target)), Entry::Folder);
            }
            Entry::Link(target)
        } else {
            Entry::File { content: None, executable: found.permissions().mode() & 0o111 != 0 }
        };
        self.put(path.to_owned(), entry);
    }

    /// `path` with its links resolved; records each link.
    fn walk(&self, path: &Path) -> PathBuf {
        let real = follow(path, |link| {
            let target = fs::read_link(link).ok()?;
            self.put(link.to_owned(), Entry::Link(target.clone()));
            Some(target)
        });
        real.unwrap_or_else(|| path.to_owned())
    }

    /// Keeps the stronger of two entries: content over existence, absence over both.
    fn put(&self, path: PathBuf, entry: Entry) {
        let mut entries = self.entries.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let stronger = |old: &Entry| {
            matches!(
                (old, &entry),
                (Entry::Absent, _)
                    | (Entry::File { content: Some(_), .. }, Entry::File { content: None, .. })
                    | (Entry::Link(_), Entry::Folder | Entry::File { .. })
            )
        };
        if !entries.get(&path).is_some_and(stronger) {
            entries.insert(path, entry);
        }
    }

    /// Writes everything below `folder`, which is created.
    ///
    /// # Errors
    /// The error names the path that could not be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let entries = self.entries.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let place = |path: &Path| folder.join(path.strip_prefix("/").unwrap_or(path));
        let named = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        fs::create_dir_all(folder).map_err(|error| named(folder, error))?;
        // In path order, so that a folder comes before its contents.
        for (path, entry) in &entries {
            let to = place(path);
            let written = match entry {
                Entry::Absent => Ok(()),
                Entry::Folder => fs::create_dir_all(&to),
                Entry::Link(target) => parent(&to).and_then(|()| {
                    let _ = fs::remove_file(&to);
                    symlink(inside(path, target), &to)
                }),
                Entry::File { content, executable } => parent(&to)
                    .and_then(|()| fs::write(&to, content.as_deref().unwrap_or_default()))
                    .and_then(|()| {
                        let mode = if *executable { 0o755 } else { 0o644 };
                        fs::set_permissions(&to, fs::Permissions::from_mode(mode))
                    }),
            };
            written.map_err(|error| named(&to, error))?;
        }
        Ok(())
    }
}

fn parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// The target of the link at `path`, rewritten to stay below the root of the capture.
fn inside(path: &Path, target: &Path) -> PathBuf {
    let Ok(below) = target.strip_prefix("/") else { return target.to_owned() };
    let depth = path.components().count().saturating_sub(2);
    let mut relative: PathBuf = std::iter::repeat_n("..", depth).collect();
    relative.push(below);
    relative
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o111 != 0)
}

/// The bytes without the secrets of command lines and environments, and without the other users of
/// this machine.
fn masked(path: &Path, bytes: &[u8]) -> Vec<u8> {
    let in_proc = path.starts_with("/proc");
    let name = path.file_name().map(OsStr::as_bytes);
    let each = |change: &dyn Fn(Vec<OsString>) -> Vec<OsString>| -> Vec<u8> {
        let words = bytes.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()));
        change(words.collect()).join(OsStr::new("\0")).into_vec()
    };
    match name {
        Some(b"cmdline") if in_proc => each(&|words| mask_args(&words)),
        Some(b"environ") if in_proc => {
            each(&|words| words.iter().map(|word| masked_variable(word)).collect())
        }
        _ if path == Path::new("/etc/passwd") => {
            let mine = rustix::process::getuid().as_raw().to_string();
            let own =
                |line: &&[u8]| line.split(|byte| *byte == b':').nth(2) == Some(mine.as_bytes());
            bytes
                .split(|byte| *byte == b'\n')
                .filter(own)
                .flat_map(|line| [line, b"\n"])
                .flatten()
                .copied()
                .collect()
        }
        // Our answers and files of the kernel have no settings.
        _ if ["/proc", "/sys", ANSWERS].iter().any(|folder| path.starts_with(folder)) => {
            bytes.to_vec()
        }
        _ => match std::str::from_utf8(bytes) {
            Ok(text) => mask_file(text).into_bytes(),
            Err(_) => bytes.to_vec(),
        },
    }
}

/// `NAME=value` in the form that may be stored.
fn masked_variable(entry: &OsStr) -> OsString {
    let mut halves = entry.as_bytes().splitn(2, |byte| *byte == b'=');
    let (Some(name), Some(value)) = (halves.next(), halves.next()) else {
        return entry.to_owned();
    };
    let shown = mask_value(&String::from_utf8_lossy(name), OsStr::from_bytes(value));
    [OsStr::from_bytes(name), &shown].join(OsStr::new("="))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;

    #[test]
    fn recorded_reads_are_replayed_with_their_links() {
        let node = tempfile::tempdir().expect("a folder");
        let node = node.path();
        let device = node.join("sys/devices/pci0000:00/0000:18:00.0");
        fs::create_dir_all(&device).expect("a folder");
        fs::create_dir_all(node.join("sys/class")).expect("a folder");
        fs::write(device.join("numa_node"), "1\n").expect("a file");
        fs::write(node.join("sys/class/blocked"), "").expect("a file");
        symlink("../devices/pci0000:00/0000:18:00.0", node.join("sys/class/one")).expect("a link");
        symlink(&device, node.join("sys/class/two")).expect("a link");

        let (host, recorder) = Host::live().recorded();
        let class = node.join("sys/class");
        assert_eq!(host.list(&class), ["blocked", "one", "two"]);
        assert_eq!(host.read(class.join("one/numa_node")).expect("read"), "1\n");
        let real = host.real_path(class.join("two")).expect("a path");
        host.unusable(class.join("blocked"));
        let copy = tempfile::tempdir().expect("a folder");
        recorder.write(copy.path()).expect("written");

        let replay = Host::replayed(copy.path(), BTreeMap::new());
        assert_eq!(replay.list(&class), ["one", "two"]);
        assert_eq!(replay.read(class.join("one/numa_node")).expect("read"), "1\n");
        assert_eq!(replay.real_path(class.join("one")), Some(real.clone()));
        assert_eq!(replay.real_path(class.join("two")), Some(real));
    }

    #[test]
    fn an_absolute_link_stays_inside_the_copy() {
        for (path, target, inside_copy) in [
            ("/opt/venv/bin/python", "/usr/bin/python3", "../../../usr/bin/python3"),
            ("/bin", "usr/bin", "usr/bin"),
            ("/bin", "/usr/bin", "usr/bin"),
        ] {
            assert_eq!(inside(Path::new(path), Path::new(target)), Path::new(inside_copy));
        }
    }

    #[test]
    fn secrets_and_other_users_are_left_out() {
        for (path, text, kept) in [
            ("/proc/7/cmdline", "python\0x.py\0--token\0abc\0", "python\0x.py\0--token\0***\0"),
            ("/proc/self/environ", "HF_TOKEN=abc\0HOME=/x\0", "HF_TOKEN=***\0HOME=/x\0"),
            ("/etc/hosts", "10.0.0.1 a\n", "10.0.0.1 a\n"),
            ("/etc/nccl.conf", "NCCL_API_KEY=abc\n", "NCCL_API_KEY=***\n"),
            ("/run/ranklaunch/x.json", "{\"token\":\"0\"}", "{\"token\":\"0\"}"),
        ] {
            assert_eq!(masked(Path::new(path), text.as_bytes()), kept.as_bytes(), "{path}");
        }
        let uid = rustix::process::getuid();
        let me = format!("me:x:{uid}:0::/home/me:/bin/sh\n");
        let all = format!("other:x:4242424:0::/home/other:/bin/sh\n{me}");
        assert_eq!(masked(Path::new("/etc/passwd"), all.as_bytes()), me.as_bytes());
    }
}
