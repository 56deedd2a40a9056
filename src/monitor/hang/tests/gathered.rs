//! Judgements with what is gathered beside the stacks: records of collectives, the reports of NCCL, what is abnormal
//! about a node. Records of real ranks are tested elsewhere.

use super::*;

fn behind(number: u32, op: &str) -> Behind {
    Behind {
        rank: GlobalRank(number),
        communicator: "0xae94".to_owned(),
        op: op.to_owned(),
        count: 40,
        most: 42,
        of: 3,
    }
}

/// Judges with the verdict of NCCL, which both nodes report.
fn judged_with(ranks: [RankEvidence; 3], ras: RasVerdict) -> Judgement {
    let [first, second, third] = ranks;
    let own = node(3, vec![first, second]);
    let other = NodeEvidence { node: 1, ranks: vec![third], ..own.clone() };
    let nodes = [own, other].map(|node| NodeEvidence { ras: Some(ras.clone()), ..node });
    judge(&nodes, &[], true)
}

fn kinds(judgement: &Judgement) -> Vec<String> {
    let Judgement::Hangs(hang) = judgement else { panic!("{judgement:?}") };
    let name = |kind| serde_json::to_value(kind).expect("a name");
    hang.signs.iter().map(|sign| name(sign.kind).as_str().expect("text").to_owned()).collect()
}

#[test]
fn nccl_ras_names_the_culprit_without_other_evidence() {
    let all_wait = || [waits(0), waits(1), waits(2)];
    let none = RasVerdict::default;
    let late = RasVerdict { behind: vec![behind(2, "AllReduce")], ..none() };
    let dead = RasVerdict { dead: [GlobalRank(1)].into(), ..none() };
    let silent = RasVerdict { unresponsive: [GlobalRank(1)].into(), ..none() };
    let several =
        RasVerdict { behind: vec![behind(1, "AllReduce"), behind(2, "AllGather")], ..none() };
    let line = "train.py:50";
    for (ras, rank, kind, line, signs) in [
        (none(), None, Kind::Link, "", &[][..]),
        (late, Some(2), Kind::NeverEntered, line, &["ras_behind"]),
        (dead, Some(1), Kind::Link, line, &["ras_dead"]),
        (silent, Some(1), Kind::Link, line, &["ras_unresponsive"]),
        (several, None, Kind::Link, "", &["ras_behind", "ras_behind"]),
    ] {
        let judgement = judged_with(all_wait(), ras);
        assert_eq!(first(&judgement), Some((rank, kind, line.to_owned())), "{judgement:?}");
        assert_eq!(kinds(&judgement), signs);
    }
}

#[test]
fn nccl_ras_does_not_overrule_observed_evidence() {
    let elsewhere = rank(1, vec![thread('S', &["/job/data.py:7 load"])], Vec::new());
    let ras = RasVerdict {
        dead: [GlobalRank(2)].into(),
        behind: vec![behind(0, "AllReduce")],
        ..RasVerdict::default()
    };
    let judgement = judged_with([waits(0), elsewhere, waits(2)], ras.clone());
    assert_eq!(first(&judgement), Some((Some(1), Kind::NeverEntered, "data.py:7".to_owned())));
    assert_eq!(kinds(&judgement), ["ras_dead", "ras_behind"]);
    // A rank at work stays at work, and a rank that has ended is not missing.
    let busy = RankEvidence {
        busy: true,
        ..rank(1, vec![thread('R', &["/job/eval.py:3 run"])], Vec::new())
    };
    let judgement = judged_with([waits(0), busy, waits(2)], ras);
    assert!(matches!(judgement, Judgement::HeldUp { .. }), "{judgement:?}");
    let ras = RasVerdict { dead: [GlobalRank(2)].into(), ..RasVerdict::default() };
    let judgement = judged_with([waits(0), waits(1), RankEvidence::ended(GlobalRank(2), 5)], ras);
    assert_eq!(first(&judgement).map(|(rank, kind, _)| (rank, kind)), Some((Some(2), Kind::Ended)));
    assert_eq!(kinds(&judgement), [""; 0]);
}

#[test]
fn only_reasons_concerning_the_culprit_are_shown() {
    let reason = |kind, ranks: &[u32]| Reason {
        kind,
        ranks: ranks.iter().copied().map(GlobalRank).collect(),
        gpu: None,
        value: 1.0,
        text: Text::same("a reason"),
    };
    let gpu = |number| GpuUse {
        gpu: number,
        ranks: vec![GlobalRank(number)],
        utilization: 100,
        power: Some((120, 700)),
    };
    let own = NodeEvidence {
        reasons: vec![
            reason(ReasonKind::CpuThrottled, &[1]),
            reason(ReasonKind::MajorFaults, &[0]),
            reason(ReasonKind::HcaErrors, &[]),
        ],
        gpus: vec![gpu(0), gpu(1)],
        ..node(3, vec![waits(0), rank(1, vec![thread('S', &["/job/a.py:7 f"])], Vec::new())])
    };
    let other = NodeEvidence {
        node: 1,
        reasons: vec![reason(ReasonKind::MemoryPressure, &[]), reason(ReasonKind::LinkLost, &[])],
        gpus: Vec::new(),
        ranks: vec![waits(2)],
        ..own.clone()
    };
    let judgement = judge(&[own.clone(), other.clone()], &[], true);
    assert_eq!(kinds(&judgement), ["cpu_throttled", "hca_errors", "gpu_use"]);
    let Judgement::Hangs(hang) = &judgement else { panic!("{judgement:?}") };
    let spins = "node 0: GPU 1 is used 100 % of the time at 120 of 700 W, as by a kernel of NCCL that waits for other ranks";
    assert_eq!(hang.signs[2].text.en, spins);
    // For a link, the link reasons of all nodes are shown.
    let own = NodeEvidence { ranks: vec![waits(0), waits(1)], ..own };
    let judgement = judge(&[own, other], &[], true);
    assert_eq!(kinds(&judgement), ["hca_errors", "link_lost"]);
    // The evidence of a node travels as JSON.
    let sent = NodeEvidence {
        ras: Some(RasVerdict { behind: vec![behind(1, "AllReduce")], ..RasVerdict::default() }),
        reasons: vec![reason(ReasonKind::GpuEcc, &[3])],
        gpus: vec![gpu(1)],
        ..node(1, vec![waits(0)])
    };
    let read: NodeEvidence =
        serde_json::from_slice(&serde_json::to_vec(&sent).expect("JSON")).expect("read");
    assert_eq!(read, sent);
}

/// Records of gloo 2.15 of two ranks that use the group of all ranks and another one in opposite order.
#[test]
fn opposite_order_of_two_groups_accuses_both_ranks() {
    const REDUCE: &str = "/v/torch/distributed/distributed_c10d.py:3000 all_reduce";
    let waits_in = |number: u32, group: &str, line: &str| {
        let entry = |record: u32, group: &str, seq: u32, done: bool| {
            let name = if group == "0" { "default_pg" } else { "undefined" };
            serde_json::json!({
                "record_id": record, "pg_id": group, "collective_seq_id": seq, "retired": done,
                "state": if done { "completed" } else { "scheduled" },
                "process_group": [group, name], "profiling_name": "gloo:all_reduce",
                "time_created_ns": 1_000_000_000 + i64::from(record),
            })
        };
        let entries = [entry(0, "0", 3, true), entry(1, "1", 3, true), entry(2, group, 4, false)];
        let groups = serde_json::json!({ "": { "name": "", "desc": "", "ranks": "[0, 1]" } });
        let record =
            serde_json::json!({ "version": "2.10", "pg_config": groups, "entries": entries });
        RankEvidence {
            records: vec![record.to_string()],
            read_ns: 90_000_000_000,
            ..rank(number, vec![thread('S', &[REDUCE, line])], Vec::new())
        }
    };
    let judgement = judged(vec![
        waits_in(0, "0", "/job/train.py:13 main"),
        waits_in(1, "1", "/job/train.py:14 main"),
    ]);
    let Judgement::Hangs(hang) = &judgement else { panic!("{judgement:?}") };
    let culprits: Vec<_> = hang.culprits.iter().map(|one| (one.rank, one.kind)).collect();
    assert_eq!(culprits, [(Some(0), Kind::Deadlock), (Some(1), Kind::Deadlock)]);
}

/// Records of gloo: a root has left a broadcast, its others wait in the next collective, and the rank without
/// further input waits in the collective after the epoch.
#[test]
fn outlier_is_the_rank_alone_in_its_group() {
    const BROADCAST: &str = "/v/torch/distributed/distributed_c10d.py:2000 broadcast";
    let entry = |record: u32, group: &str, seq: u32, op: &str, state: &str| {
        serde_json::json!({
            "record_id": record, "pg_id": group, "collective_seq_id": seq, "state": state,
            "process_group": [group, if group == "0" { "default_pg" } else { "" }],
            "profiling_name": format!("gloo:{op}"), "time_created_ns": 1_000_000_000 + i64::from(record),
        })
    };
    let of = |number: u32, line: &str, entries: Vec<serde_json::Value>| {
        let groups =
            [("0", "[0,1,2,3,4,5]"), ("a", "[0,2,4]"), ("b", "[1,3,5]"), ("c", "[0,1,2,3,4,5]")];
        let groups: serde_json::Map<_, _> = groups
            .iter()
            .map(|(name, ranks)| {
                ((*name).to_owned(), serde_json::json!({ "name": name, "ranks": ranks }))
            })
            .collect();
        let record =
            serde_json::json!({ "version": "2.10", "pg_config": groups, "entries": entries });
        let frames = [BROADCAST, line];
        let records = vec![record.to_string()];
        RankEvidence {
            records,
            read_ns: 90_000_000_000,
            ..rank(number, vec![thread('S', &frames)], Vec::new())
        }
    };
    let others = |number| {
        of(
            number,
            "/job/stage.py:105 reduce",
            vec![
                entry(0, "b", 6, "all_reduce", "completed"),
                entry(1, "c", 7, "broadcast", "scheduled"),
            ],
        )
    };
    let ranks = vec![
        of(
            0,
            "/job/stage.py:105 reduce",
            vec![
                entry(0, "c", 6, "all_reduce", "completed"),
                entry(1, "a", 5, "broadcast", "scheduled"),
            ],
        ),
        others(1),
        of(
            2,
            "/job/train.py:22 after",
            vec![
                entry(0, "c", 6, "all_reduce", "completed"),
                entry(1, "0", 3, "broadcast", "scheduled"),
            ],
        ),
        others(3),
        of(
            4,
            "/job/stage.py:106 reduce",
            vec![
                entry(0, "a", 5, "broadcast", "completed"),
                entry(1, "a", 6, "all_reduce", "scheduled"),
            ],
        ),
        others(5),
    ];
    let Judgement::Hangs(hang) = judged(ranks) else { panic!("it stands still") };
    let named: Vec<_> = hang.culprits.iter().map(|one| one.rank).collect();
    assert_eq!(named, [Some(2)], "{hang:?}");
}

#[test]
fn link_is_blamed_when_some_left_the_collective() {
    let left = record(&[("a", "gloo:all_reduce", true), ("b", "gloo:broadcast", false)]);
    let inside = record(&[("a", "gloo:all_reduce", false)]);
    let with = |records: &str, rank: RankEvidence| RankEvidence {
        records: vec![records.to_owned()],
        read_ns: 1_700_000_100_000_000_000,
        ..rank
    };
    let job = |last: RankEvidence| {
        judged(vec![with(&left, waits(0)), with(&left, waits(1)), with(&inside, waits(2)), last])
    };
    let Judgement::Hangs(hang) = job(with(&inside, waits(3))) else { panic!("it stands still") };
    let all: Vec<_> = hang.culprits.iter().map(|one| (one.rank, one.kind)).collect();
    assert_eq!(all, [(None, Kind::Link)]);
    assert_eq!(
        (hang.waiting.get(&0), hang.confidence),
        (Some(&vec![0, 1, 2, 3]), Confidence::Likely)
    );
    let collective = hang.culprits[0].collective.as_ref().expect("what they wait in");
    assert_eq!((collective.group.as_str(), collective.seq), ("a", 1));
    // The control: the others wait for a rank that is stopped inside.
    let stopped = with(&inside, rank(3, vec![thread('T', REDUCE)], Vec::new()));
    assert_eq!(first(&job(stopped)), Some((Some(3), Kind::Stopped, "train.py:50".to_owned())));
}
