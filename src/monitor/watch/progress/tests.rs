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
            Standing::HeldUp => "held up",
            Standing::Still => "still",
        }
    }
}

fn quiet(_: u32, _: &mut Pulse) {}

#[test]
fn idle_job_stands_still_after_the_threshold() {
    let mut node = Node::new();
    assert_eq!(node.pass(9, quiet).stands(), "moves");
    assert_eq!(node.pass(1, quiet).stands(), "still");
    assert_eq!(node.pass(1, |_, pulse| pulse.output += 1).stands(), "moves");
}

#[test]
fn computing_rank_holds_up_unless_it_waits() {
    let compute = |rank, pulse: &mut Pulse| {
        if rank == 1 {
            pulse.cpu += Duration::from_millis(900);
        }
    };
    let mut node = Node::new();
    assert_eq!(node.pass(30, compute).stands(), "held up");
    // NCCL polls, so the same processor time is not work once the rank waits for the others.
    let mut node = Node::new();
    node.pass(1, |_, pulse| pulse.waits = true);
    assert_eq!(node.pass(30, compute).stands(), "still");
}

#[test]
fn io_or_new_collectives_prevent_a_standstill() {
    let slow = |_: u32, pulse: &mut Pulse| pulse.cpu += Duration::from_millis(50);
    assert_eq!(Node::new().pass(30, slow).stands(), "still", "a loop that polls");
    let write = |_: u32, pulse: &mut Pulse| pulse.io += 1 << 20;
    assert_eq!(Node::new().pass(30, write).stands(), "held up");
    let transfer =
        |_: u32, pulse: &mut Pulse| pulse.sleeps = pulse.sleeps.map(|n| n + 1).or(Some(1));
    assert_eq!(Node::new().pass(30, transfer).stands(), "held up", "one long write");
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
            node.pulse.dirty = if grows { node.pulse.dirty + mib } else { node.pulse.dirty - mib };
            node.pass(1, |_, pulse| pulse.in_disk = in_disk);
        }
        node.stands()
    };
    assert_eq!(fsync(true, false), "held up");
    assert_eq!(fsync(false, false), "still", "another program's");
    assert_eq!(fsync(true, true), "still", "nothing of it is written");
}

#[test]
fn first_collective_is_movement_and_silence_none() {
    let told = |count: Option<u64>| move |_: u32, pulse: &mut Pulse| pulse.collectives = count;
    let mut node = Node::new();
    node.pass(5, quiet);
    assert_eq!(node.progress.collectives(), BTreeMap::new());
    assert_eq!(node.pass(10, told(Some(1))).stands(), "moves");
    let known = node.progress.collectives();
    assert_eq!(known, BTreeMap::from([(GlobalRank(0), 1), (GlobalRank(1), 1)]));
    // A rank that does not answer in time has neither moved nor lost its count.
    assert_eq!(node.pass(1, told(None)).stands(), "still");
    for count in [Some(1), None] {
        assert_eq!(node.pass(1, told(count)).stands(), "still", "{count:?}");
        assert_eq!(node.progress.collectives(), known, "{count:?}");
    }
    assert_eq!(node.pass(1, told(Some(2))).stands(), "moves");
}

#[test]
fn rank_may_have_come_unless_it_waits_since() {
    let compute = |_: u32, pulse: &mut Pulse| pulse.cpu += Duration::from_millis(900);
    let came = |node: &Node| node.progress.may_have_come(GlobalRank(1), node.now, AFTER);
    let mut node = Node::new();
    node.pass(30, compute);
    assert_eq!((node.stands(), came(&node)), ("held up", true));
    // Polling is no work once the rank is known to wait.
    node.pass(1, |_, pulse| pulse.collectives = Some(1)).pass(1, |_, pulse| pulse.waits = true);
    assert!(came(node.pass(8, compute)), "it moved");
    assert!(!came(node.pass(2, compute)));
    // Without such knowledge, only rest shows that it has waited.
    node.pass(1, |_, pulse| pulse.waits = false);
    assert!(came(node.pass(9, compute)) && came(node.pass(9, quiet)));
    assert!(!came(node.pass(1, quiet)));
}

/// The standing after 30 s in which a connection of rank 1 carries so many bytes per second, while both
/// ranks wait or not.
fn carries(bytes: u64, to: FarEnd, waits: bool) -> &'static str {
    let mut node = Node::new();
    for second in 0..30 {
        let bytes = second * bytes;
        let one = Carried { rank: GlobalRank(1), inode: 7, bytes, unheard: 0, to };
        node.pulse.carried = Some(vec![one]);
        node.pass(1, |_, pulse| pulse.waits = waits);
    }
    node.stands()
}

#[test]
fn only_bulk_connection_traffic_counts_as_activity() {
    for (bytes, to, waits, expected) in [
        (5 << 10, FarEnd::Elsewhere, false, "held up"),
        (20 << 20, FarEnd::Elsewhere, false, "held up"),
        (100, FarEnd::Elsewhere, false, "still"),
        // Loads by a prefetching thread do not end the wait for another rank.
        (20 << 20, FarEnd::Elsewhere, true, "still"),
        (8 << 10, FarEnd::Job, false, "still"),
        (8 << 10, FarEnd::Job, true, "still"),
        (1 << 20, FarEnd::Job, false, "held up"),
        (1 << 20, FarEnd::Job, true, "held up"),
        // A message, however small.
        (1, FarEnd::Rank, false, "moves"),
        (1, FarEnd::Rank, true, "moves"),
        (0, FarEnd::Rank, true, "still"),
    ] {
        assert_eq!(carries(bytes, to, waits), expected, "{bytes} {to:?} {waits}");
    }
}

#[test]
fn connection_bytes_count_from_the_second_look() {
    let of = |inode, bytes| {
        Some(vec![Carried { rank: GlobalRank(1), inode, bytes, unheard: 0, to: FarEnd::Elsewhere }])
    };
    let mut node = Node::new();
    node.pass(9, quiet).pulse.carried = of(7, 1 << 30);
    assert_eq!(node.pass(1, quiet).stands(), "still", "long before");
    // Each piece has a connection of its own.
    node.pulse.carried = of(8, 1 << 20);
    assert_eq!(node.pass(1, quiet).stands(), "held up");
}

#[test]
fn bytes_that_wait_between_two_looks_show_a_cut() {
    for (bytes, unheard, is_cut) in [
        ([9, 9], [40, 40], true),
        ([9, 9], [40, 80], true),
        ([9, 9], [40, 0], false),
        ([9, 9], [0, 40], false),
        // A slow link still carries.
        ([9, 10], [40, 40], false),
    ] {
        let mut node = Node::new();
        for (bytes, unheard) in bytes.into_iter().zip(unheard) {
            let one =
                Carried { rank: GlobalRank(1), inode: 7, bytes, unheard, to: FarEnd::Elsewhere };
            node.pulse.carried = Some(vec![one]);
            assert!(!node.progress.is_cut());
            node.pass(1, quiet);
        }
        assert_eq!(node.progress.is_cut(), is_cut, "{bytes:?} {unheard:?}");
        // Of another moment, nothing is known.
        node.pulse.carried = None;
        assert!(!node.pass(1, quiet).progress.is_cut());
    }
}

#[test]
fn unobserved_time_is_no_standstill() {
    let mut node = Node::new();
    node.pass(9, quiet);
    let moved = node.progress.last_moved();
    node.now += Duration::from_secs(3600);
    node.progress.begin_afresh(node.now);
    node.look();
    assert!(!node.progress.has_moved());
    assert!(node.progress.moved() > moved, "what stood still is looked at anew");
    assert_eq!(node.progress.last_moved(), moved, "but nothing has moved");
    assert_eq!(node.pass(9, quiet).stands(), "moves");
    // The unobserved time is no pause of the job's own either, for which it would be given more time.
    assert_eq!(node.pass(1, quiet).stands(), "still");
    node.pass(1, |_, pulse| pulse.output += 1);
    assert!(node.progress.has_moved());
    assert_eq!(node.progress.last_moved(), node.progress.moved());
}

#[test]
fn job_with_long_pauses_gets_a_longer_threshold() {
    let mut node = Node::new();
    node.pass(20, quiet);
    assert_eq!(node.stands(), "still", "nobody could know");
    node.pass(1, |_, pulse| pulse.output += 1);
    assert_eq!(node.pass(20, quiet).stands(), "moves");
    assert_eq!(node.pass(43, quiet).stands(), "still");
}

#[test]
fn rank_end_counts_as_progress() {
    let mut node = Node::new();
    node.pass(9, quiet);
    node.pulse.ranks.remove(&GlobalRank(1));
    assert_eq!(node.pass(10, quiet).stands(), "moves");
    assert_eq!(node.pass(1, quiet).stands(), "still");
    node.pulse.ranks.clear();
    assert_eq!(node.pass(30, quiet).stands(), "moves", "nobody is left");
}
