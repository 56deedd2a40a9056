//! Any bytes that are read as a record: a value or a refusal, in bounded time and memory.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::dump::Unreadable;
use super::super::{fuzz, may_be_dump, read, to_json};
use super::real::file;
use text::pickle::PickleFlaw;

/// A pickle of protocol 2 with this content.
fn pickle(inside: &[u8]) -> Vec<u8> {
    [b"\x80\x02", inside, b"."].concat()
}

fn refusal(bytes: &[u8]) -> PickleFlaw {
    match read(bytes) {
        Err(Unreadable::Pickle(flaw)) => flaw,
        other => panic!("{bytes:?}: {other:?}"),
    }
}

#[test]
fn code_running_pickle_is_refused_by_name() {
    // The output of `pickle.dumps` for an object whose __reduce__ is (os.system, ("id",)).
    let attack = b"\x80\x02cposix\nsystem\nq\x00X\x02\x00\x00\x00idq\x01\x85q\x02Rq\x03.";
    let refused = |opcode, name, offset| PickleFlaw::Refused { opcode, name, offset };
    assert_eq!(refusal(attack), refused(b'c', "GLOBAL", 2));
    for (inside, opcode, name) in [
        (&b"NR"[..], b'R', "REDUCE"),
        (b"Nb", b'b', "BUILD"),
        (b"Nios\nsystem\n", b'i', "INST"),
        (b"No", b'o', "OBJ"),
        (b"N\x82\x01", 0x82, "EXT1"),
        (b"N\x83\x01\x01", 0x83, "EXT2"),
        (b"N\x84\x01\x01\x01\x01", 0x84, "EXT4"),
        (b"NQ", b'Q', "BINPERSID"),
        (b"NPx\n", b'P', "PERSID"),
        (b"N\x81", 0x81, "NEWOBJ"),
        (b"N\x92", 0x92, "NEWOBJ_EX"),
        (b"N\x93", 0x93, "STACK_GLOBAL"),
        (b"N\x97", 0x97, "NEXT_BUFFER"),
        (b"N\x8f", 0x8f, "EMPTY_SET"),
        (b"NI1\n", b'I', ""),
        (b"N\xff", 0xff, ""),
    ] {
        assert_eq!(refusal(&pickle(inside)), refused(opcode, name, 3), "{name}");
    }
    assert_eq!(refusal(b"\x80\x06N."), PickleFlaw::Protocol { protocol: 6 });
}

/// As in Python. A fuzzer found that `pg_status` was read with both values.
#[test]
fn last_value_of_a_repeated_key_counts() {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).expect("short");
        [&[0x8c, length], text.as_bytes()].concat()
    };
    let status = |last: u8| {
        [b"}".to_vec(), text("last_enqueued_collective"), vec![b'K', last], b"s".to_vec()].concat()
    };
    let statuses = [text("0"), status(3), text("1"), status(5), text("0"), status(4)].concat();
    let status = [b"}(".to_vec(), statuses, b"u".to_vec()].concat();
    let root =
        [b"}(".to_vec(), text("version"), text("2.10"), text("pg_status"), status, b"u".to_vec()];
    let bytes = pickle(&root.concat());
    let dump = read(&bytes).expect("a record");
    assert_eq!(dump.enqueued, [(0, 4), (1, 5)]);
    let json = to_json(&bytes).expect("JSON");
    assert_eq!(read(json.as_bytes()).expect("a record"), dump);
    let twice = json.replace(r#""version""#, r#""version":"9.0","version""#);
    assert_eq!(read(twice.as_bytes()).expect("a record"), dump);
}

#[test]
fn damaged_pickle_is_refused_with_its_offset() {
    for (bytes, offset) in [
        (&b"\x80\x02"[..], 2),
        (b"\x80\x02X\xff\xff\xff\xffab", 7),
        (b"\x80\x02.", 2),
        (b"\x80\x02]Ne.", 4),
        (b"\x80\x02(Na.", 4),
        (b"\x80\x02(\x85.", 3),
        (b"\x80\x02}(NNNu.", 7),
        (b"\x80\x02h\x07.", 2),
        (b"\x80\x02\x8b\xff\xff\xff\xff.", 7),
    ] {
        assert_eq!(refusal(bytes), PickleFlaw::Cut { offset }, "{bytes:?}");
    }
    assert_eq!(refusal(b"\x80\x02X\x01\x00\x00\x00\xff."), PickleFlaw::NotText { offset: 3 });
    assert_eq!(refusal(b"\x80\x02}.N"), PickleFlaw::More { offset: 4 });
    assert_eq!(refusal(&pickle(&[b'('; 300])), PickleFlaw::TooDeep { offset: 258 });
}

#[test]
fn nested_lists_are_read_within_bounds() {
    // A list that holds itself, as entries.
    let itself =
        b"}(X\x07\x00\x00\x00versionX\x01\x00\x00\x002X\x07\x00\x00\x00entries]q\x00h\x00au";
    assert!(matches!(read(&pickle(itself)), Err(Unreadable::Shape { field: "entries[]", .. })));
    // Ten lists, each of which holds the list before it 200 times, as the sizes of one entry, and
    // that entry 5000 times: 15 KiB that would take years to walk.
    let mut bytes = b"\x80\x02](K\x01eq\x000".to_vec();
    for level in 1..=9_u8 {
        bytes.extend_from_slice(b"](");
        bytes.extend_from_slice(&[b'h', level - 1].repeat(200));
        bytes.extend_from_slice(&[b'e', b'q', level, b'0']);
    }
    bytes.extend_from_slice(
        b"}(X\x07\x00\x00\x00versionX\x01\x00\x00\x002X\x07\x00\x00\x00entries](",
    );
    bytes.extend_from_slice(
        b"}(X\x09\x00\x00\x00record_idK\x00X\x11\x00\x00\x00collective_seq_idK\x01",
    );
    bytes.extend_from_slice(b"X\x0e\x00\x00\x00profiling_nameX\x01\x00\x00\x00x");
    bytes.extend_from_slice(b"X\x0b\x00\x00\x00input_sizesh\x09uq\x20");
    bytes.extend_from_slice(&b"h\x20".repeat(5000));
    bytes.extend_from_slice(b"eu.");
    assert_eq!(refusal(&bytes), PickleFlaw::TooMany);
}

/// One name of a MB that 40 groups share: a file of one MB, which would become 40 MB.
#[test]
fn shared_names_are_not_copied_without_limit() {
    let mut bytes = b"\x80\x02X\x00\x00\x10\x00".to_vec();
    bytes.resize(bytes.len() + (1 << 20), b'x');
    bytes.extend_from_slice(
        b"q\x000}(X\x04\x00\x00\x00nameh\x00X\x05\x00\x00\x00ranks](K\x00euq\x010",
    );
    let of_groups = |count: u8| {
        let mut bytes = bytes.clone();
        bytes.extend_from_slice(
            b"}(X\x07\x00\x00\x00versionX\x01\x00\x00\x002X\x09\x00\x00\x00pg_config}(",
        );
        for group in 0..count {
            bytes.extend_from_slice(&[b'X', 1, 0, 0, 0, b'0' + group, b'h', 1]);
        }
        bytes.extend_from_slice(b"uu.");
        bytes
    };
    assert_eq!(read(&of_groups(4)).expect("a record").groups.len(), 4);
    assert_eq!(refusal(&of_groups(40)), PickleFlaw::TooMany);
}

#[test]
fn every_pickle_protocol_gives_same_record() {
    // `pickle.dumps({"version": "2.10", "entries": [], "rank": 70000, "pg_status": None}, n)` of
    // CPython 3.11.
    let protocols: [&[u8]; 3] = [
        b"\x80\x02}q\x00(X\x07\x00\x00\x00versionq\x01X\x04\x00\x00\x002.10q\x02X\x07\x00\x00\x00entriesq\x03]q\x04X\x04\x00\x00\x00rankq\x05Jp\x11\x01\x00X\t\x00\x00\x00pg_statusq\x06Nu.",
        b"\x80\x04\x95;\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x07version\x94\x8c\x042.10\x94\x8c\x07entries\x94]\x94\x8c\x04rank\x94Jp\x11\x01\x00\x8c\tpg_status\x94Nu.",
        b"\x80\x05\x95;\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x07version\x94\x8c\x042.10\x94\x8c\x07entries\x94]\x94\x8c\x04rank\x94Jp\x11\x01\x00\x8c\tpg_status\x94Nu.",
    ];
    for bytes in protocols {
        let dump = read(bytes).expect("a record");
        assert_eq!((&*dump.version, dump.rank, dump.entries.len()), ("2.10", Some(70000), 0));
        assert!(may_be_dump(bytes));
    }
}

#[test]
fn only_record_starts_look_like_records() {
    for head in ["{\"version\":\"2.1\"", " { \"entries\" : [", "{\"comm_lib_version\":\"\""] {
        assert!(may_be_dump(head.as_bytes()), "{head}");
    }
    for head in ["", "{", "{\"", "step 1", "{\"level\":\"info\"", "{\"versions\":1", "\u{80}\u{2}"]
    {
        assert!(!may_be_dump(head.as_bytes()), "{head}");
    }
}

#[test]
fn json_record_with_unknown_first_key_is_read() {
    let json = String::from_utf8(records().swap_remove(1)).expect("JSON");
    let (_, behind) = json.split_once('"').expect("a key");
    assert!(fuzz::dump(format!("{{\"#{behind}").as_bytes()));
}

/// A record that torch wrote.
fn records() -> Vec<Vec<u8>> {
    ["comm_lib_trace_rank_0", "rank_0.json"].map(|name| file("never", name).expect("a file")).into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_pickle_bytes_are_read_or_refused(
        protocol in 2u8..=5, bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        fuzz::dump(&[&[0x80, protocol], bytes.as_slice()].concat());
    }

    #[test]
    fn altered_record_is_read_or_refused(
        which in 0usize..2, changes in prop::collection::vec((any::<u16>(), any::<u8>()), 1..8),
        cut in any::<u16>(),
    ) {
        let mut bytes = records().swap_remove(which);
        for (at, byte) in changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        fuzz::dump(&bytes);
        bytes.truncate(usize::from(cut) % bytes.len());
        fuzz::dump(&bytes);
    }

    #[test]
    fn record_with_missing_fields_is_still_judged(left_out in any::<[u8; 4]>()) {
        let json = file("collective", "rank_0.json").or_else(|| file("never", "rank_0.json"));
        let mut value: serde_json::Value =
            serde_json::from_slice(&json.expect("a file")).expect("JSON");
        let entries = value["entries"].as_array_mut().expect("a list");
        for (at, byte) in left_out.into_iter().enumerate() {
            let number = usize::from(byte) % entries.len();
            let entry = entries[number].as_object_mut().expect("a map");
            let keys: BTreeMap<usize, String> = entry.keys().cloned().enumerate().collect();
            if let Some(key) = keys.get(&((usize::from(byte) + at) % keys.len().max(1))) {
                entry.shift_remove(key);
            }
        }
        fuzz::dump(value.to_string().as_bytes());
    }
}
