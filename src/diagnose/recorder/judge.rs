//! Finds the ranks that keep the others waiting: a pure function over the records of a job's ranks.
//!
//! Ranks and the places where they wait are a graph. A rank waits at its first collective that is not done, and the
//! place waits for the members that have not come. A rank that others wait for and that waits for nobody is the
//! culprit. Ranks that wait for each other in a circle use their groups in different orders. If all ranks have come,
//! either they called different things or the connection between them is at fault.
//!
//! The records are read one after the other while the job may run, so they show no single moment: a rank that has not
//! come yet looks like a rank that never will. A finding that this could explain is never `certain` without a proof
//! that the job stood still, and is omitted if the wait was short.
//!
//! Ranks that come late to collectives hold the others back. All ranks leave a collective together, so the last rank to come to the next one needed the longest in between. Its
//! delay after the last but one is the time that the job would save. Times of different nodes need the offsets of
//! their clocks: a clock offset looks like a slow node.

use std::collections::{BTreeMap, BTreeSet};

use super::dump::Entry;
use super::groups::{Group, Groups, RankRecord, Read, Step};
use super::mismatch::{Differs, mismatch, pair_mismatch};
use super::place::{Collective, Place, circles, collective_places, left_by_some, pair_places};
use crate::Frame;
use text::lang::Text;
use text::order::{InOrder, Ordered};
use text::ranges::listed;
use verdict::Confidence;

const SECOND: i64 = 1_000_000_000;
/// A shorter wait shows nothing.
const SHORTEST_WAIT: i64 = SECOND;
/// A wait of this length is no step of a job, unless the steps of the job are as long.
const LONG_WAIT: i64 = 30 * SECOND;

/// Facts that are known about a job.
#[derive(Debug, Default)]
pub struct Job {
    /// The record of each rank, once.
    pub records: Vec<RankRecord>,
    /// Number of ranks of the job, if known.
    pub world: Option<u32>,
    /// Another observation proves that the job stood still when its records were read.
    pub stood_still: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HangKind {
    OtherCollective,
    OtherShape,
    Deadlock,
    NeverEntered,
    /// The rank was not read: it is stopped, it ended, or its record is elsewhere.
    Unknown,
    Link,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Culprit {
    /// None: no single rank shows it.
    pub rank: Option<u32>,
    pub kind: HangKind,
    /// The collective that the culprit did not enter, or the collective that it entered in place of the expected one.
    pub collective: Option<Collective>,
    /// The culprit's line that entered the collective, if it has entered.
    pub frame: Option<Frame>,
    /// The line at which a waiting rank entered the collective.
    pub waited_at: Option<Frame>,
    /// The entries of the ranks, if the culprit entered something else than others.
    pub entered: Option<Entered>,
    /// The last entry of the culprit, if it has not come: after this line the record shows nothing more of it.
    pub last: Option<(Collective, Option<Frame>)>,
    /// The culprit has not left its last entry, though others have: it waits there, unless its stack shows something
    /// else.
    pub is_inside: bool,
}

/// An unexpected entry beside the expected one: `all_reduce [4] Float`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entered {
    /// `expected`: the entry of most ranks.
    Odd { own: String, expected: String },
    /// No side has more ranks than another.
    Sides(Vec<(Vec<u32>, String)>),
}

impl Entered {
    /// `rank 0 entered barrier, rank 1 all_reduce [4] Float`, for sides without an odd one.
    pub fn sides(sides: &[(Vec<u32>, String)]) -> Text {
        let (mut en, mut zh) = (Vec::new(), Vec::new());
        for (ranks, shown) in sides {
            let list = listed(ranks.iter().copied(), '-');
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            let verb = if en.is_empty() { "entered " } else { "" };
            en.push(format!("{noun} {list} {verb}{shown}"));
            zh.push(format!("rank {list} 进入了 {shown}"));
        }
        Text::new(en.join(", "), zh.join("，"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hang {
    pub culprits: Vec<Culprit>,
    /// Ranks that wait and are not culprits.
    pub waiting: Vec<u32>,
    /// Unknown if there is no culprit.
    pub confidence: Confidence,
    /// The collective in which each rank waits.
    pub entered: BTreeMap<u32, Collective>,
    /// Ranks that were read.
    pub read: Vec<u32>,
    /// Ranks of the job that were not read.
    pub silent: Vec<u32>,
    /// Ranks with an older record: others had already left a collective that these ranks had not entered when they
    /// were read.
    pub older: Vec<u32>,
    /// Start of the first wait, in ns since 1970.
    pub since_ns: Option<i64>,
    /// Length of the longest wait at the time of reading, in ns; `false`: at most this long.
    pub waited: Option<(i64, bool)>,
    /// Time at which torch gives up the first wait, in ns since 1970.
    pub gives_up_ns: Option<i64>,
    /// The wait was too short to conclude that anything stands still.
    pub moves: bool,
}

/// Certainty that the job stood still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stood {
    /// The job did not stand still, as far as known: the wait was short.
    Moves,
    Perhaps,
    Proven,
}

/// Judges a job. Never fails: the result holds only findings that the records show.
pub fn judge(job: &Job) -> Hang {
    let groups = Groups::of(&job.records, job.world);
    let mut places: Vec<Place<'_>> = Vec::new();
    for (at, group) in groups.all.iter().enumerate() {
        places.extend(collective_places(&groups, at, group));
        places.extend(pair_places(&groups, at, group));
    }
    let mut older: Vec<u32> = groups
        .all
        .iter()
        .flat_map(|group| {
            let all = group.entered_by_all();
            group.tracks.iter().filter(move |(_, track)| track.entered < all).map(|(rank, _)| *rank)
        })
        .collect();
    older.sort_unstable();
    older.dedup();
    let wait = wait(job, &groups, &places);
    let stood = stood(job, &groups, &places, wait);
    let mut culprits = culprits(&groups, &places, stood);
    culprits.order_by_key(|(culprit, _)| (culprit.kind, culprit.rank));
    culprits.dedup_by_key(|(culprit, _)| (culprit.kind, culprit.rank));
    let confidence = culprits.iter().map(|(_, confidence)| *confidence).min();
    let culprits: Vec<Culprit> = culprits.into_iter().map(|(culprit, _)| culprit).collect();
    let blamed: BTreeSet<u32> = culprits.iter().filter_map(|culprit| culprit.rank).in_set();
    let waiting: BTreeSet<u32> = places
        .iter()
        .flat_map(|place| &place.here)
        .map(|(rank, _)| *rank)
        .filter(|rank| !blamed.contains(rank))
        .in_set();
    Hang {
        moves: culprits.is_empty() && !waiting.is_empty() && stood == Stood::Moves,
        culprits,
        waiting: waiting.into_iter().collect(),
        entered: entered(&places),
        confidence: confidence.unwrap_or(Confidence::Unknown),
        read: job.records.iter().map(|record| record.rank).collect(),
        silent: groups.silent(),
        older,
        since_ns: places.iter().filter_map(Place::since).min(),
        waited: wait,
        gives_up_ns: places.iter().filter_map(Place::gives_up).min(),
    }
}

/// The collective in which each rank waits; the last one if there are several, because gloo reports completion late.
fn entered(places: &[Place<'_>]) -> BTreeMap<u32, Collective> {
    let mut last: BTreeMap<u32, ((i64, i64), &Collective)> = BTreeMap::new();
    for place in places {
        for (rank, step) in &place.here {
            let at = step.first().map_or((0, 0), |entry| (entry.created_ns, entry.record));
            let known = last.entry(*rank).or_insert((at, &place.collective));
            if at > known.0 {
                *known = (at, &place.collective);
            }
        }
    }
    last.into_iter().map(|(rank, (_, collective))| (rank, collective.clone())).in_map()
}

/// The longest wait when the ranks were read, and whether the wait lasted at least that long.
fn wait(job: &Job, groups: &Groups<'_>, places: &[Place<'_>]) -> Option<(i64, bool)> {
    let waits = places.iter().flat_map(|place| &place.here).filter_map(|(rank, step)| {
        let created = step.first().map(|entry| entry.created_ns).filter(|ns| *ns > 0)?;
        match groups.record(*rank)?.read {
            Read::Unknown => None,
            Read::NotAfter(ns) => Some((ns.saturating_sub(created), false)),
            Read::At(ns) => Some((ns.saturating_sub(created), true)),
        }
    });
    waits.max().filter(|_| !job.records.is_empty())
}

fn stood(job: &Job, groups: &Groups<'_>, places: &[Place<'_>], wait: Option<(i64, bool)>) -> Stood {
    let given_up = |place: &Place<'_>| place.here.iter().any(|(_, step)| step.is_given_up());
    if job.stood_still || places.iter().any(given_up) {
        return Stood::Proven;
    }
    let usual = places.iter().filter_map(|place| longest_step(groups, place)).max().unwrap_or(0);
    match wait {
        Some((ns, _)) if ns < SHORTEST_WAIT.max(usual) => Stood::Moves,
        Some((ns, true)) if ns >= LONG_WAIT.max(usual.saturating_mul(3)) => Stood::Proven,
        _ => Stood::Perhaps,
    }
}

/// The longest time that a rank waiting here needed from one collective of the group to the next.
fn longest_step(groups: &Groups<'_>, place: &Place<'_>) -> Option<i64> {
    let group = groups.all.get(place.group)?;
    let of_rank = |(rank, _): &(u32, Step<'_>)| {
        let steps = group.tracks.get(rank)?.collectives.values();
        let times: Vec<i64> = steps.filter_map(Step::first).map(|entry| entry.created_ns).collect();
        // A dump may hold any time.
        let later = times.iter().skip(1);
        times.iter().zip(later).map(|(one, next)| next.saturating_sub(*one)).max()
    };
    place.here.iter().filter_map(of_rank).max()
}

fn culprits(groups: &Groups<'_>, places: &[Place<'_>], stood: Stood) -> Vec<(Culprit, Confidence)> {
    let mut found = Vec::new();
    for place in places {
        mismatched(place, &mut found);
    }
    if stood == Stood::Moves {
        return found;
    }
    if stood == Stood::Proven {
        for (at, group) in groups.all.iter().enumerate() {
            for place in left_by_some(at, group) {
                mismatched(&place, &mut found);
            }
        }
        for place in places {
            left_too_early(groups, place, places, &mut found);
        }
    }
    let sure = if stood == Stood::Proven { Confidence::Certain } else { Confidence::Likely };
    let waits: BTreeSet<u32> =
        places.iter().flat_map(|place| &place.here).map(|(rank, _)| *rank).in_set();
    for (rank, at) in circles(places) {
        let Some(place) = places.get(at) else { continue };
        let frame = place.entry_of(rank).and_then(|entry| entry.frame.as_deref().cloned());
        let culprit = Culprit::at(place, Some(rank), HangKind::Deadlock);
        found.push((Culprit { frame, waited_at: None, ..culprit }, sure));
    }
    let mut by_since: Vec<&Place<'_>> = places.iter().collect();
    by_since.order_by_key(|place| place.since());
    for place in by_since {
        for rank in place.missing.iter().filter(|rank| !waits.contains(rank)) {
            let culprit = never_entered(groups, place, *rank);
            let sure = if culprit.is_inside { Confidence::Likely } else { sure };
            found.push((culprit, sure));
        }
    }
    let blamed = !found.is_empty();
    for place in places.iter().filter(|place| place.missing.is_empty()) {
        match (place.silent.as_slice(), place.unclear.is_empty()) {
            // Without a single unread rank the others cannot go on. Among several unread ranks, any may be the
            // culprit.
            ([silent], true) => {
                let culprit = Culprit::at(place, Some(*silent), HangKind::Unknown);
                found.push((culprit, Confidence::Likely));
            }
            ([], true) if !blamed && stood == Stood::Proven && is_whole(groups, place) => {
                found.push((Culprit::at(place, None, HangKind::Link), Confidence::Likely));
            }
            _ => {}
        }
    }
    found
}

/// Whether all participants are known to wait here.
fn is_whole(groups: &Groups<'_>, place: &Place<'_>) -> bool {
    let group = groups.all.get(place.group);
    let members = group.filter(|group| group.is_whole || group.is_proven);
    let needed = members.map(|group| if place.is_pair { 2 } else { group.members.len() });
    needed == Some(place.here.len())
}

impl Culprit {
    /// A culprit that keeps the ranks waiting at this place.
    fn at(place: &Place<'_>, rank: Option<u32>, kind: HangKind) -> Culprit {
        Culprit {
            collective: Some(place.collective.clone()),
            waited_at: place.frame(),
            ..Culprit::new(rank, kind)
        }
    }

    /// A culprit about which nothing else is known. `NeverEntered`: others wait for the rank in a collective, or
    /// nothing but its stack is known. `Deadlock`: the rank waits in one group for a rank that waits for it in another
    /// group. `Link`: all ranks have come, and none leaves.
    pub fn new(rank: Option<u32>, kind: HangKind) -> Culprit {
        Culprit {
            rank,
            kind,
            collective: None,
            frame: None,
            waited_at: None,
            entered: None,
            last: None,
            is_inside: false,
        }
    }
}

fn never_entered(groups: &Groups<'_>, place: &Place<'_>, rank: u32) -> Culprit {
    let tracks = groups.all.iter().filter_map(|group| Some((group, group.tracks.get(&rank)?)));
    let steps = tracks.flat_map(|(group, track)| {
        let steps = track.collectives.values().chain(track.pairs.values());
        steps.filter_map(move |step| Some((group, step, step.first()?)))
    });
    let last = steps.max_by_key(|(.., entry)| (entry.created_ns, entry.record));
    Culprit {
        // The end of a collective without a name is not known.
        is_inside: last.is_some_and(|(_, step, entry)| !step.is_done() && !entry.op.is_unnamed()),
        last: last.map(|(group, _, entry)| (called(group, entry), entry.frame.as_deref().cloned())),
        ..Culprit::at(place, Some(rank), HangKind::NeverEntered)
    }
}

fn called(group: &Group<'_>, entry: &Entry) -> Collective {
    let seq = if entry.is_p2p { entry.p2p_seq } else { entry.collective_seq };
    Collective { op: entry.op.name.clone(), group: group.title().to_owned(), seq }
}

fn mismatched(place: &Place<'_>, found: &mut Vec<(Culprit, Confidence)>) {
    let entered: Vec<(u32, &Step<'_>)> =
        place.here.iter().map(|(rank, step)| (*rank, step)).collect();
    let found_here = if place.is_pair {
        pair_mismatch(&entered)
    } else {
        mismatch(&entered, place.are_all_here())
    };
    let Some(mismatch) = found_here else { return };
    let kind = match mismatch.differs {
        Differs::Operation => HangKind::OtherCollective,
        Differs::Shape => HangKind::OtherShape,
    };
    let is_tie = mismatch.is_tie();
    let confidence = if is_tie { Confidence::Likely } else { Confidence::Certain };
    let Some((most, fewer)) = mismatch.sides.split_first() else { return };
    if fewer.is_empty() {
        found.push((Culprit::at(place, None, kind), Confidence::Likely));
    }
    let all = || mismatch.sides.iter().map(|side| (side.ranks.clone(), side.shown.clone()));
    let odd = if is_tie { mismatch.sides.as_slice() } else { fewer };
    for (side, rank) in odd.iter().flat_map(|side| side.ranks.iter().map(move |rank| (side, *rank)))
    {
        let Some(entry) = place.entry_of(rank) else { continue };
        let collective = Collective { op: entry.op.name.clone(), ..place.collective.clone() };
        let entered = match is_tie {
            true => Entered::Sides(all().collect()),
            false => Entered::Odd { own: side.shown.clone(), expected: most.shown.clone() },
        };
        let other = mismatch.sides.iter().find(|other| other.ranks != side.ranks);
        let culprit = Culprit {
            collective: Some(collective),
            frame: entry.frame.as_deref().cloned(),
            waited_at: other.and_then(|other| other.entry.frame.as_deref().cloned()),
            entered: Some(entered),
            ..Culprit::new(Some(rank), kind)
        };
        found.push((culprit, confidence));
    }
}

/// Finds the few ranks that wait at a later collective of the group, although all ranks have come to the collective
/// in which most still wait. These few took no part in it, or a different part. If the records hold their entries
/// there, [`mismatched`] tells more.
fn left_too_early(
    groups: &Groups<'_>,
    place: &Place<'_>,
    places: &[Place<'_>],
    found: &mut Vec<(Culprit, Confidence)>,
) {
    let seq = place.collective.seq;
    let all_must_come = place.here.iter().all(|(_, step)| step.waits_for_all());
    let Some(group) = groups.all.get(place.group) else { return };
    if place.is_pair || !all_must_come || !place.are_all_here() {
        return;
    }
    let is_unknown = |rank: &u32| {
        group.tracks.get(rank).is_some_and(|track| !track.collectives.contains_key(&seq))
    };
    let is_ahead = |other: &&Place<'_>| {
        other.group == place.group && !other.is_pair && other.collective.seq > seq
    };
    let ahead: BTreeSet<u32> = places
        .iter()
        .filter(is_ahead)
        .flat_map(|other| other.here.iter().map(|(rank, _)| *rank))
        .filter(is_unknown)
        .in_set();
    if ahead.len() >= place.here.len() {
        return;
    }
    for rank in ahead {
        let culprit = Culprit::at(place, Some(rank), HangKind::OtherShape);
        found.push((culprit, Confidence::Likely));
    }
}

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
            if worst.get(&found.rank).is_none_or(|known| known.lost < found.lost) {
                worst.insert(found.rank, found);
            }
        }
    }
    let mut worst: Vec<Late> = worst.into_values().collect();
    worst.order_by(|one, other| other.lost.total_cmp(&one.lost));
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
