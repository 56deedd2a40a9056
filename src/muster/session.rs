//! The conductor's handle to the other nodes while the job runs: receives events and sends reports.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::protocol::{Again, Cause};
use crate::questions::Questions;
use crate::questions::desk::Desk;

/// Time limit for sending the last frames.
const LAST_FRAMES: Duration = Duration::from_secs(3);

/// An event from the other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// A node failed, so the ranks of this node must stop. The verdict follows.
    Stop,
    /// The first failure of the job, and whether all nodes start again.
    Verdict { cause: Box<Cause>, again: Option<Again> },
    /// All ranks of all nodes succeeded.
    AllDone,
}

/// A report of the conductor.
#[derive(Debug)]
pub enum SessionCommand {
    Failed(Box<Cause>),
    Done,
}

/// The session of one attempt with the other nodes.
#[derive(Debug)]
pub struct Session {
    events: mpsc::UnboundedReceiver<SessionEvent>,
    commands: Option<mpsc::UnboundedSender<SessionCommand>>,
    questions: Questions,
    task: JoinHandle<()>,
}

/// The ends of the channels that the session's task holds.
#[derive(Debug)]
pub struct Ends {
    pub events: mpsc::UnboundedSender<SessionEvent>,
    pub commands: mpsc::UnboundedReceiver<SessionCommand>,
    pub desk: Desk,
}

impl Session {
    /// Starts the session of `node` among `nodes`; `run` is its task.
    pub fn start<F>(node: u32, nodes: u32, run: impl FnOnce(Ends) -> F) -> Session
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (event_sender, events) = mpsc::unbounded_channel();
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let desk = Desk::new(node, nodes);
        let questions = Questions::of(&desk, node, nodes);
        let ends = Ends { events: event_sender, commands: command_receiver, desk };
        let task = tokio::spawn(run(ends));
        Session { events, commands: Some(commands), questions, task }
    }

    /// The handle with which any thread asks all nodes, until the session ends.
    pub fn questions(&self) -> Questions {
        self.questions.clone()
    }

    /// The next event; after the last event this never returns. Cancel-safe.
    pub async fn next_event(&mut self) -> SessionEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    /// Reports a failure of this node. May be called twice: at once, and with [`Cause::whole`] when the last lines are
    /// known.
    pub fn failed(&self, cause: Cause) {
        self.tell(SessionCommand::Failed(Box::new(cause)));
    }

    /// Reports that all ranks of this node succeeded. Stops no other node.
    pub fn done(&self) {
        self.tell(SessionCommand::Done);
    }

    fn tell(&self, command: SessionCommand) {
        if let Some(commands) = &self.commands {
            // A task that has ended has already given its verdict.
            let _ = commands.send(command);
        }
    }

    /// Waits until node 0 has left, at most `limit`. Node 0 may still ask questions.
    pub async fn stay(&mut self, limit: Duration) {
        let _ = timeout(limit, &mut self.task).await;
    }

    /// Closes the session after the last frames were sent.
    pub async fn close(mut self) {
        self.commands = None;
        if self.task.is_finished() {
            return;
        }
        if timeout(LAST_FRAMES, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}
