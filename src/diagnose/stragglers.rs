//! Ranks that did not come to a collective in which the others waited.
//!
//! Ranks that time out say so. The culprit says nothing, or names an earlier collective.

use std::collections::{BTreeMap, BTreeSet};

use super::evidence::Evidence;
use text::rank::GlobalRank;

/// The text before the number of the collective in the messages of c10d's watchdog.
const SEQUENCE: &str = "SeqNum=";

/// The group of a line: `5(tp)` of `[PG ID 1 PG GUID 5(tp) Rank 0]`, `1` of `[PG 1 Rank 0]`. None: torch before
/// version 2.3 names no group.
fn group(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("[PG ")?;
    let (group, _) = rest.split_once(" Rank ")?;
    Some(group.rsplit_once("GUID ").map_or(group, |(_, name)| name))
}

/// Whether the group is the group of all ranks, which torch makes first.
fn is_of_all(group: &str) -> bool {
    group == "0" || group.contains("default_pg")
}

/// The missing ranks: known ranks without a line, or ranks behind all others. Empty if nothing distinguishes the
/// ranks: each group counts by itself, and members are known only for the group of all ranks.
pub(super) fn stragglers(cause: &Evidence, findings: &[Evidence]) -> Vec<GlobalRank> {
    let sequence = |one: &Evidence| {
        let (_, number) = one.text.split_once(SEQUENCE)?;
        number.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let lines = || {
        let of_row = findings.iter().filter(|one| one.row == cause.row);
        of_row.filter_map(|one| Some((one, one.rank?, sequence(one)?)))
    };
    let waited: BTreeMap<GlobalRank, u64> = lines().map(|(_, rank, at)| (rank, at)).collect();
    let groups: BTreeSet<Option<&str>> = lines().map(|(one, ..)| group(&one.text)).collect();
    if waited.len() < 2 || groups.len() > 1 {
        return Vec::new();
    }
    let all_are_in_it = groups.iter().flatten().all(|group| is_of_all(group));
    let highest = findings.iter().filter_map(|one| one.rank).max().map_or(0, |rank| rank.0);
    let known = u64::from(highest) + 1;
    // Silence of more than half of the ranks says more about the log than about the ranks.
    let silent = known.saturating_sub(waited.len() as u64);
    if all_are_in_it && silent > 0 && silent < waited.len() as u64 {
        return (0..=highest).map(GlobalRank).filter(|rank| !waited.contains_key(rank)).collect();
    }
    let (Some(least), Some(most)) = (waited.values().min(), waited.values().max()) else {
        return Vec::new();
    };
    if least == most || silent > 0 {
        return Vec::new();
    }
    let behind: Vec<GlobalRank> =
        waited.iter().filter(|(_, at)| *at == least).map(|(rank, _)| *rank).collect();
    if behind.len() * 2 <= waited.len() { behind } else { Vec::new() }
}
