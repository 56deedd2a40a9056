//! The index of an attempt's output: which bytes of which file were written at which time.
//!
//! The logs hold raw bytes without times. `output.index` beside them records in which order the ranks wrote, so that
//! `ranklaunch logs` can merge many files, even long after the run. The index is text: a head with the time from which
//! all others count, a line for each file, and a line for each piece of output.
//!
//! ```text
//! ranklaunch-index 1 1763920000123
//! file 0 rank rank-00000.out
//! 42 0 0 118
//! ```
//!
//! The last line says that 42 ms after the head's time 118 bytes were added to file 0, at its byte 0. Bytes that are
//! added to one file within [`IndexWriter::interval`] are one piece, and that interval grows with the index: after a
//! day of eight ranks that write without a pause the index has some MB. Output that the index does not cover, or all
//! output if there is no index, is ordered file by file.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::folder::{FolderLevel, LogFolder};
use linux::deadline::millis;
use text::order::Ordered;
use verdict::outcome::Owner;

/// The file's name, in the folder of an attempt.
pub(crate) const INDEX: &str = "output.index";
const HEAD: &str = "ranklaunch-index 1";
/// Bytes of the index after which the interval grows by one millisecond…
const STEP: u64 = 64 * 1024;
/// …up to this maximum.
const LONGEST: Duration = Duration::from_secs(1);

/// The kind of process that writes a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Writer {
    Rank,
    /// The command of a node, with engine `command`.
    Command,
    Engine,
}

impl Writer {
    pub(super) fn of(owner: Owner) -> Writer {
        match owner {
            Owner::Engine => Writer::Engine,
            Owner::Rank(_) => Writer::Rank,
            Owner::Command(_) => Writer::Command,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Writer::Rank => "rank",
            Writer::Command => "command",
            Writer::Engine => "engine",
        }
    }
}

/// One line of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    /// Milliseconds since 1970 from which the times of the following lines count.
    Begin(u64),
    File {
        number: usize,
        writer: Writer,
        name: &'a str,
    },
    Piece {
        after_ms: u64,
        file: usize,
        at: u64,
        bytes: u64,
    },
}

impl Entry<'_> {
    /// None for a line that was cut or comes from a later version.
    pub(super) fn parse(line: &str) -> Option<Entry<'_>> {
        if let Some(begun) = line.strip_prefix(HEAD) {
            return begun.trim().parse().ok().map(Entry::Begin);
        }
        let mut words = line.split(' ');
        let first = words.next()?;
        if first == "file" {
            let number = words.next()?.parse().ok()?;
            let word = words.next()?;
            let all = [Writer::Rank, Writer::Command, Writer::Engine];
            let writer = all.into_iter().find(|writer| writer.word() == word)?;
            let name = words.next().filter(|name| is_plain(name))?;
            return Some(Entry::File { number, writer, name });
        }
        let after_ms = first.parse().ok()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        let (file, at, bytes) = (usize::try_from(number()?).ok()?, number()?, number()?);
        Some(Entry::Piece { after_ms, file, at, bytes })
    }
}

/// Whether a name of the index is a plain file name. The index names files to open, and anyone who may read the logs
/// may use it.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/')
}

/// A piece that may still grow.
#[derive(Debug, Clone, Copy)]
struct Open {
    after_ms: u64,
    at: u64,
    bytes: u64,
}

/// The state of one log in the index.
#[derive(Debug)]
struct Known {
    writer: Writer,
    /// The name and the number of the current part.
    part: Option<(String, usize)>,
    open: Option<Open>,
}

/// Writes the index. The writer of the log files owns it, since the index records the order of its writes.
#[derive(Debug)]
pub(super) struct IndexWriter {
    folder: Arc<LogFolder>,
    /// None before the first line, and after an error.
    file: Option<File>,
    failed: bool,
    began: Instant,
    logs: Vec<Known>,
    /// Number of the next part.
    next: usize,
    /// Lines for files whose pieces are not written yet.
    names: String,
    written: u64,
    flushed: Instant,
    /// Whether a piece is open.
    due: bool,
}

impl IndexWriter {
    pub(super) fn new(folder: Arc<LogFolder>) -> IndexWriter {
        let now = Instant::now();
        IndexWriter {
            folder,
            file: None,
            failed: false,
            began: now,
            logs: Vec::new(),
            next: 0,
            names: String::new(),
            written: 0,
            flushed: now,
            due: false,
        }
    }

    pub(super) fn add(&mut self, writer: Writer) {
        self.logs.push(Known { writer, part: None, open: None });
    }

    /// Records that `bytes` bytes were added to the part `name` of a log, at its byte `at`.
    pub(super) fn note(&mut self, log: usize, name: &str, at: u64, bytes: u64, now: Instant) {
        let after_ms = millis(now.saturating_duration_since(self.began));
        let interval = millis(self.interval());
        let Some(known) = self.logs.get_mut(log).filter(|_| bytes > 0) else { return };
        let is_same = known.part.as_ref().is_some_and(|(part, _)| part == name);
        if let (true, Some(open)) = (is_same, &mut known.open)
            && open.at + open.bytes == at
            && after_ms.saturating_sub(open.after_ms) < interval
        {
            open.bytes += bytes;
            return;
        }
        if known.open.is_some() {
            self.flush(now);
        }
        let Some(known) = self.logs.get_mut(log) else { return };
        if !is_same {
            let word = known.writer.word();
            let _ = writeln!(self.names, "file {} {word} {name}", self.next);
            known.part = Some((name.to_owned(), self.next));
            self.next += 1;
        }
        known.open = Some(Open { after_ms, at, bytes });
        self.due = true;
    }

    /// The time at which the open pieces must be written; None if no piece is open.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.then(|| self.flushed.checked_add(self.interval())).flatten()
    }

    /// Writes the open pieces in the order of their times. If the index cannot be written it ends here, and the logs go
    /// on.
    pub(super) fn flush(&mut self, now: Instant) {
        self.flushed = now;
        if !std::mem::take(&mut self.due) || self.failed {
            return;
        }
        let mut pieces: Vec<(Open, usize)> = self
            .logs
            .iter_mut()
            .filter_map(|known| Some((known.open.take()?, known.part.as_ref()?.1)))
            .collect();
        pieces.order_by_key(|(open, _)| open.after_ms);
        let mut lines = std::mem::take(&mut self.names);
        for (Open { after_ms, at, bytes }, part) in pieces {
            let _ = writeln!(lines, "{after_ms} {part} {at} {bytes}");
        }
        self.failed = self.write(&lines).is_err();
    }

    fn write(&mut self, lines: &str) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut file = self.folder.append(FolderLevel::Attempt, INDEX)?;
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let begun = millis(since).saturating_sub(millis(self.began.elapsed()));
                // A newline ends a line that an earlier writer could not finish.
                let end = if file.metadata()?.len() > 0 { "\n" } else { "" };
                file.write_all(format!("{end}{HEAD} {begun}\n").as_bytes())?;
                self.file.insert(file)
            }
        };
        file.write_all(lines.as_bytes())?;
        self.written += lines.len() as u64;
        Ok(())
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(1 + self.written / STEP).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_entries_are_read_in_order_of_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut index = IndexWriter::new(LogFolder::flat(folder.path()));
        index.add(Writer::Rank);
        index.add(Writer::Engine);
        let at = |ms: u64| index_began(&index) + Duration::from_millis(ms);
        let (t5, t6, t9, t20) = (at(5), at(6), at(9), at(20));
        index.note(1, "engine.log", 0, 3, t6);
        index.note(0, "rank-00000.out", 0, 10, t5);
        assert!(index.due().is_some());
        index.flush(t9);
        assert_eq!(index.due(), None);
        index.note(0, "rank-00000.out", 10, 4, t9);
        // A piece that does not continue the previous one.
        index.note(0, "rank-00000.out.00001", 0, 7, t20);
        index.flush(t20);
        let text = std::fs::read_to_string(folder.path().join(INDEX)).expect("an index");
        let mut lines = text.lines().map(Entry::parse);
        assert!(matches!(lines.next(), Some(Some(Entry::Begin(begun))) if begun > 0), "{text}");
        let rest: Vec<String> = text.lines().skip(1).map(str::to_owned).collect();
        let expected = [
            "file 0 engine engine.log",
            "file 1 rank rank-00000.out",
            "5 1 0 10",
            "6 0 0 3",
            "9 1 10 4",
            "file 2 rank rank-00000.out.00001",
            "20 2 0 7",
        ];
        assert_eq!(rest, expected);
        assert!(lines.all(|entry| entry.is_some()), "{text}");
    }

    fn index_began(index: &IndexWriter) -> Instant {
        index.began
    }

    #[test]
    fn invalid_index_line_is_none() {
        for line in ["", "x", "1 2", "1 2 3 x", "file 0 rank ../etc/passwd", "file 0 rank .x"] {
            assert_eq!(Entry::parse(line), None, "{line}");
        }
    }

    #[test]
    fn pieces_become_longer_as_the_index_grows() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut index = IndexWriter::new(LogFolder::flat(folder.path()));
        index.add(Writer::Rank);
        let began = index.began;
        // For a rank that writes 10 bytes each 2 ms, a day would be 43 million pieces.
        for step in 0..500_000_u64 {
            let now = began + Duration::from_millis(step * 2);
            index.note(0, "rank-00000.out", step * 10, 10, now);
        }
        index.flush(began);
        let bytes = std::fs::metadata(folder.path().join(INDEX)).expect("an index").len();
        assert!((64 * 1024..3 << 20).contains(&bytes), "{bytes}");
    }
}
