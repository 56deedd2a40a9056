//! Connections that have not said who they are: how many there may be, and who
//! has to go when there are more.
//!
//! Whoever has waited longest goes first. A node says who it is within
//! milliseconds, so a crowd of silent connections costs a bounded number of
//! descriptors and never keeps a node out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::listen::ConnectionId;

/// Strangers that may wait beside one per node that is still expected.
const STRANGERS: usize = 256;

/// Shared by the listener and the connections that it let in.
#[derive(Debug, Clone)]
pub(super) struct Porch(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    nodes: usize,
    /// Connections that have said who they are.
    inside: usize,
    /// By age, as numbers rise. A sender that is dropped sends its stranger away.
    waiting: BTreeMap<ConnectionId, oneshot::Sender<()>>,
}

impl Porch {
    pub(super) fn new(nnodes: u32) -> Porch {
        let nodes = usize::try_from(nnodes).unwrap_or(usize::MAX);
        Porch(Arc::new(Mutex::new(Inner { nodes, inside: 0, waiting: BTreeMap::new() })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stranger comes; the receiver ends when he has to go.
    pub(super) fn enter(&self, id: ConnectionId) -> oneshot::Receiver<()> {
        let (stays, goes) = oneshot::channel();
        let mut inner = self.lock();
        inner.waiting.insert(id, stays);
        let most = inner.nodes.saturating_sub(inner.inside).saturating_add(STRANGERS);
        if inner.waiting.len() > most {
            inner.waiting.pop_first();
        }
        goes
    }

    /// Sends the one away who has waited longest; false when nobody waits.
    pub(super) fn make_room(&self) -> bool {
        self.lock().waiting.pop_first().is_some()
    }

    /// He was shown the door, or left.
    pub(super) fn leave(&self, id: ConnectionId) {
        self.lock().waiting.remove(&id);
    }

    /// He said who he is. The guard counts him as long as he stays.
    pub(super) fn admit(&self, id: ConnectionId) -> Inside {
        let mut inner = self.lock();
        inner.waiting.remove(&id);
        inner.inside += 1;
        drop(inner);
        Inside(self.clone())
    }

    /// Sends all strangers away.
    pub(super) fn clear(&self) {
        self.lock().waiting.clear();
    }
}

/// One connection that has said who it is.
#[derive(Debug)]
pub(super) struct Inside(Porch);

impl Drop for Inside {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.inside = inner.inside.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_stranger_makes_room_and_nodes_do_not_count() {
        let porch = Porch::new(2);
        let gone = |goes: &mut oneshot::Receiver<()>| {
            goes.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        let mut all: Vec<_> = (0..258).map(|id| porch.enter(id)).collect();
        assert!(!all.iter_mut().any(gone));
        all.push(porch.enter(258));
        assert!(gone(&mut all[0]) && !gone(&mut all[1]));
        // A node that is inside is expected no more: its place on the porch goes too.
        let inside = porch.admit(258);
        all.push(porch.enter(259));
        assert!(gone(&mut all[1]) && !gone(&mut all[2]));
        drop(inside);
        all.push(porch.enter(260));
        assert!(!gone(&mut all[2]), "the node left and may come back");
        assert!(porch.make_room() && gone(&mut all[2]));
        porch.clear();
        assert!(gone(&mut all[200]) && !porch.make_room());
    }
}
