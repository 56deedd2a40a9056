//! The handle with which any thread asks the nodes of a running job.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use super::deflate::Packed;
use super::desk::{Desk, Event};
use super::exchange::Reply;
use super::local::{Answerer, Form, LocalAnswers};
use crate::protocol::NoAnswer;

/// Asks all nodes of a running job, and answers their questions. Clones share the same state.
///
/// In a job of tasks the nodes are its launchers, and several launchers run on one machine.
#[derive(Clone)]
pub struct Questions {
    node: u32,
    nodes: u32,
    local: Arc<LocalAnswers>,
    /// Channel to the session's task; None on a single node.
    session: Option<UnboundedSender<Event>>,
}

impl fmt::Debug for Questions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Questions")
            .field("node", &self.node)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

impl Questions {
    /// A handle for a job without other nodes: only this node answers.
    pub fn alone(node: u32) -> Questions {
        Questions { node, nodes: 1, local: Arc::new(LocalAnswers::new()), session: None }
    }

    pub fn of(desk: &Desk, node: u32, nodes: u32) -> Questions {
        let (local, session) = desk.ends();
        Questions { node, nodes, local, session: Some(session) }
    }

    pub fn nodes(&self) -> usize {
        self.nodes as usize
    }

    /// Sets the function that answers the questions of all nodes on this node. It runs in a thread of its own, at most
    /// four at a time, and must end by itself; askers wait no longer than the time they set. It is dropped with the
    /// session.
    pub fn answer_with(&self, answerer: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static) {
        let answerer: Answerer = Arc::new(answerer);
        self.local.set(Some(answerer));
    }

    /// The answer of each node, in node order, including this node. Blocks for `timeout` at most, so no task of the
    /// runtime may call it. A question has at most 32 KiB, an answer 64 MiB, and 8 MiB once it is deflated.
    pub fn ask_all(
        &self,
        question: Vec<u8>,
        timeout: Duration,
    ) -> Vec<(u32, Result<Vec<u8>, NoAnswer>)> {
        let mut answers = BTreeMap::new();
        self.ask_each(question, timeout, |node, answer| drop(answers.insert(node, answer)));
        answers.into_iter().collect()
    }

    /// Like [`ask_all`](Self::ask_all), but gives each node's answer as soon as it arrives: with many nodes, not all
    /// answers need room at once.
    pub fn ask_each(
        &self,
        question: Vec<u8>,
        timeout: Duration,
        mut each: impl FnMut(u32, Result<Vec<u8>, NoAnswer>),
    ) {
        self.ask_packed(question, None, timeout, |node, answer| {
            each(node, answer.and_then(Packed::open));
        });
    }

    /// Like [`ask_each`](Self::ask_each), for a caller that asks at the interval `every` and passes each answer on in
    /// the form in which it arrived. On node 0 the answers are up to two and a half intervals old.
    pub fn watch(
        &self,
        question: Vec<u8>,
        every: Duration,
        timeout: Duration,
        each: impl FnMut(u32, Result<Packed, NoAnswer>),
    ) {
        self.ask_packed(question, Some(every), timeout, each);
    }

    fn ask_packed(
        &self,
        question: Vec<u8>,
        every: Option<Duration>,
        timeout: Duration,
        mut each: impl FnMut(u32, Result<Packed, NoAnswer>),
    ) {
        let until = Instant::now() + timeout;
        let replies = self.begin(question, every, timeout);
        let own = if self.session.is_some() { 0..self.nodes } else { self.node..self.node + 1 };
        let mut missing: std::collections::BTreeSet<u32> = own.collect();
        let why = loop {
            if missing.is_empty() {
                return;
            }
            match replies.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((node, answer)) if missing.remove(&node) => each(node, answer),
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => break NoAnswer::Late,
                Err(mpsc::RecvTimeoutError::Disconnected) => break NoAnswer::Ended,
            }
        };
        missing.into_iter().for_each(|node| each(node, Err(why)));
    }

    fn begin(
        &self,
        question: Vec<u8>,
        every: Option<Duration>,
        within: Duration,
    ) -> mpsc::Receiver<Reply> {
        let (reply, replies) = mpsc::channel();
        match &self.session {
            Some(session) => {
                // A session that has ended drops the sender, which ends the wait.
                let question = question.into();
                let _ = session.send(Event::Ask { question, every, within, reply });
            }
            None => {
                let node = self.node;
                let done =
                    move |answer: Result<_, _>| drop(reply.send((node, answer.map(Packed::Plain))));
                self.local.begin(question.into(), Form::Plain, done);
            }
        }
        replies
    }
}
