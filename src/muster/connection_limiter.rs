//! Limits the number of unidentified connections.
//!
//! Beyond the limit the oldest connection is closed. A node identifies itself within milliseconds, so a flood of silent
//! connections costs a bounded number of descriptors and never keeps a node out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Unidentified connections beyond one per node that is still expected.
const SPARE: usize = 256;

/// The limiter, shared by the listener and its connections.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimiter(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    nodes: usize,
    identified: usize,
    /// Unidentified connections from old to new, since ids increase. Dropping the sender evicts the connection.
    pending: BTreeMap<u64, oneshot::Sender<()>>,
}

impl ConnectionLimiter {
    pub(crate) fn new(nnodes: u32) -> ConnectionLimiter {
        let nodes = usize::try_from(nnodes).unwrap_or(usize::MAX);
        let inner = Inner { nodes, identified: 0, pending: BTreeMap::new() };
        ConnectionLimiter(Arc::new(Mutex::new(inner)))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new connection; the receiver ends when the connection is evicted.
    pub(crate) fn enter(&self, id: u64) -> oneshot::Receiver<()> {
        let (stays, evicted) = oneshot::channel();
        let mut inner = self.lock();
        inner.pending.insert(id, stays);
        let most = inner.nodes.saturating_sub(inner.identified).saturating_add(SPARE);
        if inner.pending.len() > most {
            inner.pending.pop_first();
        }
        evicted
    }

    /// Evicts the oldest unidentified connection; false if there is none.
    pub(crate) fn evict_oldest(&self) -> bool {
        self.lock().pending.pop_first().is_some()
    }

    /// Removes a connection that was evicted or closed by the peer.
    pub(crate) fn leave(&self, id: u64) {
        self.lock().pending.remove(&id);
    }

    /// Counts the connection as identified until the guard is dropped.
    pub(crate) fn identify(&self, id: u64) -> Identified {
        let mut inner = self.lock();
        inner.pending.remove(&id);
        inner.identified += 1;
        drop(inner);
        Identified(self.clone())
    }

    pub(crate) fn evict_all(&self) {
        self.lock().pending.clear();
    }
}

/// One identified connection.
#[derive(Debug)]
pub(crate) struct Identified(ConnectionLimiter);

impl Drop for Identified {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.identified = inner.identified.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_unidentified_connection_is_evicted() {
        let limiter = ConnectionLimiter::new(2);
        let is_evicted = |receiver: &mut oneshot::Receiver<()>| {
            receiver.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        let mut all: Vec<_> = (0..258).map(|id| limiter.enter(id)).collect();
        assert!(!all.iter_mut().any(is_evicted));
        all.push(limiter.enter(258));
        assert!(is_evicted(&mut all[0]) && !is_evicted(&mut all[1]));
        // An identified node is no longer expected, so the limit shrinks by its place too.
        let identified = limiter.identify(258);
        all.push(limiter.enter(259));
        assert!(is_evicted(&mut all[1]) && !is_evicted(&mut all[2]));
        drop(identified);
        all.push(limiter.enter(260));
        assert!(!is_evicted(&mut all[2]), "the node left and may come back");
        assert!(limiter.evict_oldest() && is_evicted(&mut all[2]));
        limiter.evict_all();
        assert!(is_evicted(&mut all[200]) && !limiter.evict_oldest());
    }
}
