//! Which ranks did not come to a collective that the others waited in.
//!
//! Those that time out say so; the culprit says nothing, or names an earlier collective.

use std::collections::BTreeMap;

use super::evidence::Evidence;
use crate::rank::GlobalRank;

/// What stands before the number of the collective in the words of c10d's watchdog.
const SEQUENCE: &str = "SeqNum=";

/// The missing ranks: without a line among the known ones, or behind all others. Empty where
/// nothing tells them apart.
pub(super) fn stragglers(cause: &Evidence, findings: &[Evidence]) -> Vec<GlobalRank> {
    let sequence = |one: &Evidence| {
        let (_, number) = one.text.split_once(SEQUENCE)?;
        number.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let waited: BTreeMap<GlobalRank, u64> = findings
        .iter()
        .filter(|one| one.row == cause.row)
        .filter_map(|one| Some((one.rank?, sequence(one)?)))
        .collect();
    if waited.len() < 2 {
        return Vec::new();
    }
    let highest = findings.iter().filter_map(|one| one.rank).max().map_or(0, |rank| rank.0);
    let known = u64::from(highest) + 1;
    // More than half of them silent says more of the log than of the ranks.
    let silent = known.saturating_sub(waited.len() as u64);
    if silent > 0 && silent < waited.len() as u64 {
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
