//! The flight recorders of the ranks of this node, read while they run: their counters, and their entries.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::control::{ControlSocket, asked};
use diagnose::recorder::{self, RankRecord, Read};
use text::order::InOrder;
use text::rank::GlobalRank;

/// The counters alone, without the recorded collectives.
const COUNTERS: &str = "includecollectives=false";
/// Time limit for one rank, whose handler answers within milliseconds, and for all ranks.
const ANSWER: Duration = Duration::from_millis(500);
const ALL_RANKS: Duration = Duration::from_secs(2);

/// The part of a flight recorder's dump that is read.
#[derive(Debug, Deserialize)]
struct CounterDump {
    #[serde(default)]
    pg_config: BTreeMap<String, GroupConfig>,
    #[serde(default)]
    pg_status: BTreeMap<String, Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
struct GroupConfig {
    #[serde(default)]
    desc: String,
}

/// One row for each process that answers and has a process group:
/// `{"rank":0,"pid":17,"groups":{"default_pg":{"enqueued":4,"started":-1,"completed":3}}}`, each
/// number that of the last collective, or -1. A group of two backends has two entries, the second `default_pg 2`.
pub(super) fn rows(folder: &Path) -> Vec<Value> {
    asked(folder, COUNTERS, ANSWER, ALL_RANKS)
        .into_iter()
        .filter_map(|(socket, dumps)| {
            let groups = joined(dumps.iter().filter_map(|dump| groups(dump)))?;
            Some(json!({ "rank": socket.rank, "pid": socket.pid, "groups": groups }))
        })
        .collect()
}

fn joined(dumps: impl Iterator<Item = Map<String, Value>>) -> Option<Map<String, Value>> {
    dumps.reduce(|mut all, more| {
        for (title, counts) in more {
            let title = match all.contains_key(&title) {
                true => format!("{title} 2"),
                false => title,
            };
            all.insert(title, counts);
        }
        all
    })
}

/// The position of a process in all its groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    /// Changes with each collective that it enters or leaves.
    pub(super) sum: u64,
    /// The rank has entered a collective that it has not left.
    pub(super) waits: bool,
}

/// Positions by pid, of the processes that answer and have a process group.
pub(super) fn counts(folder: &Path) -> HashMap<i32, Count> {
    let mut counts: HashMap<i32, Count> = HashMap::new();
    for (socket, dumps) in asked(folder, COUNTERS, ANSWER, ALL_RANKS) {
        for groups in dumps.iter().filter_map(|dump| groups(dump)) {
            let count = count(&groups);
            let all = counts.entry(socket.pid).or_insert(Count { sum: 0, waits: false });
            all.sum = all.sum.saturating_add(count.sum);
            all.waits |= count.waits;
        }
    }
    counts
}

fn count(groups: &Map<String, Value>) -> Count {
    let mut all = Count { sum: 0, waits: false };
    for group in groups.values() {
        let last = |what: &str| group.get(what).and_then(Value::as_i64).unwrap_or(-1);
        let (entered, left) = (last("enqueued"), last("completed"));
        // -1 before the first one.
        for last in [entered, left] {
            all.sum = all.sum.saturating_add(last.saturating_add(1).unsigned_abs());
        }
        all.waits |= entered > left;
    }
    all
}

/// None without a group, or if the bytes are not a dump.
fn groups(answer: &[u8]) -> Option<Map<String, Value>> {
    let dump: CounterDump = serde_json::from_slice(answer).ok()?;
    let mut groups: Map<String, Value> = Map::new();
    for (name, status) in &dump.pg_status {
        let group = dump.pg_config.get(name);
        // torch calls a group "undefined" if the program gives it no description.
        let is_said = |desc: &&String| !["", "undefined"].contains(&desc.as_str());
        let shown = group.map(|group| &group.desc).filter(is_said).unwrap_or(name);
        let last = |what: &str| number(status.get(&format!("last_{what}_collective")));
        let counts = json!({
            "enqueued": last("enqueued"),
            "started": last("started"),
            "completed": last("completed"),
        });
        // A program may give several groups the same description.
        let title = match groups.contains_key(shown) {
            true => format!("{shown} {name}"),
            false => shown.clone(),
        };
        groups.insert(title, counts);
    }
    (!groups.is_empty()).then_some(groups)
}

/// torch writes these numbers as strings.
fn number(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::String(text) => text.parse().ok(),
        other => other.as_i64(),
    }
}

/// A full recorder has 1 to 2 MB, which torch writes in some 50 ms.
const WHOLE: &str = "includecollectives=true";

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
        rank_record(self.rank, &self.dumps, self.at_ns)
    }
}

/// The record of a rank from the JSON of its recorders, read at this time. None if none of them is a record.
pub(crate) fn rank_record(rank: GlobalRank, dumps: &[String], at_ns: i64) -> Option<RankRecord> {
    let dumps = dumps.iter().filter_map(|dump| recorder::read(dump.as_bytes()).ok()).collect();
    let record = RankRecord { rank: rank.0, dumps, read: Read::At(at_ns) };
    (!record.dumps.is_empty()).then_some(record)
}

/// The entries of all ranks with sockets in `folder`, asked side by side. A rank that does not answer
/// within `timeout` is left out.
pub(super) fn recorded(folder: &Path, cut: Cut, timeout: Duration) -> Vec<Recorded> {
    let at_ns = now_ns();
    let answers = asked(folder, WHOLE, timeout, timeout);
    let trim = |(socket, answers): (ControlSocket, Vec<Vec<u8>>)| {
        // `calls.py` reports no times of finished collectives.
        if socket.is_calls {
            return None;
        }
        let dumps: Vec<String> = answers.iter().filter_map(|dump| trimmed(dump, cut)).collect();
        Some(Recorded { rank: socket.rank.filter(|_| !dumps.is_empty())?, at_ns, dumps })
    };
    let by_rank: BTreeMap<GlobalRank, Recorded> =
        answers.into_iter().filter_map(trim).map(|found| (found.rank, found)).in_map();
    by_rank.into_values().collect()
}

pub fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The fields that show the arrival of each rank. Sizes of tensors make up most of a record.
#[derive(Debug, Serialize, Deserialize)]
struct RecordDump<'a> {
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(default)]
    pg_config: Value,
    #[serde(borrow, default)]
    entries: Vec<RecordEntry<'a>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct RecordEntry<'a> {
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
    let mut dump: RecordDump<'_> = serde_json::from_slice(answer).ok()?;
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
    fn dump_counters_are_parsed() {
        // torch 2.15 with gloo, the second all-reduce of rank 0 waiting for rank 1.
        let dump = br#"{"comm_lib_version":"","nccl_comm_state":{},"pg_config":{"0":{"name":"0",
            "desc":"default_pg","ranks":"[0, 1]"}},"pg_status":{"0":{"last_enqueued_collective":"2",
            "last_started_collective":"-1","last_completed_collective":"1"}},"version":"2.10"}"#;
        let counts = json!({ "default_pg": { "enqueued": 2, "started": -1, "completed": 1 } });
        assert_eq!(groups(dump).map(Value::Object), Some(counts));
        let empty = br#"{"pg_config":{},"pg_status":{},"version":"2.10"}"#;
        assert_eq!(groups(empty), None);
        assert_eq!(groups(b"pong"), None);
    }

    #[test]
    fn group_with_two_backends_has_two_entries() {
        let of = |last: &str| {
            let status = json!({ "last_enqueued_collective": last });
            let config = json!({ "0": { "desc": "default_pg" } });
            let dump = json!({ "pg_config": config, "pg_status": { "0": status } }).to_string();
            groups(dump.as_bytes()).expect("a dump")
        };
        let both = joined([of("7"), of("3")].into_iter()).expect("two");
        assert_eq!(both["default_pg"]["enqueued"], 7);
        assert_eq!(both["default_pg 2"]["enqueued"], 3);
        assert_eq!(joined([of("7")].into_iter()), Some(of("7")));
        assert_eq!(joined(std::iter::empty()), None);
    }

    /// The counters of a program with several groups: each group counts, whatever it is called.
    #[test]
    fn groups_sharing_a_description_are_counted_separately() {
        let dump = |first: &str| {
            let desc = |desc: &str| json!({ "desc": desc });
            let status = |last: &str| json!({ "last_enqueued_collective": last, "last_completed_collective": last });
            let (tp, none) = ("tp", "undefined");
            let config = json!({ "1": desc(none), "2": desc(none), "3": desc(tp), "4": desc(tp) });
            let status = json!({ "1": status(first), "2": status("7"), "3": status(first), "4": status("7") });
            let dump = json!({ "pg_config": config, "pg_status": status }).to_string();
            groups(dump.as_bytes()).expect("a dump")
        };
        assert_eq!(dump("2").keys().collect::<Vec<_>>(), ["1", "2", "tp", "tp 4"]);
        assert_eq!(count(&dump("2")).sum + 4, count(&dump("3")).sum);
        let most = i64::MAX.to_string();
        assert_eq!(count(&dump(&most)), Count { sum: u64::MAX, waits: false });
    }

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
