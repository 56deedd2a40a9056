//! Watches a file that the platform makes or changes.
//!
//! The file that is there when the launcher starts says nothing: it may be left over from an earlier notice. So it counts
//! once it is new or has changed: another inode, size or time. Its content is read only if it is a regular file.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::answers::{self, End};
use linux::host::Host;
use linux::regular_file;

/// The longest content that is read.
const LARGEST: u64 = 64 * 1024;

/// What tells one state of a file from another.
type State = (u64, u64, u64, i64, i64);

#[derive(Debug)]
pub(super) struct FileWatch {
    host: Host,
    path: PathBuf,
    /// At the first look; None before.
    before: Option<Option<State>>,
    /// What the file says since it is new.
    end: Option<End>,
}

impl FileWatch {
    pub(super) fn new(host: &Host, path: &Path) -> FileWatch {
        FileWatch { host: host.clone(), path: path.to_owned(), before: None, end: None }
    }

    /// What the file says, and whether it is new at this look.
    pub(super) fn look(&mut self) -> (Option<End>, bool) {
        let is_new = self.read();
        (self.end.clone(), is_new)
    }

    fn read(&mut self) -> bool {
        let now = match self.host.try_metadata(&self.path) {
            Ok(metadata) => {
                let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
                Some((metadata.dev(), metadata.ino(), metadata.len(), seconds, nanoseconds))
            }
            Err(error) if is_absent(&error) => None,
            // A mount that does not answer, or a right that ran out, says nothing about the file. What is there when it
            // is seen for the first time is left over.
            Err(_) => return false,
        };
        if *self.before.get_or_insert(now) == now {
            return false;
        }
        // A file that is removed and made again is new, even with the same inode.
        if now.is_none() {
            (self.before, self.end) = (Some(None), None);
            return false;
        }
        self.before = Some(now);
        let bytes = regular_file::read(&self.host.path(&self.path), LARGEST).unwrap_or_default();
        self.end = Some(answers::file(&self.path.display().to_string(), &bytes));
        true
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, SystemTime};

    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("stop");
        (folder, path)
    }

    fn watch(path: &Path) -> FileWatch {
        let mut watch = FileWatch::new(&Host::live(), path);
        assert_eq!(watch.look().0, None);
        watch
    }

    #[test]
    fn a_new_file_is_a_notice() {
        let (_folder, path) = folder();
        let mut watch = watch(&path);
        assert_eq!(watch.look().0, None);
        fs::write(&path, r#"{"deadline": "2019-01-21T09:00:43Z", "reason": "drain"}"#)
            .expect("a file");
        let end = watch.look().0.expect("a notice");
        assert_eq!(end.at, SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(1_548_061_243)));
        assert!(end.reason.en.ends_with(": drain"), "{}", end.reason.en);
    }

    #[test]
    fn a_file_of_before_counts_once_it_changes() {
        let (_folder, path) = folder();
        fs::write(&path, "left over").expect("a file");
        let mut changed = watch(&path);
        let mut removed = watch(&path);
        assert_eq!((changed.look().0, removed.look().0), (None, None));
        fs::write(&path, "stop now").expect("a file");
        assert!(
            matches!(changed.look(), (Some(_), true)) && matches!(changed.look(), (Some(_), false))
        );
        fs::remove_file(&path).expect("gone");
        assert_eq!((changed.look().0, removed.look().0), (None, None));
        fs::write(&path, "left over").expect("a file");
        assert!(changed.look().1 && removed.look().1);
    }

    /// A mount that answers nothing for a while, or a right that ran out.
    #[test]
    fn file_that_cannot_be_seen_is_not_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let (real, way) = (folder.path().join("real"), folder.path().join("way"));
        fs::create_dir(&real).expect("a folder");
        fs::write(real.join("stop"), "left over").expect("a file");
        let lead = |to: &Path| {
            let _ = fs::remove_file(&way);
            std::os::unix::fs::symlink(to, &way).expect("a link");
        };
        lead(&real);
        let mut seen = FileWatch::new(&Host::live(), &way.join("stop"));
        assert_eq!(seen.look(), (None, false));
        // ELOOP
        lead(&way);
        let mut unseen = FileWatch::new(&Host::live(), &way.join("stop"));
        assert_eq!((seen.look(), unseen.look()), ((None, false), (None, false)));
        lead(&real);
        assert_eq!((seen.look(), unseen.look()), ((None, false), (None, false)));
        fs::write(real.join("stop"), "stop now").expect("a file");
        assert!(seen.look().1 && unseen.look().1);
    }

    /// touch(1) on an empty file.
    #[test]
    fn a_touch_is_a_change() {
        let (_folder, path) = folder();
        fs::write(&path, "").expect("a file");
        let mut watch = watch(&path);
        let later = SystemTime::now() + Duration::from_secs(3);
        fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|f| f.set_modified(later))
            .expect("touched");
        assert!(watch.look().1);
    }

    #[test]
    fn what_is_no_readable_file_is_only_a_notice() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};

        let (_folder, path) = folder();
        type Make = fn(&Path);
        let make: [(&str, Make); 4] = [
            ("a FIFO", |path| mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).expect("a FIFO")),
            ("a folder", |path| fs::create_dir(path).expect("a folder")),
            ("a huge file", |path| {
                fs::File::create(path)
                    .and_then(|file| file.set_len(1 << 40))
                    .expect("a sparse file");
            }),
            ("garbage", |path| fs::write(path, [0xff, 0, 0x1b]).expect("a file")),
        ];
        for (name, make) in make {
            let mut watch = watch(&path);
            make(&path);
            let end = watch.look().0.expect(name);
            assert_eq!(end.at, None, "{name}");
            if path.is_dir() { fs::remove_dir(&path) } else { fs::remove_file(&path) }.expect(name);
        }
    }
}
