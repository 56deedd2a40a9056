//! Lines longer than a read: `ranklaunch logs` shows them and finds what is in them.

use std::fs;
use std::path::Path;

use text::pattern;

use crate::file_names::segment;
use crate::{Cursor, LogLine, Page, Wanted, page};

fn lines(launcher: &Path, grep: Option<&str>) -> Vec<LogLine> {
    let grep = grep.map(|grep| pattern::compile(grep).expect("a pattern"));
    let wanted = Wanted { grep, ..Wanted::default() };
    let mut cursor = Cursor::default();
    let mut lines = Vec::new();
    loop {
        let read = page(launcher, cursor, &wanted, 1 << 20, true).expect("a page");
        let Page { lines: more, next, is_end, .. } = read;
        lines.extend(more);
        cursor = next;
        if is_end {
            return lines;
        }
    }
}

fn launcher(log: &str, parts: &[(String, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let attempt = folder.path().join("attempt-0");
    fs::create_dir(&attempt).expect("a folder");
    fs::write(attempt.join("rank-00000.out"), log).expect("a file");
    for (name, text) in parts {
        fs::write(attempt.join(name), text).expect("a file");
    }
    folder
}

#[test]
fn long_line_is_shown_whole() {
    for length in [10, 16 << 10, (16 << 10) + 1, 64 << 10, 100_000, 250_000] {
        let long = format!("begin {} end", "x".repeat(length));
        let folder = launcher(&format!("first\n{long}\nlast\n{long}"), &[]);
        let read = lines(folder.path(), None);
        let texts: Vec<&str> = read.iter().map(|one| one.text.as_str()).collect();
        assert!(texts == ["first", &long, "last", &long], "{length}: {:?}", lengths(&read));
        assert!(read.iter().all(|one| one.left_out == 0));
        for grep in ["^begin x", "x end$"] {
            assert_eq!(lines(folder.path(), Some(grep)).len(), 2, "{length}: {grep}");
        }
    }
}

#[test]
fn too_long_line_says_how_much_is_left_out() {
    for length in [300_000, 1 << 20, 3_000_001, 10 << 20] {
        let long = format!("begin {}训 end", "训".repeat(length / 3));
        let folder = launcher(&format!("first\n{long}\nlast\n"), &[]);
        for grep in [None, Some(" end$|^last$|^first$")] {
            let read = lines(folder.path(), grep);
            assert_eq!(read.len(), 3, "{length}");
            let Some(LogLine { text, left_out, .. }) = read.get(1) else { panic!("a line") };
            assert!(text.ends_with("训训 end") && text.starts_with('训'));
            assert!(text.len() > 200_000, "{}", text.len());
            assert_eq!(text.len() as u64 + left_out, long.len() as u64, "{length}");
            assert_eq!((read[0].left_out, read[2].left_out), (0, 0));
        }
    }
}

#[test]
fn pattern_is_found_far_before_the_shown_end() {
    let long = format!("begin{}needle{}", "x".repeat(3 << 20), "y".repeat(2 << 20));
    let folder = launcher(&format!("first\n{long}\nlast\n"), &[]);
    for (grep, found) in [("xneedley", 1), ("^begin", 1), ("^x|^y", 0), ("a pin", 0)] {
        assert_eq!(lines(folder.path(), Some(grep)).len(), found, "{grep}");
    }
    // No line begins where the search does.
    let longer = launcher(&format!("{}end\n", "x".repeat(9 << 20)), &[]);
    for (grep, found) in [("^x", 0), ("xend$", 1)] {
        assert_eq!(lines(longer.path(), Some(grep)).len(), found, "{grep}");
    }
}

/// A bar writes its states in one line for hours.
#[test]
fn only_the_last_state_of_a_long_bar_is_shown() {
    let states: String = (0..100_000).map(|n| format!("\rstep {n:08}")).collect();
    let long = format!("{states}\r{}\r\n", "x".repeat(300_000));
    let folder = launcher(&format!("{states}\n{long}"), &[]);
    let read = lines(folder.path(), None);
    assert_eq!((read[0].text.as_str(), read[0].left_out), ("step 00099999", 0));
    assert_eq!(read[1].text.len() as u64 + read[1].left_out, 300_000);
    assert!(lines(folder.path(), Some("step 00000007")).is_empty(), "it is not shown");
}

#[test]
fn long_line_goes_on_in_the_next_part() {
    let (one, two) =
        (format!("old\nbegin{}", "x".repeat(70_000)), format!("{}end\n", "y".repeat(90_000)));
    let parts = [
        (segment("rank-00000.out", 1), one.as_str()),
        (segment("rank-00000.out", 2), two.as_str()),
    ];
    let folder = launcher("head\n", &parts);
    let read = lines(folder.path(), None);
    assert_eq!(lengths(&read), [4, 3, 160_008]);
    assert!(read[2].text.starts_with("beginx") && read[2].text.ends_with("yend"));
}

fn lengths(lines: &[LogLine]) -> Vec<usize> {
    lines.iter().map(|one| one.text.len()).collect()
}
