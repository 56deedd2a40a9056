//! Records of four ranks that torch 2.15 wrote over gloo: `tests/python/records.py` made them.

use std::path::PathBuf;

use super::super::*;
use verdict::Confidence;

const RANKS: u32 = 4;
const SECOND: i64 = 1_000_000_000;

/// The file of a rank from a kind of hang.
pub(super) fn file(kind: &str, name: &str) -> Option<Vec<u8>> {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/records/torch-2.15.0-gloo");
    std::fs::read(folder.join(kind).join(name)).ok()
}

fn dump(kind: &str, rank: u32) -> Option<Dump> {
    let bytes = file(kind, &format!("comm_lib_trace_rank_{rank}"))?;
    Some(read(&bytes).expect("a record of torch"))
}

/// The job as read `after` ns after the last rank came to a standstill.
fn job(kind: &str, after: Option<i64>) -> Job {
    let mut records = Vec::new();
    for rank in 0..RANKS {
        let Some(dump) = dump(kind, rank) else { continue };
        let last = dump.entries.iter().map(|entry| entry.created_ns).max().unwrap_or(0);
        let read = after.map_or(Read::Unknown, |after| Read::At(last + after));
        records.push(RankRecord { rank, dumps: vec![dump], read });
    }
    assert!(records.len() >= 3, "{kind}");
    Job { records, world: Some(RANKS), stood_still: false }
}

fn culprits(hang: &Hang) -> Vec<Found> {
    hang.culprits.iter().map(|culprit| (culprit.rank, culprit.kind)).collect()
}

/// A culprit, if a single rank shows it, and its fault.
type Found = (Option<u32>, HangKind);

/// Culprits and waiting ranks, by kind.
const HUNG: &[(&str, &[Found], &[u32])] = &[
    ("never", &[(Some(1), HangKind::NeverEntered)], &[0, 2, 3]),
    ("collective", &[(Some(1), HangKind::OtherCollective)], &[0, 2, 3]),
    ("shape", &[(Some(1), HangKind::OtherShape)], &[0, 2, 3]),
    ("inversion", &[(Some(0), HangKind::Deadlock), (Some(1), HangKind::Deadlock)], &[2, 3]),
    ("chain", &[(Some(1), HangKind::NeverEntered)], &[0, 2, 3]),
    ("stopped", &[(Some(1), HangKind::Unknown)], &[0, 2, 3]),
];

#[test]
fn each_hang_names_culprits_and_waiting_ranks() {
    for (kind, expected, waiting) in HUNG {
        let hang = judge(&job(kind, Some(60 * SECOND)));
        assert_eq!(culprits(&hang), *expected, "{kind}: {hang:#?}");
        assert_eq!(hang.waiting, *waiting, "{kind}");
        let sure = if *kind == "stopped" { Confidence::Likely } else { Confidence::Certain };
        assert_eq!(hang.confidence, sure, "{kind}");
        assert_eq!(hang.silent, if *kind == "stopped" { vec![1] } else { vec![] }, "{kind}");
    }
}

#[test]
fn unknown_duration_leaves_curable_hangs_uncertain() {
    for (kind, expected, _) in HUNG {
        let hang = judge(&job(kind, None));
        assert_eq!(culprits(&hang), *expected, "{kind}");
        let proven = ["collective", "shape"].contains(kind);
        let sure = if proven { Confidence::Certain } else { Confidence::Likely };
        assert_eq!(hang.confidence, sure, "{kind}");
    }
}

#[test]
fn a_short_wait_accuses_nobody() {
    for (kind, expected, _) in HUNG {
        let hang = judge(&job(kind, Some(SECOND / 10)));
        let proven = ["collective", "shape"].contains(kind);
        assert_eq!(culprits(&hang), if proven { *expected } else { &[] }, "{kind}");
        assert_eq!(hang.moves, !proven, "{kind}");
    }
}

#[test]
fn progressing_job_has_no_culprit_at_any_time() {
    for kind in ["fine", "slow", "running"] {
        for after in [None, Some(60 * SECOND)] {
            let hang = judge(&job(kind, after));
            assert_eq!(culprits(&hang), [], "{kind}: {hang:#?}");
            assert_eq!(hang.confidence, Confidence::Unknown, "{kind}");
        }
    }
    // Each rank was read at another step.
    assert_eq!(judge(&job("running", None)).older, [0, 1, 2]);
}

#[test]
fn the_collective_and_its_line_are_named() {
    let of = |kind| judge(&job(kind, None)).culprits.remove(0);
    let collective = |op: &str, group: &str, seq| {
        Some(Collective { op: op.to_owned(), group: group.to_owned(), seq })
    };
    let never = of("never");
    assert_eq!(never.collective, collective("all_reduce", "default_pg", 7));
    assert_eq!(never.last.expect("its last entry").0.seq, 6);
    assert_eq!((never.frame, never.waited_at.expect("a frame").function), (None, "step".into()));
    assert_eq!(of("chain").collective, collective("all_reduce", "1", 1));
    let other = of("collective");
    assert_eq!(other.collective, collective("broadcast", "default_pg", 7));
    assert_eq!(other.frame.expect("a frame").function, "<lambda>");
    assert_eq!(other.waited_at.expect("a frame").function, "step");
    let shape = of("shape").entered.expect("both");
    let [own, expected] = ["all_reduce [2] Float", "all_reduce [4] Float"].map(str::to_owned);
    assert_eq!(shape, Entered::Odd { own, expected });
}

#[test]
fn unread_rank_makes_no_other_rank_culprit() {
    for (kind, expected, _) in HUNG {
        for left_out in 0..RANKS {
            let mut job = job(kind, Some(60 * SECOND));
            job.records.retain(|record| record.rank != left_out);
            let hang = judge(&job);
            for (rank, found) in culprits(&hang) {
                let right = expected.contains(&(rank, found));
                let unread = rank == Some(left_out) && found == HangKind::Unknown;
                assert!(right || unread, "{kind} without {left_out}: {hang:#?}");
            }
        }
    }
}

#[test]
fn json_and_pickle_of_one_rank_agree() {
    for rank in 0..RANKS {
        let json = file("never", &format!("rank_{rank}.json")).expect("a file");
        let mut json = read(&json).expect("a record of torch");
        let mut pickle = dump("never", rank).expect("a file");
        for dump in [&mut json, &mut pickle] {
            assert_eq!(dump.version, "2.10");
            // Only the pickle has stacks.
            dump.entries.iter_mut().for_each(|entry| entry.frame = None);
        }
        assert_eq!(json, pickle);
    }
}
