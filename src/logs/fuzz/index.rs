//! Fuzz target for the index of an attempt's output and the files that it names. Not part of the program.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use super::super::index::{Entry, INDEX};
use super::super::pages::{Cursor, LogLine, Wanted, page};
use text::fuzzing::{Choices, assert_printable};

/// Maximum number of pages that a reader requests: each page moves the cursor.
const MOST_PAGES: usize = 600;

/// A folder of one process, in memory if `/dev/shm` is available.
static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
});

/// An index, followed after NUL bytes by the logs of ranks 0 and 1. The first byte chooses the size of a page.
///
/// The pages end, whatever the index says, and have the same lines whatever their size. No file outside of the attempt
/// is read, and no line contains a sequence that a terminal would obey.
pub fn index(data: &[u8]) -> bool {
    let mut choices = Choices(data);
    let most = choices.below(64) + 1;
    let (index, first) = (choices.until_nul(), choices.until_nul());
    let second = choices.0;
    let launcher = FOLDER.path().join(format!("{:?}", std::thread::current().id()));
    let attempt = launcher.join("attempt-0");
    let secret = launcher.join("secret");
    if !attempt.is_dir() {
        fs::create_dir_all(&attempt).expect("a folder");
        fs::write(&secret, "secret of another folder\n").expect("a file");
    }
    let files: [(&str, &[u8]); 3] =
        [(INDEX, index), ("rank-00000.out", first), ("rank-00001.err", second)];
    for (name, bytes) in files {
        fs::write(attempt.join(name), bytes).expect("a file");
    }
    let known = String::from_utf8_lossy(index).lines().filter_map(Entry::parse).count();
    let (few, many) = (lines(&launcher, most), lines(&launcher, usize::MAX));
    assert_eq!(few, many, "by pages of {most} bytes");
    // A fuzzer sees the text that its input is compared with, and writes that text into a log.
    let is_told = memchr::memmem::find(data, b"secret of another").is_some();
    for line in &many {
        assert!(is_told || !line.text.contains("secret of another"), "{line:?}");
        assert!(!line.text.contains('\n'), "{line:?}");
        assert_printable(&line.text);
    }
    known > 0
}

fn lines(launcher: &Path, most: usize) -> Vec<LogLine> {
    let mut cursor = Cursor::default();
    let mut lines = Vec::new();
    for _ in 0..MOST_PAGES {
        let page = page(launcher, cursor, &Wanted::default(), most, true).expect("a page");
        let is_end = page.is_end;
        assert!(is_end || page.next != cursor, "no page moves on from {cursor:?}");
        lines.extend(page.lines);
        cursor = page.next;
        // Another program sends the cursor back, so it must survive JSON.
        let text = serde_json::to_string(&cursor).expect("JSON");
        assert_eq!(serde_json::from_str::<Cursor>(&text).expect("a cursor"), cursor);
        if is_end {
            return lines;
        }
    }
    panic!("{MOST_PAGES} pages, and no end");
}
