//! A question that a node answers repeatedly: a person watches a job of a thousand nodes each second, and a frame in
//! each direction for each look would cost twice as much as one frame. And a bounded amount of a resource ([`Room`]):
//! bytes that are held, or simultaneous transfers.
//!
//! [`Standing`] is the leader's side: a node that has answered recently is not asked. [`Repeated`] is the side of the other
//! nodes: the question to answer, and the times. A node of an earlier version answers once, so it is asked each time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::frames::Packed;

/// Time for which a node answers by itself. The leader renews it halfway while a viewer still asks.
const STANDS: Duration = Duration::from_secs(30);
/// A viewer that asks again only after more than this many intervals does not start repeated answers.
const LOOKS_ON: u32 = 5;
/// The shortest time between two answers of a node.
const SHORTEST: Duration = Duration::from_millis(500);

/// The answers of the other nodes to the repeated question of a viewer.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) id: u64,
    pub(super) question: Arc<[u8]>,
    pub(super) every: Duration,
    looked: Instant,
    said: Option<Instant>,
    latest: BTreeMap<u32, (Instant, Vec<u8>)>,
}

impl Standing {
    /// Records the first request of a viewer. It may be the only one, so no node is to answer repeatedly yet.
    pub(super) fn new(id: u64, question: &Arc<[u8]>, every: Duration, now: Instant) -> Standing {
        let (question, latest) = (Arc::clone(question), BTreeMap::new());
        Standing { id, question, every, looked: now, said: None, latest }
    }

    pub(super) fn is(&self, question: &[u8], every: Duration) -> bool {
        *self.question == *question && self.every == every
    }

    /// Records another request of a viewer. Gives the time for which the nodes must answer by themselves, if they must
    /// be told now.
    pub(super) fn looks(&mut self, now: Instant) -> Option<Duration> {
        let since = |at: Instant| now.saturating_duration_since(at);
        let before = std::mem::replace(&mut self.looked, now);
        let is_known = self.said.is_some_and(|said| since(said) < STANDS / 2);
        if is_known || since(before) > self.every * LOOKS_ON {
            return None;
        }
        self.said = Some(now);
        Some(STANDS)
    }

    /// The time at which the question ends: no viewer asks any more, and the latest answers are of no use.
    pub(super) fn ends(&self) -> Instant {
        later(self.looked, STANDS.max(self.every.saturating_mul(LOOKS_ON)))
    }

    pub(super) fn note(&mut self, node: u32, answer: Vec<u8>, now: Instant) {
        self.latest.insert(node, (now, answer));
    }

    pub(super) fn lost(&mut self, node: u32) {
        self.latest.remove(&node);
    }

    /// The answers that are about as new as the answer to a question asked now. One repetition may be missing.
    pub(super) fn fresh(&self, now: Instant) -> impl Iterator<Item = (u32, Packed)> + '_ {
        let oldest = self.every * 5 / 2;
        let is_fresh = move |at: &Instant| now.saturating_duration_since(*at) < oldest;
        let fresh = self.latest.iter().filter(move |(_, (at, _))| is_fresh(at));
        fresh.map(|(node, (_, answer))| (*node, Packed::Deflated(answer.clone())))
    }
}

/// The question that the leader wants to be answered repeatedly.
#[derive(Debug)]
pub(super) struct Repeated {
    pub(super) id: u64,
    pub(super) question: Arc<[u8]>,
    every: Duration,
    pub(super) until: Instant,
    pub(super) next: Instant,
}

impl Repeated {
    pub(super) fn new(
        id: u64,
        question: &Arc<[u8]>,
        every: u64,
        until: Instant,
        now: Instant,
    ) -> Repeated {
        let every = Duration::from_millis(every).max(SHORTEST);
        Repeated { id, question: Arc::clone(question), every, until, next: later(now, every) }
    }

    /// Schedules the next answer. Gives its time, until which the current answer counts.
    pub(super) fn again(&mut self, now: Instant) -> Instant {
        self.next = later(now, self.every);
        self.next
    }
}

/// The deadline, bounded because a deadline from another node may exceed every possible time.
pub(super) fn later(now: Instant, within: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(3600);
    now + within.min(LONGEST)
}

/// The amount that is left.
#[derive(Debug, Clone, Default)]
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
