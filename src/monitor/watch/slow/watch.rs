//! The thread that looks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::node::{NodeSample, SampledNode};
use super::tracker::{Slow, SlowNews, Tracker};
use crate::watch::node::Reason;
use diagnose::recorder::{Late, RankRecord, late};
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

/// The handle of the thread, which ends when this is dropped.
#[derive(Debug)]
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
            return SlowWatch::none();
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

    /// The watch of a job without control sockets.
    pub fn none() -> SlowWatch {
        SlowWatch { node: None, begin: None }
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
    records.sort_by_key(|record| record.rank);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::watch::records::Recorded;

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
}
