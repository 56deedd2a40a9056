//! Cases that gloo does not record or that cannot be produced with it: NCCL's states, sends and receives, lost
//! entries, groups that were made anew. The fields are those of the records that torch wrote; the values follow
//! `torch/csrc/distributed/c10d/FlightRecorder.hpp` and ProcessGroupNCCL of 2.15.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::groups::Groups;
use super::super::*;
use verdict::Confidence;

/// An entry; `seq` and `record` follow from its place unless `more` gives them.
struct E(&'static str, &'static str, Value);

/// The dump of a rank in which `groups` are known: name, description, ranks.
fn dump(entries: &[E], groups: &[(&str, &str, &[u32])]) -> Dump {
    let mut seqs = std::collections::BTreeMap::new();
    let entries: Vec<Value> = entries
        .iter()
        .enumerate()
        .map(|(record, E(group, name, more))| {
            let is_p2p = name.contains(":send") || name.contains(":recv");
            let desc = groups.iter().find(|(known, ..)| known == group).map_or("", |found| found.1);
            let seq = seqs.entry((*group, is_p2p)).or_insert(0);
            *seq += 1;
            let mut entry = json!({
                "record_id": record, "pg_id": 0, "process_group": [group, desc],
                "collective_seq_id": if is_p2p { 0 } else { *seq },
                "p2p_seq_id": if is_p2p { *seq } else { 0 },
                "op_id": record, "profiling_name": name, "is_p2p": is_p2p,
                "time_created_ns": 1_700_000_000_000_000_000_i64 + i64::try_from(record).expect("few") * 1_000_000,
                "input_sizes": [[4]], "input_dtypes": ["Float"],
                "output_sizes": [[4]], "output_dtypes": ["Float"],
                "state": "completed", "retired": true, "timeout_ms": 600_000,
            });
            for (key, value) in more.as_object().expect("a map") {
                entry[key] = value.clone();
            }
            entry
        })
        .collect();
    let config = groups.iter().map(|(name, desc, ranks)| {
        let value = json!({ "name": name, "desc": desc, "ranks": format!("{ranks:?}") });
        ((*name).to_owned(), value)
    });
    let config: serde_json::Map<String, Value> = config.collect();
    let text =
        json!({ "version": "2.10", "entries": entries, "pg_config": config, "pg_status": {} });
    read(text.to_string().as_bytes()).expect("a record")
}

const WORLD: &[(&str, &str, &[u32])] = &[("0", "default_pg", &[0, 1])];

const WORLD_OF_FOUR: &[(&str, &str, &[u32])] = &[("0", "default_pg", &[0, 1, 2, 3])];

fn done(name: &'static str) -> E {
    E("0", name, json!({}))
}

fn open(name: &'static str) -> E {
    E("0", name, json!({ "state": "started", "retired": false }))
}

fn with(name: &'static str, inputs: Value, outputs: Value) -> E {
    let sizes = json!({
        "state": "started", "retired": false, "input_sizes": inputs, "output_sizes": outputs,
    });
    E("0", name, sizes)
}

fn hang_of(dumps: Vec<Dump>, stood_still: bool) -> Hang {
    let records = dumps.into_iter().zip(0..).map(|(dump, rank)| RankRecord {
        rank,
        dumps: vec![dump],
        read: Read::Unknown,
    });
    judge(&Job { records: records.collect(), world: None, stood_still })
}

fn judged(all: &[&[E]]) -> Vec<(Option<u32>, HangKind)> {
    let hang = hang_of(all.iter().map(|entries| dump(entries, WORLD)).collect(), true);
    hang.culprits.iter().map(|culprit| (culprit.rank, culprit.kind)).collect()
}

const REDUCE: &str = "nccl:all_reduce";

#[test]
fn entry_given_up_by_watchdog_proves_hang() {
    let given_up = || E("0", REDUCE, json!({ "state": "started", "retired": true }));
    let dumps = vec![dump(&[done(REDUCE), given_up()], WORLD), dump(&[done(REDUCE)], WORLD)];
    let hang = hang_of(dumps, false);
    assert_eq!((hang.culprits[0].rank, hang.confidence), (Some(1), Confidence::Certain));
    // gloo retires entries that are done and does not mark them otherwise.
    let gloo = |state| E("0", "gloo:all_reduce", json!({ "state": "scheduled", "retired": state }));
    let dumps = vec![dump(&[gloo(true), gloo(true)], WORLD), dump(&[gloo(true)], WORLD)];
    let hang = hang_of(dumps, true);
    assert_eq!((hang.culprits.len(), hang.older), (0, vec![1]));
}

#[test]
fn rank_without_entries_has_not_come() {
    assert_eq!(judged(&[&[open(REDUCE)], &[]]), [(Some(1), HangKind::NeverEntered)]);
}

#[test]
fn link_is_blamed_if_all_ranks_wait_alike() {
    let both = || vec![dump(&[open(REDUCE)], WORLD), dump(&[open(REDUCE)], WORLD)];
    let hang = hang_of(both(), true);
    let link = (hang.culprits[0].rank, hang.culprits[0].kind, hang.confidence);
    assert_eq!(link, (None, HangKind::Link, Confidence::Likely));
    assert!(hang_of(both(), false).culprits.is_empty(), "it may be under way");
}

#[test]
fn sizes_are_compared_per_kind_of_collective() {
    let shape = |one: E, other: E| judged(&[&[one], &[other]]);
    let both = [(Some(0), HangKind::OtherShape), (Some(1), HangKind::OtherShape)];
    let link = [(None, HangKind::Link)];
    let other = [(None, HangKind::OtherShape)];
    for (name, first, second, expected) in [
        (REDUCE, (json!([[4]]), json!([[4]])), (json!([[2, 2]]), json!([[2, 2]])), &link[..]),
        (REDUCE, (json!([[4]]), json!([[4]])), (json!([[5]]), json!([[5]])), &both),
        ("nccl:gather", (json!([[4]]), json!([[4], [4]])), (json!([[4]]), json!([])), &link),
        ("nccl:gather", (json!([[4]]), json!([[4], [4]])), (json!([[3]]), json!([])), &both),
        ("nccl:scatter", (json!([[4], [4]]), json!([[4]])), (json!([]), json!([[4]])), &link),
        ("nccl:scatter", (json!([[4], [4]]), json!([[4]])), (json!([]), json!([[3]])), &both),
        ("nccl:all_to_all", (json!([[3]]), json!([[5]])), (json!([[5]]), json!([[3]])), &link),
        ("nccl:all_to_all", (json!([[3]]), json!([[5]])), (json!([[5]]), json!([[4]])), &other),
        ("nccl:all_gather_v", (json!([[3]]), json!([[8]])), (json!([[5]]), json!([[8]])), &link),
        ("my:own", (json!([[3]]), json!([[8]])), (json!([[5]]), json!([[9]])), &link),
    ] {
        let found = shape(with(name, first.0, first.1), with(name, second.0, second.1));
        assert_eq!(found, expected, "{name}");
    }
    let double = json!({ "state": "started", "retired": false, "input_dtypes": ["Double"] });
    assert_eq!(shape(open(REDUCE), E("0", REDUCE, double)), both);
    // Two functions for the same collective.
    assert_eq!(shape(open("nccl:all_gather"), open("nccl:_all_gather_base")), link);
}

#[test]
fn minority_is_odd_and_equal_sides_stay_uncertain() {
    let three = &[("0", "default_pg", &[0, 1, 2][..])];
    let of = |names: [&'static str; 3]| {
        hang_of(names.iter().map(|name| dump(&[open(name)], three)).collect(), false)
    };
    let hang = of(["nccl:broadcast", REDUCE, REDUCE]);
    assert_eq!((hang.culprits.len(), hang.culprits[0].rank), (1, Some(0)));
    assert_eq!((hang.confidence, hang.waiting), (Confidence::Certain, vec![1, 2]));
    let hang = of(["nccl:broadcast", REDUCE, "nccl:barrier"]);
    assert_eq!((hang.culprits.len(), hang.confidence), (3, Confidence::Likely));
}

#[test]
fn lost_ring_entries_accuse_nobody() {
    // Rank 1 filled its ring with another group; the entries of the first group are lost.
    let groups: &[(&str, &str, &[u32])] = &[("0", "default_pg", &[0, 1]), ("1", "tp", &[1, 2])];
    let other = || E("1", REDUCE, json!({ "record_id": 2000 }));
    let hang = hang_of(vec![dump(&[open(REDUCE)], groups), dump(&[other()], groups)], true);
    assert_eq!(hang.culprits, []);
    let kept = || E("1", REDUCE, json!({}));
    let hang = hang_of(vec![dump(&[open(REDUCE)], groups), dump(&[kept()], groups)], true);
    assert_eq!(hang.culprits[0].kind, HangKind::NeverEntered, "the control: nothing is lost");
}

#[test]
fn unnamed_collective_mismatches_no_other() {
    let unnamed = || open("gloo:collective");
    let reduce = || open("gloo:all_reduce");
    assert_eq!(judged(&[&[unnamed()], &[reduce()]]), [(None, HangKind::Link)]);
    assert_eq!(judged(&[&[unnamed()], &[]]), [(Some(1), HangKind::NeverEntered)]);
    let barrier = open("gloo:barrier");
    let both = [(Some(0), HangKind::OtherCollective), (Some(1), HangKind::OtherCollective)];
    assert_eq!(judged(&[&[barrier], &[reduce()]]), both, "the control: two names");
}

#[test]
fn few_ranks_waiting_further_on_are_blamed() {
    const THREE: &[(&str, &str, &[u32])] = &[("0", "default_pg", &[0, 1, 2])];
    // As in the calls of a gloo without a recorder: only the last call is known.
    let further =
        || E("0", REDUCE, json!({ "state": "started", "retired": false, "collective_seq_id": 2 }));
    let of = |all: &[&[E]]| {
        let hang = hang_of(all.iter().map(|entries| dump(entries, THREE)).collect(), true);
        let culprits = hang.culprits.iter();
        culprits.map(|culprit| (culprit.rank, culprit.kind)).collect::<Vec<_>>()
    };
    let waits = || open(REDUCE);
    assert_eq!(of(&[&[further()], &[waits()], &[waits()]]), [(Some(0), HangKind::OtherShape)]);
    assert_eq!(of(&[&[further()], &[further()], &[waits()]]), [], "the few are odd");
    let known = [done(REDUCE), open(REDUCE)];
    let late = [1, 2].map(|rank| (Some(rank), HangKind::NeverEntered));
    assert_eq!(
        of(&[&known, &[waits()], &[waits()]]),
        late,
        "it entered the same, so they have left it"
    );
}

#[test]
fn rank_inside_a_left_collective_is_only_likely() {
    const GROUPS: &[(&str, &str, &[u32])] =
        &[("0", "default_pg", &[0, 1, 2]), ("1", "dp", &[0, 1])];
    let next = || E("1", REDUCE, json!({ "state": "started", "retired": false }));
    let of = |first: E| {
        let zero = dump(&[done(REDUCE), next()], GROUPS);
        hang_of(vec![zero, dump(&[first], GROUPS), dump(&[done(REDUCE)], GROUPS)], true)
    };
    let hang = of(open(REDUCE));
    let culprit = &hang.culprits[0];
    assert_eq!((culprit.rank, culprit.kind), (Some(1), HangKind::NeverEntered));
    assert_eq!((culprit.is_inside, hang.confidence), (true, Confidence::Likely));
    assert_eq!(culprit.last.as_ref().map(|(last, _)| last.group.as_str()), Some("default_pg"));
    let hang = of(done(REDUCE));
    assert_eq!((hang.culprits[0].is_inside, hang.confidence), (false, Confidence::Certain));
}

#[test]
fn unnamed_group_is_complete_after_a_finished_collective() {
    // As in records of gloo 2.15, which name no members of groups a and b. Rank 0 waits in b for rank 1. Rank 1 waits
    // in a for an answer of rank 2, which has come.
    let entry = |group, seq: i64, is_done: bool| {
        let state = if is_done { "completed" } else { "started" };
        E(group, REDUCE, json!({ "state": state, "retired": is_done, "collective_seq_id": seq }))
    };
    let of = |before: bool| {
        let with = |group: &'static str, entries: Vec<E>| {
            let first = before.then(|| entry(group, 1, true));
            let entries: Vec<E> = first.into_iter().chain(entries).collect();
            dump(&entries, WORLD_OF_FOUR)
        };
        let zero = with("b", vec![entry("b", 2, false)]);
        let one = with("a", vec![entry("b", 1, true), entry("a", 2, false)]);
        let two = with("a", vec![entry("a", 2, false)]);
        let three = with("b", vec![entry("b", 2, false)]);
        let hang = hang_of(vec![zero, one, two, three], true);
        let culprits = hang.culprits.iter();
        culprits.map(|one| (one.rank, one.kind)).collect::<Vec<_>>()
    };
    assert_eq!(of(true), [(None, HangKind::Link)]);
    assert_eq!(of(false), [], "the control: another rank may be in group a");
}

#[test]
fn few_groups_of_nonsensical_record_hold_all_ranks() {
    let called = |number: usize| {
        E("", REDUCE, json!({ "process_group": [number.to_string(), "default_pg"] }))
    };
    let entries: Vec<E> = (0..100).map(called).collect();
    let dumps = vec![dump(&entries, &[])];
    let record = RankRecord { rank: 0, dumps, ..RankRecord::default() };
    let groups = Groups::of(std::slice::from_ref(&record), Some(1000));
    assert_eq!(groups.all.len(), 100);
    let members: usize = groups.all.iter().map(|group| group.members.len()).sum();
    assert!((1000..17_000).contains(&members), "{members}");
    let of_all = groups.all.iter().filter(|group| group.members.len() == 1000);
    let lists: BTreeSet<_> = of_all.map(|group| group.members.as_ptr()).collect();
    assert_eq!(lists.len(), 1, "they share the list");
}

#[test]
fn remade_group_restarts_its_numbers() {
    let anew = || {
        E(
            "0",
            REDUCE,
            json!({ "pg_id": 7, "collective_seq_id": 1, "state": "started", "retired": false }),
        )
    };
    let before = [&[done(REDUCE), done(REDUCE), anew()][..], &[done(REDUCE), done(REDUCE)]];
    let hang = hang_of(before.iter().map(|entries| dump(entries, WORLD)).collect(), true);
    // Rank 1 is still in the old group: its numbers say nothing about the new group, and it left every collective.
    assert_eq!(hang.culprits, []);
    let first = || E("0", REDUCE, json!({ "pg_id": 7, "collective_seq_id": 1 }));
    let next = json!({ "pg_id": 7, "collective_seq_id": 2, "state": "started", "retired": false });
    let both = [
        &[done(REDUCE), done(REDUCE), first(), E("0", REDUCE, next)][..],
        &[done(REDUCE), done(REDUCE), first()],
    ];
    assert_eq!(judged(&both), [(Some(1), HangKind::NeverEntered)], "it is in the new one");
}

/// A damaged record may hold any number.
#[test]
fn wrong_number_costs_neither_memory_nor_judgement() {
    let groups: &[(&str, &str, &[u32])] = &[WORLD[0], ("7", "undefined", &[0, 3_000_000])];
    let late = || E("0", REDUCE, json!({ "record_id": i64::MAX, "time_created_ns": i64::MAX }));
    let early = || E("0", REDUCE, json!({ "record_id": 0, "time_created_ns": i64::MIN }));
    let unknown = || E("8", REDUCE, json!({}));
    let entries = [late(), early(), unknown(), open(REDUCE)];
    let dumps = vec![dump(&entries, groups), dump(&[done(REDUCE), done(REDUCE)], WORLD)];
    let hang = hang_of(dumps, true);
    assert!(hang.silent.is_empty(), "{} ranks are missed", hang.silent.len());
    assert_eq!(hang.culprits.first().map(|culprit| culprit.rank), Some(Some(1)), "{hang:?}");
}

#[test]
fn group_with_unknown_members_names_no_culprit() {
    // As in records of gloo: each rank names the members of its last group, but not the group.
    let of = |entries: &[E], last: &[u32]| {
        let mut dump = dump(entries, &[("", "", last)]);
        dump.groups.iter_mut().for_each(|group| group.name.clear());
        dump
    };
    let open = || E("1", "gloo:all_reduce", json!({ "state": "scheduled", "retired": false }));
    let world = &[0, 1, 2, 3][..];
    let dumps = |last: [&[u32]; 4]| -> Vec<Dump> {
        let entries = |rank| if rank == 0 { vec![open()] } else { Vec::new() };
        last.iter().enumerate().map(|(rank, last)| of(&entries(rank), last)).collect()
    };
    let pairs = dumps([&[0, 1], &[0, 1], &[2, 3], &[2, 3]]);
    assert_eq!(hang_of(pairs, true).culprits, []);
    // If all others are only in the default group, rank 1 must be the other member.
    let hang = hang_of(dumps([&[0, 1], &[0, 1], world, world]), true);
    assert_eq!(hang.culprits.len(), 1);
    assert_eq!(hang.culprits[0].rank, Some(1));
}

#[test]
fn backends_count_by_themselves() {
    let found = judged(&[
        &[done("gloo:barrier"), done("gloo:barrier"), open(REDUCE)],
        &[done("gloo:barrier"), done("gloo:barrier"), open(REDUCE)],
    ]);
    assert_eq!(found, [(None, HangKind::Link)]);
}

#[test]
fn a_send_waits_for_its_receive() {
    let (send, recv) = ("nccl:send 0->1", "nccl:recv 1<-0");
    let never = [(Some(1), HangKind::NeverEntered)];
    assert_eq!(judged(&[&[done(send), open(send)], &[done(recv)]]), never);
    assert_eq!(
        judged(&[&[done(send)], &[done(recv), open(recv)]]),
        [(Some(0), HangKind::NeverEntered)]
    );
    assert_eq!(judged(&[&[open(send)], &[open(recv)]]), [(None, HangKind::Link)]);
    assert_eq!(judged(&[&[done(send)], &[open(recv)]]), [], "it arrives");
    let large = || with(recv, json!([[4]]), json!([[9]]));
    let both = [(Some(0), HangKind::OtherShape), (Some(1), HangKind::OtherShape)];
    assert_eq!(judged(&[&[open(send)], &[large()]]), both);
    // Both ranks send first.
    let circle = [(Some(0), HangKind::Deadlock), (Some(1), HangKind::Deadlock)];
    assert_eq!(judged(&[&[open(send)], &[open("nccl:send 1->0")]]), circle);
    // The matching receive cannot be found, because the first ones are lost.
    let later = || E("0", recv, json!({ "record_id": 2000 }));
    assert_eq!(judged(&[&[done(send), open(send)], &[later()]]), []);
    // A receive from any rank.
    assert_eq!(judged(&[&[done(send)], &[done(recv), open("nccl:recv 1<-?")]]), []);
}

#[test]
fn coalesced_operations_are_done_with_their_last() {
    let part =
        |name| E("0", name, json!({ "p2p_seq_id": 1, "state": "scheduled", "retired": false }));
    let close = |state: &str| {
        let more = json!({ "p2p_seq_id": 1, "is_p2p": true, "state": state, "retired": state == "completed" });
        E("0", "nccl:coalesced", more)
    };
    let rank = |state: &str| [part("nccl:send 0->1"), part("nccl:recv 0<-1"), close(state)];
    let other = |state: &str| [part("nccl:recv 1<-0"), part("nccl:send 1->0"), close(state)];
    assert_eq!(judged(&[&rank("completed"), &other("completed")]), []);
    assert_eq!(judged(&[&rank("started"), &[]]), [(Some(1), HangKind::NeverEntered)]);
    assert_eq!(judged(&[&rank("started"), &other("started")]), [(None, HangKind::Link)]);
}

#[test]
fn three_groups_in_a_ring_deadlock() {
    let groups: &[(&str, &str, &[u32])] =
        &[("1", "a", &[0, 1]), ("2", "b", &[1, 2]), ("3", "c", &[0, 2])];
    let waits = |group| E(group, REDUCE, json!({ "state": "started", "retired": false }));
    let dumps = ["1", "2", "3"].map(|group| dump(&[waits(group)], groups));
    let hang = hang_of(dumps.into(), true);
    assert_eq!(hang.culprits.len(), 3);
    assert!(hang.culprits.iter().all(|culprit| culprit.kind == HangKind::Deadlock));
}

#[test]
fn broadcast_root_may_leave_before_others_come() {
    let rank = || [done("nccl:broadcast"), open(REDUCE)];
    assert_eq!(judged(&[&rank(), &[]]), [(Some(1), HangKind::NeverEntered)]);
    // All ranks have entered an all_reduce that one has left: rank 1 was read before.
    assert_eq!(judged(&[&[done(REDUCE), open(REDUCE)], &[]]), []);
}

#[test]
fn other_versions_are_read_and_missing_version_refused() {
    let old = r#"{"version":"1.4","entries":[{"record_id":0,"seq_id":3,"process_group":"0","profiling_name":"nccl:all_reduce","state":"scheduled"}]}"#;
    let dump = read(old.as_bytes()).expect("a record");
    assert_eq!((dump.entries[0].collective_seq, &*dump.entries[0].group), (3, "0"));
    let newer = r#"{"version":"2.99","entries":[],"news":{"a":[1]}}"#;
    assert!(read(newer.as_bytes()).is_ok());
    for (bytes, said) in [
        (
            &br#"{"version":"3.0","entries":[]}"#[..],
            "`version` is \"3.0\", allowed: \"1.…\", \"2.…\"",
        ),
        (br#"{"entries":[]}"#, "`version` is missing"),
        (br#"{"version":"2.1","pg_config":{},"entries":3}"#, "`entries` is 3, allowed: list"),
        (br#"{"version":"2.1"}"#, "`entries` is missing"),
        (br#"{"version":"2.1","entries":[{"record_id":1}]}"#, "`profiling_name` is missing"),
        (br#"{"version":"2.1","entries":["#, "not valid JSON"),
        (b"[1]", "it is list[1], not dict"),
        (b"\x80\x02cos\nsystem\n.", "the opcode GLOBAL (0x63) at byte 2"),
        (b"\x80\x02]", "cut off or damaged at byte 3"),
    ] {
        let text = read(bytes).expect_err("no record").text();
        assert!(text.en.contains(said), "{}", text.en);
        assert!(!text.zh.is_empty());
    }
}

#[test]
fn repeatedly_last_rank_is_slow_if_costly() {
    // `ms`: delay of each of two ranks at a step.
    let late_in = |op: &'static str, ms: [&dyn Fn(i64) -> i64; 2]| {
        let of = |ms: &dyn Fn(i64) -> i64| {
            let entry = |step: i64| {
                let at = 1_700_000_000_000_000_000 + step * 100_000_000 + ms(step) * 1_000_000;
                E("0", op, json!({ "time_created_ns": at }))
            };
            dump(&(0..30).map(entry).collect::<Vec<E>>(), WORLD)
        };
        let records = ms.into_iter().zip(0..).map(|(ms, rank)| RankRecord {
            rank,
            dumps: vec![of(ms)],
            read: Read::Unknown,
        });
        records.collect::<Vec<_>>()
    };
    let late_at = |ms: [&dyn Fn(i64) -> i64; 2]| late_in("gloo:all_reduce", ms);
    let late_by = |ms: [i64; 2]| late_at([&|_| ms[0], &|_| ms[1]]);
    let none = std::collections::BTreeMap::new();
    let slow = late(&late_by([0, 20]), None, &none);
    assert_eq!((slow.len(), slow[0].rank, slow[0].of), (1, 1, 30));
    assert_eq!((slow[0].share, slow[0].median_ns), (1.0, 20_000_000));
    assert!((slow[0].lost - 0.2).abs() < 0.02, "{slow:?}");
    assert_eq!(late(&late_by([0, 5]), None, &none), [], "5 % of the time");
    // Ranks that take turns, and a rank that writes a checkpoint now and then.
    let turns = late_at([&|step| step % 2 * 40, &|step| (step + 1) % 2 * 40]);
    assert_eq!(late(&turns, None, &none), []);
    let checkpoint = late_at([&|_| 0, &|step| if step % 20 == 10 { 90_000 } else { 1 }]);
    assert_eq!(late(&checkpoint, None, &none), []);
    // A rank that is stopped at every fifth step; the other rank is slightly late at the other steps.
    let throttled =
        late_at([&|step| i64::from(step % 5 != 0), &|step| i64::from(step % 5 == 0) * 80]);
    let slow = late(&throttled, None, &none);
    assert_eq!((slow.len(), slow[0].rank), (1, 1), "{slow:?}");
    // The clock of rank 1 is ahead.
    assert_eq!(late(&late_by([0, 20]), None, &[(1, 20_000_000)].into()), []);
    // In the queue of a GPU, a rank may be behind without any cost.
    for op in ["nccl:all_reduce", "nccl2:all_reduce"] {
        assert_eq!(late(&late_in(op, [&|_| 0, &|_| 20]), None, &none), []);
    }
}

/// Entries; any two of them are a mismatch, unless the records do not show it.
fn unlike(which: u64) -> E {
    let sized = |name, inputs: Value, outputs: Value| with(name, inputs, outputs);
    let typed = |dtypes: Value| {
        let fields = json!({ "state": "started", "retired": false, "input_sizes": [[4], [4]],
            "output_sizes": [[4], [4]], "input_dtypes": dtypes, "output_dtypes": dtypes });
        E("0", "gloo:all_reduce", fields)
    };
    let six = |last: u64| json!([[1], [1], [1], [1], [1], [last]]);
    match which {
        0 => open("gloo:barrier"),
        1 => open("gloo:broadcast"),
        2 => sized("gloo:all_reduce", json!([[1000]]), json!([[1000]])),
        3 => sized("gloo:all_reduce", json!([[10, 100], [1]]), json!([[10, 100], [1]])),
        4 => sized("gloo:all_reduce", six(1), six(1)),
        5 => sized("gloo:all_reduce", six(2), six(2)),
        6 => typed(json!(["Float", "Int"])),
        7 => typed(json!(["Int", "Float"])),
        8 => sized("gloo:all_gather", json!([[4]]), json!([[4], [4]])),
        9 => sized("gloo:all_gather", json!([[4]]), json!([[4], [4], [4]])),
        10 => sized("gloo:gather", json!([[4]]), json!([])),
        _ => sized("gloo:scatter", json!([]), json!([[4]])),
    }
}

#[test]
fn odd_rank_is_never_in_the_majority() {
    let mut state = 7_u64;
    let mut below = |limit: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let (mut ties, mut odd) = (0, 0);
    for _ in 0..3000 {
        let world = u32::try_from(2 + below(7)).expect("few");
        let sides = 1 + below(3);
        let kinds: Vec<u64> = (0..sides).map(|_| below(12)).collect();
        let entered: Vec<u64> =
            (0..world).map(|_| kinds[usize::try_from(below(sides)).expect("few")]).collect();
        let ranks: Vec<u32> = (0..world).collect();
        let groups = [("0", "default_pg", ranks.as_slice())];
        let dumps = entered.iter().map(|which| dump(&[unlike(*which)], &groups)).collect();
        let hang = hang_of(dumps, true);
        let of = |rank: u32| entered[rank as usize];
        for culprit in &hang.culprits {
            let told = format!("{entered:?}: {culprit:?}");
            match &culprit.entered {
                Some(Entered::Odd { own, expected }) => {
                    odd += 1;
                    assert_ne!(own, expected, "{told}");
                    let alike =
                        ranks.iter().filter(|rank| of(**rank) == of(culprit.rank.expect("one")));
                    assert!(2 * alike.count() <= ranks.len(), "{told}");
                }
                Some(Entered::Sides(sides)) => {
                    ties += 1;
                    let texts: BTreeSet<&String> = sides.iter().map(|(_, shown)| shown).collect();
                    assert!(texts.len() == sides.len() && sides.len() > 1, "{told}");
                    let mut all: Vec<u32> =
                        sides.iter().flat_map(|(ranks, _)| ranks.clone()).collect();
                    all.sort_unstable();
                    assert_eq!(all, ranks, "{told}");
                    assert!(sides[0].0.len() == sides[1].0.len(), "{told}");
                }
                None => {}
            }
        }
    }
    assert!(ties > 500 && odd > 500, "{ties} {odd}");
}

#[test]
fn two_differing_ranks_are_sides_not_odd() {
    let of_all = with("gloo:all_reduce", json!([[1000]]), json!([[1000]]));
    let none = json!({ "state": "started", "retired": false, "input_sizes": [], "output_sizes": [],
        "input_dtypes": [], "output_dtypes": [] });
    let barrier = E("0", "gloo:barrier", none);
    let dumps = vec![dump(&[barrier], WORLD), dump(&[of_all], WORLD)];
    let hang = hang_of(dumps, true);
    let sides = hang.culprits[0].entered.clone().expect("both");
    assert!(hang.culprits.iter().all(|one| one.entered.as_ref() == Some(&sides)), "{hang:?}");
    let Entered::Sides(sides) = sides else { panic!("{hang:?}") };
    let said = Entered::sides(&sides);
    assert_eq!(said.en, "rank 0 entered barrier, rank 1 all_reduce [1000] Float");
    assert_eq!(said.zh, "rank 0 进入了 barrier，rank 1 进入了 all_reduce [1000] Float");
}
