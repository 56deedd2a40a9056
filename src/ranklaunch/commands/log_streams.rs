//! Plain bytes of a log, whatever it is packed with: nothing, gzip or zstd.
//!
//! Takes a path or standard input; gives a reader. The reader gives the bytes before damage, then the
//! error. Reading ends: holes are skipped, a file is read to the end that it had, unpacking ends where a file
//! cannot be a log, and no log takes longer than [`LONGEST`].

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder, StreamingDecoder};

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

/// A log that is open.
pub(super) struct Opened {
    /// Unpacked.
    pub(super) bytes: Box<dyn Read>,
    /// Number of bytes read from the file, as it is packed.
    pub(super) taken: Rc<Cell<u64>>,
}

/// Opens a file, or standard input if no path is given. `asked`: the file itself was named, so that
/// it may be a pipe (`<(kubectl logs …)`); an entry of a folder is a file.
pub(super) fn open(path: Option<&Path>, asked: bool) -> io::Result<Opened> {
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
pub(super) fn words(error: &io::Error) -> Text {
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
