//! The part of a long record that a judgement needs: the open entries of each group, and the last entries before
//! them.
//!
//! A full ring has some 2000 entries, a MB of JSON, and node 0 gets one from each rank.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::dump::{self, NTH};
use super::op::Op;

/// Number of last steps that are kept of each track among the steps that are done.
const DONE: usize = 8;
/// Number of first collectives that are kept of each group among the open ones. The last open collective is kept as
/// well, because it shows the progress of the rank.
const OPEN: usize = 16;

/// Entries with one number: one entry, or coalesced entries, which are done when the last one is.
#[derive(Debug, Default)]
struct Step {
    entries: Vec<usize>,
    is_done: bool,
}

/// The steps of a group, or its steps with a send or a receive of one kind: the other side counts such steps.
#[derive(Debug, Default)]
struct Track {
    is_p2p: bool,
    steps: Vec<usize>,
}

/// The record, reduced to the entries that are kept. Any other text stays unchanged.
pub fn last_entries(json: String) -> String {
    let Ok(mut dump) = serde_json::from_str::<Value>(&json) else { return json };
    let Some(entries) = dump.get_mut("entries").and_then(Value::as_array_mut) else { return json };
    let numbers: Vec<Option<i64>> = entries.iter().map(number).collect();
    let mut steps: Vec<Step> = Vec::new();
    let mut known: HashMap<(String, Option<i64>), usize> = HashMap::new();
    let mut tracks: HashMap<String, Track> = HashMap::new();
    // Number of each send or receive among entries of its kind, from 0.
    let mut places: Vec<Option<usize>> = Vec::with_capacity(entries.len());
    let mut kinds: HashMap<String, usize> = HashMap::new();
    for (at, entry) in entries.iter().enumerate() {
        let op = Op::parse(text(entry, "profiling_name"));
        let is_p2p = entry.get("is_p2p").and_then(Value::as_bool).unwrap_or_else(|| op.is_p2p());
        let group = group(entry, is_p2p);
        let track = match is_p2p {
            true => format!("{group} {}", text(entry, "profiling_name")),
            false => group.clone(),
        };
        let step = *known.entry((group, seq(entry, is_p2p))).or_insert(steps.len());
        steps.resize_with(steps.len().max(step + 1), Step::default);
        if let Some(step) = steps.get_mut(step) {
            step.entries.push(at);
            step.is_done = is_done(entry, &op);
        }
        places.push(is_p2p.then(|| {
            let next = kinds.entry(track.clone()).or_default();
            *next += 1;
            *next - 1
        }));
        let track = tracks.entry(track).or_default();
        track.is_p2p = is_p2p;
        if track.steps.last() != Some(&step) {
            track.steps.push(step);
        }
    }
    let mut kept: BTreeSet<usize> = BTreeSet::new();
    for Track { is_p2p, steps: all } in tracks.values() {
        let of_track = || all.iter().filter_map(|step| steps.get(*step));
        let done: Vec<&Step> = of_track().filter(|step| step.is_done).collect();
        let open: Vec<&Step> = of_track().filter(|step| !step.is_done).collect();
        // All open sends and receives are kept: the other side may be at any of them.
        let first = if *is_p2p { open.len() } else { OPEN };
        let last_done = done.iter().rev().take(DONE);
        for step in last_done.chain(open.iter().take(first)).chain(open.last()) {
            kept.extend(&step.entries);
        }
    }
    if kept.len() == entries.len() {
        return json;
    }
    for (entry, place) in entries.iter_mut().zip(places) {
        if let (Some(fields), Some(place)) = (entry.as_object_mut(), place) {
            fields.insert(NTH.to_owned(), place.into());
        }
    }
    let mut at = 0..;
    entries.retain(|_| at.next().is_some_and(|at| kept.contains(&at)));
    // Numbers that do not count up from 0 show that entries are lost, and so that a rank without an entry in a group
    // may have entered it. Entries that are left out here are not lost: each group has its last ones.
    let follow =
        |pair: &[Option<i64>]| matches!(pair, [Some(one), next] if one.checked_add(1) == *next);
    if numbers.first() == Some(&Some(0)) && numbers.windows(2).all(follow) {
        for (number, entry) in (0_i64..).zip(entries) {
            if let Some(record) = entry.get_mut("record_id") {
                *record = number.into();
            }
        }
    }
    dump.to_string()
}

fn text<'e>(entry: &'e Value, key: &str) -> &'e str {
    entry.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn is_done(entry: &Value, op: &Op) -> bool {
    let is_retired = entry.get("retired").and_then(Value::as_bool).unwrap_or_default();
    dump::is_done(text(entry, "state") == "completed", is_retired, op)
}

fn number(entry: &Value) -> Option<i64> {
    entry.get("record_id")?.as_i64()
}

fn seq(entry: &Value, is_p2p: bool) -> Option<i64> {
    let of = |key: &str| entry.get(key).and_then(Value::as_i64);
    // `seq_id` before version 2.0.
    if is_p2p { of("p2p_seq_id") } else { of("collective_seq_id").or_else(|| of("seq_id")) }
}

/// A group that was made anew has another id. Sends have numbers of their own.
fn group(entry: &Value, is_p2p: bool) -> String {
    let of = |key: &str| entry.get(key).map(Value::to_string).unwrap_or_default();
    format!("{} {} {is_p2p}", of("pg_id"), of("process_group"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Entries of each group in turn; entries from `open` on are not done.
    fn record(first: i64, entries: i64, groups: i64, open: i64) -> String {
        let entry = |at: i64| {
            let state = if at < open { "completed" } else { "scheduled" };
            json!({ "record_id": first + at, "pg_id": at % groups, "process_group": [(at % groups).to_string(), ""],
                    "collective_seq_id": at / groups, "profiling_name": "nccl:all_reduce", "state": state })
        };
        let entries: Vec<Value> = (0..entries).map(entry).collect();
        json!({ "version": "2.10", "pg_config": {}, "entries": entries }).to_string()
    }

    /// The number, the group and the place in the group of each entry.
    fn entries(json: &str) -> Vec<(i64, i64, i64)> {
        let dump: Value = serde_json::from_str(json).expect("JSON");
        let field = |entry: &Value, key: &str| entry[key].as_i64().expect("a number");
        let entries = dump["entries"].as_array().expect("entries").iter();
        entries
            .map(|one| {
                (field(one, "record_id"), field(one, "pg_id"), field(one, "collective_seq_id"))
            })
            .collect()
    }

    #[test]
    fn each_group_keeps_its_last_entries() {
        let kept = entries(&last_entries(record(0, 2000, 2, 2000)));
        assert_eq!(kept.len(), 2 * DONE);
        assert_eq!(kept.last(), Some(&(15, 1, 999)));
        assert!(kept.iter().zip(0..).all(|((record, ..), at)| *record == at), "none is lost");
        let full = entries(&last_entries(record(500, 2000, 2, 2000)));
        assert_eq!(full.first(), Some(&(2484, 0, 992)), "some are lost");
    }

    /// gloo marks a done entry as "scheduled", and retires it.
    #[test]
    fn retired_gloo_entry_is_done() {
        let gloo = record(0, 1000, 1, 0).replace("nccl:", "gloo:");
        let retired = gloo.replacen(
            "\"state\":\"scheduled\"",
            "\"retired\":true,\"state\":\"scheduled\"",
            997,
        );
        let places = |text| {
            entries(&last_entries(text)).iter().map(|(.., place)| *place).collect::<Vec<_>>()
        };
        assert_eq!(places(retired.clone()), (989..1000).collect::<Vec<_>>());
        // NCCL also retires entries that it gave up.
        let open: Vec<i64> = (0..16).chain([999]).collect();
        assert_eq!(places(retired.replace("gloo:", "nccl:")), open);
    }

    #[test]
    fn first_and_last_open_collectives_are_kept() {
        let kept = entries(&last_entries(record(0, 1000, 1, 500)));
        let places: Vec<i64> = kept.iter().map(|(.., place)| *place).collect();
        let expected: Vec<i64> = (492..516).chain([999]).collect();
        assert_eq!(places, expected);
    }

    /// The record of one of three ranks, from names and states of sends and receives.
    fn pairs(all: impl IntoIterator<Item = (&'static str, &'static str, i64)>) -> String {
        let entry = |(at, (name, state, seq)): (i64, (&str, &str, i64))| {
            json!({ "record_id": at, "pg_id": 0, "process_group": ["0", "default_pg"], "is_p2p": true,
                    "collective_seq_id": 0, "p2p_seq_id": seq, "profiling_name": name, "state": state })
        };
        let entries: Vec<Value> = (0_i64..).zip(all).map(entry).collect();
        let config = json!({ "0": { "name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]" } });
        json!({ "version": "2.10", "pg_config": config, "entries": entries }).to_string()
    }

    /// Culprits of three ranks, from the whole records and from the reduced records.
    fn culprits_of_pairs(records: [String; 3]) -> [Vec<Option<u32>>; 2] {
        use super::super::{Job, RankRecord, Read, judge, read};
        let judged = |keep: &dyn Fn(String) -> String| -> Vec<Option<u32>> {
            let of_rank = |(rank, record): (u32, &String)| {
                let dumps = vec![read(keep(record.clone()).as_bytes()).expect("a record")];
                RankRecord { rank, dumps, read: Read::Unknown }
            };
            let records = (0..).zip(&records).map(of_rank).collect();
            let hang = judge(&Job { records, world: Some(3), stood_still: true });
            hang.culprits.iter().map(|one| one.rank).collect()
        };
        [judged(&|record| record), judged(&last_entries)]
    }

    /// The other side is found by counting, so omitted entries must count as well.
    #[test]
    fn sends_and_receives_keep_their_counterparts() {
        let done = |names: &'static [&'static str]| {
            let steps = (1..=100).flat_map(move |_| names.iter().copied());
            (1_i64..).zip(steps).map(|(seq, name)| (name, "completed", seq))
        };
        let next = "nccl:recv 1<-0";
        let never = culprits_of_pairs([
            pairs(done(&["nccl:send 0->1"])),
            pairs(done(&["nccl:recv 1<-0", "nccl:send 1->2"]).chain([(next, "started", 201)])),
            pairs(done(&["nccl:recv 2<-1"])),
        ]);
        assert_eq!(never, [vec![Some(0)], vec![Some(0)]]);
        // Both sides are there, and their transfers go on.
        let moves = culprits_of_pairs([
            pairs(done(&["nccl:send 0->1"]).chain([("nccl:send 0->1", "completed", 101)])),
            pairs(done(&["nccl:recv 1<-0", "nccl:send 1->2"]).chain([(next, "started", 201)])),
            pairs(done(&["nccl:recv 2<-1"])),
        ]);
        assert!(moves.iter().all(Vec::is_empty), "{moves:?}");
    }

    /// Entries of a batch are never done by themselves, but with the entry that closes the batch.
    #[test]
    fn batch_is_done_with_its_last_entry() {
        const ZERO: &[&str; 2] = &["nccl:send 0->1", "nccl:recv 0<-1"];
        const ONE: &[&str; 2] = &["nccl:send 1->0", "nccl:recv 1<-0"];
        let batch = |own: &'static [&'static str; 2], close: &'static str, seq: i64| {
            own.map(|name| (name, "scheduled", seq)).into_iter().chain([(
                "nccl:coalesced",
                close,
                seq,
            )])
        };
        let found = culprits_of_pairs([
            pairs((1..=100).flat_map(|seq| batch(ZERO, "completed", seq))),
            pairs(
                (1..=100)
                    .flat_map(|seq| batch(ONE, "completed", seq))
                    .chain(batch(ONE, "started", 101)),
            ),
            pairs([]),
        ]);
        assert_eq!(found, [vec![Some(0)], vec![Some(0)]]);
    }

    #[test]
    fn short_records_and_other_text_stay_unchanged() {
        for text in
            [record(0, 20, 3, 20), "[]".to_owned(), "{".to_owned(), r#"{"entries":3}"#.to_owned()]
        {
            assert_eq!(last_entries(text.clone()), text);
        }
    }

    /// The judgement of a hang is the same from the whole records and from the reduced records.
    #[test]
    fn judgement_is_same_for_reduced_records() {
        use super::super::{Job, RankRecord, Read, judge, read};
        let judged = |keep: &dyn Fn(String) -> String| {
            let of_rank = |(rank, entries): (u32, i64)| {
                let record =
                    record(0, entries, 1, 1500).replace("[\"0\",\"\"]", "[\"0\",\"default_pg\"]");
                let dumps = vec![read(keep(record).as_bytes()).expect("a record")];
                RankRecord { rank, dumps, read: Read::Unknown }
            };
            let records = [(0, 1600), (1, 1500), (2, 1501)].map(of_rank).into();
            judge(&Job { records, world: Some(3), stood_still: true })
        };
        let (whole, kept) = (judged(&|record| record), judged(&last_entries));
        let named = |hang: &super::super::Hang| {
            hang.culprits.iter().map(|one| (one.rank, one.kind)).collect::<Vec<_>>()
        };
        assert_eq!(named(&whole).first().map(|one| one.0), Some(Some(1)), "{whole:?}");
        assert_eq!((named(&whole), &whole.waiting), (named(&kept), &kept.waiting));
    }
}
