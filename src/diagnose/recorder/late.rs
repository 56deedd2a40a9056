//! Ranks that come late to collectives, and so hold the others back.
//!
//! All ranks leave a collective together, so the last rank to come to the next one needed the longest in between. Its
//! delay after the last but one is the time that the job would save. Times of different nodes need the offsets of
//! their clocks: a clock offset looks like a slow node.

use std::collections::BTreeMap;

use super::groups::{Group, Groups, RankRecord};

/// Backends whose collectives begin when a rank enters them. Collectives on GPUs enter a queue: a rank that reads a
/// value in each step, for example for the log, is always behind the others there, and costs them next to nothing.
const BEGIN_AT_ONCE: &[&str] = &["gloo", "mpi"];
/// Minimum number of common collectives before a rank is called slow.
const FEWEST: usize = 20;
/// Maximum number of collectives of a group that are compared, the last ones.
const MOST: usize = 1000;
/// Maximum number of entries that are compared in all.
const MOST_ENTRIES: usize = 4_000_000;
/// Minimum share of the time that the others lose because of a slow rank, and ([`MOSTLY`]) minimum share of the slow
/// rank in the loss because of all last ranks. Two ranks that take turns have half of the loss each. A rank that
/// is stopped for a moment in each second comes last only then, and has nearly all of the loss.
const COSTS: f64 = 0.1;
const MOSTLY: f64 = 0.65;
/// Number of longest waits for a rank that do not count: a checkpoint does not make a rank slow.
const ONCE: usize = 2;

#[derive(Debug, Clone, PartialEq)]
pub struct Late {
    pub rank: u32,
    pub group: String,
    /// Number of collectives that were compared.
    pub of: usize,
    /// The share of the collectives to which the rank came last.
    pub share: f64,
    /// Median delay after the last but one, over the collectives to which the rank came last.
    pub median_ns: i64,
    /// The share of the time between the first and the last collective that the others lost.
    pub lost: f64,
}

/// The slow ranks, the worst one first. `offsets`: lead of the clock of a rank, in ns; 0 if the rank has none.
pub fn late(records: &[RankRecord], world: Option<u32>, offsets: &BTreeMap<u32, i64>) -> Vec<Late> {
    let groups = Groups::of(records, world);
    let mut room = MOST_ENTRIES;
    let mut worst: BTreeMap<u32, Late> = BTreeMap::new();
    for group in &groups.all {
        for found in in_group(group, offsets, &mut room) {
            match worst.get(&found.rank) {
                Some(known) if known.lost >= found.lost => {}
                _ => {
                    worst.insert(found.rank, found);
                }
            }
        }
    }
    let mut worst: Vec<Late> = worst.into_values().collect();
    worst.sort_by(|one, other| other.lost.total_cmp(&one.lost));
    worst
}

fn in_group(group: &Group<'_>, offsets: &BTreeMap<u32, i64>, room: &mut usize) -> Vec<Late> {
    let everyone = group.is_whole && group.tracks.len() == group.members.len();
    let compares = everyone && group.members.len() > 1 && BEGIN_AT_ONCE.contains(&group.backend);
    let Some(any) = group.tracks.values().next().filter(|_| compares) else {
        return Vec::new();
    };
    let mut lateness: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
    let (mut of, mut first, mut last) = (0, i64::MAX, i64::MIN);
    for seq in any.collectives.keys().rev().take(MOST) {
        let Some(left) = room.checked_sub(group.members.len()) else { break };
        *room = left;
        let arrivals: Option<Vec<(i64, u32)>> = (group.tracks.iter())
            .map(|(rank, track)| {
                let step = track.collectives.get(seq).filter(|step| step.waits_for_all())?;
                let created = step.first()?.created_ns;
                let offset = offsets.get(rank).copied().unwrap_or(0);
                (created > 0).then_some((created.saturating_sub(offset), *rank))
            })
            .collect();
        let Some(mut arrivals) = arrivals else { continue };
        arrivals.sort_unstable();
        if let [.., (before, _), (at, rank)] = arrivals.as_slice() {
            lateness.entry(*rank).or_default().push(at.saturating_sub(*before));
            (first, last) = (first.min(*at), last.max(*at));
            of += 1;
        }
    }
    let span = last.saturating_sub(first);
    if of < FEWEST || span <= 0 {
        return Vec::new();
    }
    let all: f64 = lateness.values().flatten().map(|ns| *ns as f64).sum();
    let slow = lateness.into_iter().filter_map(|(rank, mut times)| {
        let share = times.len() as f64 / of as f64;
        times.sort_unstable();
        let sum = |times: &[i64]| times.iter().map(|ns| *ns as f64).sum::<f64>();
        let usual = times.get(..times.len().saturating_sub(ONCE)).unwrap_or_default();
        let (usual, mostly) = (sum(usual) / span as f64, sum(&times) / all.max(1.0));
        let lost = sum(&times) / span as f64;
        let median_ns = times.get(times.len() / 2).copied()?;
        let group = group.title().to_owned();
        let found = Late { rank, group, of, share, median_ns, lost };
        (mostly >= MOSTLY && usual >= COSTS).then_some(found)
    });
    slow.collect()
}
