//! A bounded amount of a resource: bytes that are held, or simultaneous transfers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The amount that is left.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<AtomicUsize>);

/// An amount that is taken until the lease is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    room: Room,
    amount: usize,
}

impl Room {
    pub(crate) fn of(amount: usize) -> Room {
        Room(Arc::new(AtomicUsize::new(amount)))
    }

    pub(crate) fn take(&self, amount: usize) -> Option<Lease> {
        let less = |left: usize| left.checked_sub(amount);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.ok().map(|_| Lease { room: self.clone(), amount })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.room.0.fetch_add(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_lease_returns_its_amount() {
        let room = Room::of(3);
        let two = room.take(2).expect("room");
        assert!(room.take(2).is_none());
        let one = room.take(1);
        assert!(one.is_some() && room.take(1).is_none());
        drop(two);
        assert!(room.take(2).is_some());
    }
}
