//! Lines longer than a read: `ranklaunch logs` shows them and finds what is in them.

use std::fs;
use std::path::Path;
use std::time::Instant;

use text::lang::Lang;
use text::pattern;

use crate::capped::CappedFile;
use crate::file_names::segment;
use crate::index::{INDEX, IndexWriter};
use crate::{Cursor, LogFolder, LogLine, Page, Wanted, Writer, page};

fn lines(launcher: &Path, grep: Option<&str>) -> Vec<LogLine> {
    more_lines(launcher, &mut Cursor::default(), grep, true)
}

/// The lines after a cursor, which moves behind them.
fn more_lines(
    launcher: &Path,
    cursor: &mut Cursor,
    grep: Option<&str>,
    is_over: bool,
) -> Vec<LogLine> {
    let grep = grep.map(|grep| pattern::compile(grep).expect("a pattern"));
    let wanted = Wanted { grep, ..Wanted::default() };
    let mut lines = Vec::new();
    loop {
        let read = page(launcher, *cursor, &wanted, 1 << 20, is_over).expect("a page");
        let Page { lines: more, next, is_end, .. } = read;
        lines.extend(more);
        *cursor = next;
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

/// The log of one rank with the cap of its file, as a launch writes it.
struct Written {
    launcher: tempfile::TempDir,
    file: CappedFile,
    index: IndexWriter,
}

impl Written {
    fn new(cap: u64, lang: Lang) -> Written {
        let launcher = tempfile::tempdir().expect("a folder");
        let attempt = launcher.path().join("attempt-0");
        fs::create_dir(&attempt).expect("a folder");
        let folder = LogFolder::flat(&attempt);
        let mut index = IndexWriter::new(folder.clone());
        index.add(Writer::Rank);
        let file = CappedFile::new(folder, "rank-00000.out".to_owned(), cap, lang);
        Written { launcher, file, index }
    }

    fn write(&mut self, bytes: &[u8]) {
        let Written { file, index, .. } = self;
        let note = |name: &str, at, count| index.note(0, name, at, count, Instant::now());
        file.write(bytes, note).expect("written");
        index.flush(Instant::now());
    }

    fn lines(&self, grep: Option<&str>) -> Vec<String> {
        texts(lines(self.launcher.path(), grep))
    }

    fn has(&self, name: &str) -> bool {
        self.launcher.path().join("attempt-0").join(name).exists()
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.launcher.path().join("attempt-0").join(name)).expect("removed");
    }
}

fn texts(lines: Vec<LogLine>) -> Vec<String> {
    lines.into_iter().map(|one| one.text).collect()
}

/// Lines that cross from the head to the first segment, and from there to the second, at many places.
#[test]
fn line_split_over_any_two_files_is_whole() {
    for (first, lang) in [(0, Lang::En), (7, Lang::Zh), (199, Lang::En), (200, Lang::Zh)] {
        for chunk in [1, 64, 1 << 10] {
            let long = |name: &str| format!("begin {name}{} end", "x".repeat(300));
            let expected = ["f".repeat(first), long("one"), long("two"), "last".to_owned()];
            let mut log = Written::new(1_000, lang);
            let (mut cursor, mut followed) = (Cursor::default(), Vec::new());
            for piece in expected.join("\n").as_bytes().chunks(chunk) {
                log.write(piece);
                followed.extend(more_lines(log.launcher.path(), &mut cursor, None, false));
            }
            assert!(log.has(&segment("rank-00000.out", 2)), "there are three files");
            followed.extend(more_lines(log.launcher.path(), &mut cursor, None, true));
            assert_eq!(texts(followed), expected, "{first} {chunk}");
            for has_index in [true, false] {
                let what = format!("{first} {chunk} {has_index}");
                assert_eq!(log.lines(None), expected, "{what}");
                assert_eq!(log.lines(Some("^begin .* end$")), expected[1..3], "{what}");
                if has_index {
                    log.remove(INDEX);
                }
            }
        }
    }
}

/// The middle of a line is removed: both its ends are shown, and the number of bytes between them.
#[test]
fn line_without_its_middle_shows_both_ends() {
    for lang in [Lang::En, Lang::Zh] {
        let mut log = Written::new(1_000, lang);
        log.write(b"first\n");
        (0..200).for_each(|_| log.write(&[b'x'; 10]));
        log.write(b"\nlast\n");
        for has_index in [true, false] {
            let shown = log.lines(None);
            let [first, begin, mark, end, last] = shown.as_slice() else { panic!("{shown:?}") };
            assert_eq!((first.as_str(), last.as_str()), ("first", "last"), "{shown:?}");
            assert!(mark.starts_with("[ranklaunch] "), "{mark}");
            let missing = log.file.missing;
            assert!(missing > 0 && mark.contains(&format!(" {missing} ")), "{mark}");
            assert_eq!((begin.len() + end.len()) as u64 + missing, 2_000);
            if has_index {
                log.remove(INDEX);
            }
        }
    }
}

fn lengths(lines: &[LogLine]) -> Vec<usize> {
    lines.iter().map(|one| one.text.len()).collect()
}
