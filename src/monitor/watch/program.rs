//! Which process of a rank runs its program: with `bash train.sh` or `timeout` it is not the rank's own.

use std::collections::BTreeMap;

use linux::procfs::{self, Process};

/// The first that answers as a program of torch does, of the process of a rank and those below it; else
/// the process of the rank.
pub(super) fn program(
    all: &BTreeMap<i32, Process>,
    rank: i32,
    answers: impl Fn(i32) -> bool,
) -> i32 {
    let below = procfs::descendants_in(all, &[rank]);
    let mut family = std::iter::once(rank).chain(below.iter().map(|process| process.pid));
    family.find(|pid| answers(*pid)).unwrap_or(rank)
}
