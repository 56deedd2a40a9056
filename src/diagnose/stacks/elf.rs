//! Exported symbols of a mapped ELF file, read from the memory of the process.
//!
//! The loader keeps the dynamic symbols mapped, so no file is opened: the file may have been
//! replaced since, or be in another mount namespace or on a dead mount. `_PyRuntime` is among these
//! symbols also in a static build, because extension modules use it. Sources: elf(5), and for the
//! hash table glibc's `elf/dl-lookup.c`, whose algorithm is the GNU hash of the object's symbols.
//! `/proc/PID/maps` names the mapped files.

use std::ops::Range;

use super::memory::{Memory, Unread};
use text::order::Ordered;

/// A mapped file and the addresses of its tables.
#[derive(Debug)]
pub(super) struct Symbols {
    /// Offset that is added to the addresses in the file.
    bias: u64,
    table: u64,
    names: u64,
    hash: u64,
}

/// A symbol's address in the process.
pub(super) type Address = u64;

impl Symbols {
    /// The tables of the file whose first byte is mapped at `start`; None if the file has none.
    pub(super) fn find(memory: &impl Memory, start: u64) -> Result<Option<Symbols>, Unread> {
        const LOAD: u32 = 1;
        const DYNAMIC: u32 = 2;
        /// Maximum number of headers, more than any linked file has.
        const MOST_HEADERS: u16 = 128;
        let header: [u8; 64] = memory.bytes(start)?;
        // 64 bit, little endian.
        if header.get(..6) != Some(b"\x7fELF\x02\x01") {
            return Ok(None);
        }
        let (offset, size) = (long(&header, 32), short(&header, 54));
        let count = short(&header, 56).min(MOST_HEADERS);
        let mut first = None;
        let mut dynamic = None;
        for number in 0..u64::from(count) {
            let at = start.wrapping_add(offset).wrapping_add(number * u64::from(size));
            let segment: [u8; 56] = memory.bytes(at)?;
            let (kind, address) = (int(&segment, 0), long(&segment, 16));
            if kind == LOAD && first.is_none() {
                first = Some(address.wrapping_sub(long(&segment, 8)));
            }
            if kind == DYNAMIC {
                dynamic = Some((address, long(&segment, 40)));
            }
        }
        let (Some(first), Some((address, size))) = (first, dynamic) else { return Ok(None) };
        let bias = start.wrapping_sub(first);
        Symbols::tables(memory, bias, start, bias.wrapping_add(address), size)
    }

    fn tables(
        memory: &impl Memory,
        bias: u64,
        start: u64,
        dynamic: u64,
        size: u64,
    ) -> Result<Option<Symbols>, Unread> {
        const NULL: u64 = 0;
        const STRTAB: u64 = 5;
        const SYMTAB: u64 = 6;
        const GNU_HASH: u64 = 0x6fff_fef5;
        let block = memory.block(dynamic, usize::try_from(size).unwrap_or(usize::MAX))?;
        let (mut names, mut table, mut hash) = (None, None, None);
        for entry in block.chunks_exact(16) {
            let value = long(entry, 8);
            // glibc writes the address in memory here; musl leaves the address in the file.
            let address = if value < start { value.wrapping_add(bias) } else { value };
            match long(entry, 0) {
                NULL => break,
                STRTAB => names = Some(address),
                SYMTAB => table = Some(address),
                GNU_HASH => hash = Some(address),
                _ => {}
            }
        }
        Ok((|| Some(Symbols { bias, table: table?, names: names?, hash: hash? }))())
    }

    /// The address of a symbol that the file defines.
    pub(super) fn address(
        &self,
        memory: &impl Memory,
        name: &str,
    ) -> Result<Option<Address>, Unread> {
        /// Maximum number of symbols of one chain that are tried; a good table has two or three.
        const LONGEST_CHAIN: u64 = 4096;
        let head: [u8; 16] = memory.bytes(self.hash)?;
        let (buckets, first, bloom) = (int(&head, 0), int(&head, 4), int(&head, 8));
        if buckets == 0 {
            return Ok(None);
        }
        let wanted = gnu_hash(name);
        let bucket_at = self.hash.wrapping_add(16).wrapping_add(u64::from(bloom) * 8);
        let chain_at = bucket_at.wrapping_add(u64::from(buckets) * 4);
        let begin = memory.u32(bucket_at.wrapping_add(u64::from(wanted % buckets) * 4))?;
        if begin < first {
            return Ok(None);
        }
        for number in u64::from(begin)..u64::from(begin) + LONGEST_CHAIN {
            let link = chain_at.wrapping_add((number - u64::from(first)) * 4);
            let hash = memory.u32(link)?;
            if hash | 1 == wanted | 1
                && let Some(address) = self.defined(memory, number, name)?
            {
                return Ok(Some(address));
            }
            // The last symbol of a chain is marked.
            if hash & 1 == 1 {
                break;
            }
        }
        Ok(None)
    }

    fn defined(
        &self,
        memory: &impl Memory,
        number: u64,
        name: &str,
    ) -> Result<Option<Address>, Unread> {
        let symbol: [u8; 24] = memory.bytes(self.table.wrapping_add(number * 24))?;
        let at = self.names.wrapping_add(u64::from(int(&symbol, 0)));
        if memory.text(at, name.len() + 1)? != name.as_bytes() || short(&symbol, 6) == 0 {
            return Ok(None);
        }
        Ok(Some(self.bias.wrapping_add(long(&symbol, 8))))
    }
}

fn gnu_hash(name: &str) -> u32 {
    name.bytes().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

/// The number at `at`; 0 beyond the end.
pub(super) fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(take(bytes, at))
}

pub(super) fn int(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(take(bytes, at))
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(take(bytes, at))
}

/// The first mapping of a file that may hold a Python interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Address of the file's first byte.
    pub start: u64,
    pub file: String,
}

/// A line of the file.
struct Mapping<'m> {
    at: Range<u64>,
    rights: &'m str,
    offset: u64,
    /// A path, the kernel's own name such as `[vdso]`, or nothing.
    path: &'m str,
}

/// proc_pid_maps(5): address perms offset dev inode pathname
fn mappings(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    maps.lines().filter_map(move |line| {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let (at, rights) = (number(start)?..number(end)?, fields.next()?);
        let offset = number(fields.next()?)?;
        let path = fields.nth(2).unwrap_or_default().trim_start();
        Some(Mapping { at, rights, offset, path })
    })
}

/// The mappings of a process that hold code, by address.
#[derive(Debug)]
pub(super) struct Code(Vec<(Range<u64>, String)>);

impl Code {
    pub(super) fn new(maps: &str) -> Code {
        let code = mappings(maps).filter(|one| one.rights.contains('x'));
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        Code(code.map(|one| (one.at, name(one.path))).collect())
    }

    /// Name of the file whose code is at this address; empty for code that belongs to no file.
    pub(super) fn file(&self, at: u64) -> Option<&str> {
        let after = self.0.partition_point(|(range, _)| range.start <= at);
        let (range, name) = self.0.get(after.checked_sub(1)?)?;
        range.contains(&at).then_some(name.as_str())
    }
}

/// Files that may hold an interpreter. A library comes first, since an executable of the same name
/// then only calls it. The executable follows, whatever its name (an embedding program has its own
/// name).
pub(super) fn candidates(maps: &str, executable: Option<&str>) -> Vec<Candidate> {
    let mut found: Vec<(u8, Candidate)> = Vec::new();
    // A file may be mapped twice; the loader's mapping comes with the headers.
    for Mapping { at, path, .. } in mappings(maps).filter(|one| one.offset == 0) {
        if !path.starts_with('/') {
            continue;
        }
        let place = match path.rsplit('/').next() {
            Some(name) if name.starts_with("libpython") => 0,
            _ if executable == Some(path) => 1,
            Some(name) if name.starts_with("python") => 2,
            _ => continue,
        };
        found.push((place, Candidate { start: at.start, file: path.to_owned() }));
    }
    found.order_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, candidate)| candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_by_its_addresses() {
        let code = Code::new(
            "1000-2000 r--p 0 0 0 /v/a.so\n2000-3000 r-xp 0 0 0 /my v/a.so\nx\n5000-6000 r-xp 0 0 0 \n",
        );
        let files = [0x1fff, 0x2000, 0x2fff, 0x3000, 0x5001, 0].map(|at| code.file(at));
        assert_eq!(files, [None, Some("a.so"), Some("a.so"), None, Some(""), None]);
    }

    #[test]
    fn library_candidate_precedes_program_candidate() {
        let maps = "\
55d0-55d1 r--p 00000000 fd:00 12 /opt/my env/bin/python3.11
55d1-55d2 r-xp 00001000 fd:00 12 /opt/my env/bin/python3.11
7f00-7f10 r--p 00000000 fd:00 13 /opt/python3.11/lib/libc.so.6
7f10-7f20 r--p 00000000 fd:00 14 /opt/my env/lib/libpython3.11.so.1.0
7f20-7f30 rw-p 00000000 00:00 0 
7f30-7f40 r-xp 00000000 00:00 0                          [vdso]
";
        let found = candidates(maps, Some("/opt/my env/bin/python3.11"));
        let shown: Vec<_> = found.iter().map(|one| (one.start, one.file.as_str())).collect();
        assert_eq!(
            shown,
            [
                (0x7f10, "/opt/my env/lib/libpython3.11.so.1.0"),
                (0x55d0, "/opt/my env/bin/python3.11")
            ]
        );
        // A program that embeds a static interpreter may have any name.
        let embedded = "400000-500000 r--p 00000000 fd:00 12 /opt/sim\n";
        assert_eq!(candidates(embedded, Some("/opt/sim")).len(), 1);
        assert_eq!(candidates(embedded, Some("/usr/bin/other")), []);
        for broken in ["", "x", "zz-1 r--p 0 0 0 /python3", "1-2 r--p zz 0 0 /python3", "1-2"] {
            assert_eq!(candidates(broken, Some("/a")), []);
        }
    }
}
