//! What the conductor holds while the job runs: events in, its own news out.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::muster::protocol::{Again, Cause};

/// How long the last frames may take to leave.
const LAST_FRAMES: Duration = Duration::from_secs(3);

/// News of the other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A node failed: the ranks of this node must stop. The verdict follows.
    Stop,
    /// The first failure of the job, and whether all begin anew.
    Verdict { cause: Box<Cause>, again: Option<Again> },
    /// All ranks of all nodes ended well.
    AllDone,
}

/// The conductor's own news.
#[derive(Debug)]
pub(crate) enum Command {
    Failed(Box<Cause>),
    Done,
}

/// A connection to the verdict that all nodes share.
#[derive(Debug)]
pub struct Session {
    events: mpsc::UnboundedReceiver<Event>,
    commands: Option<mpsc::UnboundedSender<Command>>,
    task: JoinHandle<()>,
}

/// The session task's ends.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) events: mpsc::UnboundedSender<Event>,
    pub(crate) commands: mpsc::UnboundedReceiver<Command>,
}

impl Session {
    pub(crate) fn start<F>(run: impl FnOnce(Ends) -> F) -> Session
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (event_sender, events) = mpsc::unbounded_channel();
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let task = tokio::spawn(run(Ends { events: event_sender, commands: command_receiver }));
        Session { events, commands: Some(commands), task }
    }

    /// The next event; never returns again after the last one. Cancel-safe.
    pub async fn next_event(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    /// This node failed. May be said twice: at once, and with [`Cause::whole`] when
    /// its last lines are in.
    pub fn failed(&self, cause: Cause) {
        self.tell(Command::Failed(Box::new(cause)));
    }

    /// All ranks of this node ended well. Stops nobody.
    pub fn done(&self) {
        self.tell(Command::Done);
    }

    fn tell(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // A task that is gone has given its verdict.
            let _ = commands.send(command);
        }
    }

    /// Leaves, after the last frames were sent.
    pub async fn close(mut self) {
        self.commands = None;
        if timeout(LAST_FRAMES, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}
