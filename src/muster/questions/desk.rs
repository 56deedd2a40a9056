//! The interface of the questions to the session's task: events that wake the task, and frames to send.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::exchange::{Action, Exchange, For, Reply};
use super::local::LocalAnswers;
use crate::protocol::{NoAnswer, QuestionFrame};

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
    events: mpsc::UnboundedReceiver<Event>,
    sender: mpsc::UnboundedSender<Event>,
}

impl Desk {
    pub fn new(node: u32, nodes: u32) -> Desk {
        let (sender, events) = mpsc::unbounded_channel();
        let local = Arc::new(LocalAnswers::new());
        Desk { exchange: Exchange::new(node, nodes), local, events, sender }
    }

    /// The ends that a handle needs.
    pub fn ends(&self) -> (Arc<LocalAnswers>, mpsc::UnboundedSender<Event>) {
        (Arc::clone(&self.local), self.sender.clone())
    }

    /// The next event; None if only time has passed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        let tick = async {
            match self.exchange.due() {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = self.events.recv() => event,
            () = tick => None,
        }
    }

    /// Handles the event that [`Desk::next`] gave. `is_there`: whether node 0 has a connection to a node.
    pub fn follow(
        &mut self,
        event: Option<Event>,
        is_there: &dyn Fn(u32) -> bool,
    ) -> Vec<Outgoing> {
        let now = Instant::now();
        match event {
            Some(Event::Ask { question, every: None, within, reply }) => {
                self.exchange.ask(&question, within, reply, is_there, now);
            }
            Some(Event::Ask { question, every: Some(every), within, reply }) => {
                self.exchange.watch(&question, every, within, reply, is_there, now);
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
