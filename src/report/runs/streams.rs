//! Plain bytes of a log, whatever it is packed with: nothing, gzip or zstd; and the dumps of torch's flight recorder
//! among the logs, with their findings.
//!
//! Takes a path or standard input; gives a reader. The reader gives the bytes before damage, then the
//! error. Reading ends: holes are skipped, a file is read to the end that it had, unpacking ends where a file
//! cannot be a log, and no log takes longer than [`LONGEST`]. A dump is recognised by its content, since torch lets
//! everybody choose the name. Only its rank is not in the content: the rank comes from the name.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder, StreamingDecoder};

use diagnose::Origin;
use diagnose::recorder::{
    self, Dump, Hang, Job, Late, RankRecord, Unreadable, judge, late, may_be_dump,
};
use linux::regular_file::{self, WithoutHoles};
use text::lang::{Text, cause, failure, is_explained};
use text::text;

/// Number of bytes that are read from a file at once.
const CHUNK: usize = 256 * 1024;
const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// A log has 5 to 30 times the bytes of its packed form; zeros have 1000 times. Below the first number of
/// bytes any ratio passes.
const ANY_RATIO: u64 = 256 << 20;
const MOST_RATIO: u64 = 100;
/// Time limit for one log, not counting the time in which an unpacked pipe gave nothing.
const LONGEST: Duration = Duration::from_secs(300);

/// A log to be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogFile {
    /// None means standard input.
    pub path: Option<PathBuf>,
    pub origin: Origin,
    /// Size in bytes, as the log is packed. None if it is not known before reading.
    pub size: Option<u64>,
    /// The log was named itself, not found in a folder.
    pub asked: bool,
    /// The log is one of ours, of a rank or of the command of a node.
    pub own: bool,
    /// The log is a record of torch's `@record`, in place of lines.
    pub is_record: bool,
}

/// A log that is open.
#[expect(missing_debug_implementations, reason = "a reader of any kind")]
pub struct Opened {
    /// Unpacked.
    pub bytes: Box<dyn Read>,
    /// Number of bytes read from the file, as it is packed.
    pub taken: Rc<Cell<u64>>,
}

/// Opens a file, or standard input if no path is given. `asked`: the file itself was named, so that
/// it may be a pipe (`<(kubectl logs …)`); an entry of a folder is a file.
pub fn open(path: Option<&Path>, asked: bool) -> io::Result<Opened> {
    let file = match path {
        None => None,
        Some(path) if asked => Some(File::open(path)?),
        Some(path) => Some(regular_file::open(path)?.0),
    };
    let mut is_pipe = true;
    let source: Box<dyn Read> = match file {
        None => Box::new(io::stdin()),
        Some(file) if file.metadata()?.is_file() => {
            is_pipe = false;
            Box::new(WithoutHoles::as_it_is(file)?)
        }
        Some(pipe) => Box::new(pipe),
    };
    let taken = Rc::new(Cell::new(0));
    let counted = Counted { source, taken: Rc::clone(&taken) };
    let bytes = plain(BufReader::with_capacity(CHUNK, counted), &taken, is_pipe)?;
    Ok(Opened { bytes, taken })
}

/// Content of a log. Reading fails once the content is too large for its packed size, or takes too long.
struct Bounded<R> {
    plain: R,
    given: u64,
    /// Number of bytes of the packed file so far; None if it is not packed.
    taken: Option<Rc<Cell<u64>>>,
    until: Instant,
    /// The writer of the pipe may take any time.
    is_awaited: bool,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let taken = self.taken.as_ref().map(|taken| taken.get());
        let most = taken.map(|taken| ANY_RATIO.max(taken.saturating_mul(MOST_RATIO)));
        let began = Instant::now();
        let why = if most.is_some_and(|most| self.given > most) {
            let size = self.given >> 20;
            text!(
                "what follows its first {size} MiB is not read: it unpacks to more than {MOST_RATIO} times its size, as no log does",
                "前 {size} MiB 之后的内容未读取：其解压后超过自身大小的 {MOST_RATIO} 倍，不可能是日志"
            )
        } else if began >= self.until {
            let (size, seconds) = (self.given >> 20, LONGEST.as_secs());
            text!(
                "what follows its first {size} MiB is not read: that took {seconds} s; read a part of it: tail -c 1G LOG | ranklaunch explain -",
                "前 {size} MiB 之后的内容未读取：已用时 {seconds} 秒；可只读其中一部分：tail -c 1G LOG | ranklaunch explain -"
            )
        } else {
            let read = self.plain.read(out)?;
            if self.is_awaited {
                self.until += began.elapsed();
            }
            self.given += read as u64;
            return Ok(read);
        };
        Err(failure(io::ErrorKind::FileTooLarge, why))
    }
}

/// Text for an error while reading a log.
pub fn words(error: &io::Error) -> Text {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<FrameDecoderError>());
    match inner {
        Some(FrameDecoderError::WindowSizeTooBig { .. }) => text!(
            "its zstd window is larger than 100 MiB: unpack it with zstd -d --long=31",
            "zstd 窗口大于 100 MiB：请先用 zstd -d --long=31 解压"
        ),
        _ if error.raw_os_error().is_some() => cause(error),
        _ if is_explained(error) => cause(error),
        _ => {
            text!("the packed data is cut off or damaged", "压缩数据不完整或已损坏")
        }
    }
}

struct Counted<R> {
    source: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let taken = self.source.read(out)?;
        self.taken.set(self.taken.get() + taken as u64);
        Ok(taken)
    }
}

/// Unpacks a packed log, recognised by its first bytes.
fn plain(
    mut packed: impl BufRead + 'static,
    taken: &Rc<Cell<u64>>,
    is_pipe: bool,
) -> io::Result<Box<dyn Read>> {
    let first = magic(&mut packed)?;
    let is_zstd = first.starts_with(ZSTD) || is_skippable(&first);
    let is_gzip = first.starts_with(GZIP);
    let whole = Cursor::new(first).chain(packed);
    let until = Instant::now() + LONGEST;
    let taken = (is_gzip || is_zstd).then(|| Rc::clone(taken));
    let is_awaited = is_pipe && taken.is_none();
    let plain: Box<dyn Read> = if is_gzip {
        Box::new(MultiGzDecoder::new(whole))
    } else if is_zstd {
        Box::new(Frames { packed: Some(whole), frame: None, damage: None })
    } else {
        Box::new(whole)
    };
    Ok(Box::new(Bounded { plain, given: 0, taken, until, is_awaited }))
}

/// The first four bytes, or all if there are fewer. One read of a pipe may give one byte.
fn magic(packed: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut first = Vec::with_capacity(4);
    packed.take(4).read_to_end(&mut first)?;
    Ok(first)
}

/// Whether a zstd frame holds no data of its own, as `pzstd` writes before each (RFC 8878, 3.1.2).
fn is_skippable(magic: &[u8]) -> bool {
    matches!(magic, [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

type Frame<R> = StreamingDecoder<io::Chain<Cursor<Vec<u8>>, R>, FrameDecoder>;

/// A zstd file: one frame after the other.
struct Frames<R: Read> {
    /// None while no frame is read.
    packed: Option<R>,
    frame: Option<Frame<R>>,
    /// The error, given once all content before it was given.
    damage: Option<io::Error>,
}

impl<R: Read> Frames<R> {
    /// Opens the next frame that holds data. False if there is none.
    fn next(&mut self) -> io::Result<bool> {
        while let Some(mut packed) = self.packed.take() {
            let magic = magic(&mut packed)?;
            if magic.is_empty() {
                return Ok(false);
            }
            if is_skippable(&magic) {
                let mut length = [0; 4];
                packed.read_exact(&mut length)?;
                let length = u64::from(u32::from_le_bytes(length));
                let skipped = io::copy(&mut packed.by_ref().take(length), &mut io::sink())?;
                if skipped < length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.packed = Some(packed);
                continue;
            }
            let whole = Cursor::new(magic).chain(packed);
            self.frame = Some(StreamingDecoder::new(whole).map_err(io::Error::other)?);
            return Ok(true);
        }
        Ok(false)
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(frame) = &mut self.frame {
                match frame.read(out) {
                    Ok(0) => {}
                    Ok(taken) => return Ok(taken),
                    Err(error) if self.damage.is_some() => return Err(error),
                    Err(error) => {
                        // The decoder holds the last bytes back until the frame ends. An empty
                        // last block, with room for a checksum, ends it.
                        const LAST: &[u8] = &[1, 0, 0, 0, 0, 0, 0];
                        let _ = frame.decoder.decode_blocks(LAST, BlockDecodingStrategy::All);
                        self.damage = Some(error);
                        continue;
                    }
                }
                let frame = self.frame.take().map(StreamingDecoder::into_inner);
                if let Some(damage) = self.damage.take() {
                    return Err(damage);
                }
                self.packed = frame.map(|whole| whole.into_inner().1);
            }
            if !self.next()? {
                return Ok(0);
            }
        }
    }
}

/// Number of bytes at the start of a file that show its kind.
const HEAD: u64 = 256;
/// A dump of 2000 entries has about a MiB.
const LARGEST: u64 = 128 << 20;

/// The dumps that were found.
#[derive(Debug, Default)]
pub struct RecorderFiles {
    by_rank: BTreeMap<u32, Vec<Found>>,
    pub notes: Vec<Text>,
}

#[derive(Debug)]
struct Found {
    name: String,
    dump: Dump,
    read: recorder::Read,
}

impl RecorderFiles {
    pub fn is_empty(&self) -> bool {
        self.by_rank.is_empty()
    }

    /// Takes a file if it is a dump; gives it back, from its start, if not.
    ///
    /// # Errors
    /// If the file cannot be read, or looks like a dump and is none.
    pub fn take(&mut self, file: &LogFile, opened: Opened) -> io::Result<Option<Opened>> {
        let Opened { mut bytes, taken } = opened;
        let mut whole = Vec::new();
        bytes.by_ref().take(HEAD).read_to_end(&mut whole)?;
        let mut read = None;
        if may_be_dump(&whole) {
            bytes.by_ref().take(LARGEST).read_to_end(&mut whole)?;
            read = Some(recorder::read(&whole));
        }
        let dump = match read {
            Some(Ok(dump)) => dump,
            // Other programs write JSON as well, but none writes its log as a pickle.
            Some(Err(flaw @ Unreadable::Pickle(_))) => {
                return Err(failure(io::ErrorKind::InvalidData, flaw.text()));
            }
            _ => {
                let bytes = Box::new(Cursor::new(whole).chain(bytes));
                return Ok(Some(Opened { bytes, taken }));
            }
        };
        let path = file.path.as_deref();
        let in_name = path.and_then(Path::file_name).and_then(|name| name.to_str());
        let Some(rank) = dump.rank.or_else(|| in_name.and_then(rank_in)) else {
            let why = text!(
                "neither this dump nor its name says whose it is: give it a name that ends in rank_N",
                "转储内容和文件名都没有说明属于哪个 rank：请将文件命名为以 rank_N 结尾"
            );
            return Err(failure(io::ErrorKind::InvalidData, why));
        };
        let read = path.map_or(recorder::Read::Unknown, written);
        self.keep(rank, Found { name: file.origin.name.clone(), dump, read });
        Ok(None)
    }

    /// Recorders of several backends are dumped one by one; if a backend has several dumps, the
    /// newest counts.
    fn keep(&mut self, rank: u32, new: Found) {
        let of_rank = self.by_rank.entry(rank).or_default();
        let Some(known) = of_rank.iter_mut().find(|known| known.dump.is_of_same(&new.dump)) else {
            of_rank.push(new);
            return;
        };
        let (mut newer, mut older) = (known.name.clone(), new.name.clone());
        if new.dump.is_newer_than(&known.dump) {
            std::mem::swap(&mut newer, &mut older);
            *known = new;
        }
        self.notes.push(text!(
            "{newer} and {older} are of rank {rank}: only the first one, the newer, is used",
            "{newer} 与 {older} 都属于 rank {rank}：只使用前者，即较新的一个"
        ));
    }

    /// The findings from the dumps; `stood_still`: logs prove a standstill.
    pub fn show(self, stood_still: bool) -> (Hang, Vec<Late>) {
        let records = self.by_rank.into_iter().map(|(rank, found)| RankRecord {
            rank,
            read: found.first().map(|found| found.read).unwrap_or_default(),
            dumps: found.into_iter().map(|found| found.dump).collect(),
        });
        let job = Job { records: records.collect(), world: None, stood_still };
        (judge(&job), late(&job.records, None, &BTreeMap::new()))
    }
}

/// Time of the last write to a dump. Copying makes it later, so this is only an upper bound.
pub fn written(path: &Path) -> recorder::Read {
    let written = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let since_1970 = written.and_then(|written| written.duration_since(UNIX_EPOCH).ok());
    let ns = since_1970.and_then(|since| i64::try_from(since.as_nanos()).ok());
    ns.map_or(recorder::Read::Unknown, recorder::Read::NotAfter)
}

/// 3 of `comm_lib_trace_rank_3`, `nccl_trace_rank_3.json.gz`, `rank3.pickle`, `dump-3`.
fn rank_in(name: &str) -> Option<u32> {
    let digits = |text: &str| -> Option<u32> {
        let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        text.get(..end)?.parse().ok()
    };
    let behind = |(at, word): (usize, &str)| {
        digits(name.get(at + word.len()..)?.trim_start_matches(['_', '-', '.']))
    };
    let lower = name.to_ascii_lowercase();
    if let Some(rank) = lower.rmatch_indices("rank").find_map(behind) {
        return Some(rank);
    }
    let stem = name.split('.').next()?;
    let start = stem.rfind(|letter: char| !letter.is_ascii_digit()).map_or(0, |at| at + 1);
    stem.get(start..)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives this many bytes at once, each time after this delay.
    struct Drip(Duration, usize);

    impl Read for Drip {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let Drip(pause, times) = self;
            let Some(left) = times.checked_sub(1) else { return Ok(0) };
            *times = left;
            std::thread::sleep(*pause);
            out.fill(b'x');
            Ok(out.len())
        }
    }

    fn read(plain: impl Read, is_awaited: bool, longest: Duration) -> (u64, Option<Text>) {
        let until = Instant::now() + longest;
        let mut log = Bounded { plain, given: 0, taken: None, until, is_awaited };
        let mut chunk = vec![0; 1 << 16];
        loop {
            match log.read(&mut chunk) {
                Ok(0) => return (log.given, None),
                Ok(_) => {}
                Err(error) => return (log.given, Some(words(&error))),
            }
        }
    }

    #[test]
    fn endless_log_is_read_for_limited_time() {
        let longest = Duration::from_millis(50);
        let (given, why) = read(io::repeat(b'x'), false, longest);
        let why = why.expect("it has no end");
        for text in [&why.en, &why.zh] {
            assert!(text.contains(&format!("{} MiB", given >> 20)), "{text}");
        }
        // The writer of a pipe may take longer than that; the reading of its output may not.
        let slow = || Drip(longest, 3);
        assert!(matches!(read(slow(), true, longest), (196_608, None)));
        assert!(matches!(read(slow(), false, longest), (65_536.., Some(_))));
    }
}

#[cfg(test)]
mod recorder_files_tests {
    use super::*;

    #[test]
    fn file_name_identifies_the_rank_of_a_dump() {
        for (name, rank) in [
            ("comm_lib_trace_rank_3", Some(3)),
            ("nccl_trace_rank_12.json.gz", Some(12)),
            ("rank7.pickle", Some(7)),
            ("RANK-0", Some(0)),
            ("job_rank_4_of_rank_8", Some(8)),
            ("trace-5.pickle", Some(5)),
            ("6", Some(6)),
            ("rank_", None),
            ("trace.3", None),
            ("dump", None),
            ("rank_99999999999", None),
        ] {
            assert_eq!(rank_in(name), rank, "{name}");
        }
    }
}
