//! A connection to another launcher on which neither side says anything.
//!
//! The kernel of a node resets a connection whose process ended before it had read everything, as if something between
//! the nodes had cut it. Here nothing waits to be read, so that the end of the process closes it in order.
//!
//! The leader holds one to each node. Each other voter holds one to each node with a seat, since whoever leads next must
//! know which of them died together with the leader.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::links::Caller;
use super::task::Task;
use crate::keepalive::{Cut, Sight};
use crate::protocol::Loss;

/// What became of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// It is not there yet, or no more, and proves nothing.
    Unheld,
    Held,
    /// It was held and then closed in order.
    Closed,
}

/// Clones share one connection, which ends with the last of them.
#[derive(Debug, Clone)]
pub(crate) struct Lifeline {
    line: watch::Receiver<Line>,
    _held: Arc<Task>,
}

impl Lifeline {
    /// Whether it was held and then closed in order.
    pub(crate) fn was_closed(&self) -> bool {
        *self.line.borrow() == Line::Closed
    }

    #[cfg(test)]
    pub(super) fn is_held(&self) -> bool {
        *self.line.borrow() == Line::Held
    }

    /// Waits until it was held and then closed in order.
    async fn closed(&mut self) {
        if self.line.wait_for(|line| *line == Line::Closed).await.is_err() {
            std::future::pending().await
        }
    }

    /// Holds a connection to the launcher there.
    pub(super) fn open(caller: Caller, place: SocketAddr) -> Lifeline {
        let (says, line) = watch::channel(Line::Unheld);
        let held = Task::of(async move {
            let Some(mut channel) = caller.open(place).await else { return };
            let _ = says.send(Line::Held);
            let end = loop {
                if let Err(end) = channel.receive().await {
                    break end;
                }
            };
            let is_closed = Cut::from(&end) == Cut::Closed;
            let _ = says.send(if is_closed { Line::Closed } else { Line::Unheld });
        });
        Lifeline { line, _held: Arc::new(held) }
    }
}

/// Watches nodes whose launchers this one does not lead.
#[derive(Debug, Default)]
pub(crate) struct Deaths(JoinSet<Option<u32>>);

impl Deaths {
    /// Of the nodes at the other ends of these lifelines, each with its place.
    pub(super) fn of(lines: impl IntoIterator<Item = (u32, (SocketAddr, Lifeline))>) -> Deaths {
        let mut deaths = Deaths::default();
        for (node, (place, mut line)) in lines {
            deaths.0.spawn(async move {
                line.closed().await;
                let sight = Sight::of_lost(true, Cut::Closed);
                let loss = sight.until_lost(Some(place), || true).await;
                (loss == Loss::Died).then_some(node)
            });
        }
        deaths
    }

    /// The next node that is proven to be dead. Cancel-safe.
    pub(crate) async fn next(&mut self) -> u32 {
        loop {
            match self.0.join_next().await {
                Some(Ok(Some(node))) => return node,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }
}
