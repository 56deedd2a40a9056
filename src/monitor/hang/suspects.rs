//! The ranks that the records, the stacks and NCCL suspect, and the ranks that only wait.

use std::collections::{BTreeMap, BTreeSet};

use super::doing::{self, Doing, Seen};
use super::{NodeEvidence, RankEvidence};
use crate::watch::{RasVerdict, rank_record};
pub(super) use diagnose::recorder::Culprit as Suspect;
use diagnose::recorder::{self, Collective, HangKind, Job};
use text::order::InOrder;
use text::rank::GlobalRank;

/// The evidence of all nodes, with what it shows of each rank.
pub(super) struct Scene<'e> {
    /// Ranks with their nodes.
    pub(super) ranks: BTreeMap<u32, (u32, &'e RankEvidence)>,
    pub(super) seen: BTreeMap<u32, Seen>,
    /// None if no rank has a record.
    pub(super) recorded: Option<recorder::Hang>,
    /// All ranks of the job are seen.
    sees_all: bool,
    /// A connection of a rank does not carry what is sent.
    is_cut: bool,
}

impl<'e> Scene<'e> {
    pub(super) fn of(nodes: &'e [NodeEvidence]) -> Scene<'e> {
        let ranks: BTreeMap<u32, (u32, &RankEvidence)> = nodes
            .iter()
            .flat_map(|node| node.ranks.iter().map(move |rank| (rank.rank.0, (node.node, rank))))
            .in_map();
        let seen = ranks.iter().map(|(rank, (_, of))| (*rank, doing::seen(of))).collect();
        let world = nodes.iter().map(|node| node.world).max();
        let records =
            ranks.values().filter_map(|(_, of)| rank_record(of.rank, &of.records, of.read_ns));
        let job = Job { records: records.collect(), world, stood_still: true };
        let recorded = (!job.records.is_empty()).then(|| recorder::judge(&job));
        let sees_all =
            u32::try_from(ranks.len()).is_ok_and(|seen| seen >= world.unwrap_or_default());
        let is_cut = nodes.iter().any(|node| node.is_cut);
        Scene { ranks, seen, recorded, sees_all, is_cut }
    }

    pub(super) fn evidence(&self, rank: u32) -> Option<&'e RankEvidence> {
        self.ranks.get(&rank).map(|(_, evidence)| *evidence)
    }

    pub(super) fn doing(&self, rank: u32) -> Option<&Doing> {
        self.seen.get(&rank).map(|seen| &seen.doing)
    }

    pub(super) fn is_in_message(&self, rank: u32) -> bool {
        self.doing(rank).is_some_and(Doing::is_message)
    }

    pub(super) fn by_record(&self) -> Vec<Suspect> {
        let Some(hang) = &self.recorded else { return Vec::new() };
        // All members have come to the collective in which such a rank waits, so only the link can keep it there.
        let (inside, others): (Vec<&Suspect>, Vec<&Suspect>) =
            hang.culprits.iter().partition(|culprit| self.waits_inside(culprit));
        let mut found: Vec<Suspect> = others.into_iter().cloned().collect();
        found.extend(inside.first().map(|culprit| {
            let collective = culprit.last.as_ref().map(|(collective, _)| collective.clone());
            Suspect { collective, ..Suspect::new(None, HangKind::Link) }
        }));
        // The records name one rank per side of a circle. The odd side shows only if all ranks are compared.
        if !found.is_empty() && found.iter().all(|one| one.kind == HangKind::Deadlock) {
            let of_circle = |(rank, collective): (&u32, &Collective)| Suspect {
                collective: Some(collective.clone()),
                ..Suspect::new(Some(*rank), HangKind::Deadlock)
            };
            found = hang.entered.iter().map(of_circle).collect();
        }
        // A rank without a record whose stack is not in a collective is the one that all wait for; the recorder can
        // only report it as unknown.
        if found.is_empty() && !hang.waiting.is_empty() {
            let is_elsewhere = |rank: &&u32| {
                let known = self.evidence(**rank).zip(self.doing(**rank));
                known.is_some_and(|(of, doing)| of.ended_ms.is_some() || !doing.meets_ranks())
            };
            let elsewhere = hang.silent.iter().filter(is_elsewhere);
            found.extend(elsewhere.map(|rank| Suspect::new(Some(*rank), HangKind::NeverEntered)));
        }
        found
    }

    /// A rank that called something else makes others miss the next call, so those are its victims. If ranks wait for
    /// each other in different collectives, the ranks in the collective with fewer ranks are odd.
    pub(super) fn only_the_odd(&self, blamed: &mut Vec<Suspect>, waiting: &mut BTreeSet<u32>) {
        let differs =
            |one: &Suspect| [HangKind::OtherCollective, HangKind::OtherShape].contains(&one.kind);
        let mut others: Vec<u32> = Vec::new();
        if blamed.iter().any(differs) {
            let victims = blamed.extract_if(.., |one| !differs(one));
            others.extend(victims.filter_map(|victim| victim.rank));
        } else if blamed.iter().all(|one| {
            // The line of a message does not show its other end, so no side of it is odd.
            one.kind == HangKind::Deadlock && !one.rank.is_some_and(|rank| self.is_in_message(rank))
        }) {
            // Ranks are compared by position: with gloo, ranks give one group different names. If several sides are
            // equally small, a rank alone in its group is odd: another member of a group waits in the group as well,
            // though perhaps for a later collective.
            let place = |suspect: &Suspect| {
                let lines =
                    suspect.rank.and_then(|rank| self.seen.get(&rank)).map(|seen| &seen.lines);
                (suspect.collective.as_ref().is_some_and(is_of_all), lines)
            };
            let group =
                |suspect: &Suspect| suspect.collective.as_ref().map(|one| one.group.clone());
            let (mut at_place, mut in_group) = (BTreeMap::new(), BTreeMap::new());
            for suspect in blamed.iter() {
                *at_place.entry(place(suspect)).or_insert(0_usize) += 1;
                *in_group.entry(group(suspect)).or_insert(0_usize) += 1;
            }
            let size = |suspect: &Suspect| {
                let of_group = in_group.get(&group(suspect)).copied().unwrap_or_default();
                (at_place.get(&place(suspect)).copied().unwrap_or_default(), of_group)
            };
            let sizes = || blamed.iter().map(size);
            let (least, most) = (sizes().min(), sizes().max());
            // A circle has more than one group: a rank in the group of all ranks only waits for it, if the others make one.
            let of_all = |suspect: &Suspect| suspect.collective.as_ref().is_some_and(is_of_all);
            let others_groups: BTreeSet<_> =
                blamed.iter().filter(|suspect| !of_all(suspect)).map(group).in_set();
            let is_victim = |suspect: &Suspect| match least < most {
                true => Some(size(suspect)) != least,
                false => others_groups.len() > 1 && of_all(suspect),
            };
            let victims: Vec<Suspect> = blamed.extract_if(.., |one| is_victim(one)).collect();
            // A single rank against many waits for them, and they wait for it.
            if let [suspect] = blamed.as_mut_slice() {
                let awaited = victims.first().and_then(|victim| victim.collective.clone());
                suspect.kind = HangKind::NeverEntered;
                suspect.collective = awaited.or(suspect.collective.take());
            }
            others.extend(victims.into_iter().filter_map(|victim| victim.rank));
        }
        let named: BTreeSet<u32> = blamed.iter().filter_map(|suspect| suspect.rank).in_set();
        waiting.extend(others.into_iter().filter(|rank| !named.contains(rank)));
    }

    /// Whether its stack is in a collective that others have left.
    fn waits_inside(&self, culprit: &Suspect) -> bool {
        let doing = culprit.rank.and_then(|rank| self.doing(rank));
        culprit.is_inside && matches!(doing, Some(Doing::Collective | Doing::Operation))
    }

    /// Ranks that wait for others.
    pub(super) fn waiting(&self, blamed: &[Suspect]) -> BTreeSet<u32> {
        let hang = self.recorded.as_ref();
        let mut waiting: BTreeSet<u32> =
            hang.iter().flat_map(|hang| &hang.waiting).copied().in_set();
        let culprits = hang.iter().flat_map(|hang| &hang.culprits);
        waiting.extend(culprits.filter(|one| self.waits_inside(one)).filter_map(|one| one.rank));
        let is_blamed = |rank: u32| blamed.iter().any(|suspect| suspect.rank == Some(rank));
        let by_stack = self.ranks.iter().filter(|(rank, (_, of))| {
            let meets = self.doing(**rank).is_some_and(Doing::meets_ranks);
            of.records.is_empty() && meets && !is_blamed(**rank)
        });
        waiting.extend(by_stack.map(|(rank, _)| *rank));
        // Before the first collective, no record shows that a rank waits.
        if waiting.is_empty() && blamed.is_empty() {
            let waits = self.seen.iter().filter(|(_, seen)| seen.doing.awaits_ranks());
            waiting.extend(waits.map(|(rank, _)| *rank));
        }
        waiting
    }

    /// If the records blame nobody: the ranks outside every collective while others are in one. If no rank is in a
    /// collective, the ranks that are certainly stuck by themselves.
    pub(super) fn by_stacks(&self, waiting: &BTreeSet<u32>) -> Vec<Suspect> {
        let is_stuck = |rank: u32| {
            matches!(
                self.doing(rank),
                Some(
                    Doing::Stopped
                        | Doing::Uninterruptible { .. }
                        | Doing::Lock
                        | Doing::Gil
                        | Doing::DeadChild { .. }
                )
            )
        };
        let others = self.ranks.iter().filter(|(rank, (_, of))| match waiting.is_empty() {
            true => of.ended_ms.is_none() && is_stuck(**rank),
            false => !waiting.contains(rank),
        });
        others.map(|(rank, _)| Suspect::new(Some(*rank), HangKind::NeverEntered)).collect()
    }

    /// If all ranks wait for others: the link if they stand at one line or in one group, else all of them, from which
    /// [`Scene::only_the_odd`] selects. If all wait for messages: all of them, unless the link carries none.
    pub(super) fn at_other_lines(&self, waiting: &BTreeSet<u32>) -> Vec<Suspect> {
        let Scene { ranks, seen, sees_all, is_cut, .. } = self;
        if waiting.is_empty() || ranks.keys().any(|rank| !waiting.contains(rank)) {
            return Vec::new();
        }
        // All ranks may wait for a key that somebody else puts into the store.
        if seen.values().any(|seen| seen.doing == Doing::Store) {
            return Vec::new();
        }
        // gloo records no messages, so the last collective of the ranks says nothing. Two ends that do not match look like
        // two ends that do, but the link has carried all that was sent.
        if *sees_all && waiting.iter().all(|rank| self.is_in_message(*rank)) {
            if *is_cut {
                return vec![Suspect::new(None, HangKind::Link)];
            }
            return waiting
                .iter()
                .map(|rank| Suspect::new(Some(*rank), HangKind::Deadlock))
                .collect();
        }
        let entered = |rank: &u32| self.recorded.as_ref().and_then(|hang| hang.entered.get(rank));
        let lines: BTreeSet<&[(String, u64)]> =
            seen.values().map(|seen| seen.lines.as_slice()).in_set();
        if lines.contains(&[][..]) {
            return Vec::new();
        }
        // A rank may be further than another of its group, since a root does not wait for the others.
        let groups: BTreeSet<Option<&str>> =
            waiting.iter().map(|rank| entered(rank).map(|one| one.group.as_str())).in_set();
        let in_one_group = groups.len() == 1 && groups.iter().all(Option::is_some);
        if lines.len() == 1 || in_one_group {
            let first = waiting.iter().filter_map(entered).min_by_key(|collective| collective.seq);
            // If only a part of the job is seen, the cause is in the rest.
            let kind = if *sees_all { HangKind::Link } else { HangKind::NeverEntered };
            return vec![Suspect { collective: first.cloned(), ..Suspect::new(None, kind) }];
        }
        let of_circle = |rank: &u32| Suspect {
            collective: entered(rank).cloned(),
            ..Suspect::new(Some(*rank), HangKind::Deadlock)
        };
        waiting.iter().map(of_circle).collect()
    }

    /// If nothing names a rank among the culprits, replaces them by the ranks that NCCL names. False if NCCL names none.
    pub(super) fn name_by_nccl(&self, of_nccl: &RasVerdict, blamed: &mut Vec<Suspect>) -> bool {
        let Some(unnamed) = blamed.first() else { return false };
        if blamed.iter().any(|suspect| suspect.rank.is_some()) {
            return false;
        }
        let named = by_nccl(of_nccl).into_iter().map(|(rank, is_reached)| {
            // A process that waits like all others but that NCCL does not reach has lost its link.
            let is_link = !is_reached && self.ranks.contains_key(&rank);
            let kind = if is_link { HangKind::Link } else { HangKind::NeverEntered };
            Suspect { collective: unnamed.collective.clone(), ..Suspect::new(Some(rank), kind) }
        });
        let named: Vec<_> = named.collect();
        if named.is_empty() {
            return false;
        }
        *blamed = named;
        true
    }
}

/// Whether the collective belongs to the group of all ranks.
fn is_of_all(collective: &Collective) -> bool {
    collective.group == recorder::DEFAULT_GROUP
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
    let missing: BTreeSet<u32> = of.dead.iter().chain(&of.unresponsive).map(|rank| rank.0).in_set();
    if !missing.is_empty() {
        return missing.into_iter().map(|rank| (rank, false)).collect();
    }
    let behind: BTreeSet<GlobalRank> = of.behind.iter().map(|one| one.rank).in_set();
    match behind.first() {
        // In a communicator of two ranks, the other rank may have called something of its own.
        Some(rank) if behind.len() == 1 && of.behind.iter().any(|one| one.of > 2) => {
            vec![(rank.0, true)]
        }
        _ => Vec::new(),
    }
}
