//! The zip archive of torch.save since torch 1.6: it is written from front to back, so that its directory at the end
//! proves that each record in it was written (caffe2/serialize/inline_container.cc: entries are stored, without
//! compression, and sizes take 64 bits).

use crate::folder::{Folder, Parts};
use crate::lack::Lack;

pub(crate) const LOCAL: &[u8] = b"PK\x03\x04";
const CENTRAL: &[u8] = b"PK\x01\x02";
const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";
const END_LENGTH: u64 = 22;
/// Maximum bytes of a comment behind the end.
const COMMENT: u64 = 65_535;
const LOCATOR_LENGTH: u64 = 20;
const END_64_LENGTH: u64 = 56;
/// Maximum bytes of a directory: about a million entries.
const DIRECTORY: u64 = 128 << 20;
/// Entries whose beginnings are looked at, spread over the file: a page that never reached the disk is zeros.
const LOOKED_AT: usize = 64;
/// The pickle of the objects, in the folder of the archive.
const PICKLED: &str = "/data.pkl";
/// Maximum bytes of that pickle; it holds no weights.
pub(crate) const OBJECTS: u64 = 64 << 20;

#[derive(Debug)]
struct Stored {
    name: String,
    offset: u64,
    bytes: u64,
}

/// An archive with its directory.
#[derive(Debug)]
pub(crate) struct Zip {
    parts: Parts,
    entries: Vec<Stored>,
}

impl Zip {
    pub(crate) fn open(folder: &Folder<'_>, name: &str) -> Result<Zip, Lack> {
        let mut parts = folder.open(name)?;
        let head = parts.at(0, 4)?;
        if head.iter().all(|byte| *byte == 0) {
            return Err(Lack::Zeros(name.to_owned()));
        }
        if head != LOCAL {
            return Err(Lack::Damaged(name.to_owned()));
        }
        let (offset, length) = directory(&mut parts)?;
        let bytes = usize::try_from(length).ok().filter(|_| length <= DIRECTORY);
        let bytes = bytes.ok_or_else(|| Lack::Damaged(name.to_owned()))?;
        let directory = parts.at(offset, bytes)?;
        let entries = entries(&directory).ok_or_else(|| Lack::Damaged(name.to_owned()))?;
        let apart = entries.len().div_ceil(LOOKED_AT).max(1);
        let looked_at = entries.iter().step_by(apart).chain(entries.last());
        for entry in looked_at {
            let fits = entry.offset.checked_add(entry.bytes).is_some_and(|end| end <= offset);
            if !fits {
                return Err(Lack::Cut(name.to_owned()));
            }
            if parts.at(entry.offset, 4)? != LOCAL {
                return Err(Lack::Damaged(name.to_owned()));
            }
        }
        Ok(Zip { parts, entries })
    }

    pub(crate) fn name(&self) -> &str {
        self.parts.name()
    }

    /// The names of the records, without that of the archive, and their bytes.
    pub(crate) fn records(&self) -> impl Iterator<Item = (&str, u64)> {
        self.entries.iter().filter_map(|entry| Some((entry.name.split_once('/')?.1, entry.bytes)))
    }

    /// The pickle of the objects, with at most `most` bytes.
    pub(crate) fn objects(&mut self, most: u64) -> Option<Vec<u8>> {
        let entry = self.entries.iter().find(|entry| entry.name.ends_with(PICKLED))?;
        let head = self.parts.at(entry.offset, 30).ok()?;
        let (name, extra) = (short(&head, 26)?, short(&head, 28)?);
        let from = entry.offset + 30 + u64::from(name) + u64::from(extra);
        let bytes = usize::try_from(entry.bytes).ok().filter(|_| entry.bytes <= most)?;
        self.parts.at(from, bytes).ok()
    }
}

/// Whether an archive ends at this place of a file.
pub(crate) fn has_end(parts: &mut Parts, end: u64) -> bool {
    let at = end.checked_sub(END_LENGTH);
    at.and_then(|at| parts.at(at, 22).ok()).is_some_and(|last| last.starts_with(END))
}

/// Place and length of the directory.
fn directory(parts: &mut Parts) -> Result<(u64, u64), Lack> {
    let cut = Lack::Cut(parts.name().to_owned());
    // Its reader takes the last end that it finds, with a comment or other bytes behind it.
    let most = parts.bytes.min(END_LENGTH + COMMENT);
    let from = parts.bytes.saturating_sub(most);
    let bytes = parts.at(from, usize::try_from(most).unwrap_or_default())?;
    let is_end = |at: &usize| bytes.get(*at..).is_some_and(|rest| rest.starts_with(END));
    let at = (0..=bytes.len().saturating_sub(22)).rev().find(is_end);
    let last = at.and_then(|at| bytes.get(at..at.checked_add(22)?)).ok_or_else(|| cut.clone())?;
    let end =
        at.and_then(|at| from.checked_add(u64::try_from(at).ok()?)).ok_or_else(|| cut.clone())?;
    let (length, offset) = (long(last, 12), long(last, 16));
    let locator = end.checked_sub(LOCATOR_LENGTH).map(|at| parts.at(at, 20)).transpose()?;
    let (length, offset, ends) = match locator.filter(|locator| locator.starts_with(LOCATOR_64)) {
        None => (length.map(u64::from), offset.map(u64::from), end),
        Some(locator) => {
            let at = wide(&locator, 8).filter(|at| *at <= end.saturating_sub(END_64_LENGTH));
            let at = at.ok_or_else(|| cut.clone())?;
            let record = parts.at(at, 56)?;
            if !record.starts_with(END_64) {
                return Err(cut);
            }
            (wide(&record, 40), wide(&record, 48), at)
        }
    };
    match (length, offset) {
        (Some(length), Some(offset))
            if offset.checked_add(length).is_some_and(|end| end <= ends) =>
        {
            Ok((offset, length))
        }
        _ => Err(cut),
    }
}

/// The entries of a directory; None if it is damaged.
fn entries(mut directory: &[u8]) -> Option<Vec<Stored>> {
    let mut entries = Vec::new();
    while !directory.is_empty() {
        let head = directory.get(..46).filter(|head| head.starts_with(CENTRAL))?;
        let lengths = [28, 30, 32].map(|at| short(head, at).map(usize::from));
        let [Some(name), Some(extra), Some(comment)] = lengths else { return None };
        let rest = directory.get(46..)?;
        let (name, rest) = rest.split_at_checked(name)?;
        let (extra, rest) = rest.split_at_checked(extra)?;
        let mut wides = of_64(extra);
        let (bytes, stored, offset) = (long(head, 24)?, long(head, 20)?, long(head, 42)?);
        // Each value that does not fit takes the next one of the extra field, in this order.
        let mut value = |short: u32| match short {
            u32::MAX => wides.next(),
            short => Some(u64::from(short)),
        };
        let (_, bytes, offset) = (value(bytes)?, value(stored)?, value(offset)?);
        entries.push(Stored { name: String::from_utf8_lossy(name).into_owned(), offset, bytes });
        directory = rest.get(comment..)?;
    }
    Some(entries)
}

/// The values of 64 bits in the extra fields of an entry.
fn of_64(mut extra: &[u8]) -> impl Iterator<Item = u64> {
    let mut values = Vec::new();
    while let (Some(id), Some(length)) = (short(extra, 0), short(extra, 2)) {
        let Some(body) = extra.get(4..4 + usize::from(length)) else { break };
        if id == 1 {
            values.extend(body.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)));
        }
        extra = extra.get(4 + usize::from(length)..).unwrap_or_default();
    }
    values.into_iter()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn wide(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}
