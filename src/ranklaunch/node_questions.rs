//! Questions between the nodes of a running job, and the answers of this node.
//!
//! The muster carries bytes; here they get a meaning. Takes the ranks of this node; gives the answers of all
//! nodes.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::node_evidence::NodeEvidence;
use super::slow_question::{self, SlowQuestion};
use super::view::{self, JobLines, JobStatus, LinesAsk, NodeLines, PackedStatus, View, ViewAsk};
use linux::deadline::{millis, spawn_detached};
use monitor::hang::{Ask as AskHang, HangQuestion, HangWatch};
use monitor::history::NodeHistory;
use monitor::socket::{
    self, Answer, Ask, Everywhere, JobDump, JobStacks, NodeDump, NodeStacks, Refused, Selection,
    Unanswered,
};
use monitor::status::{NodeStatus, StatusBoard, look_pace};
use monitor::watch::SlowWatch;
use muster::{MemberKind, NoAnswer, Questions};

/// Time limit of a person's question to all nodes.
const TIMEOUT: Duration = socket::READING.saturating_add(socket::OTHERS);

/// A question, as JSON. A new one is a variant and its arm in [`answer`].
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
    /// Answered with a [`NodeStatus`]. The question shows that somebody is watching, so the node takes samples
    /// each second for a while.
    Status,
    /// Answered with [`NodeLines`].
    Lines(LinesAsk),
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
}

/// Answers the questions of all nodes, and gives the part that answers those of this node's socket.
pub(super) fn serve(
    nodes: &Nodes,
    own: NodeEvidence,
    board: &StatusBoard,
    hang: &HangWatch,
    slow: &SlowWatch,
) -> Everywhere {
    let (of_hang, member) = (hang.answerer(), nodes.member);
    let node = slow.node();
    let of_slow = move |question| slow_question::answer(member, node.as_ref()?, &question);
    let plan = own.masked_plan();
    let board = board.clone();
    let of_status = move || {
        board.look();
        board.snapshot()
    };
    let of_lines = move |own: &NodeEvidence, asked: &LinesAsk| {
        view::lines(member, own.folder.as_deref(), asked)
    };
    let answers =
        move |question: &[u8]| answer(&own, &of_status, &of_hang, &of_slow, &of_lines, question);
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

/// Nothing for a question that is not understood.
fn answer(
    own: &NodeEvidence,
    of_status: &impl Fn() -> NodeStatus,
    of_hang: &impl Fn(HangQuestion) -> Option<Vec<u8>>,
    of_slow: &impl Fn(SlowQuestion) -> Option<Vec<u8>>,
    of_lines: &impl Fn(&NodeEvidence, &LinesAsk) -> NodeLines,
    question: &[u8],
) -> Vec<u8> {
    let answer = match serde_json::from_slice(question) {
        Ok(NodeQuestion::Stacks(selection)) => serde_json::to_vec(&own.ranks.read(&selection)),
        Ok(NodeQuestion::Records) => serde_json::to_vec(&own.records()),
        Ok(NodeQuestion::State) => serde_json::to_vec(&own.state()),
        Ok(NodeQuestion::History) => Ok(own.history.wait()),
        Ok(NodeQuestion::Hang(question)) => Ok(of_hang(question).unwrap_or_default()),
        Ok(NodeQuestion::SlowRanks(question)) => Ok(of_slow(question).unwrap_or_default()),
        Ok(NodeQuestion::Status) => serde_json::to_vec(&of_status()),
        Ok(NodeQuestion::Lines(asked)) => serde_json::to_vec(&of_lines(own, &asked)),
        Err(error) => Err(error),
    };
    answer.unwrap_or_default()
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
        nodes.sort_by_key(|one| (one.job.node, one.job.ranks.first().copied()));
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
        let (reaches_all, at_node_0) = (self.reaches_all, self.member == 0);
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
