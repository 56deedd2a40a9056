//! The process of a rank that runs its program, which is a child with `bash train.sh` or `timeout`.

use std::collections::BTreeMap;

use linux::procfs::Process;

/// The first process of the rank, from its own process downwards, that answers as a program of torch
/// does; else the process of the rank.
pub(super) fn program(
    all: &BTreeMap<i32, Process>,
    rank: i32,
    answers: impl Fn(i32) -> bool,
) -> i32 {
    let below = Process::descendants(all, &[rank]);
    let mut family = std::iter::once(rank).chain(below.iter().map(|process| process.pid));
    family.find(|pid| answers(*pid)).unwrap_or(rank)
}
