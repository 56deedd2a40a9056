//! An index that was cut, or whose numbers are of nothing.

use std::fs;

use crate::logs::{Cursor, Wanted, page};

/// `ranklaunch logs` shows what is there.
#[test]
fn an_index_that_names_what_no_file_has_hides_no_line() {
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
