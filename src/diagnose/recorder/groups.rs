//! The process groups of a job, combined from the records of its ranks.
//!
//! Groups are distinguished by backend, name and members, never by `pg_id`, which each process counts by itself. A
//! group that was made anew keeps its name and restarts its numbers. So for each rank only the entries of its last
//! group of that name count.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::dump::{Dump, Entry};
use text::order::InOrder;

/// torch's name of the group of all ranks.
pub const DEFAULT_GROUP: &str = "default_pg";

/// Time at which a record was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Read {
    #[default]
    Unknown,
    /// Not after this time, in ns since 1970 by the rank's clock: the time at which the file was written or copied.
    NotAfter(i64),
    /// At this time or later, in ns since 1970 by the rank's clock: the rank was asked at this time, while it ran.
    At(i64),
}

/// Records that were read from one rank.
#[derive(Debug, Clone, Default)]
pub struct RankRecord {
    /// Global rank.
    pub rank: u32,
    /// One dump for each backend that has a recorder of its own.
    pub dumps: Vec<Dump>,
    pub read: Read,
}

/// Entries with one sequence number: one entry, or the entries of coalesced operations.
#[derive(Debug, Clone, Default)]
pub(super) struct Step<'d> {
    pub(super) entries: Vec<&'d Entry>,
}

impl<'d> Step<'d> {
    /// Coalesced operations complete in the last entry, which closes them. The other entries have no events of their
    /// own.
    pub(super) fn is_done(&self) -> bool {
        self.entries.last().is_some_and(|last| last.is_done())
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_given_up())
    }

    /// The entry to show.
    pub(super) fn first(&self) -> Option<&'d Entry> {
        self.entries.first().copied()
    }

    pub(super) fn waits_for_all(&self) -> bool {
        matches!(self.entries.as_slice(), [one] if one.op.waits_for_all())
    }
}

/// Entries of a rank in a group.
#[derive(Debug, Default)]
pub(super) struct Track<'d> {
    /// Description of the group.
    desc: &'d str,
    /// Steps by sequence number.
    pub(super) collectives: BTreeMap<i64, Step<'d>>,
    pub(super) pairs: BTreeMap<i64, Step<'d>>,
    /// The last collective that the rank entered.
    pub(super) entered: i64,
    /// Entries of this rank are missing, possibly the first ones of this group.
    pub(super) lost: bool,
}

impl Track<'_> {
    /// The first collective after `passed` that the rank has entered and not left. Threads of gloo report completion
    /// late, and in any order.
    pub(super) fn open_after(&self, passed: i64) -> Option<i64> {
        let mut later = self.collectives.range(passed.saturating_add(1)..);
        later.find(|(_, step)| !step.is_done()).map(|(seq, _)| *seq)
    }

    fn last_done_by_all(&self) -> i64 {
        let done = self.collectives.iter().rev();
        let mut done = done.filter(|(_, step)| step.waits_for_all() && step.is_done());
        done.next().map_or(0, |(seq, _)| *seq)
    }
}

#[derive(Debug)]
pub(super) struct Group<'d> {
    pub(super) backend: &'d str,
    pub(super) name: &'d str,
    pub(super) desc: &'d str,
    /// Global ranks, in the order of the ranks in the group. Groups of all ranks share one list.
    pub(super) members: Rc<[u32]>,
    /// Whether `members` holds all members. gloo of 2.15 records no members by name.
    pub(super) is_whole: bool,
    /// Whether the members are complete although no record names them: a collective that ends only after all have
    /// come has ended, and each rank that may have been in it is seen here.
    pub(super) is_proven: bool,
    /// Tracks of the members that have entered anything in the group, as far as they were read.
    pub(super) tracks: BTreeMap<u32, Track<'d>>,
}

/// Progress of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Come {
    /// The member has entered this collective and no later one.
    Through(i64),
    /// The record was read too early to show collectives that other ranks have left, or its entries were lost.
    Unknown,
    /// No record of the member was read.
    Silent,
}

impl Group<'_> {
    /// The name of the group for people.
    pub(super) fn title(&self) -> &str {
        if ["", "undefined"].contains(&self.desc) { self.name } else { self.desc }
    }

    /// All members have entered at least this collective: one member has left it, and no member leaves it before all
    /// have come.
    pub(super) fn entered_by_all(&self) -> i64 {
        self.tracks.values().map(Track::last_done_by_all).max().unwrap_or(0)
    }
}

/// Backend, name and members of a group. Groups with one name and different members are different groups.
type Key<'d> = (&'d str, &'d str, Option<Rc<[u32]>>);

/// All groups in which anything was entered.
#[derive(Debug)]
pub(super) struct Groups<'d> {
    pub(super) all: Vec<Group<'d>>,
    records: BTreeMap<u32, &'d RankRecord>,
    /// Number of ranks of the job.
    pub(super) world: u32,
}

impl<'d> Groups<'d> {
    /// `world`: number of ranks of the job, if known.
    pub(super) fn of(records: &'d [RankRecord], world: Option<u32>) -> Groups<'d> {
        let numbers = records.iter().flat_map(|record| {
            let configured = record.dumps.iter().flat_map(|dump| &dump.groups);
            configured.flat_map(|group| &group.ranks).copied().chain([record.rank])
        });
        let numbers = numbers.filter(|number| *number < MOST_RANKS);
        let seen = numbers.max().map_or(0, |last| last.saturating_add(1));
        let mut groups = Groups {
            all: Vec::new(),
            records: records.iter().map(|record| (record.rank, record)).collect(),
            world: world.unwrap_or(0).min(MOST_RANKS).max(seen),
        };
        let everyone: Rc<[u32]> = (0..groups.world).collect();
        let mut defaults: BTreeSet<(&str, &str)> = BTreeSet::new();
        let mut by_key: BTreeMap<Key<'_>, Group<'d>> = BTreeMap::new();
        for record in records {
            for dump in &record.dumps {
                for ((backend, name), track) in tracks(dump) {
                    let members = configured(dump, name).or_else(|| {
                        let of_all = (backend, name);
                        let is_of_all = track.desc == DEFAULT_GROUP
                            && (defaults.contains(&of_all) || defaults.len() < MOST_DEFAULTS);
                        is_of_all.then(|| {
                            defaults.insert(of_all);
                            Rc::clone(&everyone)
                        })
                    });
                    let key = (backend, name, members.clone());
                    let group = by_key.entry(key).or_insert_with(|| Group {
                        backend,
                        name,
                        desc: track.desc,
                        is_whole: members.is_some(),
                        is_proven: false,
                        members: members.unwrap_or_default(),
                        tracks: BTreeMap::new(),
                    });
                    group.tracks.insert(record.rank, track);
                }
            }
        }
        groups.all = by_key.into_values().collect();
        groups.find_members();
        groups
    }

    pub(super) fn record(&self, rank: u32) -> Option<&'d RankRecord> {
        self.records.get(&rank).copied()
    }

    /// Ranks of the job that were not read.
    pub(super) fn silent(&self) -> Vec<u32> {
        (0..self.world).filter(|rank| !self.records.contains_key(rank)).collect()
    }

    /// Finds the members of groups that no record names, as far as possible. A rank whose last group is the group of
    /// all ranks is in no other group. So if only two ranks can be in a group, they are its members.
    fn find_members(&mut self) {
        if self.all.iter().all(|group| group.is_whole) {
            return;
        }
        let free: BTreeSet<u32> =
            (0..self.world).filter(|rank| !self.is_only_in_default(*rank)).in_set();
        let has_lost = |(rank, record): (&u32, &&RankRecord)| {
            record.dumps.iter().any(|dump| dump.lost).then_some(*rank)
        };
        let lost: BTreeSet<u32> = self.records.iter().filter_map(has_lost).in_set();
        let sees_all = self.silent().is_empty();
        for group in self.all.iter_mut().filter(|group| !group.is_whole) {
            let known: BTreeSet<u32> = group.tracks.keys().copied().in_set();
            let mut others = free.difference(&known).copied();
            let (other, another) = (others.next(), others.next());
            group.is_whole = other.is_none() || (known.len() == 1 && another.is_none());
            group.is_proven = group.entered_by_all() > 0 && sees_all && lost.is_subset(&known);
            let other = other.filter(|_| group.is_whole);
            let members: BTreeSet<u32> = known.iter().copied().chain(other).in_set();
            group.members = members.into_iter().collect();
        }
    }

    fn is_only_in_default(&self, rank: u32) -> bool {
        let Some(record) = self.record(rank) else { return false };
        let mut last = record.dumps.iter().flat_map(|dump| &dump.groups);
        last.all(|group| group.name.is_empty() && group.ranks.len() as u64 == u64::from(self.world))
            && record.dumps.iter().any(|dump| !dump.groups.is_empty())
    }

    /// `passed`: the result of [`Group::entered_by_all`].
    pub(super) fn come(&self, group: &Group<'_>, rank: u32, passed: i64) -> Come {
        let Some(record) = self.record(rank) else { return Come::Silent };
        let through = match group.tracks.get(&rank) {
            Some(track) => track.entered,
            None if record.dumps.iter().any(|dump| dump.lost) => return Come::Unknown,
            // The record of another backend says nothing about this one.
            None if !records_backend(record, group.backend) => return Come::Unknown,
            None => 0,
        };
        if through < passed { Come::Unknown } else { Come::Through(through) }
    }
}

/// Maximum number of ranks of a job here, so that a wrong number in a dump costs no memory.
const MOST_RANKS: u32 = 1 << 18;

/// Maximum number of groups that count as the group of all ranks because of their name. Each backend has one such
/// group. A nonsensical dump has any number, and all ranks would be searched in each.
const MOST_DEFAULTS: usize = 16;

/// The members of a group, if the dump names them.
fn configured(dump: &Dump, name: &str) -> Option<Rc<[u32]>> {
    let mut named = dump.groups.iter().filter(|group| !name.is_empty() && group.name == name);
    named.next().map(|group| Rc::from(group.ranks.as_slice()))
}

/// An empty dump counts for every backend: it comes from a recorder into which nothing was entered.
fn records_backend(record: &RankRecord, backend: &str) -> bool {
    let of_it = |dump: &Dump| dump.entries.iter().any(|entry| entry.op.backend == backend);
    record.dumps.iter().any(|dump| dump.entries.is_empty() || of_it(dump))
}

/// The tracks of a dump, by backend and name.
fn tracks(dump: &Dump) -> BTreeMap<(&str, &str), Track<'_>> {
    let mut newest: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for entry in &dump.entries {
        newest.insert((&entry.op.backend, &entry.group), entry.pg_id);
    }
    let mut tracks: BTreeMap<(&str, &str), Track<'_>> = BTreeMap::new();
    for entry in &dump.entries {
        let key = (entry.op.backend.as_str(), &*entry.group);
        if newest.get(&key) != Some(&entry.pg_id) {
            continue;
        }
        let new = || Track { desc: &entry.desc, lost: dump.lost, ..Track::default() };
        let track = tracks.entry(key).or_insert_with(new);
        if entry.is_p2p {
            track.pairs.entry(entry.p2p_seq).or_default().entries.push(entry);
        } else {
            track.collectives.entry(entry.collective_seq).or_default().entries.push(entry);
            track.entered = track.entered.max(entry.collective_seq);
        }
    }
    for (key, track) in &mut tracks {
        let id = newest.get(key).copied();
        let enqueued = dump.enqueued.iter().find(|(of, _)| Some(*of) == id);
        // The status may count sends and receives as well, and is older than the entries. So it counts only if
        // entries are missing.
        if let Some((_, last)) = enqueued.filter(|_| track.lost && track.pairs.is_empty()) {
            track.entered = track.entered.max(*last);
        }
    }
    tracks
}
