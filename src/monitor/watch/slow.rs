//! Names, while the job runs, the ranks that hold the others back, and the reasons.
//!
//! Takes the starts and ends of ranks; gives [`SlowNews`], once when a rank has become slow and once
//! when it is no longer slow. Runs in a thread of its own, which asks the flight recorders of the
//! ranks each 15 s and costs nothing in between. Never names a rank after a single look: a rank that
//! comes last once proves nothing.
//!
//! In a job of several nodes node 0 looks, and the others answer: each has a [`SampledNode`]. Times of
//! several nodes are compared by their [`Clock`]s; a lateness within their uncertainty is ignored.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::node::{NodeReader, NodeReading, NodeSources, Parts, Reason};
use super::recorders::{Cut, Recorded, recorded};
use crate::held;
use diagnose::recorder::{Late, RankRecord, late};
use text::order::{InOrder, Ordered};
use text::rank::GlobalRank;

/// The times of the looks.
#[derive(Debug, Clone, Copy)]
pub struct SlowPace {
    pub every: Duration,
    /// The time before a look that it covers; anything earlier is past.
    pub window: Duration,
}

impl SlowPace {
    /// Two agreeing looks fall within a minute after a rank became slow.
    pub const STANDARD: SlowPace =
        SlowPace { every: Duration::from_secs(15), window: Duration::from_secs(45) };
}

/// The answer of a node, and the node's clock.
#[derive(Debug)]
pub struct ClockedSample {
    pub sample: NodeSample,
    pub clock: Clock,
}

/// Asks the nodes whose ranks are compared, this one included. Both may block for some seconds.
pub trait AskNodes: Send {
    /// The recorded activity of their ranks within the window. None if a node does not answer: ranks that wait
    /// for a rank of that node must not be compared without it.
    fn samples(&mut self, window: Duration) -> Option<Vec<ClockedSample>>;

    /// The findings of the rank's node about it. None if the node does not answer.
    fn reasons(&self, rank: GlobalRank) -> Option<Vec<Reason>>;
}

/// The handle of the thread, which ends when this is dropped. Watches nothing by default.
#[derive(Debug, Default)]
pub struct SlowWatch {
    node: Option<Arc<SampledNode>>,
    /// Tells the thread that there are ranks.
    begin: Option<Sender<()>>,
}

impl SlowWatch {
    /// Starts the thread. If none can be started, no rank is named. `world`: number of ranks of the job, if
    /// known. `tell` gets the node of the rank as well.
    pub fn start(
        node: Arc<SampledNode>,
        nodes: impl AskNodes + 'static,
        world: Option<u32>,
        pace: SlowPace,
        tell: impl Fn(u32, SlowNews) + Send + 'static,
    ) -> SlowWatch {
        // A job of one rank waits for nobody.
        if world.is_some_and(|world| world < 2) {
            return SlowWatch::default();
        }
        let (begin, begun) = channel();
        let mut looks = Looks { nodes, world, window: pace.window, tracker: Tracker::default() };
        let thread = std::thread::Builder::new().name("slow-ranks".into()).stack_size(512 << 10);
        let thread = thread.spawn(move || looks.run(pace.every, &begun, &tell));
        SlowWatch { node: Some(node), begin: thread.ok().map(|_| begin) }
    }

    /// The watch of a node that only answers another node.
    pub fn only_answers(node: Arc<SampledNode>) -> SlowWatch {
        SlowWatch { node: Some(node), begin: None }
    }

    /// The part that answers the questions of other nodes.
    pub fn node(&self) -> Option<Arc<SampledNode>> {
        self.node.clone()
    }

    pub fn began(&self, rank: GlobalRank, pid: i32) {
        if let Some(node) = &self.node {
            node.began(rank, pid);
        }
        if let Some(begin) = &self.begin {
            let _ = begin.send(());
        }
    }

    pub fn ended(&self, rank: GlobalRank) {
        if let Some(node) = &self.node {
            node.ended(rank);
        }
    }
}

struct Looks<A> {
    nodes: A,
    world: Option<u32>,
    window: Duration,
    tracker: Tracker,
}

impl<A: AskNodes> Looks<A> {
    /// Looks again and again once there are ranks.
    fn run(&mut self, every: Duration, begun: &Receiver<()>, tell: &impl Fn(u32, SlowNews)) {
        if begun.recv().is_err() {
            return;
        }
        let mut next = Instant::now() + every;
        loop {
            match begun.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => {
                    for (node, news) in self.look() {
                        tell(node, news);
                    }
                    next = Instant::now() + every;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// The news, each with the node of its rank.
    fn look(&mut self) -> Vec<(u32, SlowNews)> {
        let Some(samples) = self.nodes.samples(self.window) else { return Vec::new() };
        let mut of: BTreeMap<GlobalRank, u32> = BTreeMap::new();
        for ClockedSample { sample, .. } in &samples {
            of.extend(sample.recorded.iter().map(|one| (one.rank, sample.node)));
        }
        // No rank has imported torch.distributed, or all have ended.
        if of.is_empty() {
            return Vec::new();
        }
        let one_node = of.values().min() == of.values().max();
        let mut news = Vec::new();
        for mut one in self.tracker.look(&late_in(&samples, self.world)) {
            let (SlowNews::Slow(Slow { rank, .. }) | SlowNews::Over(rank)) = &one;
            // A rank that has ended holds nobody back any more, and is not news.
            let Some(node) = of.get(rank).copied() else { continue };
            if let SlowNews::Slow(slow) = &mut one {
                let reasons = self.nodes.reasons(slow.rank);
                slow.reasons = reasons.map(|all| telling(all, one_node));
            }
            news.push((node, one));
        }
        news
    }
}

/// The ranks that hold others back. A rank whose lateness the uncertainty of the clocks may explain is not
/// included.
fn late_in(samples: &[ClockedSample], world: Option<u32>) -> Vec<Late> {
    let (mut records, mut offsets) = (Vec::<RankRecord>::new(), BTreeMap::new());
    for ClockedSample { sample, clock } in samples {
        for one in &sample.recorded {
            offsets.insert(one.rank.0, clock.ahead());
            records.extend(one.record());
        }
    }
    records.order_by_key(|record| record.rank);
    let doubt = samples.iter().map(|one| one.clock.doubt()).max().unwrap_or_default();
    let mut found = late(&records, world, &offsets);
    // The clocks of two nodes are compared.
    found.retain(|one| one.median_ns > doubt.saturating_mul(2));
    found
}

/// Drops reasons that concern all ranks of the only node: they make no rank slower than the others.
fn telling(mut reasons: Vec<Reason>, one_node: bool) -> Vec<Reason> {
    reasons.retain(|reason| !(one_node && reason.ranks.is_empty() && reason.gpu.is_none()));
    reasons
}

/// Time limits for the ranks' answers and for the counters of the node. A driver takes longer.
const RECORDS: Duration = Duration::from_secs(2);
const COUNTERS: Duration = Duration::from_secs(2);
const GPUS: Duration = Duration::from_secs(10);
/// Number of readings that are kept: those of the two looks that agree on a slow rank. At an earlier look the
/// rank may have been in another control group, or not yet slow.
const READINGS: usize = 2;

/// The recorded activity of the ranks of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeSample {
    node: u32,
    recorded: Vec<Recorded>,
}

/// The ranks of this node, for any thread that asks.
#[derive(Debug)]
pub struct SampledNode {
    node: u32,
    control: PathBuf,
    reader: NodeReader,
    pids: Mutex<BTreeMap<GlobalRank, i32>>,
    /// The oldest first.
    readings: Mutex<VecDeque<NodeReading>>,
}

impl SampledNode {
    /// `control`: the folder of the ranks' control sockets.
    pub fn new(node: u32, control: PathBuf, sources: NodeSources) -> SampledNode {
        SampledNode {
            node,
            control,
            reader: NodeReader::new(sources),
            pids: Mutex::default(),
            readings: Mutex::default(),
        }
    }

    fn began(&self, rank: GlobalRank, pid: i32) {
        held(&self.pids).insert(rank, pid);
    }

    fn ended(&self, rank: GlobalRank) {
        held(&self.pids).remove(&rank);
    }

    /// The contents of the ranks' recorders; none without `torch.distributed`. Also reads the counters of the
    /// node, for a later question. Blocks for four seconds at most.
    pub fn sample(&self, cut: Cut) -> NodeSample {
        let recorded = recorded(&self.control, cut, RECORDS);
        if !recorded.is_empty() {
            let reading = self.reader.read(&self.pids(), Parts::Kernel, COUNTERS);
            let mut readings = held(&self.readings);
            readings.push_back(reading);
            while readings.len() > READINGS {
                readings.pop_front();
            }
        }
        NodeSample { node: self.node, recorded }
    }

    /// The abnormal findings since the oldest of the last samples, and about the GPUs now. None for a
    /// rank of another node. Blocks for ten seconds at most.
    pub fn reasons(&self, rank: GlobalRank) -> Option<Vec<Reason>> {
        let pids = self.pids();
        pids.iter().find(|(own, _)| *own == rank)?;
        let now = self.reader.read(&pids, Parts::All, GPUS);
        let readings = held(&self.readings);
        let change = now.since(readings.front().unwrap_or(&now));
        Some(change.reasons_for(rank).into_iter().cloned().collect())
    }

    fn pids(&self) -> Vec<(GlobalRank, i32)> {
        held(&self.pids).iter().map(|(rank, pid)| (*rank, *pid)).collect()
    }
}

/// Number of consecutive looks that must agree.
const AGREE: u32 = 2;

/// A rank that holds others back.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Slow {
    pub rank: GlobalRank,
    pub group: String,
    /// Number of collectives that were compared.
    pub of: usize,
    /// The share of these collectives in which the rank came last.
    pub share: f64,
    /// Median lateness in these collectives.
    pub median_ms: f64,
    /// The share of the time that the others lost by it.
    pub lost: f64,
    /// The abnormal findings of its node. Empty if nothing is abnormal; None if the node did not
    /// answer.
    pub reasons: Option<Vec<Reason>>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum SlowNews {
    Slow(Slow),
    /// The rank no longer holds the others back.
    Over(GlobalRank),
}

/// For each rank, the number of consecutive looks that contradict its reported state.
#[derive(Debug, Default)]
struct Tracker(BTreeMap<GlobalRank, SlowState>);

#[derive(Debug, Default)]
struct SlowState {
    told: bool,
    /// Number of consecutive looks that contradict the reported state.
    other: u32,
}

impl Tracker {
    /// Adds one look. `late`: the ranks that were late in it.
    fn look(&mut self, late: &[Late]) -> Vec<SlowNews> {
        let late: BTreeMap<GlobalRank, &Late> =
            late.iter().map(|one| (GlobalRank(one.rank), one)).in_map();
        for rank in late.keys() {
            self.0.entry(*rank).or_default();
        }
        let mut news = Vec::new();
        for (rank, seen) in &mut self.0 {
            let now = late.get(rank);
            seen.other = if now.is_some() == seen.told { 0 } else { seen.other + 1 };
            if seen.other < AGREE {
                continue;
            }
            (seen.told, seen.other) = (now.is_some(), 0);
            news.push(match now {
                Some(late) => SlowNews::Slow(slow(late)),
                None => SlowNews::Over(*rank),
            });
        }
        self.0.retain(|_, seen| seen.told || seen.other > 0);
        news
    }
}

fn slow(late: &Late) -> Slow {
    Slow {
        rank: GlobalRank(late.rank),
        group: late.group.clone(),
        of: late.of,
        share: late.share,
        median_ms: late.median_ns as f64 / 1e6,
        lost: late.lost,
        reasons: None,
    }
}

/// Maximum drift between two clocks, as 1/N of the elapsed time: ten times the drift of a healthy clock.
const DRIFT: i64 = 10_000;

/// The clock of a node relative to the asker's clock. Its lead lies between these values, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clock {
    least: i64,
    most: i64,
    /// Time of the measurement, by the asker's clock.
    at: i64,
}

impl Clock {
    /// `theirs`: reading of the other clock when it answered. `asked`, `answered`: readings of our clock.
    pub fn of(theirs: i64, asked: i64, answered: i64) -> Clock {
        let least = theirs.saturating_sub(answered);
        Clock { least, most: theirs.saturating_sub(asked).max(least), at: answered }
    }

    /// The range that both measurements allow: the shortest trip in each direction counts. If the clock was
    /// set in between, the later measurement counts.
    pub fn and(self, later: Clock) -> Clock {
        let drift = later.at.saturating_sub(self.at).max(0) / DRIFT;
        let least = self.least.saturating_sub(drift).max(later.least);
        let most = self.most.saturating_add(drift).min(later.most);
        if least <= most { Clock { least, most, at: later.at } } else { later }
    }

    /// The lead in ns.
    pub fn ahead(self) -> i64 {
        self.least.saturating_add(self.doubt())
    }

    /// Uncertainty of the lead in either direction, in ns.
    pub fn doubt(self) -> i64 {
        self.most.saturating_sub(self.least) / 2
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::watch::recorders::Recorded;

    const STEP: i64 = 30_000_000;

    /// Two ranks, each on a node of its own. The clock of the second node is an hour ahead.
    struct Job {
        /// Lateness of rank 1 relative to rank 0, in ns.
        late: i64,
        /// Round-trip time of an answer about the time, in ns.
        way: i64,
        answers: bool,
    }

    impl Job {
        fn recorded(rank: u32, ahead: i64) -> Recorded {
            let entries: Vec<_> = (1..=100)
                .map(|seq| {
                    json!({
                        "record_id": seq, "pg_id": 0, "process_group": ["0", "default_pg"],
                        "collective_seq_id": seq, "profiling_name": "gloo:all_reduce",
                        "state": "completed", "retired": true,
                        "time_created_ns": 1_700_000_000_000_000_000 + ahead + seq * STEP,
                    })
                })
                .collect();
            let config = json!({ "0": { "name": "0", "desc": "default_pg", "ranks": "[0, 1]" } });
            let dump = json!({ "version": "2.10", "pg_config": config, "entries": entries });
            let recorded = json!({ "rank": rank, "at_ns": 0, "dumps": [dump.to_string()] });
            serde_json::from_value(recorded).expect("a record")
        }
    }

    impl AskNodes for Job {
        fn samples(&mut self, _: Duration) -> Option<Vec<ClockedSample>> {
            let hour = 3_600_000_000_000;
            let sample = |node, late, clock| {
                let recorded = vec![Job::recorded(node, late)];
                ClockedSample { sample: NodeSample { node, recorded }, clock }
            };
            let clock = Clock::of(hour + self.way / 2, 0, self.way);
            let both = [sample(0, 0, Clock::default()), sample(1, hour + self.late, clock)];
            self.answers.then_some(both.into())
        }

        fn reasons(&self, rank: GlobalRank) -> Option<Vec<Reason>> {
            assert_eq!(rank, GlobalRank(1));
            None
        }
    }

    /// The result of two looks: the node and the rank of each slow rank.
    fn told(nodes: Job) -> Vec<(u32, u32)> {
        let window = SlowPace::STANDARD.window;
        let mut looks = Looks { nodes, world: Some(2), window, tracker: Tracker::default() };
        assert_eq!(looks.look(), []);
        let slow = |(node, news)| match news {
            SlowNews::Slow(slow) => (node, slow.rank.0),
            SlowNews::Over(rank) => panic!("{rank} is over"),
        };
        looks.look().into_iter().map(slow).collect()
    }

    #[test]
    fn slow_rank_is_named_despite_remote_clock_offset() {
        let late = STEP / 2;
        assert_eq!(told(Job { late, way: 1_000_000, answers: true }), [(1, 1)]);
        assert_eq!(told(Job { late: 0, way: 1_000_000, answers: true }), []);
        // The clocks are not known well enough.
        assert_eq!(told(Job { late, way: late, answers: true }), []);
        assert_eq!(told(Job { late, way: 1_000_000, answers: false }), []);
    }

    #[test]
    fn single_node_job_omits_node_wide_reasons() {
        let reason = |ranks: &[u32]| {
            let text = json!({ "en": "e", "zh": "z" });
            let reason =
                json!({ "kind": "cpu_pressure", "ranks": ranks, "value": 1.0, "text": text });
            serde_json::from_value::<Reason>(reason).expect("a reason")
        };
        let all = vec![reason(&[3]), reason(&[])];
        assert_eq!(telling(all.clone(), true), [reason(&[3])]);
        assert_eq!(telling(all.clone(), false), all);
    }

    fn late(rank: u32) -> Late {
        Late { rank, group: "g".to_owned(), of: 100, share: 0.9, median_ns: 20_000_000, lost: 0.4 }
    }

    fn told_after(tracker: &mut Tracker, late: &[Late]) -> Vec<(bool, u32)> {
        let news = tracker.look(late);
        let one = |news: &SlowNews| match news {
            SlowNews::Slow(slow) => (true, slow.rank.0),
            SlowNews::Over(rank) => (false, rank.0),
        };
        news.iter().map(one).collect()
    }

    #[test]
    fn slow_rank_is_reported_once_and_cleared_once() {
        let mut tracker = Tracker::default();
        let slow = [late(3)];
        let looks: [&[Late]; 9] = [&slow, &slow, &slow, &slow, &[], &slow, &[], &[], &[]];
        let all: Vec<_> = looks.iter().map(|look| told_after(&mut tracker, look)).collect();
        let expected: [&[(bool, u32)]; 9] =
            [&[], &[(true, 3)], &[], &[], &[], &[], &[], &[(false, 3)], &[]];
        assert_eq!(all, expected);
        assert!(tracker.0.is_empty());
    }

    #[test]
    fn alternating_slow_ranks_are_not_reported() {
        let mut tracker = Tracker::default();
        for turn in 0..10 {
            assert_eq!(told_after(&mut tracker, &[late(turn % 2)]), []);
        }
    }

    fn shown(clock: Clock) -> (i64, i64) {
        (clock.ahead(), clock.doubt())
    }

    #[test]
    fn shortest_trip_each_way_bounds_the_offset() {
        // 1000 ns ahead: 100 ns there and 800 back, then 700 there and 60 back.
        let slow_back = Clock::of(1_100, 0, 900);
        assert_eq!(shown(slow_back), (650, 450));
        let slow_there = Clock::of(3_700, 2_000, 2_760);
        assert_eq!(shown(slow_there), (1_320, 380));
        assert_eq!(shown(slow_back.and(slow_there)), (1_020, 80));
    }

    #[test]
    fn old_measurement_widens_and_clock_step_discards_it() {
        let second = 1_000_000_000;
        let old = Clock::of(1_000, 0, 0);
        let later = Clock::of(20 * second, 15 * second, 25 * second);
        assert_eq!(shown(old.and(later)), (1_000, 25 * second / DRIFT));
        let set = Clock::of(90 * second, second, second + 2_000);
        assert_eq!(old.and(set), set);
    }

    #[test]
    fn extreme_timestamps_never_give_negative_doubt() {
        let odd = [i64::MIN, -1, 0, i64::MAX];
        for (theirs, asked) in odd.into_iter().flat_map(|one| odd.map(|other| (one, other))) {
            let clock = Clock::of(theirs, asked, i64::MIN).and(Clock::of(asked, theirs, i64::MAX));
            assert!(clock.doubt() >= 0, "{clock:?}");
        }
    }
}
