//! The output of one launcher of a run, merged in the order in which it was written.
//!
//! Takes the folder of a launcher and a [`Cursor`]. Gives the lines after the cursor, page by page, and the cursor of
//! the next page. Nothing is held between two pages, so a page can be requested from another node, a run may have any
//! length, and a slow reader costs nothing. The order is that of the index ([`super::index`]); output that no index
//! covers comes last, file by file.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::UNIX_EPOCH;

use memchr::{memchr_iter, memrchr};
use regex::bytes::Regex;
use serde::{Deserialize, Serialize};

use super::attempt_files::{AttemptFiles, Beginning, Output, Place, WINDOW, beside};
use super::file_names::{AttemptFolder, ENGINE_LOG, LONGEST_MARK, RankLog, continued, segment};
use super::index::{Entry, INDEX, Writer};
use linux::regular_file;
use text::escape::push_escaped;
use verdict::outcome::Stream;

/// Bytes of files that one page may read when most lines are filtered out.
const MOST_READ: u64 = 32 << 20;
/// Maximum bytes of an index line, the longest of which names a file.
const LONGEST_ENTRY: u64 = 4096;
/// Maximum bytes that are shown of a line. Of a longer line the end is shown, with the number of bytes before it.
const LONGEST_LINE: usize = 256 * 1024;
/// Maximum bytes of the end of a line in which a pattern is looked for.
const LONGEST_SEARCHED: usize = 8 << 20;

/// Position of a reader in the output of a launcher.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    pub attempt: u32,
    /// Position in the index.
    entry: u64,
    /// Bytes of the piece at `entry` that are already read.
    done: u64,
    /// Set when the index is read to its end: the number of files already read for output outside of the index.
    rest: Option<u64>,
}

/// The filter for lines.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Only these ranks; if empty, all ranks and the engine.
    pub ranks: Vec<u32>,
    /// Only lines from this time on, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    pub grep: Option<Regex>,
}

/// One line of the output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Time at which the end of the line was written, in milliseconds since 1970. None if no index covers it.
    pub at_ms: Option<u64>,
    pub attempt: u32,
    pub writer: Writer,
    /// The global rank; for a command the node rank.
    pub number: u32,
    pub is_err: bool,
    /// The text without control sequences that a terminal would obey, except colours.
    pub text: String,
    /// Bytes of the line before `text`, if it is too long to be shown whole; counted up to [`LogLine::COUNTED`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

impl LogLine {
    /// Where the count of the bytes before a text ends.
    pub const COUNTED: u64 = 64 << 20;

    /// The line with at most the last `most` bytes of its text.
    pub fn end(&self, most: usize) -> LogLine {
        let cut = self.text.ceil_char_boundary(self.text.len().saturating_sub(most));
        let (before, text) = self.text.split_at_checked(cut).unwrap_or_default();
        let left_out = self.left_out + before.len() as u64;
        LogLine { text: text.to_owned(), left_out, ..*self }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Lines in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    pub lines: Vec<LogLine>,
    pub next: Cursor,
    /// Nothing more is available now.
    pub is_end: bool,
    /// The largest rank number in this attempt.
    pub last_rank: u32,
    /// Files in the place of logs that are links or no regular files, and were not read.
    #[serde(default)]
    pub odd: Vec<String>,
}

/// A file of an attempt, as its index names it.
#[derive(Debug, Clone)]
struct Named {
    name: String,
    writer: Writer,
    number: u32,
    is_err: bool,
}

impl Named {
    fn new(name: &str, writer: Writer) -> Named {
        let log = RankLog::parse(continued(name));
        Named {
            name: name.to_owned(),
            writer,
            number: log.map_or(0, |log| log.number),
            is_err: log.is_some_and(|log| log.stream == Stream::Err),
        }
    }
}

/// The lines of `launcher`, a folder `node-<k>`, from the cursor on: about `most` bytes of them. `is_over`: nothing
/// more will be written to the folder, so an unfinished line counts too.
///
/// # Errors
/// If the folder cannot be read.
pub fn page(
    launcher: &Path,
    cursor: Cursor,
    wanted: &Wanted,
    most: usize,
    is_over: bool,
) -> io::Result<Page> {
    let mut attempts = attempts(launcher)?;
    attempts.retain(|number| *number >= cursor.attempt);
    let Some(attempt) = attempts.first().copied() else {
        return Ok(Page { next: cursor, is_end: true, ..Page::default() });
    };
    let cursor =
        if attempt == cursor.attempt { cursor } else { Cursor { attempt, ..Cursor::default() } };
    // A later attempt proves that this attempt is over.
    let following = attempts.get(1).copied();
    let mut reading = Reading {
        files: AttemptFiles::new(launcher, attempt),
        wanted,
        most,
        is_over: is_over || following.is_some(),
        begun_ms: None,
        named: BTreeMap::new(),
        bytes: 0,
        page: Page { next: cursor, ..Page::default() },
    };
    reading.read()?;
    let mut page = Page { odd: reading.files.odd, ..reading.page };
    if let (true, Some(attempt)) = (page.is_end, following) {
        page.next = Cursor { attempt, ..Cursor::default() };
        page.is_end = false;
    }
    Ok(page)
}

/// The numbers of the attempts in the folder of a launcher, in ascending order.
pub fn attempts(launcher: &Path) -> io::Result<Vec<u32>> {
    let mut numbers: Vec<u32> = launcher
        .read_dir()?
        .filter_map(|entry| Some(AttemptFolder::parse(entry.ok()?.file_name().to_str()?)?.0))
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// One page that is being filled.
struct Reading<'a> {
    files: AttemptFiles,
    wanted: &'a Wanted,
    most: usize,
    is_over: bool,
    begun_ms: Option<u64>,
    /// Files by their numbers in the index. If the index gives one file several numbers, the lowest counts.
    named: BTreeMap<usize, Named>,
    /// Bytes of the lines on the page.
    bytes: usize,
    page: Page,
}

impl Reading<'_> {
    fn read(&mut self) -> io::Result<()> {
        if self.page.next.rest.is_none() {
            match self.files.open(INDEX) {
                Ok((index, _)) => self.index(&index)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.page.is_end = true,
                Err(error) => return Err(error),
            }
            if !self.page.is_end || !self.is_over {
                return Ok(());
            }
            self.page.is_end = false;
            self.page.next = Cursor { rest: Some(0), done: 0, ..self.page.next };
        }
        self.rest()
    }

    fn is_full(&self) -> bool {
        self.bytes >= self.most || self.files.read >= MOST_READ
    }

    /// Follows the index until the page is full or the index ends.
    fn index(&mut self, index: &File) -> io::Result<()> {
        let Cursor { entry: from, .. } = self.page.next;
        let mut reader = BufReader::new(index);
        let mut at = 0;
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut reader).take(LONGEST_ENTRY).read_until(b'\n', &mut line)? as u64;
            // The last line is still being written.
            if line.last() != Some(&b'\n') && read < LONGEST_ENTRY {
                self.page.is_end = true;
                return Ok(());
            }
            // There are many pieces before the cursor, and none needs to be parsed.
            let is_done = at < from && line.first().is_some_and(u8::is_ascii_digit);
            let text = if is_done { &[][..] } else { &line };
            let text = std::str::from_utf8(text).unwrap_or_default().trim_end();
            match Entry::parse(text) {
                Some(Entry::Begin(begun)) => {
                    self.begun_ms = Some(begun);
                    self.named.clear();
                }
                Some(Entry::File { number, writer, name }) => {
                    let named = Named::new(name, writer);
                    self.page.last_rank = self.page.last_rank.max(named.number);
                    if at >= from {
                        self.gap(&named)?;
                    }
                    self.named.insert(number, named);
                }
                Some(Entry::Piece { after_ms, file, at: first, bytes }) if at >= from => {
                    if self.is_full() {
                        return Ok(());
                    }
                    let time = self.begun_ms.map(|begun| begun.saturating_add(after_ms));
                    if let Some(named) = self.named.get(&file).cloned() {
                        let piece = first..first.saturating_add(bytes);
                        if !self.piece(&named, time, &piece)? {
                            return Ok(());
                        }
                    }
                }
                _ => {}
            }
            at += read;
            if at > from {
                self.page.next = Cursor { entry: at, done: 0, ..self.page.next };
            }
        }
    }

    /// Shows the end of a head at the place where its tail begins.
    fn gap(&mut self, tail: &Named) -> io::Result<()> {
        let name = continued(&tail.name);
        if tail.name == segment(name, 1) {
            self.end_of_head(&Named::new(name, tail.writer))?;
        }
        Ok(())
    }

    /// Shows the mark of a head if output is missing after it, and before it the beginning of a line that has no end.
    fn end_of_head(&mut self, head: &Named) -> io::Result<()> {
        let Some(Output { length, mark: Some(mark) }) = self.files.output(&head.name)? else {
            return Ok(());
        };
        if mark.missing == 0 || !self.is_wanted(head, None) {
            return Ok(());
        }
        self.unfinished(head, length)?;
        let line = self.files.window(&head.name, length, length.saturating_add(LONGEST_MARK))?;
        self.line(head, None, line.unwrap_or_default().trim_ascii(), None)
    }

    /// Shows a line that begins before `at` and has no end there.
    fn unfinished(&mut self, named: &Named, at: u64) -> io::Result<()> {
        let Beginning { bytes, more } = self.files.before(&named.name, at, self.searched())?;
        if bytes.is_empty() { Ok(()) } else { self.line(named, None, &bytes, more) }
    }

    /// Bytes of a line that are looked at: as far as it is searched or shown.
    fn searched(&self) -> usize {
        if self.wanted.grep.is_some() { LONGEST_SEARCHED } else { LONGEST_LINE }
    }

    fn is_wanted(&self, named: &Named, at_ms: Option<u64>) -> bool {
        let Wanted { ranks, since_ms, .. } = self.wanted;
        let is_rank = named.writer != Writer::Engine && ranks.contains(&named.number);
        (ranks.is_empty() || is_rank)
            && since_ms.is_none_or(|since| at_ms.is_none_or(|at| at >= since))
    }

    /// The lines that end within `piece`. False if the page was full before its end.
    fn piece(
        &mut self,
        named: &Named,
        at_ms: Option<u64>,
        piece: &std::ops::Range<u64>,
    ) -> io::Result<bool> {
        if !self.is_wanted(named, at_ms) {
            return Ok(true);
        }
        loop {
            let from = piece.start.saturating_add(self.page.next.done);
            if from >= piece.end {
                return Ok(true);
            }
            if self.is_full() {
                return Ok(false);
            }
            let to = piece.end.min(from.saturating_add(WINDOW));
            let Some(window) = self.files.window(&named.name, from, to)? else { return Ok(true) };
            self.files.read += to - from;
            if let Some(skipped) = self.files.hole(&window, from, piece.end) {
                self.page.next.done += skipped;
                continue;
            }
            let is_whole = window.len() as u64 == to - from;
            let done = match memrchr(b'\n', &window) {
                Some(end) => {
                    let (lines, _) = window.split_at_checked(end + 1).unwrap_or((&window, &[]));
                    let before = self.files.before(&named.name, from, self.searched())?;
                    self.lines(named, at_ms, before, lines)?;
                    end as u64 + 1
                }
                // The end of the line reads it again.
                None => window.len() as u64,
            };
            let ends_here = from + done >= piece.end || to == piece.end || !is_whole;
            self.page.next.done += if ends_here { piece.end - from } else { done };
        }
    }

    /// Adds whole lines; `before` is the beginning of the first.
    fn lines(
        &mut self,
        named: &Named,
        at_ms: Option<u64>,
        before: Beginning,
        lines: &[u8],
    ) -> io::Result<()> {
        let mut first = Some(before);
        let mut begin = 0;
        for end in memchr_iter(b'\n', lines) {
            let line = lines.get(begin..end).unwrap_or_default();
            begin = end + 1;
            match first.take().filter(|before| !before.bytes.is_empty()) {
                Some(Beginning { mut bytes, more }) => {
                    bytes.extend_from_slice(line);
                    self.line(named, at_ms, &bytes, more)?;
                }
                None => self.line(named, at_ms, line, None)?,
            }
        }
        Ok(())
    }

    /// Adds a line; `more` is the place before it if it begins still further ahead.
    fn line(
        &mut self,
        named: &Named,
        at_ms: Option<u64>,
        line: &[u8],
        more: Option<Place>,
    ) -> io::Result<()> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // Only the last state of a progress bar is shown.
        let state = line.rsplit(|byte| *byte == b'\r').next().unwrap_or(line);
        let more = more.filter(|_| state.len() == line.len());
        // A line does not begin where its beginning is not read.
        let from = usize::from(more.is_some() && !state.is_empty());
        if self.wanted.grep.as_ref().is_some_and(|grep| !grep.is_match_at(state, from)) {
            return Ok(());
        }
        let (cut, shown) = end_of(state);
        let mut left_out = cut as u64;
        if let Some(place) = more {
            left_out += self.files.count_before(place, LogLine::COUNTED)?;
        }
        let mut text = Vec::with_capacity(shown.len());
        push_escaped(shown, &mut text);
        let text = String::from_utf8_lossy(&text).into_owned();
        self.bytes += text.len() + 64;
        let Named { writer, number, is_err, .. } = *named;
        let attempt = self.page.next.attempt;
        self.page.lines.push(LogLine { at_ms, attempt, writer, number, is_err, text, left_out });
        Ok(())
    }

    /// Adds output that no piece of the index holds: the ends of files, or whole files if there is no index.
    fn rest(&mut self) -> io::Result<()> {
        let (names, covered) = self.covered()?;
        loop {
            let Some(number) = self.page.next.rest else { return Ok(()) };
            let Some(name) = usize::try_from(number).ok().and_then(|number| names.get(number))
            else {
                self.page.is_end = true;
                return Ok(());
            };
            if self.is_full() {
                return Ok(());
            }
            let known = covered.get(name).copied();
            if !self.rest_of(name, known.unwrap_or(0))? {
                return Ok(());
            }
            self.page.next = Cursor { rest: Some(number + 1), done: 0, ..self.page.next };
        }
    }

    /// The names of the attempt's logs, and the number of bytes that the index covers of each.
    fn covered(&mut self) -> io::Result<(Vec<String>, HashMap<String, u64>)> {
        let mut covered: HashMap<String, u64> = HashMap::new();
        // A page that begins here must know the same files.
        self.named.clear();
        if let Ok((index, _)) = self.files.open(INDEX) {
            let index = regular_file::WithoutHoles::of(index);
            for line in BufReader::new(index).split(b'\n') {
                let line = line?;
                match std::str::from_utf8(&line).ok().and_then(Entry::parse) {
                    Some(Entry::File { number, writer, name }) => {
                        self.named.insert(number, Named::new(name, writer));
                    }
                    Some(Entry::Piece { file, at, bytes, .. }) => {
                        if let Some(named) = self.named.get(&file) {
                            let known = covered.entry(named.name.clone()).or_default();
                            *known = at.saturating_add(bytes).max(*known);
                        }
                    }
                    _ => {}
                }
            }
        }
        let mut names: Vec<String> = self
            .files
            .folder()
            .read_dir()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| writer_of(name).is_some())
            .collect();
        names.sort_unstable();
        Ok((names, covered))
    }

    /// Adds the part of a file that the index does not cover. False if the page was full before the end of the file.
    fn rest_of(&mut self, name: &str, covered: u64) -> io::Result<bool> {
        let writer = self.named.values().find(|named| named.name == name);
        let Some(writer) = writer.map(|named| named.writer).or_else(|| writer_of(name)) else {
            return Ok(true);
        };
        let named = Named::new(name, writer);
        self.page.last_rank = self.page.last_rank.max(named.number);
        let Some(metadata) = self.files.metadata(name)? else { return Ok(true) };
        let Some(Output { length, mark }) = self.files.output(name)? else { return Ok(true) };
        // Without an index the times of single lines are unknown; only the time of the last write is known.
        let is_since = |since| {
            let written = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
            Some(written.as_millis() >= u128::from(since))
        };
        if self.wanted.since_ms.is_some_and(|since| is_since(since) == Some(false)) {
            return Ok(true);
        }
        if !self.piece(&named, None, &(covered.min(length)..length))? {
            return Ok(false);
        }
        let next = segment(name, 1);
        if mark.is_some_and(|mark| mark.missing > 0) {
            // The beginning of the tail in the index has already shown it.
            if self.named.values().all(|tail| tail.name != next) {
                self.end_of_head(&named)?;
            }
            return Ok(true);
        }
        // An unfinished last line is added unless the next part continues it.
        let goes_on = beside(name, 1).map(|part| self.files.metadata(&part)).transpose()?.flatten();
        if goes_on.is_none() && self.is_wanted(&named, None) {
            self.unfinished(&named, length)?;
        }
        Ok(true)
    }
}

/// The end of a line that is shown, and the number of bytes before it. No character is cut.
fn end_of(line: &[u8]) -> (usize, &[u8]) {
    let cut = line.len().saturating_sub(LONGEST_LINE);
    let rest = line.get(cut..).unwrap_or_default();
    let is_inside = |byte: &u8| cut > 0 && byte & 0xc0 == 0x80;
    let inside = rest.iter().take(3).take_while(|byte| is_inside(byte)).count();
    (cut + inside, rest.get(inside..).unwrap_or_default())
}

fn writer_of(name: &str) -> Option<Writer> {
    let log = continued(name);
    match RankLog::parse(log) {
        Some(_) => Some(Writer::Rank),
        None => (log == ENGINE_LOG).then_some(Writer::Engine),
    }
}

impl Cursor {
    /// A cursor so that only the last `entries` bytes of the last attempt's index follow, about as much as a person
    /// looks at first.
    pub fn near_end(launcher: &Path, entries: u64) -> io::Result<Cursor> {
        let Some(attempt) = attempts(launcher)?.last().copied() else {
            return Ok(Cursor::default());
        };
        let begin = Cursor { attempt, ..Cursor::default() };
        let index = AttemptFiles::new(launcher, attempt).open(INDEX);
        let Ok((mut index, length)) = index else { return Ok(begin) };
        if length <= entries {
            return Ok(begin);
        }
        index.seek(SeekFrom::Start(length - entries))?;
        let mut skipped = Vec::new();
        BufReader::new(index.take(LONGEST_ENTRY)).read_until(b'\n', &mut skipped)?;
        Ok(Cursor { entry: length - entries + skipped.len() as u64, ..begin })
    }
}
