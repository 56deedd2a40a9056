//! Sends and receives: ranks that wait for the other side.
//!
//! Each rank counts its own sends and receives, so the n-th send from one rank to another belongs
//! to the n-th receive there from it. The counts match only if both records begin at the first
//! entry.

use super::dump::Entry;
use super::groups::{Group, Groups, Step};
use super::place::{Collective, Place};

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
                let mut place = Place {
                    collective: Collective {
                        op: entry.op.name.clone(),
                        group: group.title().to_owned(),
                        seq: *seq,
                    },
                    here: vec![(*rank, Step { entries: vec![*entry] })],
                    missing: Vec::new(),
                    silent: Vec::new(),
                    unclear: Vec::new(),
                    group: at,
                    is_pair: true,
                };
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
