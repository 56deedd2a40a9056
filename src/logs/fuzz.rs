//! Fuzz targets for the output of ranks on its way to the console and to a terminal, and for the index of an attempt's
//! output with the files that it names. Not part of the program.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use super::index::{Entry, INDEX};
use super::lines::{LONGEST_LINE, LineFormatter, Marks};
use super::pages::{Cursor, LogLine, Wanted, page};
use text::columns::{columns, end_within, shortened_path, start_within, wrapped};
use text::escape::printable;
use text::fuzzing::{Choices, assert_printable};

/// Output of a rank. The first two bytes choose how the output is cut and how wide the terminal is.
///
/// Every cut gives the same lines, no line is longer than the console allows, and no sequence is left that a terminal
/// would obey. Text that is fitted into a width is no wider than that width, and loses no letter when it is folded.
pub fn console(data: &[u8]) -> bool {
    let [cut, wide, bytes @ ..] = data else { return false };
    let whole = shown(std::iter::once(bytes));
    let size = usize::from(*cut) + 1;
    // A piece that ends in a carriage return is shown as the current state of a bar, so no piece ends there.
    let mut left = bytes;
    let pieces = std::iter::from_fn(|| {
        let ends = |at: &usize| *at >= left.len() || left.get(at - 1) != Some(&b'\r');
        let at = (size..=left.len().max(size)).find(ends)?.min(left.len());
        let (piece, rest) = left.split_at(at);
        left = rest;
        (!piece.is_empty()).then_some(piece)
    });
    assert_eq!(whole, shown(pieces), "by pieces of {size}");
    assert_printable(&whole);
    for line in whole.lines() {
        let line = line.strip_prefix("[r0] ").expect("a prefix");
        // An escaped byte takes four places.
        assert!(line.len() <= 4 * LONGEST_LINE + 16, "{} bytes", line.len());
    }
    let text = printable(&String::from_utf8_lossy(bytes)).into_owned();
    assert_printable(&text);
    assert_eq!(printable(&text), text);
    fitted(&text, usize::from(*wide));
    !whole.is_empty()
}

fn shown<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
    let start = Instant::now();
    let mut formatter = LineFormatter::new(&Marks { before: "[r0] ".to_owned(), after: "" });
    let mut out = Vec::new();
    for piece in pieces {
        formatter.feed(piece, start, &mut out);
    }
    // A formatter that still holds a bar or a row asks to be called again within a minute.
    if let Some(deadline) = formatter.deadline() {
        assert!(deadline <= start + Duration::from_secs(60), "{:?}", deadline - start);
    }
    formatter.finish(&mut out);
    let text = String::from_utf8(out).expect("valid UTF-8");
    assert_eq!(formatter.emitted, text.matches('\n').count() as u64);
    text
}

fn fitted(text: &str, wide: usize) {
    for line in text.lines().take(4) {
        let bare = text::style::plain(line).into_owned();
        let (start, end) = (start_within(&bare, wide), end_within(&bare, wide));
        assert!(columns(start) <= wide && columns(end) <= wide, "{wide}: {bare:?}");
        assert!(bare.starts_with(start) && bare.ends_with(end));
        let short = shortened_path(&bare, wide);
        assert!(wide == 0 || columns(&short) <= wide, "{wide}: {bare:?} {short:?}");
    }
    let letters = |text: &str| -> String {
        text::style::plain(text).chars().filter(|letter| !letter.is_whitespace()).collect()
    };
    let folded = wrapped(text, wide);
    assert_eq!(letters(&folded), letters(text), "{wide}");
}

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
