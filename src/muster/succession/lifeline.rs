//! A connection to another launcher on which neither side says anything.
//!
//! The kernel of a node resets a connection whose process ended before it had read everything, as if something between
//! the nodes had cut it. Here nothing waits to be read, so that the end of the process closes it in order.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

use super::Succession;
use super::shared::Task;
use crate::keepalive::Cut;

/// Clones share one connection, which ends with the last of them.
#[derive(Debug, Clone)]
pub(crate) struct Lifeline {
    was_closed: watch::Receiver<bool>,
    _held: Arc<Task>,
}

impl Lifeline {
    /// Whether it was held and then closed in order.
    pub(crate) fn was_closed(&self) -> bool {
        *self.was_closed.borrow()
    }
}

impl Succession {
    /// Holds a connection to the launcher there.
    pub(crate) fn lifeline(&self, place: SocketAddr) -> Lifeline {
        let (closed, was_closed) = watch::channel(false);
        let caller = self.shared.caller.clone();
        let held = Task::of(async move {
            let Some(mut channel) = caller.open(place).await else { return };
            let end = loop {
                if let Err(end) = channel.receive().await {
                    break end;
                }
            };
            let _ = closed.send(Cut::from(&end) == Cut::Closed);
        });
        Lifeline { was_closed, _held: Arc::new(held) }
    }
}
