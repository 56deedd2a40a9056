//! Questions between the nodes of a running job.
//!
//! [`Questions`] asks all nodes, including this node. Questions of other nodes are answered by the function of
//! [`Questions::answer_with`], in threads of their own: whatever they do, the session goes on. The muster treats
//! questions and answers as bytes: only the asking and the answering code know their meaning.
//!
//! [`exchange`] has the rules and no I/O; [`Desk`] is its interface to the session's task: events that wake the task,
//! and frames to send; [`standing`] handles answers that the leader receives repeatedly without asking.

pub(crate) mod exchange;
pub(crate) mod frames;
mod standing;
#[cfg(test)]
mod tests;

pub use frames::{NoAnswer, Packed};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use exchange::{Action, Exchange, For, Reply};
use frames::{Form, QuestionFrame, deflate};
use standing::Room;

/// Asks all nodes of a running job, and answers their questions. Clones share the same state.
///
/// In a job of tasks the nodes are its launchers, and several launchers run on one machine.
#[derive(Clone)]
pub struct Questions {
    node: u32,
    nodes: Arc<[u32]>,
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
        let (nodes, local) = (Arc::from([node]), Arc::new(LocalAnswers::new()));
        Questions { node, nodes, local, session: None }
    }

    pub fn of(desk: &Desk, node: u32, nodes: Arc<[u32]>) -> Questions {
        let (local, session) = (Arc::clone(&desk.local), Some(desk.sender.clone()));
        Questions { node, nodes, local, session }
    }

    pub fn nodes(&self) -> usize {
        self.nodes.len()
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
    /// the form in which it arrived. On the leader the answers are up to two and a half intervals old.
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
        let (reply, replies) = mpsc::channel();
        let (question, node) = (question.into(), self.node);
        match &self.session {
            // A session that has ended drops the sender, which ends the wait.
            Some(session) => {
                drop(session.send(Event::Ask { question, every, within: timeout, reply }));
            }
            None => self.local.begin(question, Form::Plain, move |answer| {
                drop(reply.send((node, answer.map(Packed::Plain))));
            }),
        }
        let mut missing: BTreeSet<u32> = self.nodes.iter().copied().collect();
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
}

/// A message from a thread of this node to the session's task.
#[derive(Debug)]
pub enum Event {
    Ask {
        question: Arc<[u8]>,
        /// Interval at which the question is asked again.
        every: Option<Duration>,
        within: Duration,
        reply: Sender<Reply>,
    },
    Answered {
        asker: For,
        answer: Result<Vec<u8>, NoAnswer>,
    },
}

/// A frame and the nodes that get it.
pub(crate) type Outgoing = (Vec<u32>, QuestionFrame);

/// The questions of one session, in its task. When the desk is dropped, all waiting askers are told.
#[derive(Debug)]
pub struct Desk {
    exchange: Exchange,
    local: Arc<LocalAnswers>,
    events: UnboundedReceiver<Event>,
    sender: UnboundedSender<Event>,
}

impl Desk {
    /// `nodes`: all nodes that start ranks, with this one, in ascending order.
    pub fn new((node, leader): (u32, u32), nodes: Arc<[u32]>) -> Desk {
        let (sender, events) = unbounded_channel();
        let local = Arc::new(LocalAnswers::new());
        Desk { exchange: Exchange::new((node, leader), nodes), local, events, sender }
    }

    /// The next event; None if only time has passed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        let due = self.exchange.due();
        tokio::select! {
            event = self.events.recv() => event,
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => None,
        }
    }

    /// Handles the event that [`Desk::next`] gave. `is_there`: whether the leader has a connection to a node.
    pub fn follow(
        &mut self,
        event: Option<Event>,
        is_there: &dyn Fn(u32) -> bool,
    ) -> Vec<Outgoing> {
        let now = Instant::now();
        match event {
            Some(Event::Ask { question, every, within, reply }) => {
                self.exchange.ask(&question, every, within, reply, is_there, now);
            }
            Some(Event::Answered { asker, answer }) => self.exchange.answered(asker, answer, now),
            None => self.exchange.tick(now),
        }
        self.act()
    }

    pub fn hear(
        &mut self,
        from: u32,
        frame: QuestionFrame,
        is_there: &dyn Fn(u32) -> bool,
    ) -> Vec<Outgoing> {
        self.exchange.hear(from, frame, is_there, Instant::now());
        self.act()
    }

    pub fn lost(&mut self, node: u32) -> Vec<Outgoing> {
        self.exchange.lost(node, Instant::now());
        self.act()
    }

    fn act(&mut self) -> Vec<Outgoing> {
        let mut out = Vec::new();
        for action in self.exchange.actions() {
            match action {
                Action::Send { to, frame } => out.push((to, frame)),
                Action::Answer { asker, question, form } => {
                    let sender = self.sender.clone();
                    // A session that has ended does not need the answer.
                    let done = move |answer| drop(sender.send(Event::Answered { asker, answer }));
                    self.local.begin(question, form, done);
                }
            }
        }
        out
    }
}

impl Drop for Desk {
    /// Drops the answerer. It may hold a handle for asking, and that cycle would keep both alive for ever.
    fn drop(&mut self) {
        self.local.set(None);
    }
}

/// The function that answers questions of the nodes.
pub(crate) type Answerer = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// Maximum number of simultaneous answers, including answers for which nobody waits any more.
const AT_ONCE: usize = 4;

/// The answerer of this node, and the threads that it may use.
pub(crate) struct LocalAnswers {
    answerer: Mutex<Option<Answerer>>,
    threads: Room,
}

impl fmt::Debug for LocalAnswers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LocalAnswers").finish_non_exhaustive()
    }
}

impl LocalAnswers {
    pub(crate) fn new() -> LocalAnswers {
        LocalAnswers { answerer: Mutex::new(None), threads: Room::of(AT_ONCE) }
    }

    pub(crate) fn set(&self, answerer: Option<Answerer>) {
        *self.answerer.lock() = answerer;
    }

    /// Begins to answer the question; `done` gets the answer, or the reason why there is none.
    pub(crate) fn begin(
        &self,
        question: Arc<[u8]>,
        form: Form,
        done: impl Fn(Result<Vec<u8>, NoAnswer>) + Send + Sync + 'static,
    ) {
        let Some(answerer) = self.answerer.lock().clone() else {
            return done(Err(NoAnswer::NotReady));
        };
        let Some(thread) = self.threads.take(1) else { return done(Err(NoAnswer::Busy)) };
        let done = Arc::new(done);
        let theirs = Arc::clone(&done);
        let work = move || {
            let _thread = thread;
            let answer = answerer(&question);
            theirs(match form {
                Form::Plain => Ok(answer),
                Form::Deflated => deflate(&answer),
            });
        };
        if std::thread::Builder::new().name("answer".into()).spawn(work).is_err() {
            done(Err(NoAnswer::Busy));
        }
    }
}
