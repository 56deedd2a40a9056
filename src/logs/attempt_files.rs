//! The files of one attempt in the folder of a launcher, for a reader that goes back to the beginning of a line.
//!
//! Owns the file that was read last. A log consists of parts: a head with its mark, and the numbered parts of its tail.
//! Any of the files may be gone, cut or replaced at any time, since whoever can write the folder can change them.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memchr::{memrchr, memrchr2};

use super::file_names::{AttemptFolder, HeadMark, LONGEST_MARK, continued, segment};
use linux::regular_file;

/// Bytes of a file that are read at once.
pub(super) const WINDOW: u64 = 64 * 1024;
/// Bytes that are read at once before a piece: most lines are short.
const FIRST_STEP: u64 = 4 * 1024;

/// A position in a log of an attempt.
#[derive(Debug, Clone)]
pub(super) struct Place {
    name: String,
    at: u64,
}

/// The output that a file of an attempt holds.
#[derive(Debug)]
pub(super) struct Output {
    /// Bytes of output, which the mark follows.
    pub(super) length: u64,
    /// The mark of a head that is full.
    pub(super) mark: Option<HeadMark>,
}

/// The beginning of a line, as far as it was read.
#[derive(Debug, Default)]
pub(super) struct Beginning {
    pub(super) bytes: Vec<u8>,
    /// The place before `bytes`, if the line begins still further ahead.
    pub(super) more: Option<Place>,
}

#[derive(Debug)]
pub(super) struct AttemptFiles {
    /// The folder of the launcher, and of the attempt below it.
    launcher: PathBuf,
    attempt: String,
    /// The file that was read last.
    opened: Option<(String, File)>,
    /// Bytes that were read to count them, and for pieces.
    pub(super) read: u64,
    /// Files in the place of logs that are links or no regular files, and were not read.
    pub(super) odd: Vec<String>,
}

impl AttemptFiles {
    pub(super) fn new(launcher: &Path, attempt: u32) -> AttemptFiles {
        let attempt = AttemptFolder(attempt).to_string();
        let launcher = launcher.to_owned();
        AttemptFiles { launcher, attempt, opened: None, read: 0, odd: Vec::new() }
    }

    /// The length of a hole that begins with `window`: a sparse file may have any size.
    pub(super) fn hole(&self, window: &[u8], from: u64, end: u64) -> Option<u64> {
        let (_, file) = self.opened.as_ref().filter(|_| window.len() as u64 == WINDOW)?;
        if window.iter().any(|byte| *byte != 0) {
            return None;
        }
        let data = regular_file::data_from(file, from).unwrap_or(end).min(end);
        (data > from + WINDOW).then_some(data - from)
    }

    /// The part of the line at `at` that precedes `at`: about `most` bytes of it.
    pub(super) fn before(&mut self, name: &str, at: u64, most: usize) -> io::Result<Beginning> {
        let mut place = Place { name: name.to_owned(), at };
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let (mut length, mut step) = (0, FIRST_STEP);
        let more = loop {
            if length >= most {
                break Some(place);
            }
            let Some(mut bytes) = self.back(&mut place, step)? else { break None };
            let end = memrchr(b'\n', &bytes);
            bytes.drain(..end.map_or(0, |end| end + 1));
            length += bytes.len();
            parts.push(bytes);
            if end.is_some() {
                break None;
            }
            step = WINDOW;
        };
        // The parts were read from the end of the line to its beginning.
        parts.reverse();
        Ok(Beginning { bytes: parts.concat(), more })
    }

    /// Up to `most` bytes before a place, which moves there; from the preceding part of the log at the beginning of a
    /// part. None where nothing precedes, or the file was cut meanwhile.
    fn back(&mut self, place: &mut Place, most: u64) -> io::Result<Option<Vec<u8>>> {
        while place.at == 0 {
            let Some(part) = beside(&place.name, -1) else { return Ok(None) };
            let Some(Output { length, .. }) = self.output(&part)? else { return Ok(None) };
            *place = Place { name: part, at: length };
        }
        let first = place.at.saturating_sub(most);
        let bytes = self.window(&place.name, first, place.at)?;
        let whole = bytes.filter(|bytes| bytes.len() as u64 == place.at - first);
        place.at = first;
        Ok(whole)
    }

    /// Number of bytes before a place that belong to the same line, or the same state of a progress bar; counted up to
    /// `most`.
    pub(super) fn count_before(&mut self, mut place: Place, most: u64) -> io::Result<u64> {
        let mut count = 0;
        while count < most
            && let Some(bytes) = self.back(&mut place, WINDOW)?
        {
            self.read += bytes.len() as u64;
            let begin = memrchr2(b'\n', b'\r', &bytes);
            count += (bytes.len() - begin.map_or(0, |end| end + 1)) as u64;
            if begin.is_some() {
                break;
            }
        }
        Ok(count)
    }

    /// The folder of the attempt.
    pub(super) fn folder(&self) -> PathBuf {
        self.launcher.join(&self.attempt)
    }

    /// Opens a file of the attempt, and gives its length. The file may be anything, since whoever can write the folder
    /// of the run can replace it.
    pub(super) fn open(&self, name: &str) -> io::Result<(File, u64)> {
        let Self { launcher, attempt, .. } = self;
        match (launcher.parent(), launcher.file_name().and_then(|name| name.to_str())) {
            (Some(run), Some(own)) if !run.as_os_str().is_empty() => {
                regular_file::open_below(run, &[own, attempt, name])
            }
            _ => regular_file::open_below(launcher, &[attempt, name]),
        }
    }

    /// Opens a log of the attempt. None if the file is gone or cannot be a log.
    fn file(&mut self, name: &str) -> io::Result<Option<&File>> {
        if self.opened.as_ref().is_none_or(|(opened, _)| opened != name) {
            match self.open(name) {
                Ok((file, _)) => self.opened = Some((name.to_owned(), file)),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    if self.odd.iter().all(|odd| odd != name) {
                        self.odd.push(name.to_owned());
                    }
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.opened.as_ref().map(|(_, file)| file))
    }

    pub(super) fn metadata(&mut self, name: &str) -> io::Result<Option<Metadata>> {
        self.file(name)?.map(File::metadata).transpose()
    }

    /// The output in a file. None if the file is gone or cannot be a log.
    pub(super) fn output(&mut self, name: &str) -> io::Result<Option<Output>> {
        let Some(metadata) = self.metadata(name)? else { return Ok(None) };
        let length = metadata.len();
        if continued(name) != name {
            return Ok(Some(Output { length, mark: None }));
        }
        let end = self.window(name, length.saturating_sub(LONGEST_MARK), length)?;
        let mark = HeadMark::at_end(&end.unwrap_or_default(), length);
        Ok(Some(Output { length: mark.as_ref().map_or(length, |mark| mark.bytes), mark }))
    }

    /// Bytes `from..to` of a file; fewer if the file is shorter. None if the file is gone.
    pub(super) fn window(&mut self, name: &str, from: u64, to: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.file(name)? else { return Ok(None) };
        // Offsets from a damaged index may exceed every possible file offset (off_t).
        if i64::try_from(to).is_err() {
            return Ok(Some(Vec::new()));
        }
        let mut bytes = vec![0; usize::try_from(to - from).unwrap_or_default()];
        let mut filled = 0;
        while let Some(empty) = bytes.get_mut(filled..).filter(|empty| !empty.is_empty()) {
            match file.read_at(empty, from + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(Some(bytes))
    }
}

/// The name of the adjacent part of a log, `step` parts away: the head is part 0. A line goes on in the next part where
/// it is longer than the rest of a part.
pub(super) fn beside(name: &str, step: i32) -> Option<String> {
    let log = continued(name);
    let part = |number| if number == 0 { log.to_owned() } else { segment(log, number) };
    let number: u32 = match name.strip_prefix(log)?.strip_prefix('.') {
        None => 0,
        Some(number) => number.parse().ok()?,
    };
    // logrotate numbers in another way: its `.1` is the newest.
    (part(number) == name).then(|| number.checked_add_signed(step).map(part)).flatten()
}
