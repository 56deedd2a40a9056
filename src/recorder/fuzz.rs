//! The reading and the judgement of a dump as a function that a fuzzer feeds. Not part of the
//! program.

use super::{Job, RankRecord, Read, judge, late, may_be_dump, read};

/// Reads bytes as the record of a rank and judges it beside another with the same content.
pub fn dump(data: &[u8]) {
    may_be_dump(data);
    let Ok(dump) = read(data) else { return };
    let record = |rank| RankRecord { rank, dumps: vec![dump.clone()], read: Read::NotAfter(1) };
    let job = Job { records: vec![record(0), record(1)], world: None, stood_still: true };
    judge(&job);
    late(&job.records, None, &[(1, i64::MIN)].into());
}
