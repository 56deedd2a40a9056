//! Looks for ranks that hold the others back, and reports them, while the job runs.
//!
//! Node 0 asks all nodes for the activity of their ranks and names the slow ones. If the nodes cannot ask each
//! other, each looks at its own ranks. Takes the questions between the nodes; gives lines and `slow` events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::node_questions::Nodes;
use super::scratch::Scratch;
use super::slow_question::SlowQuestion;
use monitor::watch::{
    AskNodes, Clock, ClockedSample, Cut, NodeSample, NodeSources, Reason, SampledNode, SlowPace,
    SlowWatch, now_ns,
};
use plan::Plan;
use report::{closing, line_view};
use supervise::inject::Injection;
use text::rank::GlobalRank;

/// Time limits of the nodes: for the time, for a sample of the recorders, and for reasons on a node.
const CLOCKS: Duration = Duration::from_secs(1);
const SAMPLES: Duration = Duration::from_secs(5);
const REASONS: Duration = Duration::from_secs(12);
/// Number of questions for the time in each look.
const TIMES: usize = 5;
/// Maximum number of nodes whose samples node 0 takes in.
const MOST_NODES: u32 = 128;
/// Number of entries that are read of a rank. In a job of many nodes fewer are enough to compare, since all are
/// from the same time; a look cannot use fewer than the minimum.
const MOST_ENTRIES: u32 = 400;
const FEWEST_ENTRIES: u32 = 50;
const MOST_OF_ALL: u32 = 6400;

/// The watch of one attempt. Without control sockets nobody can be asked.
pub(super) fn watch(
    context: &Context,
    scratch: &Scratch,
    plan: &Plan,
    sources: NodeSources,
    nodes: &Nodes,
) -> SlowWatch {
    let Some(control) = scratch.injection().map(Injection::control) else {
        return SlowWatch::none();
    };
    let member = &plan.membership;
    let node = Arc::new(SampledNode::new(member.node_rank, control, sources));
    let reaches_all = nodes.reaches_all && (2..=MOST_NODES).contains(&member.members());
    if reaches_all && member.member() != 0 {
        return SlowWatch::only_answers(node);
    }
    let world = (!plan.engine.runs_a_command()).then_some(plan.world_size);
    let (console, lang, keep) = (context.console.clone(), context.lang(), context.journal.keeper());
    let board = context.board.clone();
    let tell = move |node, news| {
        board.slow(node, &news);
        console.say(&closing::line(&line_view::slow_line(&news, node), lang));
        keep(line_view::slow_event(&news, node));
    };
    if reaches_all {
        let all =
            AllNodes { nodes: nodes.clone(), members: member.members(), clocks: BTreeMap::new() };
        SlowWatch::start(node, all, world, SlowPace::STANDARD, tell)
    } else {
        let own = OwnNode(Arc::clone(&node));
        SlowWatch::start(node, own, world, SlowPace::STANDARD, tell)
    }
}

/// The ranks of this node alone.
struct OwnNode(Arc<SampledNode>);

impl AskNodes for OwnNode {
    fn samples(&mut self, window: Duration) -> Option<Vec<ClockedSample>> {
        let cut = Cut { until_ns: now_ns(), window, most: MOST_ENTRIES };
        Some(vec![ClockedSample { sample: self.0.sample(cut), clock: Clock::default() }])
    }

    fn reasons(&self, rank: GlobalRank) -> Option<Vec<Reason>> {
        self.0.reasons(rank)
    }
}

/// All nodes of a job whose node 0 is this node.
struct AllNodes {
    nodes: Nodes,
    members: u32,
    /// The clocks by member, as far as they are known.
    clocks: BTreeMap<u32, Clock>,
}

impl AskNodes for AllNodes {
    fn samples(&mut self, window: Duration) -> Option<Vec<ClockedSample>> {
        if !self.measure_clocks() {
            return None;
        }
        let (clocks, now) = (&self.clocks, now_ns());
        let until = |(member, clock): (&u32, &Clock)| (*member, now.saturating_add(clock.ahead()));
        let question = SlowQuestion::Sample {
            until_ns: clocks.iter().map(until).collect(),
            window,
            most: (MOST_OF_ALL / self.members).clamp(FEWEST_ENTRIES, MOST_ENTRIES),
        };
        let mut samples = Vec::new();
        self.nodes.about_slow_ranks(&question, SAMPLES, |member, sample: NodeSample| {
            let clock = clocks.get(&member).copied();
            samples.extend(clock.map(|clock| ClockedSample { sample, clock }));
        });
        (samples.len() == clocks.len()).then_some(samples)
    }

    fn reasons(&self, rank: GlobalRank) -> Option<Vec<Reason>> {
        let mut found = None;
        self.nodes.about_slow_ranks(&SlowQuestion::Reasons(rank), REASONS, |_, reasons| {
            found = Some(reasons);
        });
        found
    }
}

impl AllNodes {
    /// Measures the clocks of all nodes. False if a node does not answer.
    fn measure_clocks(&mut self) -> bool {
        for _ in 0..TIMES {
            let (asked, mut answers, clocks) = (now_ns(), 0, &mut self.clocks);
            self.nodes.about_slow_ranks(&SlowQuestion::Time, CLOCKS, |member, theirs: i64| {
                let clock = Clock::of(theirs, asked, now_ns());
                clocks.entry(member).and_modify(|old| *old = old.and(clock)).or_insert(clock);
                answers += 1;
            });
            if answers < self.members {
                return false;
            }
        }
        // The clock of this node itself.
        self.clocks.insert(0, Clock::default());
        true
    }
}
