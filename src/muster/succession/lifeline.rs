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

use super::Succession;
use super::links::Caller;
use super::shared::{Shared, State, Task};
use crate::keepalive::{Cut, Sight};
use crate::protocol::Loss;
use text::order::InOrder;

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

    /// Waits until it was held and then closed in order.
    async fn closed(&mut self) {
        if self.line.wait_for(|line| *line == Line::Closed).await.is_err() {
            std::future::pending().await
        }
    }

    /// Holds a connection to the launcher there.
    fn open(caller: Caller, place: SocketAddr) -> Lifeline {
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

impl Shared {
    /// Holds lifelines to those with a seat if this launcher votes; those to the same places stay.
    pub(super) fn hold_lifelines(&self, state: &mut State) {
        let last = state.electorate.as_ref().filter(|_| state.election.is_some());
        let seats = last.map(|last| last.seats.as_slice()).unwrap_or_default();
        let places = seats.iter().filter(|node| **node != self.me).filter_map(|node| {
            let place = *last?.places.get(node)?;
            let held = state.lifelines.get(node);
            let held = held.filter(|(at, line)| *at == place && !line.was_closed()).cloned();
            let held = held.unwrap_or_else(|| (place, Lifeline::open(self.caller.clone(), place)));
            Some((*node, held))
        });
        state.lifelines = places.in_map();
    }
}

impl Succession {
    /// The nodes to which lifelines are held.
    #[cfg(test)]
    pub(crate) fn holds_lifelines_to(&self) -> Vec<u32> {
        let state = self.shared.state.lock();
        let held = state.lifelines.iter().filter(|(_, (_, one))| *one.line.borrow() == Line::Held);
        held.map(|(node, _)| *node).collect()
    }

    /// A connection to the launcher there: the one that is held to it, or a new one.
    pub(crate) fn lifeline(&self, place: SocketAddr) -> Lifeline {
        let state = self.shared.state.lock();
        let held = state.lifelines.values().find(|(at, line)| *at == place && !line.was_closed());
        let held = held.map(|(_, line)| line.clone());
        held.unwrap_or_else(|| Lifeline::open(self.shared.caller.clone(), place))
    }

    /// Those of the nodes that die, or died, as far as the lifelines to them prove it.
    pub(crate) fn deaths(&self, nodes: impl IntoIterator<Item = u32>) -> Deaths {
        let state = self.shared.state.lock();
        let mut deaths = Deaths::default();
        for node in nodes {
            let Some((place, mut line)) = state.lifelines.get(&node).cloned() else { continue };
            deaths.0.spawn(async move {
                line.closed().await;
                let sight = Sight::of_lost(true, Cut::Closed);
                let loss = sight.until_lost(Some(place), || true).await;
                (loss == Loss::Died).then_some(node)
            });
        }
        deaths
    }
}

/// Watches nodes whose launchers this one does not lead.
#[derive(Debug, Default)]
pub(crate) struct Deaths(JoinSet<Option<u32>>);

impl Deaths {
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
