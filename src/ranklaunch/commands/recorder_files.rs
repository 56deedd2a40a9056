//! Dumps of torch's flight recorder among the files that `explain` is given, and their findings.
//!
//! A dump is recognised by its content, since torch lets everybody choose the name. Only its rank is
//! not in the content: the rank comes from the name.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Cursor, Read as _};
use std::path::Path;
use std::time::UNIX_EPOCH;

use super::log_files::LogFile;
use super::log_streams::Opened;
use diagnose::recorder::{
    Dump, Hang, Job, Late, RankRecord, Read, Unreadable, judge, late, may_be_dump, read,
};
use report::diagnosis_view::Unread;
use text::lang::Text;
use text::text;

/// Number of bytes at the start of a file that show its kind.
const HEAD: u64 = 256;
/// A dump of 2000 entries has about a MiB.
const LARGEST: u64 = 128 << 20;

/// The dumps that were found.
#[derive(Default)]
pub(super) struct RecorderFiles {
    by_rank: BTreeMap<u32, Vec<Found>>,
    pub(super) notes: Vec<Text>,
}

struct Found {
    name: String,
    dump: Dump,
    read: Read,
}

/// Kind of a file, from its content.
pub(super) enum Kind {
    Log(Opened),
    /// The file is a dump and is kept here.
    Dump,
    /// The file looks like a dump, but cannot be read.
    Unread(Unread),
}

/// Findings from the dumps.
pub(super) struct Shown {
    pub(super) hang: Hang,
    pub(super) late: Vec<Late>,
}

impl RecorderFiles {
    pub(super) fn is_empty(&self) -> bool {
        self.by_rank.is_empty()
    }

    /// Takes a file if it is a dump; gives it back, from its start, if not.
    pub(super) fn take(&mut self, file: &LogFile, opened: Opened) -> io::Result<Kind> {
        let Opened { mut bytes, taken } = opened;
        let mut head = Vec::new();
        bytes.by_ref().take(HEAD).read_to_end(&mut head)?;
        if !may_be_dump(&head) {
            return Ok(Kind::Log(Opened {
                bytes: Box::new(Cursor::new(head).chain(bytes)),
                taken,
            }));
        }
        let mut whole = head;
        bytes.by_ref().take(LARGEST).read_to_end(&mut whole)?;
        let dump = match read(&whole) {
            Ok(dump) => dump,
            // Other programs write JSON as well, but none writes its log as a pickle.
            Err(Unreadable::Pickle(flaw)) => {
                let error = Unreadable::Pickle(flaw).text();
                return Ok(Kind::Unread(Unread { name: file.origin.name.clone(), error }));
            }
            Err(_) => {
                let bytes = Box::new(Cursor::new(whole).chain(bytes));
                return Ok(Kind::Log(Opened { bytes, taken }));
            }
        };
        let name = file.origin.name.clone();
        let in_name = file.path.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        let Some(rank) = dump.rank.or_else(|| in_name.and_then(rank_in)) else {
            let error = text!(
                "neither this dump nor its name says whose it is: give it a name that ends in rank_N",
                "转储内容和文件名都没有说明属于哪个 rank：请将文件命名为以 rank_N 结尾"
            );
            return Ok(Kind::Unread(Unread { name, error }));
        };
        let read = file.path.as_deref().and_then(written_ns).map_or(Read::Unknown, Read::NotAfter);
        self.keep(rank, Found { name, dump, read });
        Ok(Kind::Dump)
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

    /// `stood_still`: logs prove a standstill.
    pub(super) fn show(self, stood_still: bool) -> Shown {
        let records = self.by_rank.into_iter().map(|(rank, found)| RankRecord {
            rank,
            read: found.iter().map(|found| found.read).next().unwrap_or_default(),
            dumps: found.into_iter().map(|found| found.dump).collect(),
        });
        let job = Job { records: records.collect(), world: None, stood_still };
        Shown { hang: judge(&job), late: late(&job.records, None, &BTreeMap::new()) }
    }
}

/// Time of the last write to a file. Copying makes it later, so this is only an upper bound.
fn written_ns(path: &Path) -> Option<i64> {
    let written = fs::metadata(path).ok()?.modified().ok()?;
    i64::try_from(written.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
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
