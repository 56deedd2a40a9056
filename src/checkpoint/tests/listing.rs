//! What a list says beside the checkpoints: paths, ages, and where it is not complete.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::*;

proptest! {
    #[test]
    fn paths_as_text_are_as_many_as_paths(
        paths in prop::collection::btree_set(
            prop::collection::vec(prop::sample::select(b"\\x\\xf0a/\xff\xfe\xc3\xa9".to_vec()), 1..8), 2..9)
    ) {
        let texts: std::collections::BTreeSet<String> =
            paths.iter().map(|path| shown(OsStr::from_bytes(path))).collect();
        prop_assert_eq!(texts.len(), paths.len(), "{:?}", texts);
        for path in paths.iter().filter_map(|path| std::str::from_utf8(path).ok()) {
            prop_assert!(path.contains("\\x") || texts.contains(path), "{:?}", path);
        }
    }
}

#[test]
fn age_that_cannot_be_true_is_none() {
    let folder = made(&["step-1.pt"]);
    let age = |at: SystemTime| {
        let file = std::fs::File::options().write(true).open(folder.path().join("step-1.pt"));
        file.and_then(|file| file.set_modified(at)).expect("its time is set");
        found(&folder)[0].age().map(|age| age.as_secs())
    };
    let (now, second) = (SystemTime::now(), Duration::from_secs(1));
    assert_eq!(age(now - 1000 * second).map(|age| age / 10), Some(100));
    // Clocks are some seconds apart.
    assert_eq!(age(now + 9 * second), Some(0));
    assert_eq!(age(now + 9000 * second), None);
    // Without a time, of a build that is to be the same each time, of a zip archive.
    for seconds in [0, 1, 315_532_800] {
        assert_eq!(age(SystemTime::UNIX_EPOCH + seconds * second), None);
    }
}

/// Any depth of folders: each checkpoint is listed, or a folder above it is named.
#[test]
fn folders_that_are_too_deep_are_named() {
    for depth in 0..8_usize {
        let above: String =
            (0..depth).map(|level| format!("{}/", char::from(b'a' + level as u8))).collect();
        let folder = made(&["top.pt", &format!("{above}step-1.pt"), ".git/a/b/c/d/e/f/g.pt"]);
        let Survey { found, unread } =
            survey(folder.path(), &Limits::default()).expect("it is read");
        let is_listed = found.iter().any(|one| one.step == Some(1));
        assert_eq!((is_listed, unread.len()), (depth <= 4, usize::from(depth > 4)), "{depth}");
        assert!(unread.iter().all(|path| *path == folder.path().join("a/b/c/d")), "{unread:?}");
    }
}
