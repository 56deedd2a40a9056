//! The ends of ranks in agent.jsonl, for an attempt without a run.json.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde_json::Value;

use super::own_end::{Seen, Told, end};
use linux::regular_file;
use text::rank::GlobalRank;

/// Maximum bytes at the end of a journal that are read. The ends of ranks are its last lines.
const LAST: u64 = 16 * 1024 * 1024;

/// Statements of the journal about an attempt; None means any attempt.
///
/// # Errors
/// When it cannot be read.
pub(super) fn read(path: &Path, attempt: Option<u32>) -> io::Result<Told> {
    let bytes = end_of(path)?;
    let mut told = Told::of_file(path);
    let (mut stopping, mut latest) = (false, 0);
    for (line, number) in bytes.split(|byte| *byte == b'\n').zip(1..) {
        // Most lines do not describe an end.
        let of_interest = [b"\"ended\"".as_slice(), b"\"stopping\""]
            .iter()
            .any(|words| memchr::memmem::find(line, words).is_some());
        if !of_interest {
            continue;
        }
        // The first and the last line may be cut.
        let Ok(line) = serde_json::from_slice::<Value>(line) else { continue };
        let of = line["spans"]
            .as_array()
            .into_iter()
            .flatten()
            .find_map(|span| span["attempt"].as_u64());
        if attempt.zip(of).is_some_and(|(wanted, of)| u64::from(wanted) != of) {
            continue;
        }
        // If there are several attempts, the last one counts.
        if let Some(of) = of.filter(|of| *of > latest) {
            (told, stopping, latest) = (Told::of_file(path), false, of);
        }
        let fields = &line["fields"];
        stopping |= fields["stopping"] == true;
        let Some(rank) = fields["ended"].as_u64().and_then(|rank| u32::try_from(rank).ok()) else {
            continue;
        };
        let seen = Seen {
            rank: GlobalRank(rank),
            end: end(fields),
            at: line["timestamp"].as_str().unwrap_or_default().to_owned(),
            stopped: stopping,
        };
        if seen.is_failed() && !stopping && told.rank.is_none() {
            (told.rank, told.line) = (Some(seen.rank), number);
        }
        told.ends.push(seen);
    }
    Ok(told)
}

fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let (mut file, size): (File, u64) = regular_file::open(path)?;
    file.seek(SeekFrom::Start(size.saturating_sub(LAST)))?;
    let mut bytes = Vec::new();
    file.take(LAST).read_to_end(&mut bytes)?;
    Ok(bytes)
}
