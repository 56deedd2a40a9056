//! Plain bytes of a log, whatever it is packed with: nothing, gzip or zstd.
//!
//! Takes a path or standard input; gives a reader. What came before damage is given before the
//! error.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder, StreamingDecoder};

use crate::lang::{Text, cause};
use crate::text;

/// Bytes that are read from a file at once.
const CHUNK: usize = 256 * 1024;
const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// A log that is open.
pub(super) struct Opened {
    /// Unpacked.
    pub(super) bytes: Box<dyn Read>,
    /// Bytes that were read from the file, as it is packed.
    pub(super) taken: Rc<Cell<u64>>,
}

/// Opens a file, or standard input where no path is given.
pub(super) fn open(path: Option<&Path>) -> io::Result<Opened> {
    let source: Box<dyn Read> = match path {
        None => Box::new(io::stdin()),
        Some(path) => Box::new(File::open(path)?),
    };
    let taken = Rc::new(Cell::new(0));
    let counted = Counted { source, taken: Rc::clone(&taken) };
    Ok(Opened { bytes: plain(BufReader::with_capacity(CHUNK, counted))?, taken })
}

/// What went wrong while a log was read.
pub(super) fn words(error: &io::Error) -> Text {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<FrameDecoderError>());
    match inner {
        Some(FrameDecoderError::WindowSizeTooBig { .. }) => text!(
            "its zstd window is larger than 100 MiB: unpack it with zstd -d --long=31",
            "zstd 窗口大于 100 MiB：请先用 zstd -d --long=31 解压"
        ),
        _ if error.raw_os_error().is_some() => cause(error),
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

/// Unpacks what is packed, as the first bytes say.
fn plain(mut packed: impl BufRead + 'static) -> io::Result<Box<dyn Read>> {
    let first = magic(&mut packed)?;
    let is_zstd = first.starts_with(ZSTD) || is_skippable(&first);
    let is_gzip = first.starts_with(GZIP);
    let whole = Cursor::new(first).chain(packed);
    if is_gzip {
        return Ok(Box::new(MultiGzDecoder::new(whole)));
    }
    if is_zstd {
        return Ok(Box::new(Frames { packed: Some(whole), frame: None, damage: None }));
    }
    Ok(Box::new(whole))
}

/// The first four bytes, or all where there are fewer. One read of a pipe may give one byte.
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
    /// While no frame is read.
    packed: Option<R>,
    frame: Option<Frame<R>>,
    /// Given once all that came before it was.
    damage: Option<io::Error>,
}

impl<R: Read> Frames<R> {
    /// Opens the next frame that holds data. False: there is none.
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
