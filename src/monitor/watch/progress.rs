//! Decides whether the ranks of a node make progress. Pure: takes [`Pulse`]s with their times.
//!
//! A rank moves when it writes a line, completes a collective, or gets a message of another rank. It is busy when it uses a processor,
//! reads or writes. Waiting for a collective can cost a processor as well (NCCL and CUDA poll), so of a
//! rank that waits for others only moving counts, and bytes that flow between ranks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use linux::deadline::millis;
use text::order::InOrder;
use text::rank::GlobalRank;

/// Part of a core below which a rank does not compute: loops that poll use a few percent.
const BUSY: f64 = 0.10;
/// Bytes per second below which a rank does no I/O: loops that poll read less, slow downloads more.
const BUSY_IO: f64 = 4.0 * 1024.0;
/// Bytes per second on one connection to another rank or to torch's store below which it carries no tensors: while
/// they wait, ranks poll the store, some a hundred times per second, and NCCL's own threads exchange words.
const BUSY_JOB: f64 = 64.0 * 1024.0;
/// Bytes per second written to disks, for a rank that waits for that.
const BUSY_DISK: f64 = 64.0 * 1024.0;
/// Bytes per second on the node's interfaces; other programs and heartbeats stay below.
const BUSY_NETWORK: f64 = 1024.0 * 1024.0;
/// A job that went on by itself after a standstill has such pauses: the next standstill must be longer by this
/// factor.
const LONGER: u32 = 3;
/// The connections of a job are examined after this part of the time.
const QUIET_PART: u32 = 4;

/// The activity of a rank up to one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Pulse {
    /// Processor time of the rank and of what it started.
    pub cpu: Duration,
    /// Bytes that these processes read and wrote.
    pub io: u64,
    /// Bytes of the rank's output.
    pub output: u64,
    /// Changes with each collective that the rank enters or leaves; None if the rank does not report it.
    pub collectives: Option<u64>,
    /// The rank has entered a collective that it has not left.
    pub waits: bool,
    /// Number of times that the first thread went to sleep, if it is in a call that reads or writes: a call that
    /// moves many bytes sleeps again and again, a call on a dead file system once.
    pub sleeps: Option<u64>,
    /// A process of the rank sleeps in the kernel and cannot be interrupted, as in fsync.
    pub in_disk: bool,
}

/// A TCP connection of a rank or of what it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carried {
    pub rank: GlobalRank,
    pub inode: u32,
    /// Bytes that the connection has carried so far, both ways.
    pub bytes: u64,
    /// Bytes sent that have not arrived, as far as known.
    pub unheard: u32,
    pub to: FarEnd,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FarEnd {
    /// Another rank, by what sends nothing while nobody calls it.
    Rank,
    /// Torch's store, or another rank by NCCL.
    Job,
    Elsewhere,
}

/// The activity of a node up to one look.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodePulse {
    pub ranks: BTreeMap<GlobalRank, Pulse>,
    /// The connections of the ranks; None if nobody looked, or the kernel does not report them.
    pub carried: Option<Vec<Carried>>,
    /// Bytes that its interfaces carried.
    pub network: u64,
    /// Bytes that wait to be written to disks. A decrease means that they are being written, perhaps for another
    /// program.
    pub dirty: u64,
}

/// The standing of this node's ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Standing {
    /// Some rank moves, or did so lately.
    Moves,
    /// No rank has moved for long, but some compute, read or write.
    HeldUp,
    /// Nothing has happened for long.
    Still,
}

/// Bytes of the connections of a rank since the last look.
#[derive(Debug, Clone, Copy, Default)]
struct Grown {
    /// Some connection to another rank carried bytes that somebody sent.
    message: bool,
    /// Bytes of the connection to another rank or to torch's store that carried the most.
    between_ranks: u64,
    /// Bytes of all other connections.
    elsewhere: u64,
}

#[derive(Debug)]
struct Track {
    pulse: Pulse,
    /// The last number that the rank reported. A rank that does not answer in time has not moved.
    collectives: Option<u64>,
    moved: Instant,
    busy: Instant,
    /// Time at which the rank last used a processor.
    computed: Option<Instant>,
    /// Time at which bytes last flowed between it and another rank.
    flowed: Option<Instant>,
    /// Time at which it was last in the kernel while the machine wrote to its disks.
    drains: Option<Instant>,
    /// Time since which the rank was in the kernel at each look, and could not be interrupted.
    in_disk: Option<Instant>,
}

impl Track {
    /// The time since which the rank has not moved, or been busy while it was not known to wait for others.
    fn still_since(&self) -> Instant {
        if self.pulse.waits {
            return self.moved.max(self.flowed.unwrap_or(self.moved));
        }
        self.moved.max(self.busy).max(self.drains.unwrap_or(self.busy))
    }
}

/// The known progress of the ranks of a node.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    ranks: BTreeMap<GlobalRank, Track>,
    at: Option<Instant>,
    /// Time at which all began afresh.
    afresh: Option<Instant>,
    /// Time of the last movement before that.
    moved_before: Option<Instant>,
    /// The connections at the last look, by their inodes.
    connections: Option<BTreeMap<u32, Carried>>,
    /// Some connection carried nothing between the last two looks, though bytes waited for it at both.
    is_cut: bool,
    network: u64,
    dirty: u64,
    /// Time at which bytes last flowed over the interfaces or between ranks.
    carried: Option<Instant>,
    /// Time without movement after which the job stands still.
    after: Duration,
    /// The longest pause of at least this time after which the ranks went on by themselves.
    longest_pause: Duration,
}

impl Progress {
    pub(crate) fn new(after: Duration) -> Progress {
        Progress { after, ..Progress::default() }
    }

    /// Begins anew, since nobody looked for a while: unobserved ranks have not stood still.
    pub(crate) fn begin_afresh(&mut self, now: Instant) {
        self.moved_before = self.last_moved();
        for track in self.ranks.values_mut() {
            (track.moved, track.busy) = (now, now);
            track.in_disk = track.in_disk.map(|_| now);
        }
        (self.at, self.connections, self.afresh) = (None, None, Some(now));
        self.is_cut = false;
    }

    /// Takes the next pulse. A rank that is not in it has ended.
    pub(crate) fn note(&mut self, now: Instant, pulse: &NodePulse) {
        let before = self.still_since();
        let passed =
            self.at.map(|at| now.duration_since(at).as_secs_f64()).filter(|time| *time > 0.0);
        let rate = |new: u64, old: u64| new.abs_diff(old) as f64 / passed.unwrap_or(1.0);
        if passed.is_some() && rate(pulse.network, self.network) > BUSY_NETWORK {
            self.carried = Some(now);
        }
        let drains = passed.is_some()
            && self.dirty > pulse.dirty
            && rate(pulse.dirty, self.dirty) > BUSY_DISK;
        let all = self.ranks.len();
        self.ranks.retain(|rank, _| pulse.ranks.contains_key(rank));
        let ended = self.ranks.len() < all;
        let grown = self.grown(pulse.carried.as_deref());
        for (rank, new) in &pulse.ranks {
            let track = self.ranks.entry(*rank).or_insert(Track {
                pulse: *new,
                collectives: new.collectives,
                moved: now,
                busy: now,
                computed: None,
                flowed: None,
                drains: None,
                in_disk: None,
            });
            let old = track.pulse;
            let collectives = new.collectives.or(track.collectives);
            let grown = grown.get(rank).copied().unwrap_or_default();
            let steps = new.output != old.output || collectives != track.collectives;
            if ended || steps || grown.message {
                track.moved = now;
            }
            track.collectives = collectives;
            let computes = rate(millis(new.cpu), millis(old.cpu)) / 1000.0 > BUSY;
            let transfers = matches!((old.sleeps, new.sleeps), (Some(old), Some(new)) if new > old);
            let flows = rate(grown.between_ranks, 0) > BUSY_JOB;
            let reads_or_writes = rate(new.io, old.io) > BUSY_IO
                || rate(grown.elsewhere, 0) > BUSY_IO
                || transfers
                || flows;
            if computes || reads_or_writes {
                track.busy = now;
            }
            if computes {
                track.computed = Some(now);
            }
            if flows {
                (track.flowed, self.carried) = (Some(now), Some(now));
            }
            if drains && new.in_disk {
                track.drains = Some(now);
            }
            track.in_disk = new.in_disk.then(|| track.in_disk.unwrap_or(now));
            track.pulse = *new;
        }
        (self.at, self.network, self.dirty) = (Some(now), pulse.network, pulse.dirty);
        // A pause of the job itself ends with a step, not with other activity of the machine.
        if let (Some(before), false) = (before, ended)
            && self.moved() == Some(now)
        {
            let pause = now.duration_since(before);
            if pause >= self.after {
                self.longest_pause = self.longest_pause.max(pause);
            }
        }
    }

    /// Growth of each rank's connections since the last look.
    fn grown(&mut self, carried: Option<&[Carried]>) -> BTreeMap<GlobalRank, Grown> {
        let known = |carried: &[Carried]| carried.iter().map(|one| (one.inode, *one)).collect();
        let before = std::mem::replace(&mut self.connections, carried.map(known));
        self.is_cut = false;
        let mut grown: BTreeMap<GlobalRank, Grown> = BTreeMap::new();
        let Some(before) = before else { return grown };
        for one in carried.unwrap_or_default() {
            let of_rank = grown.entry(one.rank).or_default();
            // A connection that is not known was made since the last look.
            let known = before.get(&one.inode);
            let bytes = one.bytes.saturating_sub(known.map_or(0, |known| known.bytes));
            let waited = known.is_some_and(|known| known.unheard > 0);
            self.is_cut |= waited && one.unheard > 0 && bytes == 0;
            of_rank.message |= one.to == FarEnd::Rank && bytes > 0;
            if one.to == FarEnd::Elsewhere {
                of_rank.elsewhere = of_rank.elsewhere.saturating_add(bytes);
            } else {
                of_rank.between_ranks = of_rank.between_ranks.max(bytes);
            }
        }
        grown
    }

    /// The time since which no rank has moved, or been busy while nobody waited for it.
    fn still_since(&self) -> Option<Instant> {
        self.ranks.values().map(Track::still_since).max()
    }

    pub(crate) fn standing(&self, now: Instant) -> Standing {
        let patience = self.longest_pause.saturating_mul(LONGER).min(self.after * MOST_PATIENCE);
        let longest = self.after.max(patience);
        let (Some(still), Some(moved)) = (self.still_since(), self.moved()) else {
            return Standing::Moves;
        };
        if now.duration_since(still) >= longest {
            return Standing::Still;
        }
        if now.duration_since(moved) >= longest {
            return Standing::HeldUp;
        }
        Standing::Moves
    }

    /// The time since which no rank has moved, whatever is busy.
    pub(crate) fn moved(&self) -> Option<Instant> {
        self.ranks.values().map(|track| track.moved).max()
    }

    /// Time of the last movement of a rank, also if all began afresh since then.
    pub(crate) fn last_moved(&self) -> Option<Instant> {
        if self.has_moved() { self.moved() } else { self.moved_before }
    }

    /// Whether some rank has moved since all began afresh.
    pub(crate) fn has_moved(&self) -> bool {
        self.afresh.is_none_or(|afresh| self.moved().is_some_and(|moved| moved > afresh))
    }

    /// Whether nothing has moved for a part of the time after which the job stands still.
    pub(crate) fn is_quiet(&self, now: Instant) -> bool {
        self.moved().is_some_and(|moved| now.duration_since(moved) >= self.after / QUIET_PART)
    }

    /// Whether a rank used a processor within this time.
    pub(crate) fn computes(&self, rank: GlobalRank, now: Instant, within: Duration) -> bool {
        let at = self.ranks.get(&rank).and_then(|track| track.computed);
        at.is_some_and(|at| now.duration_since(at) < within)
    }

    /// Whether a rank computed, read or wrote within this time.
    pub(crate) fn is_busy(&self, rank: GlobalRank, now: Instant, within: Duration) -> bool {
        self.ranks.get(&rank).is_some_and(|track| now.duration_since(track.busy) < within)
    }

    /// Whether a rank moved or was busy within this time, and is not known to wait since: where it is now, it may
    /// just have come.
    pub(crate) fn may_have_come(&self, rank: GlobalRank, now: Instant, within: Duration) -> bool {
        let since = self.ranks.get(&rank).map(Track::still_since);
        since.is_some_and(|since| now.duration_since(since) < within)
    }

    /// Whether a rank was in the kernel within this time while the machine wrote to its disks.
    pub(crate) fn drains(&self, rank: GlobalRank, now: Instant, within: Duration) -> bool {
        let at = self.ranks.get(&rank).and_then(|track| track.drains);
        at.is_some_and(|at| now.duration_since(at) < within)
    }

    /// Whether a rank has been in the kernel for half of the time, and could not be interrupted. At any
    /// one look every process may be, for an instant.
    pub(crate) fn is_stuck(&self, rank: GlobalRank, now: Instant) -> bool {
        let since = self.ranks.get(&rank).and_then(|track| track.in_disk);
        since.is_some_and(|since| now.duration_since(since) >= self.after / 2)
    }

    /// Whether bytes flowed over the interfaces or between ranks within this time.
    pub(crate) fn carries(&self, now: Instant, within: Duration) -> bool {
        self.carried.is_some_and(|at| now.duration_since(at) < within)
    }

    /// Whether bytes waited in vain for a connection of a rank between the last two looks.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The last collective counters of the ranks. Ranks that have reported none so far are left out.
    pub(crate) fn collectives(&self) -> BTreeMap<GlobalRank, u64> {
        let count = |(rank, track): (&GlobalRank, &Track)| Some((*rank, track.collectives?));
        self.ranks.iter().filter_map(count).in_map()
    }

    /// Whether some rank waits in a collective.
    pub(crate) fn waits(&self) -> bool {
        self.ranks.values().any(|track| track.pulse.waits)
    }
}

/// Maximum factor by which pauses may lengthen the configured time.
const MOST_PATIENCE: u32 = 12;

#[cfg(test)]
mod tests;
