//! Reading and judging a dump as a fuzz target. Not part of the program.

use std::collections::BTreeSet;

use super::{Job, RankRecord, Read, judge, late, may_be_dump, read, to_json};
use verdict::Confidence;

/// Reads bytes as the record of a rank and judges it beside a second rank with the same content.
///
/// The JSON form has the same content as the pickle. Culprits are ranks of the job. No rank is both a culprit and
/// waiting. Without a culprit, the confidence is unknown.
pub fn dump(data: &[u8]) -> bool {
    let Ok(dump) = read(data) else { return false };
    // JSON may begin with a key that torch does not write.
    assert!(may_be_dump(data) || data.trim_ascii_start().starts_with(b"{"));
    if let Some(json) = to_json(data)
        && let Ok(again) = read(json.as_bytes())
    {
        assert_eq!(format!("{again:?}"), format!("{dump:?}"), "{json}");
    }
    let record = |rank, at| RankRecord { rank, dumps: vec![dump.clone()], read: at };
    for (stood_still, at) in [(true, Read::NotAfter(1)), (false, Read::At(i64::MAX))] {
        let records = vec![record(0, at), record(1, at)];
        let job = Job { records, world: Some(3), stood_still };
        let hang = judge(&job);
        let blamed: BTreeSet<u32> = hang.culprits.iter().filter_map(|one| one.rank).collect();
        assert!(!hang.waiting.iter().any(|rank| blamed.contains(rank)), "{hang:?}");
        assert_eq!(hang.confidence == Confidence::Unknown, hang.culprits.is_empty(), "{hang:?}");
        assert_eq!(hang.read, [0, 1]);
        assert!(!hang.silent.iter().any(|rank| hang.read.contains(rank)), "{hang:?}");
        for one in late(&job.records, job.world, &[(1, i64::MIN)].into()) {
            assert!((0.0..=1.0).contains(&one.share) && one.rank < 2, "{one:?}");
        }
    }
    true
}
