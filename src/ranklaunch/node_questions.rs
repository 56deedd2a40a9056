//! Questions between the nodes of a running job, and the answers of this node.
//!
//! The muster carries bytes; here they get a meaning. Takes the ranks of this node; gives the answers of all
//! nodes. Node 0 asks all nodes for the activity of their ranks and names those that hold the others back, in lines
//! and `slow` events. If the nodes cannot ask each other, each looks at its own ranks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::context::Context;
use super::node_evidence::NodeEvidence;
use super::notices::{Notices, ToldNotice};
use super::scratch::Scratch;
use linux::deadline::{millis, spawn_detached};
use monitor::hang::{Ask as AskHang, HangQuestion, HangWatch};
use monitor::history::NodeHistory;
use monitor::socket::{
    self, Answer, Ask, Everywhere, JobDump, JobStacks, NodeDump, NodeStacks, Refused, Selection,
    Unanswered,
};
use monitor::status::{StatusBoard, look_pace};
use monitor::watch::{
    AskNodes, Clock, ClockedSample, Cut, NodeSample, NodeSources, Reason, SampledNode, SlowNews,
    SlowPace, SlowWatch, now_ns,
};
use muster::{MemberKind, NoAnswer, Questions};
use plan::Plan;
use report::line_view;
use report::runs::view::{
    self, JobLines, JobStatus, LinesAsk, NodeLines, PackedStatus, View, ViewAsk,
};
use text::order::Ordered;
use text::rank::GlobalRank;

/// Time limit of a person's question to all nodes.
const TIMEOUT: Duration = socket::READING.saturating_add(socket::OTHERS);

/// A question, as JSON. A new one is a variant and its arm in [`serve`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "question", rename_all = "snake_case")]
enum NodeQuestion {
    /// Answered with a [`NodeStacks`].
    Stacks(Selection),
    /// Answered with a [`NodeDump`] of the flight recorders, which are large.
    Records,
    /// Answered with a [`NodeDump`] of everything else.
    State,
    /// Asks about the standing of the job, and about the ranks that hold it up.
    Hang(HangQuestion),
    /// Answered with a [`NodeHistory`], once the run is over there.
    History,
    /// Asks about the work of its ranks, and about the effect of the node on a rank that holds the others back.
    SlowRanks(SlowQuestion),
    /// Answered with a [`NodeStatus`](monitor::status::NodeStatus). The question shows that somebody is watching, so the node takes samples
    /// each second for a while.
    Status,
    /// Answered with [`NodeLines`].
    Lines(LinesAsk),
    /// Tells of a notice; the answer is empty.
    Notice(ToldNotice),
}

/// The nodes of a job, and the channel by which they are asked.
#[derive(Debug, Clone)]
pub(super) struct Nodes {
    pub(super) questions: Questions,
    /// The number of this node among them.
    pub(super) member: u32,
    pub(super) unit: MemberKind,
    /// Whether the questions reach all members of the job.
    pub(super) reaches_all: bool,
    /// Whether this node leads the job, and judges it.
    pub(super) leads: bool,
}

/// Answers the questions of all nodes, and gives the part that answers those of this node's socket.
pub(super) fn serve(
    nodes: &Nodes,
    own: NodeEvidence,
    board: &StatusBoard,
    hang: &HangWatch,
    slow: &SlowWatch,
    notices: &Notices,
) -> Everywhere {
    let (of_hang, slow, member) = (hang.answerer(), slow.node(), nodes.member);
    let (plan, board, notices) = (own.masked_plan(), board.clone(), notices.clone());
    let answers = move |question: &[u8]| {
        let answer = match serde_json::from_slice(question) {
            Ok(NodeQuestion::Stacks(selection)) => serde_json::to_vec(&own.ranks.read(&selection)),
            Ok(NodeQuestion::Records) => serde_json::to_vec(&own.records()),
            Ok(NodeQuestion::State) => serde_json::to_vec(&own.state()),
            Ok(NodeQuestion::History) => Ok(own.history.wait()),
            Ok(NodeQuestion::Hang(question)) => Ok(of_hang(question).unwrap_or_default()),
            Ok(NodeQuestion::SlowRanks(question)) => {
                let answer = slow.as_ref().and_then(|node| answer_slow(member, node, &question));
                Ok(answer.unwrap_or_default())
            }
            Ok(NodeQuestion::Status) => {
                board.look();
                serde_json::to_vec(&board.snapshot())
            }
            Ok(NodeQuestion::Lines(asked)) => {
                serde_json::to_vec(&view::lines(member, own.folder.as_deref(), &asked))
            }
            Ok(NodeQuestion::Notice(told)) => {
                notices.hear(told);
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        };
        // Nothing for a question that is not understood.
        answer.unwrap_or_default()
    };
    nodes.questions.answer_with(answers);
    let nodes = nodes.clone();
    Arc::new(move |ask| match ask {
        Ask::Stacks(selection) => Answer::Stacks(nodes.stacks(&selection)),
        Ask::Dump => Answer::Dump(nodes.dump()),
        Ask::View { of } => {
            let view = match serde_json::from_value(of) {
                Ok(ViewAsk::Status) => View::Status(nodes.status()),
                Ok(ViewAsk::Lines(asked)) => View::Lines(nodes.lines(asked)),
                Ok(ViewAsk::Plan) => View::Plan(plan.clone()),
                Err(_) => return Answer::Refused(Refused::Question),
            };
            let what = serde_json::to_value(view);
            what.map_or(Answer::Refused(Refused::Question), |what| Answer::View { what })
        }
        Ask::Job => Answer::Refused(Refused::Question),
    })
}

/// The histories of all nodes at the end of a run. Blocks for `timeout` at most.
pub(super) fn histories(questions: &Questions, timeout: Duration) -> Vec<NodeHistory> {
    let asked = serde_json::to_vec(&NodeQuestion::History).unwrap_or_default();
    let mut histories = Vec::new();
    questions.ask_each(asked, timeout, |node, answer| {
        let history: Option<NodeHistory> =
            answer.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        // A node that claims to be another one would replace its history. Tasks count themselves.
        let is_own = |of: &NodeHistory| of.task.is_some() || of.node == node;
        histories.extend(history.filter(is_own));
    });
    histories
}

impl Nodes {
    /// Asks all nodes about a job that stands still.
    pub(super) fn about_hang(&self) -> AskHang {
        let questions = self.questions.clone();
        Box::new(move |question, timeout| {
            let question = NodeQuestion::Hang(question.clone());
            let asked = serde_json::to_vec(&question).unwrap_or_default();
            let answers = questions.ask_all(asked, timeout);
            answers.into_iter().map(|(node, answer)| (node, answer.ok())).collect()
        })
    }

    /// Tells all nodes of a notice. Blocks until all have heard it, for `timeout` at most.
    pub(super) fn tell_notice(&self, told: &ToldNotice, timeout: Duration) {
        let question = NodeQuestion::Notice(told.clone());
        let asked = serde_json::to_vec(&question).unwrap_or_default();
        self.questions.ask_each(asked, timeout, |_, _| {});
    }

    /// Asks all nodes about ranks that hold others back. Gives the answers that can be read, each as
    /// soon as it is there, and blocks for `timeout` at most.
    pub(super) fn about_slow_ranks<T: DeserializeOwned>(
        &self,
        question: &SlowQuestion,
        timeout: Duration,
        mut each: impl FnMut(u32, T),
    ) {
        let question = NodeQuestion::SlowRanks(question.clone());
        let asked = serde_json::to_vec(&question).unwrap_or_default();
        self.questions.ask_each(asked, timeout, |member, answer| {
            if let Some(read) = answer.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
                each(member, read);
            }
        });
    }

    /// The stacks of these ranks on all nodes. Blocks for some seconds.
    fn stacks(&self, selection: &Selection) -> JobStacks {
        let began = Instant::now();
        let asked = NodeQuestion::Stacks(selection.clone());
        let (mut nodes, unanswered) = self.ask::<NodeStacks>(&asked);
        nodes.order_by_key(|one| (one.job.node, one.job.ranks.first().copied()));
        JobStacks {
            nodes,
            unanswered,
            reaches_all: self.reaches_all,
            took_ms: millis(began.elapsed()),
        }
    }

    /// The evidence of all nodes but their stacks.
    fn dump(&self) -> JobDump {
        // Both are asked in parallel, since each waits for the silent nodes.
        let (tell, told) = mpsc::channel();
        let same = self.clone();
        spawn_detached(move || drop(tell.send(same.ask::<NodeDump>(&NodeQuestion::Records))));
        let (mut nodes, mut unanswered) = self.ask(&NodeQuestion::State);
        let (records, silent) = told.recv().unwrap_or_default();
        nodes.extend(records);
        // A node that is silent for both gets one reason.
        let new = |one: &Unanswered| !unanswered.contains(one);
        let new: Vec<Unanswered> = silent.into_iter().filter(new).collect();
        unanswered.extend(new);
        JobDump { nodes, unanswered }
    }

    /// The present status of the nodes.
    fn status(&self) -> JobStatus {
        let (reaches_all, at_node_0) = (self.reaches_all, self.leads);
        let mut status = JobStatus { reaches_all, at_node_0, ..JobStatus::default() };
        let asked = serde_json::to_vec(&NodeQuestion::Status).unwrap_or_default();
        let every = look_pace(self.questions.nodes(), at_node_0);
        self.questions.watch(asked, every, TIMEOUT, |member, answer| {
            let who = self.unit.named(member);
            match answer {
                Ok(packed) => status.nodes.push(PackedStatus { who, packed }),
                Err(why) => status.unanswered.push(Unanswered { who, why: why.text() }),
            }
        });
        status
    }

    /// The next lines of their output.
    fn lines(&self, asked: LinesAsk) -> JobLines {
        let (nodes, unanswered) = self.ask::<NodeLines>(&NodeQuestion::Lines(asked));
        JobLines { nodes, unanswered, reaches_all: self.reaches_all }
    }

    fn ask<T: DeserializeOwned>(&self, question: &NodeQuestion) -> (Vec<T>, Vec<Unanswered>) {
        let (mut answers, mut unanswered) = (Vec::new(), Vec::new());
        let asked = serde_json::to_vec(question).unwrap_or_default();
        for (member, answer) in self.questions.ask_all(asked, TIMEOUT) {
            let read =
                |bytes: Vec<u8>| serde_json::from_slice(&bytes).map_err(|_| NoAnswer::Unreadable);
            match answer.and_then(read) {
                Ok(one) => answers.push(one),
                Err(why) => {
                    unanswered.push(Unanswered { who: self.unit.named(member), why: why.text() })
                }
            }
        }
        (answers, unanswered)
    }
}

/// A question of node 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SlowQuestion {
    /// Answered with the time of the node, in ns since 1970.
    Time,
    /// Answered with a [`NodeSample`].
    Sample {
        /// The same moment by the clock of each member. A member that is not listed shows nothing. This is
        /// a list, since a tagged enum cannot read a map by numbers.
        until_ns: Vec<(u32, i64)>,
        window: Duration,
        /// Maximum number of entries of each rank.
        most: u32,
    },
    /// Answered with the [`Reason`]s on the node of this rank; other nodes give no
    /// answer.
    Reasons(GlobalRank),
}

/// The answer of member `member` of the job; None to a question that is not for it.
pub(super) fn answer_slow(
    member: u32,
    node: &SampledNode,
    question: &SlowQuestion,
) -> Option<Vec<u8>> {
    match question {
        SlowQuestion::Time => serde_json::to_vec(&now_ns()).ok(),
        SlowQuestion::Sample { until_ns, window, most } => {
            let (_, until_ns) = *until_ns.iter().find(|(of, _)| *of == member)?;
            serde_json::to_vec(&node.sample(Cut { until_ns, window: *window, most: *most })).ok()
        }
        SlowQuestion::Reasons(rank) => serde_json::to_vec(&node.reasons(*rank)?).ok(),
    }
}

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

/// The ranks that hold the others back at this moment, where this node compares them: the node of each, and since when it
/// is named.
pub(super) type SlowRanks = Arc<Mutex<BTreeMap<GlobalRank, (u32, Instant)>>>;

/// The watch of one attempt. Without control sockets nobody can be asked.
pub(super) fn watch_slow_ranks(
    context: &Context,
    scratch: &Scratch,
    plan: &Plan,
    sources: NodeSources,
    nodes: &Nodes,
    now: &SlowRanks,
) -> SlowWatch {
    let Some(control) = scratch.control() else {
        return SlowWatch::default();
    };
    let member = &plan.membership;
    let node = Arc::new(SampledNode::new(member.node_rank, control, sources));
    let reaches_all = nodes.reaches_all && (2..=MOST_NODES).contains(&member.members());
    if reaches_all && !nodes.leads {
        return SlowWatch::only_answers(node);
    }
    let world = (!plan.engine.runs_a_command()).then_some(plan.world_size);
    let (say, keep) = (context.speaker(), context.journal.keeper());
    let (board, now) = (context.board.clone(), Arc::clone(now));
    let tell = move |node, news| {
        let mut of = now.lock().unwrap_or_else(PoisonError::into_inner);
        match &news {
            SlowNews::Slow(slow) => of.insert(slow.rank, (node, Instant::now())),
            SlowNews::Over(rank) => of.remove(rank),
        };
        drop(of);
        board.slow(node, &news);
        say(&line_view::slow_line(&news, node));
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

#[cfg(test)]
mod tests {
    use super::*;
    use text::rank::GlobalRank;

    #[test]
    fn slow_rank_question_round_trips() {
        let window = Duration::from_secs(45);
        for question in [
            SlowQuestion::Time,
            SlowQuestion::Sample { until_ns: vec![(0, i64::MAX), (7, -1)], window, most: 50 },
            SlowQuestion::Reasons(GlobalRank(3)),
        ] {
            let asked = serde_json::to_vec(&NodeQuestion::SlowRanks(question.clone()));
            let read = serde_json::from_slice(&asked.expect("JSON"));
            let Ok(NodeQuestion::SlowRanks(read)) = read else { panic!("{read:?}") };
            assert_eq!(read, question);
        }
    }
}
