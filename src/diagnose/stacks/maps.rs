//! The mapped files of a process, from `/proc/PID/maps`.

use std::ops::Range;

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
    found.sort_by_key(|(place, _)| *place);
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
