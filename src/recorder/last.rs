//! What a judgement needs of a long record: of each group what is open, and the last entries before.
//!
//! A full ring has some 2000 entries, a MB of JSON, and node 0 gets one from each rank.

use std::collections::HashMap;

use serde_json::Value;

use super::dump;
use super::op::Op;

/// Of each group: entries that are done, the last ones.
const DONE: usize = 8;
/// Of each group: entries that are open, the first ones; the last one is kept as well, which says how far the rank
/// has come.
const OPEN: usize = 16;

/// The record with these entries alone. What is no record stays as it is.
pub(crate) fn last_entries(json: String) -> String {
    let Ok(mut dump) = serde_json::from_str::<Value>(&json) else { return json };
    let Some(entries) = dump.get_mut("entries").and_then(Value::as_array_mut) else { return json };
    let numbers: Vec<Option<i64>> = entries.iter().map(number).collect();
    let mut groups: HashMap<String, (Vec<usize>, Vec<usize>)> = HashMap::new();
    for (at, entry) in entries.iter().enumerate() {
        let (done, open) = groups.entry(group(entry)).or_default();
        if is_done(entry) { done.push(at) } else { open.push(at) }
    }
    let mut keeps = vec![false; entries.len()];
    for (done, open) in groups.values() {
        let last_done = done.iter().rev().take(DONE);
        for at in last_done.chain(open.iter().take(OPEN)).chain(open.last()) {
            if let Some(keep) = keeps.get_mut(*at) {
                *keep = true;
            }
        }
    }
    if keeps.iter().all(|keep| *keep) {
        return json;
    }
    let mut keeps = keeps.into_iter();
    entries.retain(|_| keeps.next().unwrap_or(true));
    // Entries whose numbers do not follow one another from 0 on say that some are lost, and so that who is in no
    // entry of a group may have entered it. What is left out here is not lost: each group has its last ones.
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

fn is_done(entry: &Value) -> bool {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
    let is_retired = entry.get("retired").and_then(Value::as_bool).unwrap_or_default();
    dump::is_done(text("state") == "completed", is_retired, &Op::parse(text("profiling_name")))
}

fn number(entry: &Value) -> Option<i64> {
    entry.get("record_id")?.as_i64()
}

/// A group that was made anew has another id, and sends count by themselves.
fn group(entry: &Value) -> String {
    let of = |key: &str| entry.get(key).map(Value::to_string).unwrap_or_default();
    format!("{} {} {}", of("pg_id"), of("process_group"), of("is_p2p"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Entries in turn of each group; those from `open` on are not done.
    fn record(first: i64, entries: i64, groups: i64, open: i64) -> String {
        let entry = |at: i64| {
            let state = if at < open { "completed" } else { "scheduled" };
            json!({ "record_id": first + at, "pg_id": at % groups, "process_group": [(at % groups).to_string(), ""],
                    "collective_seq_id": at / groups, "profiling_name": "nccl:all_reduce", "state": state })
        };
        let entries: Vec<Value> = (0..entries).map(entry).collect();
        json!({ "version": "2.10", "pg_config": {}, "entries": entries }).to_string()
    }

    /// Of each entry its number, its group and its place in that.
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

    /// gloo calls what is done "scheduled", and retires it.
    #[test]
    fn what_gloo_has_retired_is_done() {
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
        // NCCL retires what it gave up as well.
        let open: Vec<i64> = (0..16).chain([999]).collect();
        assert_eq!(places(retired.replace("gloo:", "nccl:")), open);
    }

    #[test]
    fn of_what_is_open_the_first_and_the_last_are_kept() {
        let kept = entries(&last_entries(record(0, 1000, 1, 500)));
        let places: Vec<i64> = kept.iter().map(|(.., place)| *place).collect();
        let expected: Vec<i64> = (492..516).chain([999]).collect();
        assert_eq!(places, expected);
    }

    #[test]
    fn a_short_record_and_what_is_none_stay_as_they_are() {
        for text in
            [record(0, 20, 3, 20), "[]".to_owned(), "{".to_owned(), r#"{"entries":3}"#.to_owned()]
        {
            assert_eq!(last_entries(text.clone()), text);
        }
    }

    /// A hang is judged alike from the whole records and from what is kept of them.
    #[test]
    fn the_judgement_stays_the_same() {
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
