//! The flight recorders of the ranks of this node, read while they run.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::control::{ControlSocket, asked};
use diagnose::recorder::{self, RankRecord, Read};
use text::rank::GlobalRank;

/// A full recorder has 1 to 2 MB, which torch writes in some 50 ms.
const ALL: &str = "includecollectives=true";

/// Selects the entries that are kept: the last ones before a moment, so that the entries of ranks
/// that are asked one after the other cover the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// End of the kept entries, in ns since 1970 by the clock of the rank's node.
    pub until_ns: i64,
    pub window: Duration,
    /// Maximum number of entries of each rank.
    pub most: u32,
}

/// The contents of a rank's recorder, without unused parts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub rank: GlobalRank,
    /// Time at which the rank was asked, in ns since 1970 by the clock of its node; its answer is not
    /// older.
    pub at_ns: i64,
    /// JSON of torch, from each of its recorders.
    dumps: Vec<String>,
}

impl Recorded {
    /// None if the answer is not a record.
    pub(crate) fn record(&self) -> Option<RankRecord> {
        let dumps = self.dumps.iter().filter_map(|dump| recorder::read(dump.as_bytes()).ok());
        let record =
            RankRecord { rank: self.rank.0, dumps: dumps.collect(), read: Read::At(self.at_ns) };
        (!record.dumps.is_empty()).then_some(record)
    }
}

/// The entries of all ranks with sockets in `folder`, asked side by side. A rank that does not answer
/// within `timeout` is left out.
pub(super) fn recorded(folder: &Path, cut: Cut, timeout: Duration) -> Vec<Recorded> {
    let at_ns = now_ns();
    let answers = asked(folder, ALL, timeout, timeout);
    let trim = |(socket, answers): (ControlSocket, Vec<Vec<u8>>)| {
        // `calls.py` reports no times of finished collectives.
        if socket.is_calls {
            return None;
        }
        let dumps: Vec<String> = answers.iter().filter_map(|dump| trimmed(dump, cut)).collect();
        Some(Recorded { rank: socket.rank.filter(|_| !dumps.is_empty())?, at_ns, dumps })
    };
    let by_rank: BTreeMap<GlobalRank, Recorded> =
        answers.into_iter().filter_map(trim).map(|found| (found.rank, found)).collect();
    by_rank.into_values().collect()
}

pub fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The fields that show the arrival of each rank. Sizes of tensors make up most of a record.
#[derive(Debug, Serialize, Deserialize)]
struct Dump<'a> {
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(default)]
    pg_config: Value,
    #[serde(borrow, default)]
    entries: Vec<Entry<'a>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry<'a> {
    record_id: i64,
    pg_id: i64,
    process_group: Value,
    collective_seq_id: i64,
    #[serde(default)]
    p2p_seq_id: i64,
    #[serde(default)]
    is_p2p: bool,
    #[serde(borrow)]
    profiling_name: Cow<'a, str>,
    #[serde(borrow)]
    state: Cow<'a, str>,
    #[serde(default)]
    retired: bool,
    time_created_ns: i64,
}

/// None if the answer is not a record of torch 2.5 or later.
fn trimmed(answer: &[u8], cut: Cut) -> Option<String> {
    let mut dump: Dump<'_> = serde_json::from_slice(answer).ok()?;
    let window = i64::try_from(cut.window.as_nanos()).unwrap_or(i64::MAX);
    let times = cut.until_ns.saturating_sub(window)..=cut.until_ns;
    dump.entries.retain(|entry| times.contains(&entry.time_created_ns));
    let most = usize::try_from(cut.most).unwrap_or(usize::MAX);
    let more = dump.entries.len().saturating_sub(most);
    dump.entries.drain(..more);
    serde_json::to_string(&dump).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn trimmed_record_keeps_last_entries_without_tensor_sizes() {
        let entry = |at: i64| {
            json!({
                "record_id": at, "pg_id": 0, "process_group": ["0", "default_pg"],
                "collective_seq_id": at, "profiling_name": "gloo:all_reduce", "state": "completed",
                "time_created_ns": at * 1_000_000_000, "input_sizes": [[64]], "timeout_ms": 1,
            })
        };
        let entries: Vec<Value> = (1..=100).map(entry).collect();
        let answer = json!({ "version": "2.10", "pg_config": {}, "entries": entries }).to_string();
        let kept = |until: i64, window: u64, most| {
            let cut =
                Cut { until_ns: until * 1_000_000_000, window: Duration::from_secs(window), most };
            let dump = trimmed(answer.as_bytes(), cut).expect("a record");
            let dump: Value = serde_json::from_str(&dump).expect("JSON");
            let entries = dump["entries"].as_array().expect("entries");
            assert!(entries.iter().all(|entry| entry.get("input_sizes").is_none()));
            entries.iter().filter_map(|entry| entry["record_id"].as_i64()).collect::<Vec<_>>()
        };
        assert_eq!(kept(60, 2, 400), [58, 59, 60]);
        assert_eq!(kept(60, 45, 2), [59, 60]);
        assert_eq!(kept(1000, 45, 400), [0; 0]);
        let cut = Cut { until_ns: 0, window: Duration::ZERO, most: 1 };
        assert_eq!(trimmed(b"[]", cut), None);
    }
}
