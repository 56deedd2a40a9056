//! The ranks that the records, the stacks and NCCL suspect, and the ranks that only wait.

use std::collections::{BTreeMap, BTreeSet};

use super::doing::{Doing, Seen};
use super::{NodeEvidence, RankEvidence};
use crate::watch::RasVerdict;
use diagnose::Frame;
use diagnose::recorder::{self, Collective, HangKind};
use text::rank::GlobalRank;

/// The reason why a rank is suspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suspicion {
    /// Others wait for the rank in a collective, or nothing but its stack is known.
    Missing,
    OtherCollective,
    OtherShape,
    /// The rank waits in one group for a rank that waits for it in another group.
    Circle,
    /// All ranks have come, and none leaves.
    Link,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Suspect {
    pub(super) rank: Option<u32>,
    pub(super) collective: Option<Collective>,
    /// For a mismatch: the call that the rank entered, and the call that was expected in its place.
    pub(super) entered: Option<recorder::Entered>,
    pub(super) frame: Option<Frame>,
}

pub(super) fn by_record(
    hang: &recorder::Hang,
    ranks: &BTreeMap<u32, (u32, &RankEvidence)>,
    seen: &BTreeMap<u32, Seen>,
) -> Vec<(Suspicion, Suspect)> {
    let mut found: Vec<(Suspicion, Suspect)> = Vec::new();
    let mut link = None;
    for culprit in &hang.culprits {
        // All members have come to the collective in which the rank waits, so only the link can keep it there.
        if waits_inside(culprit, seen) {
            let collective = culprit.last.as_ref().map(|(collective, _)| collective.clone());
            link.get_or_insert((Suspicion::Link, Suspect { collective, ..Suspect::default() }));
            continue;
        }
        let suspicion = match culprit.kind {
            HangKind::OtherCollective => Suspicion::OtherCollective,
            HangKind::OtherShape => Suspicion::OtherShape,
            HangKind::Deadlock => Suspicion::Circle,
            HangKind::NeverEntered | HangKind::Unknown => Suspicion::Missing,
            HangKind::Link => Suspicion::Link,
        };
        found.push((
            suspicion,
            Suspect {
                rank: culprit.rank,
                collective: culprit.collective.clone(),
                entered: culprit.entered.clone(),
                frame: culprit.frame.clone(),
            },
        ));
    }
    found.extend(link);
    // The records name one rank per side of a circle. The odd side shows only if all ranks are compared.
    if !found.is_empty() && found.iter().all(|(suspicion, _)| *suspicion == Suspicion::Circle) {
        let suspect = |(rank, collective): (&u32, &Collective)| Suspect {
            rank: Some(*rank),
            collective: Some(collective.clone()),
            ..Suspect::default()
        };
        let all = hang.entered.iter().map(|entered| (Suspicion::Circle, suspect(entered)));
        found = all.collect();
    }
    // A rank without a record whose stack is not in a collective is the one that all wait for; the recorder can only
    // report it as unknown.
    if found.is_empty() && !hang.waiting.is_empty() {
        for rank in &hang.silent {
            let elsewhere = match (ranks.get(rank), seen.get(rank)) {
                (Some((_, evidence)), Some(seen)) => {
                    evidence.ended_ms.is_some() || !seen.doing.meets_ranks()
                }
                _ => false,
            };
            if elsewhere {
                found.push((
                    Suspicion::Missing,
                    Suspect { rank: Some(*rank), ..Suspect::default() },
                ));
            }
        }
    }
    found
}

/// A rank that called something else makes others miss the next call, so those are its victims. If ranks wait for
/// each other in different collectives, the ranks in the collective with fewer ranks are odd.
pub(super) fn only_the_odd(
    blamed: &mut Vec<(Suspicion, Suspect)>,
    seen: &BTreeMap<u32, Seen>,
    waiting: &mut BTreeSet<u32>,
) {
    let differs =
        |one: &Suspicion| [Suspicion::OtherCollective, Suspicion::OtherShape].contains(one);
    let mut others: Vec<u32> = Vec::new();
    if blamed.iter().any(|(one, _)| differs(one)) {
        let victims = blamed.extract_if(.., |(one, _)| !differs(one));
        others.extend(victims.filter_map(|(_, suspect)| suspect.rank));
    } else if blamed.iter().all(|(one, suspect)| {
        // The line of a message does not show its other end, so no side of it is odd.
        *one == Suspicion::Circle && !suspect.rank.is_some_and(|rank| is_in_message(rank, seen))
    }) {
        // Ranks are compared by position: with gloo, ranks give one group different names. If several sides are
        // equally small, a rank alone in its group is odd: another member of a group waits in the group as well,
        // though perhaps for a later collective.
        let place = |suspect: &Suspect| {
            let lines = suspect.rank.and_then(|rank| seen.get(&rank)).map(|seen| &seen.lines);
            (suspect.collective.as_ref().is_some_and(is_of_all), lines)
        };
        let group = |suspect: &Suspect| suspect.collective.as_ref().map(|one| one.group.clone());
        let (mut at_place, mut in_group) = (BTreeMap::new(), BTreeMap::new());
        for (_, suspect) in blamed.iter() {
            *at_place.entry(place(suspect)).or_insert(0_usize) += 1;
            *in_group.entry(group(suspect)).or_insert(0_usize) += 1;
        }
        let size = |suspect: &Suspect| {
            let of_group = in_group.get(&group(suspect)).copied().unwrap_or_default();
            (at_place.get(&place(suspect)).copied().unwrap_or_default(), of_group)
        };
        let sizes = || blamed.iter().map(|(_, suspect)| size(suspect));
        let (least, most) = (sizes().min(), sizes().max());
        // A circle has more than one group: a rank in the group of all ranks only waits for it, if the others make one.
        let of_all = |suspect: &Suspect| suspect.collective.as_ref().is_some_and(is_of_all);
        let others_groups: BTreeSet<_> = blamed
            .iter()
            .filter(|(_, suspect)| !of_all(suspect))
            .map(|(_, one)| group(one))
            .collect();
        let is_victim = |suspect: &Suspect| match least < most {
            true => Some(size(suspect)) != least,
            false => others_groups.len() > 1 && of_all(suspect),
        };
        let victims: Vec<Suspect> =
            blamed.extract_if(.., |(_, one)| is_victim(one)).map(|(_, victim)| victim).collect();
        // A single rank against many waits for them, and they wait for it.
        if let [(suspicion, suspect)] = blamed.as_mut_slice() {
            let awaited = victims.first().and_then(|victim| victim.collective.clone());
            *suspicion = Suspicion::Missing;
            suspect.collective = awaited.or(suspect.collective.take());
        }
        others.extend(victims.into_iter().filter_map(|victim| victim.rank));
    }
    let named: BTreeSet<u32> = blamed.iter().filter_map(|(_, suspect)| suspect.rank).collect();
    waiting.extend(others.into_iter().filter(|rank| !named.contains(rank)));
}

/// Whether its stack is in a collective that others have left.
fn waits_inside(culprit: &recorder::Culprit, seen: &BTreeMap<u32, Seen>) -> bool {
    let doing = culprit.rank.and_then(|rank| seen.get(&rank)).map(|seen| &seen.doing);
    culprit.is_inside && matches!(doing, Some(Doing::Collective | Doing::Operation))
}

/// Ranks that wait for others.
pub(super) fn waiting(
    hang: Option<&recorder::Hang>,
    ranks: &BTreeMap<u32, (u32, &RankEvidence)>,
    seen: &BTreeMap<u32, Seen>,
    blamed: &[(Suspicion, Suspect)],
) -> BTreeSet<u32> {
    let mut waiting: BTreeSet<u32> = hang.iter().flat_map(|hang| &hang.waiting).copied().collect();
    let culprits = hang.iter().flat_map(|hang| &hang.culprits);
    waiting.extend(culprits.filter(|one| waits_inside(one, seen)).filter_map(|one| one.rank));
    let by_stack =
        ranks.iter().filter(|(_, (_, rank))| rank.records.is_empty()).map(|(rank, _)| *rank);
    for rank in by_stack {
        let meets = seen.get(&rank).is_some_and(|seen| seen.doing.meets_ranks());
        let is_blamed = blamed.iter().any(|(_, suspect)| suspect.rank == Some(rank));
        if !is_blamed && meets {
            waiting.insert(rank);
        }
    }
    // Before the first collective, no record shows that a rank waits.
    if waiting.is_empty() && blamed.is_empty() {
        let waits = seen.iter().filter(|(_, seen)| seen.doing.awaits_ranks());
        waiting.extend(waits.map(|(rank, _)| *rank));
    }
    waiting
}

/// If the records blame nobody: the ranks outside every collective while others are in one. If no rank is in a
/// collective, the ranks that are certainly stuck by themselves.
pub(super) fn by_stacks(
    ranks: &BTreeMap<u32, (u32, &RankEvidence)>,
    seen: &BTreeMap<u32, Seen>,
    waiting: &BTreeSet<u32>,
) -> Vec<(Suspicion, Suspect)> {
    let others = ranks.iter().filter(|(rank, _)| !waiting.contains(rank));
    let stuck = |rank: u32| {
        matches!(
            seen.get(&rank).map(|seen| &seen.doing),
            Some(
                Doing::Stopped
                    | Doing::Uninterruptible { .. }
                    | Doing::Lock
                    | Doing::Gil
                    | Doing::DeadChild { .. }
            )
        )
    };
    others
        .filter(|(_, (_, rank))| !waiting.is_empty() || rank.ended_ms.is_none())
        .filter(|(rank, _)| !waiting.is_empty() || stuck(**rank))
        .map(|(rank, _)| (Suspicion::Missing, Suspect { rank: Some(*rank), ..Suspect::default() }))
        .collect()
}

/// What is seen of the job as a whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    /// All ranks of the job.
    pub(super) sees_all: bool,
    /// A connection of a rank does not carry what is sent.
    pub(super) is_cut: bool,
}

/// If all ranks wait for others: the link if they stand at one line or in one group, else all of them, from which
/// [`only_the_odd`] selects. If all wait for messages: all of them, unless the link carries none.
pub(super) fn at_other_lines(
    hang: Option<&recorder::Hang>,
    ranks: &BTreeMap<u32, (u32, &RankEvidence)>,
    seen: &BTreeMap<u32, Seen>,
    waiting: &BTreeSet<u32>,
    View { sees_all, is_cut }: View,
) -> Vec<(Suspicion, Suspect)> {
    if waiting.is_empty() || ranks.keys().any(|rank| !waiting.contains(rank)) {
        return Vec::new();
    }
    // All ranks may wait for a key that somebody else puts into the store.
    if seen.values().any(|seen| seen.doing == Doing::Store) {
        return Vec::new();
    }
    // gloo records no messages, so the last collective of the ranks says nothing. Two ends that do not match look like
    // two ends that do, but the link has carried all that was sent.
    if sees_all && waiting.iter().all(|rank| is_in_message(*rank, seen)) {
        if is_cut {
            return vec![(Suspicion::Link, Suspect::default())];
        }
        let suspect = |rank: &u32| Suspect { rank: Some(*rank), ..Suspect::default() };
        return waiting.iter().map(|rank| (Suspicion::Circle, suspect(rank))).collect();
    }
    let entered = |rank: &u32| hang.and_then(|hang| hang.entered.get(rank));
    let lines: BTreeSet<&[(String, u64)]> =
        seen.values().map(|seen| seen.lines.as_slice()).collect();
    if lines.contains(&[][..]) {
        return Vec::new();
    }
    // A rank may be further than another of its group, since a root does not wait for the others.
    let groups: BTreeSet<Option<&str>> =
        waiting.iter().map(|rank| entered(rank).map(|one| one.group.as_str())).collect();
    let in_one_group = groups.len() == 1 && groups.iter().all(Option::is_some);
    if lines.len() == 1 || in_one_group {
        let first = waiting.iter().filter_map(entered).min_by_key(|collective| collective.seq);
        let suspect = Suspect { collective: first.cloned(), ..Suspect::default() };
        // If only a part of the job is seen, the cause is in the rest.
        return vec![(if sees_all { Suspicion::Link } else { Suspicion::Missing }, suspect)];
    }
    let suspect = |rank: &u32| Suspect {
        rank: Some(*rank),
        collective: entered(rank).cloned(),
        ..Suspect::default()
    };
    waiting.iter().map(|rank| (Suspicion::Circle, suspect(rank))).collect()
}

pub(super) fn is_in_message(rank: u32, seen: &BTreeMap<u32, Seen>) -> bool {
    seen.get(&rank).is_some_and(|one| one.doing.is_message())
}

/// Whether the collective belongs to the group of all ranks.
fn is_of_all(collective: &Collective) -> bool {
    collective.group == recorder::DEFAULT_GROUP
}

/// If nothing names a rank among the culprits, replaces them by the ranks that NCCL names. False if NCCL names none.
pub(super) fn name_by_nccl(
    of_nccl: &RasVerdict,
    ranks: &BTreeMap<u32, (u32, &RankEvidence)>,
    blamed: &mut Vec<(Suspicion, Suspect)>,
) -> bool {
    let Some((_, unnamed)) = blamed.first() else { return false };
    if blamed.iter().any(|(_, suspect)| suspect.rank.is_some()) {
        return false;
    }
    let collective = unnamed.collective.clone();
    let named = by_nccl(of_nccl).into_iter().map(|(rank, is_reached)| {
        // A process that waits like all others but that NCCL does not reach has lost its link.
        let is_link = !is_reached && ranks.contains_key(&rank);
        let suspicion = if is_link { Suspicion::Link } else { Suspicion::Missing };
        let collective = collective.clone();
        (suspicion, Suspect { rank: Some(rank), collective, ..Suspect::default() })
    });
    let named: Vec<_> = named.collect();
    if named.is_empty() {
        return false;
    }
    *blamed = named;
    true
}

/// The verdicts of all nodes, merged into one. Ranks that have ended do not count as missing.
pub(super) fn merged_verdict(nodes: &[NodeEvidence], ended: impl Fn(u32) -> bool) -> RasVerdict {
    let mut all = RasVerdict::default();
    for ras in nodes.iter().filter_map(|node| node.ras.as_ref()) {
        all.dead.extend(&ras.dead);
        all.unresponsive.extend(&ras.unresponsive);
        all.failed.extend(&ras.failed);
        all.behind.extend(ras.behind.iter().cloned());
    }
    all.dead.retain(|rank| !ended(rank.0));
    let dead = &all.dead;
    all.unresponsive.retain(|rank| !ended(rank.0) && !dead.contains(rank));
    // All nodes report the same communicators.
    all.behind.sort();
    all.behind.dedup();
    all
}

/// The ranks that NCCL blames, and whether it reaches each of them. A rank that is behind is blamed only if no
/// other rank is: each of several such ranks may wait in one communicator for another rank that is late in a
/// second one.
pub(super) fn by_nccl(of: &RasVerdict) -> Vec<(u32, bool)> {
    let missing: BTreeSet<u32> =
        of.dead.iter().chain(&of.unresponsive).map(|rank| rank.0).collect();
    if !missing.is_empty() {
        return missing.into_iter().map(|rank| (rank, false)).collect();
    }
    let behind: BTreeSet<GlobalRank> = of.behind.iter().map(|one| one.rank).collect();
    match behind.first() {
        // In a communicator of two ranks, the other rank may have called something of its own.
        Some(rank) if behind.len() == 1 && of.behind.iter().any(|one| one.of > 2) => {
            vec![(rank.0, true)]
        }
        _ => Vec::new(),
    }
}
