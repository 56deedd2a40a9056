//! Ranks that come late to collectives, and so hold the others back.
//!
//! All ranks leave a collective together, so who comes last to the next one needed the longest in
//! between. How much later than the last but one it came is what the job would save. Times of
//! different nodes need the offsets of their clocks: an offset of its own looks like a slow node.

use std::collections::BTreeMap;

use super::groups::{Group, Groups, RankRecord};

/// Backends whose collectives begin when a rank enters them. Those on GPUs enter a queue: a rank that reads a value of
/// each step, as the one that logs does, is always behind the others there, and costs them next to nothing.
const BEGIN_AT_ONCE: &[&str] = &["gloo", "mpi"];
/// Collectives that ranks must have in common before one is called slow.
const FEWEST: usize = 20;
/// The last collectives of a group that are compared.
const MOST: usize = 1000;
/// Entries that are compared in all.
const MOST_ENTRIES: usize = 4_000_000;
/// The share of the time that the others lose by a slow rank, and its share of what they lose by
/// all ranks that come last. Of two ranks that take turns each has half of that; one that is stopped
/// a moment in each second comes last only then, and has nearly all.
const COSTS: f64 = 0.1;
const MOSTLY: f64 = 0.65;
/// Its longest waits, which do not count: a checkpoint is no slow rank.
const ONCE: usize = 2;

#[derive(Debug, Clone, PartialEq)]
pub struct Late {
    pub rank: u32,
    pub group: String,
    /// Collectives that were compared.
    pub of: usize,
    /// The share to which it came last.
    pub share: f64,
    /// After the last but one, in the median of those.
    pub median_ns: i64,
    /// The share of the time between the first and the last collective that the others lost.
    pub lost: f64,
}

/// The slow ranks, the worst one first. `offsets`: what the clock of a rank is ahead, in ns; 0
/// where it has none.
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
