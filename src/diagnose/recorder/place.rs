//! Places where ranks wait, and the ranks for which they wait.

use std::collections::{BTreeMap, BTreeSet};

use super::dump::Entry;
use super::groups::{Come, Group, Groups, Step, Track};
use crate::Frame;

/// The collective, send or receive in which others wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collective {
    pub op: String,
    pub group: String,
    pub seq: i64,
}

/// A place where ranks wait.
#[derive(Debug)]
pub(super) struct Place<'d> {
    pub(super) collective: Collective,
    /// Waiting ranks, with the entry of each.
    pub(super) here: Vec<(u32, Step<'d>)>,
    /// Ranks that were read and have not come.
    pub(super) missing: Vec<u32>,
    pub(super) silent: Vec<u32>,
    /// Ranks whose records do not show whether they have come.
    pub(super) unclear: Vec<u32>,
    pub(super) group: usize,
    /// A pair of ranks, not the whole group.
    pub(super) is_pair: bool,
}

impl Place<'_> {
    /// Whether no rank is waited for. In a group with unknown members, a rank may be.
    pub(super) fn are_all_here(&self) -> bool {
        self.missing.is_empty() && self.silent.is_empty() && self.unclear.is_empty()
    }

    pub(super) fn since(&self) -> Option<i64> {
        let created = self.here.iter().filter_map(|(_, step)| step.first());
        created.map(|entry| entry.created_ns).filter(|ns| *ns > 0).min()
    }

    pub(super) fn gives_up(&self) -> Option<i64> {
        let entries = self.here.iter().filter_map(|(_, step)| step.first());
        let limits = entries.filter(|entry| entry.created_ns > 0).filter_map(|entry| {
            Some(entry.created_ns.saturating_add(entry.limit_ms?.saturating_mul(1_000_000)))
        });
        limits.min()
    }

    pub(super) fn entry_of(&self, rank: u32) -> Option<&Entry> {
        self.here.iter().find(|(of, _)| *of == rank)?.1.first()
    }

    /// The line at which a waiting rank entered the collective.
    pub(super) fn frame(&self) -> Option<Frame> {
        let mut entries = self.here.iter().filter_map(|(_, step)| step.first());
        entries.find_map(|entry| entry.frame.as_deref().cloned())
    }
}

/// The places of a group where ranks wait in a collective.
pub(super) fn collective_places<'d>(
    groups: &Groups<'d>,
    at: usize,
    group: &Group<'d>,
) -> Vec<Place<'d>> {
    let passed = group.entered_by_all();
    let mut by_seq: BTreeMap<i64, Vec<(u32, Step<'d>)>> = BTreeMap::new();
    for (rank, track) in &group.tracks {
        // All ranks have entered a collective that others have left. A rank in it may leave at any moment, or was
        // read before it left.
        let Some(seq) = track.open_after(passed) else { continue };
        let Some(step) = track.collectives.get(&seq) else { continue };
        by_seq.entry(seq).or_default().push((*rank, step.clone()));
    }
    let mut places = Vec::new();
    for (seq, here) in by_seq {
        let op = here.first().and_then(|(_, step)| step.first()).map(|entry| entry.op.name.clone());
        let mut place = Place {
            collective: Collective {
                op: op.unwrap_or_default(),
                group: group.title().to_owned(),
                seq,
            },
            here,
            missing: Vec::new(),
            silent: Vec::new(),
            unclear: Vec::new(),
            group: at,
            is_pair: false,
        };
        for rank in group.members.iter() {
            match groups.come(group, *rank, passed) {
                Come::Through(last) if last < seq => place.missing.push(*rank),
                Come::Through(_) => {}
                Come::Unknown => place.unclear.push(*rank),
                Come::Silent => place.silent.push(*rank),
            }
        }
        places.push(place);
    }
    places
}

/// The places of a group that some have left and others have not, though leaving proves that all have come: with
/// different sizes, a rank may be through before the others.
pub(super) fn left_by_some<'d>(at: usize, group: &Group<'d>) -> Vec<Place<'d>> {
    let passed = group.entered_by_all();
    let open = group.tracks.values().filter_map(|track| track.open_after(0));
    let seqs: BTreeSet<i64> = open.filter(|seq| *seq <= passed).collect();
    let of_seq = |seq: &i64| {
        let step =
            |(rank, track): (&u32, &Track<'d>)| Some((*rank, track.collectives.get(seq)?.clone()));
        let here: Vec<(u32, Step<'d>)> = group.tracks.iter().filter_map(step).collect();
        let has_come = |rank: &&u32| {
            group.tracks.get(*rank).is_some_and(|track| track.collectives.contains_key(seq))
        };
        let unclear = group.members.iter().filter(|rank| !has_come(rank)).copied().collect();
        let op = here.first().and_then(|(_, step)| step.first()).map(|entry| entry.op.name.clone());
        let collective =
            Collective { op: op.unwrap_or_default(), group: group.title().to_owned(), seq: *seq };
        Place {
            collective,
            here,
            missing: Vec::new(),
            silent: Vec::new(),
            unclear,
            group: at,
            is_pair: false,
        }
    };
    seqs.iter().map(of_seq).collect()
}
