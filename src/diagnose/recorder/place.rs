//! Places where ranks wait, and the ranks for which they wait.
//!
//! In a send or a receive a rank waits for the other side. Each rank counts its own sends and receives, so the n-th
//! send from one rank to another belongs to the n-th receive there from it. The counts match only if both records begin
//! at the first entry. Ranks may wait for each other in a circle.

use std::collections::{BTreeMap, BTreeSet};

use super::dump::Entry;
use super::groups::{Come, Group, Groups, Step, Track};
use crate::Frame;
use text::order::InOrder;

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

impl<'d> Place<'d> {
    /// A place in a group, with the operation of the first waiting rank.
    fn new(at: usize, group: &Group<'_>, seq: i64, here: Vec<(u32, Step<'d>)>) -> Place<'d> {
        let first = here.first().and_then(|(_, step)| step.first());
        let op = first.map_or_else(String::new, |entry| entry.op.name.clone());
        Place {
            collective: Collective { op, group: group.title().to_owned(), seq },
            here,
            missing: Vec::new(),
            silent: Vec::new(),
            unclear: Vec::new(),
            group: at,
            is_pair: false,
        }
    }

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
        let mut place = Place::new(at, group, seq, here);
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
    let seqs: BTreeSet<i64> = open.filter(|seq| *seq <= passed).in_set();
    let of_seq = |seq: &i64| {
        let step =
            |(rank, track): (&u32, &Track<'d>)| Some((*rank, track.collectives.get(seq)?.clone()));
        let here: Vec<(u32, Step<'d>)> = group.tracks.iter().filter_map(step).collect();
        let has_come = |rank: &&u32| {
            group.tracks.get(*rank).is_some_and(|track| track.collectives.contains_key(seq))
        };
        let unclear = group.members.iter().filter(|rank| !has_come(rank)).copied().collect();
        Place { unclear, ..Place::new(at, group, *seq, here) }
    };
    seqs.iter().map(of_seq).collect()
}

/// The places of a group where a rank waits for the other side.
pub(super) fn pair_places<'d>(groups: &Groups<'d>, at: usize, group: &Group<'d>) -> Vec<Place<'d>> {
    let mut places = Vec::new();
    // The sides are ranks of the group: without its members the sides are unknown.
    if !group.is_whole {
        return places;
    }
    for (rank, track) in &group.tracks {
        for (seq, step) in &track.pairs {
            if step.is_done() {
                continue;
            }
            for entry in &step.entries {
                let Some(peer) = peer(group, *rank, entry) else { continue };
                let nth = nth(track.pairs.values(), entry);
                let here = vec![(*rank, Step { entries: vec![*entry] })];
                let mut place = Place { is_pair: true, ..Place::new(at, group, *seq, here) };
                match group.tracks.get(&peer) {
                    None if groups.record(peer).is_none() => place.silent.push(peer),
                    Some(other) if other.lost || track.lost => place.unclear.push(peer),
                    None if track.lost => place.unclear.push(peer),
                    other => {
                        let sides = other.into_iter().flat_map(|other| other.pairs.values());
                        match other_side(sides, entry, nth) {
                            OtherSide::Missing => place.missing.push(peer),
                            // The transfer goes on.
                            OtherSide::Left => continue,
                            OtherSide::Here(there) => {
                                place.here.push((peer, Step { entries: vec![there] }));
                            }
                        }
                    }
                }
                places.push(place);
            }
        }
    }
    places
}

/// The global rank on the other side. None: any rank, or torch does not write such a record.
fn peer(group: &Group<'_>, rank: u32, entry: &Entry) -> Option<u32> {
    let pair = entry.op.pair?;
    let member = |of: u32| group.members.get(of as usize).copied();
    let (from, to) = (member(pair.from?)?, member(pair.to)?);
    match (from == rank, to == rank) {
        (true, false) if entry.op.is_send() => Some(to),
        (false, true) if !entry.op.is_send() => Some(from),
        _ => None,
    }
}

/// Number of the entry among entries of its kind to the same side, from 0.
fn nth<'s, 'd: 's>(steps: impl Iterator<Item = &'s Step<'d>>, entry: &Entry) -> usize {
    let all = steps.flat_map(|step| &step.entries);
    let counted = || all.filter(|one| one.op == entry.op && one.record < entry.record).count();
    entry.nth.unwrap_or_else(counted)
}

/// The other side of a send or a receive.
enum OtherSide<'d> {
    Missing,
    /// The entry is done on the other side.
    Left,
    Here(&'d Entry),
}

/// The n-th entry on the other side that matches `entry`.
fn other_side<'s, 'd: 's>(
    steps: impl Iterator<Item = &'s Step<'d>>,
    entry: &Entry,
    nth: usize,
) -> OtherSide<'d> {
    let matches =
        |one: &Entry| one.op.pair == entry.op.pair && one.op.is_send() != entry.op.is_send();
    let all = steps.flat_map(|step| step.entries.iter().map(move |one| (step.is_done(), *one)));
    for (counted, (is_done, one)) in all.filter(|(_, one)| matches(one)).enumerate() {
        let at = one.nth.unwrap_or(counted);
        if at == nth {
            return if is_done { OtherSide::Left } else { OtherSide::Here(one) };
        }
        // Only entries that are done are left out of a record.
        if at > nth {
            return OtherSide::Left;
        }
    }
    OtherSide::Missing
}

/// Each rank of a circle, with the place in the circle where the rank waits. Tarjan's strongly
/// connected components, without recursion: a circle may have thousands of ranks.
pub(super) fn circles(places: &[Place<'_>]) -> Vec<(u32, usize)> {
    let mut numbers: BTreeMap<u32, usize> = BTreeMap::new();
    let mut ranks: Vec<u32> = Vec::new();
    for (rank, _) in places.iter().flat_map(|place| &place.here) {
        numbers.entry(*rank).or_insert_with(|| {
            ranks.push(*rank);
            ranks.len() - 1
        });
    }
    // Ranks first, then places.
    let mut edges: Vec<Vec<usize>> = vec![Vec::new(); ranks.len() + places.len()];
    for (at, place) in places.iter().enumerate() {
        let node = ranks.len() + at;
        for (rank, _) in &place.here {
            if let Some(out) = numbers.get(rank).and_then(|from| edges.get_mut(*from)) {
                out.push(node);
            }
        }
        let to = place.missing.iter().filter_map(|rank| numbers.get(rank).copied());
        if let Some(out) = edges.get_mut(node) {
            out.extend(to);
        }
    }
    let component = components(&edges);
    let mut found = Vec::new();
    for (number, rank) in ranks.iter().enumerate() {
        let Some(own) = component.get(number) else { continue };
        // Paths lead from the place back to the rank.
        let inside = edges.get(number).into_iter().flatten();
        let mut inside = inside.filter(|place| component.get(**place) == Some(own));
        if let Some(place) = inside.next() {
            found.push((*rank, place - ranks.len()));
        }
    }
    found
}

/// The component of each node.
fn components(edges: &[Vec<usize>]) -> Vec<usize> {
    const NONE: usize = usize::MAX;
    let count = edges.len();
    let (mut index, mut low) = (vec![NONE; count], vec![0_usize; count]);
    let (mut on_stack, mut component) = (vec![false; count], vec![NONE; count]);
    let (mut stack, mut next, mut made) = (Vec::new(), 0, 0);
    for root in 0..count {
        if index[root] != NONE {
            continue;
        }
        // A node, and the number of its edges that were followed.
        let mut path = vec![(root, 0_usize)];
        while let Some((node, followed)) = path.last_mut() {
            let node = *node;
            if *followed == 0 {
                (index[node], low[node]) = (next, next);
                next += 1;
                stack.push(node);
                on_stack[node] = true;
            }
            if let Some(&to) = edges[node].get(*followed) {
                *followed += 1;
                if index[to] == NONE {
                    path.push((to, 0));
                } else if on_stack[to] {
                    low[node] = low[node].min(index[to]);
                }
                continue;
            }
            path.pop();
            if let Some((parent, _)) = path.last() {
                low[*parent] = low[*parent].min(low[node]);
            }
            if low[node] == index[node] {
                while let Some(member) = stack.pop() {
                    on_stack[member] = false;
                    component[member] = made;
                    if member == node {
                        break;
                    }
                }
                made += 1;
            }
        }
    }
    component
}
