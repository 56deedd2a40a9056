//! Tests with an index that was cut, or whose numbers match no file.

use std::fs;

use crate::Cursor;
use crate::Wanted;
use crate::Writer;
use crate::page;

/// `ranklaunch logs` shows the existing lines.
#[test]
fn index_with_impossible_offsets_hides_no_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let attempt = folder.path().join("attempt-0");
    fs::create_dir(&attempt).expect("a folder");
    let (most, last) = (u64::MAX, i64::MAX);
    let index = format!(
        "ranklaunch-index 1 5\nfile 0 rank rank-00000.out\n1 0 0 6\n2 0 {most} {most}\n3 0 {last} 7\n4 0 6 7\n"
    );
    fs::write(attempt.join("output.index"), index).expect("a file");
    fs::write(attempt.join("rank-00000.out"), "first\nsecond\n").expect("a file");
    let read = page(folder.path(), Cursor::default(), &Wanted::default(), 1 << 20, true);
    let texts: Vec<String> = read.expect("a page").lines.into_iter().map(|one| one.text).collect();
    assert_eq!(texts, ["first", "second"]);
}

/// A fuzzer found that each reader chose one of the two entries at random.
#[test]
fn first_of_two_writers_of_a_file_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let attempt = folder.path().join("attempt-0");
    fs::create_dir(&attempt).expect("a folder");
    let index = "ranklaunch-index 1 5\nfile 0 command rank-00000.out\nfile 1 rank rank-00000.out\n";
    fs::write(attempt.join("output.index"), index).expect("a file");
    fs::write(attempt.join("rank-00000.out"), "first\n").expect("a file");
    for _ in 0..32 {
        let read = page(folder.path(), Cursor::default(), &Wanted::default(), 1 << 20, true);
        let lines = read.expect("a page").lines;
        assert!(matches!(lines.as_slice(), [one] if one.writer == Writer::Command), "{lines:?}");
    }
}
