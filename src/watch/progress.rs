//! Decides whether the ranks of a node make progress. Pure: takes [`Pulse`]s with their times.
//!
//! A rank moves when it writes a line or completes a collective. It is busy when it uses a processor,
//! reads or writes. Waiting for a collective can cost a processor as well (NCCL and CUDA poll), so of a
//! rank that waits for others only moving counts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::rank::GlobalRank;

/// Part of a core below which a rank does not compute: loops that poll use a few percent.
const BUSY: f64 = 0.10;
/// Bytes read or written in a second below which it does no I/O: loops that poll read less, slow downloads
/// more.
const BUSY_IO: f64 = 4.0 * 1024.0;
/// Bytes that are written to disks in a second, for a rank that waits for that.
const BUSY_DISK: f64 = 64.0 * 1024.0;
/// The node's interfaces: below it other programs and heartbeats.
const BUSY_NETWORK: f64 = 1024.0 * 1024.0;
/// A job that stood still for so long and went on by itself has such pauses: the next one has to be so
/// much longer.
const LONGER: u32 = 3;

/// What a rank had done so far, when it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Pulse {
    /// Processor time of the rank and of what it started.
    pub(crate) cpu: Duration,
    /// Bytes that they read and wrote.
    pub(crate) io: u64,
    /// Bytes of its output.
    pub(crate) output: u64,
    /// Changes with each collective that it enters or leaves; None: it does not say.
    pub(crate) collectives: Option<u64>,
    /// It has entered a collective that it has not left.
    pub(crate) waits: bool,
    /// How often its first thread went to sleep, where it is in a call that reads or writes: one that moves
    /// many bytes sleeps again and again, and one on a dead file system once.
    pub(crate) sleeps: Option<u64>,
    /// Bytes that the TCP connections carried of those of its processes that wait for one of several files, as a
    /// download with a time-out does.
    pub(crate) carried: Option<u64>,
    /// A process of it sleeps in the kernel and cannot be interrupted, as in fsync.
    pub(crate) in_disk: bool,
}

/// What a node had done so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodePulse {
    pub(crate) ranks: BTreeMap<GlobalRank, Pulse>,
    /// Bytes that its interfaces carried.
    pub(crate) network: u64,
    /// Bytes that wait to be written to disks. What shrinks is being written, perhaps for another program.
    pub(crate) dirty: u64,
}

/// How the ranks of this node stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Some rank moves, or did so lately.
    Moves,
    /// None has moved since then, but some compute, read or write.
    HeldUp { since: Instant },
    /// Nothing has happened since then.
    Still { since: Instant },
}

#[derive(Debug)]
struct Track {
    pulse: Pulse,
    moved: Instant,
    busy: Instant,
    /// When it was last in the kernel while the machine wrote to its disks.
    drains: Option<Instant>,
    /// Since when it was in the kernel at each look, and could not be interrupted.
    in_disk: Option<Instant>,
}

/// What is known of the ranks of a node.
#[derive(Debug)]
pub(crate) struct Progress {
    ranks: BTreeMap<GlobalRank, Track>,
    at: Option<Instant>,
    network: u64,
    dirty: u64,
    /// When bytes last flowed over the interfaces.
    carried: Option<Instant>,
    /// As long as it takes to say that the job stands still.
    after: Duration,
    /// The longest time at least as long after which the ranks went on by themselves.
    longest_pause: Duration,
}

impl Progress {
    pub(crate) fn new(after: Duration) -> Progress {
        Progress {
            ranks: BTreeMap::new(),
            at: None,
            network: 0,
            dirty: 0,
            carried: None,
            after,
            longest_pause: Duration::ZERO,
        }
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
        let of_job = self.ranks.len();
        self.ranks.retain(|rank, _| pulse.ranks.contains_key(rank));
        let ended = self.ranks.len() < of_job;
        for (rank, new) in &pulse.ranks {
            let track = self.ranks.entry(*rank).or_insert(Track {
                pulse: *new,
                moved: now,
                busy: now,
                drains: None,
                in_disk: None,
            });
            let old = track.pulse;
            if ended || new.output != old.output || new.collectives != old.collectives {
                track.moved = now;
            }
            let computes = rate(millis(new.cpu), millis(old.cpu)) / 1000.0 > BUSY;
            let transfers = matches!((old.sleeps, new.sleeps), (Some(old), Some(new)) if new > old);
            let carries = matches!((old.carried, new.carried), (Some(old), Some(new)) if rate(new, old) > BUSY_IO);
            let reads_or_writes = rate(new.io, old.io) > BUSY_IO || transfers || carries;
            if computes || reads_or_writes {
                track.busy = now;
            }
            if drains && new.in_disk {
                track.drains = Some(now);
            }
            track.in_disk = new.in_disk.then(|| track.in_disk.unwrap_or(now));
            track.pulse = *new;
        }
        (self.at, self.network, self.dirty) = (Some(now), pulse.network, pulse.dirty);
        // A pause of the job itself ends with a step, not with whatever else the machine does.
        if let (Some(before), false) = (before, ended)
            && self.moved() == Some(now)
        {
            let pause = now.duration_since(before);
            if pause >= self.after {
                self.longest_pause = self.longest_pause.max(pause);
            }
        }
    }

    /// Since when no rank has moved, or been busy while nobody waited for it.
    fn still_since(&self) -> Option<Instant> {
        let last = |track: &Track| {
            if track.pulse.waits {
                return track.moved;
            }
            track.moved.max(track.busy).max(track.drains.unwrap_or(track.busy))
        };
        self.ranks.values().map(last).max()
    }

    pub(crate) fn standing(&self, now: Instant) -> Standing {
        let patience = self.longest_pause.saturating_mul(LONGER).min(self.after * MOST_PATIENCE);
        let longest = self.after.max(patience);
        let (Some(still), Some(moved)) =
            (self.still_since(), self.ranks.values().map(|track| track.moved).max())
        else {
            return Standing::Moves;
        };
        if now.duration_since(still) >= longest {
            return Standing::Still { since: still };
        }
        if now.duration_since(moved) >= longest {
            return Standing::HeldUp { since: moved };
        }
        Standing::Moves
    }

    /// Since when no rank has moved, whatever is busy.
    pub(crate) fn moved(&self) -> Option<Instant> {
        self.ranks.values().map(|track| track.moved).max()
    }

    /// Whether a rank computed, read or wrote within this time.
    pub(crate) fn is_busy(&self, rank: GlobalRank, now: Instant, within: Duration) -> bool {
        self.ranks.get(&rank).is_some_and(|track| now.duration_since(track.busy) < within)
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

    /// Whether bytes flowed over the interfaces within this time.
    pub(crate) fn carries(&self, now: Instant, within: Duration) -> bool {
        self.carried.is_some_and(|at| now.duration_since(at) < within)
    }

    /// What the ranks said of their collectives at the last look, those that said something.
    pub(crate) fn collectives(&self) -> BTreeMap<GlobalRank, u64> {
        let count = |(rank, track): (&GlobalRank, &Track)| Some((*rank, track.pulse.collectives?));
        self.ranks.iter().filter_map(count).collect()
    }

    /// Whether some rank waits in a collective.
    pub(crate) fn waits(&self) -> bool {
        self.ranks.values().any(|track| track.pulse.waits)
    }
}

/// However long the pauses were, one that is so many times longer than asked for is none.
const MOST_PATIENCE: u32 = 12;

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(10);

    /// A node with two ranks that is looked at each second.
    struct Node {
        progress: Progress,
        now: Instant,
        pulse: NodePulse,
    }

    impl Node {
        fn new() -> Node {
            let ranks = [0, 1].map(|rank| (GlobalRank(rank), Pulse::default()));
            let pulse = NodePulse { ranks: BTreeMap::from(ranks), ..NodePulse::default() };
            let mut node = Node { progress: Progress::new(AFTER), now: Instant::now(), pulse };
            node.look();
            node
        }

        fn look(&mut self) {
            self.progress.note(self.now, &self.pulse);
        }

        /// Passes time, while `change` happens to the ranks each second.
        fn pass(&mut self, seconds: u32, change: impl Fn(u32, &mut Pulse)) -> &mut Node {
            for _ in 0..seconds {
                self.now += Duration::from_secs(1);
                for (rank, pulse) in &mut self.pulse.ranks {
                    change(rank.0, pulse);
                }
                self.look();
            }
            self
        }

        fn stands(&self) -> &'static str {
            match self.progress.standing(self.now) {
                Standing::Moves => "moves",
                Standing::HeldUp { .. } => "held up",
                Standing::Still { .. } => "still",
            }
        }
    }

    fn quiet(_: u32, _: &mut Pulse) {}

    #[test]
    fn a_job_that_does_nothing_stands_still_after_the_time() {
        let mut node = Node::new();
        assert_eq!(node.pass(9, quiet).stands(), "moves");
        assert_eq!(node.pass(1, quiet).stands(), "still");
        assert_eq!(node.pass(1, |_, pulse| pulse.output += 1).stands(), "moves");
    }

    #[test]
    fn one_that_computes_holds_up_and_one_that_waits_does_not() {
        let compute = |rank, pulse: &mut Pulse| {
            if rank == 1 {
                pulse.cpu += Duration::from_millis(900);
            }
        };
        let mut node = Node::new();
        assert_eq!(node.pass(30, compute).stands(), "held up");
        // NCCL polls: the same processor time is no work once the rank waits for the others.
        let mut node = Node::new();
        node.pass(1, |_, pulse| pulse.waits = true);
        assert_eq!(node.pass(30, compute).stands(), "still");
    }

    #[test]
    fn what_keeps_it_busy() {
        let slow = |_: u32, pulse: &mut Pulse| pulse.cpu += Duration::from_millis(50);
        assert_eq!(Node::new().pass(30, slow).stands(), "still", "a loop that polls");
        let write = |_: u32, pulse: &mut Pulse| pulse.io += 1 << 20;
        assert_eq!(Node::new().pass(30, write).stands(), "held up");
        let transfer =
            |_: u32, pulse: &mut Pulse| pulse.sleeps = pulse.sleeps.map(|n| n + 1).or(Some(1));
        assert_eq!(Node::new().pass(30, transfer).stands(), "held up", "one long write");
        let download = |bytes| {
            let carry = move |rank, pulse: &mut Pulse| {
                if rank == 1 {
                    pulse.carried = Some(pulse.carried.unwrap_or_default() + bytes);
                }
            };
            Node::new().pass(30, carry).stands()
        };
        assert_eq!(download(8 << 10), "held up", "with a time-out");
        assert_eq!(download(100), "still", "heartbeats");
        let step = |_: u32, pulse: &mut Pulse| {
            pulse.collectives = pulse.collectives.map(|n| n + 1).or(Some(1))
        };
        assert_eq!(Node::new().pass(30, step).stands(), "moves");
        let fsync = |in_disk: bool, grows: bool| {
            let mut node = Node::new();
            node.pulse.dirty = 1 << 30;
            node.pass(1, quiet);
            for _ in 0..30 {
                let mib: u64 = 10 << 20;
                node.pulse.dirty =
                    if grows { node.pulse.dirty + mib } else { node.pulse.dirty - mib };
                node.pass(1, |_, pulse| pulse.in_disk = in_disk);
            }
            node.stands()
        };
        assert_eq!(fsync(true, false), "held up");
        assert_eq!(fsync(false, false), "still", "another program's");
        assert_eq!(fsync(true, true), "still", "nothing of it is written");
    }

    #[test]
    fn a_job_with_such_pauses_is_given_more_time() {
        let mut node = Node::new();
        node.pass(20, quiet);
        assert_eq!(node.stands(), "still", "nobody could know");
        node.pass(1, |_, pulse| pulse.output += 1);
        assert_eq!(node.pass(20, quiet).stands(), "moves");
        assert_eq!(node.pass(43, quiet).stands(), "still");
    }

    #[test]
    fn an_end_of_a_rank_is_progress() {
        let mut node = Node::new();
        node.pass(9, quiet);
        node.pulse.ranks.remove(&GlobalRank(1));
        assert_eq!(node.pass(10, quiet).stands(), "moves");
        assert_eq!(node.pass(1, quiet).stands(), "still");
        node.pulse.ranks.clear();
        assert_eq!(node.pass(30, quiet).stands(), "moves", "nobody is left");
    }
}
