//! A log file of limited size that keeps its head and its tail.
//!
//! `rank-00003.out` holds the first quarter of the cap. Later output goes to `rank-00003.out.00001`, `.00002`, … of
//! three eighths each; the newest two of these segments are kept. All are plain files that are only appended to, so
//! this works on every file system (punching holes or collapsing ranges does not). A line may go on in the next file.
//! The last line of the head says how many bytes are missing and where the tail is.
//!
//! After an error the file is opened again by name, in append mode: after the restart of an NFS
//! server the handle may be stale, and a user may have truncated the file. A file that was
//! removed is created again; its former content is counted as gone.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memchr::{memchr, memrchr};

use super::file_names::{HeadMark, segment};
use super::folder::{FolderLevel, LogFolder};
use text::lang::Lang;
use text::text;

/// Segments of the tail that are kept.
const SEGMENTS: usize = 2;
const LARGEST_SLACK: u64 = 16 * 1024;
/// Interval between checks that a file still has a name.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct CappedFile {
    folder: Arc<LogFolder>,
    pub(super) name: String,
    lang: Lang,
    head_cap: u64,
    segment_cap: u64,
    /// Bytes by which a file may exceed its cap in order to end with a whole line.
    slack: u64,
    current: Option<File>,
    /// Bytes in the current file.
    written: u64,
    /// The head, once it is full.
    head: Option<Head>,
    /// Bytes that were removed between head and tail, and are no longer in any file.
    pub(super) missing: u64,
    /// Bytes that were written and then removed or cut off by another process.
    pub(super) gone: u64,
    looked: Instant,
    /// Whether the next byte starts a line.
    pub(super) ends_in_newline: bool,
}

#[derive(Debug)]
struct Head {
    bytes: u64,
    ends_in_newline: bool,
    /// Number and length of the segments that exist, the current one last.
    segments: VecDeque<(u32, u64)>,
    last: u32,
}

impl CappedFile {
    pub(super) fn new(folder: Arc<LogFolder>, name: String, cap: u64, lang: Lang) -> CappedFile {
        let slack = (cap / 64).min(LARGEST_SLACK);
        CappedFile {
            folder,
            name,
            lang,
            head_cap: (cap / 4).saturating_sub(slack).max(1),
            segment_cap: (cap / 8 * 3).saturating_sub(slack).max(1),
            slack,
            current: None,
            written: 0,
            head: None,
            missing: 0,
            gone: 0,
            looked: Instant::now(),
            ends_in_newline: true,
        }
    }

    /// Creates the file, so that its name is there before the first byte.
    pub(super) fn open(&mut self) -> io::Result<&mut File> {
        if self.current.is_none() {
            let file = self.folder.append(FolderLevel::Attempt, &self.current_name())?;
            let metadata = file.metadata()?;
            // A pipe at this path has no length.
            let length = if metadata.is_file() { metadata.len() } else { self.written };
            let gone = self.written.saturating_sub(length);
            self.written = length;
            self.current = Some(file);
            if gone > 0 {
                self.gone += gone;
                self.ends_in_newline = true;
                self.say_gone(gone)?;
            }
        }
        self.current.as_mut().ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Creates the file again if it was removed; checks at most once a second.
    pub(super) fn look(&mut self) -> io::Result<()> {
        if self.looked.elapsed() >= LOOK { self.look_now() } else { Ok(()) }
    }

    /// [`look`](Self::look) at once.
    pub(super) fn look_now(&mut self) -> io::Result<()> {
        self.looked = Instant::now();
        // Stale: the file was removed on another host.
        let removed = self.current.as_ref().is_some_and(|file| {
            file.metadata().map_or_else(
                |error| error.kind() == ErrorKind::StaleNetworkFileHandle,
                |it| it.nlink() == 0,
            )
        });
        if removed {
            self.current = None;
            self.open()?;
        }
        Ok(())
    }

    fn say_gone(&mut self, gone: u64) -> io::Result<()> {
        let line = text!(
            "[ranklaunch] {gone} bytes that stood here were removed while the job ran\n",
            "[ranklaunch] 此前的 {gone} 字节在任务运行期间被删除\n"
        );
        let Some(file) = &mut self.current else { return Ok(()) };
        file.write_all(line.get(self.lang).as_bytes())?;
        self.written = file.metadata()?.len();
        Ok(())
    }

    /// Appends `bytes`, and tells the file's name, the position and the number of bytes for each part of them. An error
    /// carries how many bytes were written; the next call opens the file again.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        mut note: impl FnMut(&str, u64, u64),
    ) -> Result<(), (usize, io::Error)> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.write_some(rest) {
                Ok(0) => {}
                Ok(written) => {
                    let count = written as u64;
                    note(&self.current_name(), self.written.saturating_sub(count), count);
                    rest = rest.get(written..).unwrap_or_default();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.current = None;
                    return Err((bytes.len() - rest.len(), error));
                }
            }
        }
        Ok(())
    }

    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.open()?;
        let cap = if self.head.is_some() { self.segment_cap } else { self.head_cap };
        let piece = self.fitting(bytes, cap);
        if piece.is_empty() {
            self.next_segment()?;
            return Ok(0);
        }
        let written = self.open()?.write(piece)?;
        if written == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        self.written += written as u64;
        self.ends_in_newline =
            piece.get(..written).and_then(<[u8]>::last).is_some_and(|byte| *byte == b'\n');
        Ok(written)
    }

    /// The part of `bytes` that fits into the current file, empty when the file is full. A file ends with a whole line
    /// if one ends within its cap and the slack.
    fn fitting<'a>(&self, bytes: &'a [u8], cap: u64) -> &'a [u8] {
        let first = |cap: u64| {
            let room = usize::try_from(cap.saturating_sub(self.written)).unwrap_or(usize::MAX);
            bytes.get(..room)
        };
        let Some(below_cap) = first(cap) else { return bytes };
        if let Some(end) = memrchr(b'\n', below_cap) {
            return bytes.get(..=end).unwrap_or(bytes);
        }
        if self.ends_in_newline && self.written > 0 {
            return &[];
        }
        let reach = first(cap + self.slack).unwrap_or(bytes);
        memchr(b'\n', reach).and_then(|end| reach.get(..=end)).unwrap_or(reach)
    }

    fn next_segment(&mut self) -> io::Result<()> {
        let (written, ends_in_newline) = (self.written, self.ends_in_newline);
        let head = self.head.get_or_insert_with(|| Head {
            bytes: written,
            ends_in_newline,
            segments: VecDeque::new(),
            last: 0,
        });
        if let Some((_, length)) = head.segments.back_mut() {
            *length = written;
        }
        // Old segments are removed before the new one is created, since the disk may be full.
        while head.segments.len() >= SEGMENTS {
            let Some((number, length)) = head.segments.front().copied() else { break };
            self.folder.remove(&segment(&self.name, number))?;
            head.segments.pop_front();
            self.missing += length;
        }
        head.last += 1;
        head.segments.push_back((head.last, 0));
        self.current = None;
        self.written = 0;
        self.open()?;
        // If the notice cannot be written, the tail still can.
        let _ = self.mark();
        Ok(())
    }

    /// Writes the last line of the head. The line never gets shorter, so it is overwritten in place.
    fn mark(&self) -> io::Result<()> {
        let Some(head) = &self.head else { return Ok(()) };
        let (bytes, missing) = (head.bytes, self.missing);
        let tail = segment(&self.name, head.segments.front().map_or(1, |(number, _)| *number));
        let line = HeadMark { bytes, missing, tail }.line();
        let newline = if head.ends_in_newline { "" } else { "\n" };
        // The append handle cannot be used: on Linux a positioned write to an O_APPEND file appends.
        self.folder
            .rewrite(&self.name)?
            .write_all_at(format!("{newline}{}\n", line.get(self.lang)).as_bytes(), bytes)
    }

    fn current_name(&self) -> String {
        match &self.head {
            Some(head) if head.last > 0 => segment(&self.name, head.last),
            _ => self.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn lines(from: usize, to: usize) -> String {
        (from..to).map(|n| format!("line {n:06}\n")).collect()
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .expect("the folder is there")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn output_below_the_cap_fills_one_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut file = CappedFile::new(
            LogFolder::flat(folder.path()),
            "rank-00000.out".into(),
            4096,
            Lang::En,
        );
        file.write(b"\0\xff raw", |_, _, _| ()).expect("written");
        file.write(b" bytes", |_, _, _| ()).expect("written");
        assert!(!file.ends_in_newline);
        assert_eq!(names(folder.path()), ["rank-00000.out"]);
        let held = std::fs::read(folder.path().join("rank-00000.out")).expect("read");
        assert_eq!(held, b"\0\xff raw bytes");
    }

    #[test]
    fn head_and_tail_stay_with_the_missing_count() {
        for chunk in [13, 100, 5_000, 1 << 20] {
            let folder = tempfile::tempdir().expect("a folder");
            let cap = 16 * 1024;
            let mut file = CappedFile::new(
                LogFolder::flat(folder.path()),
                "rank-00000.out".into(),
                cap,
                Lang::En,
            );
            let all = lines(0, 10_000);
            for piece in all.as_bytes().chunks(chunk) {
                file.write(piece, |_, _, _| ()).expect("written");
            }
            let names = names(folder.path());
            assert_eq!(names.len(), 3, "{names:?}");
            let read =
                |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("readable");
            let (head, first, second) = (read(&names[0]), read(&names[1]), read(&names[2]));
            let (kept, mark) = head.split_once("[ranklaunch]").expect("the head has its mark");
            assert!(all.starts_with(kept) && kept.len() > 3 * 1024, "head of {}", kept.len());
            let tail = format!("{first}{second}");
            assert!(all.ends_with(&tail) && tail.len() as u64 > cap / 3);
            assert!(first.starts_with("line ") && second.starts_with("line "), "no torn line");
            let missing = all.len() - kept.len() - tail.len();
            assert_eq!(file.missing, missing as u64);
            assert!(mark.contains(&format!(" {missing} bytes are missing")), "{mark}");
            assert!(mark.contains(&names[1]) && mark.ends_with('\n'), "{mark}");
            assert!((head.len() + tail.len()) as u64 <= cap + 200);
        }
    }

    #[test]
    fn line_longer_than_the_cap_is_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut file = CappedFile::new(
            LogFolder::flat(folder.path()),
            "rank-00000.err".into(),
            1000,
            Lang::Zh,
        );
        file.write(&[b'x'; 50_000], |_, _, _| ()).expect("written");
        let held: u64 = names(folder.path())
            .iter()
            .map(|name| std::fs::metadata(folder.path().join(name)).expect("there").len())
            .sum();
        assert!(held <= 1_400, "{held}");
        assert!(file.missing > 48_000);
    }
}
