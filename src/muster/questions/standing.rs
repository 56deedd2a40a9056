//! A question that a node answers again and again: a person looks at a job of a thousand nodes each second, and a
//! frame in each direction for each look would cost twice as much as one.
//!
//! [`Standing`] is node 0's side: who has answered lately is not asked. [`Repeated`] is that of the others: what to
//! answer, and when. A node of an earlier version answers once, so it is asked each time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::deflate::Packed;

/// How long a node answers by itself. Said again in the middle of that time, while somebody looks.
const STANDS: Duration = Duration::from_secs(30);
/// Who looks again after so many times the usual time looks once more, and not for long.
const LOOKS_ON: u32 = 5;
/// The shortest time between two answers of a node.
const SHORTEST: Duration = Duration::from_millis(500);

/// The answers of the other nodes to the question of whoever looks.
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
    /// Somebody looks for the first time, perhaps once: nobody is to answer again yet.
    pub(super) fn new(id: u64, question: &Arc<[u8]>, every: Duration, now: Instant) -> Standing {
        let (question, latest) = (Arc::clone(question), BTreeMap::new());
        Standing { id, question, every, looked: now, said: None, latest }
    }

    pub(super) fn is(&self, question: &[u8], every: Duration) -> bool {
        *self.question == *question && self.every == every
    }

    /// Somebody looks again. For how long the nodes are to answer, if they must be told now.
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

    /// When nobody looks any more, and the latest answers are of no use.
    pub(super) fn ends(&self) -> Instant {
        later(self.looked, STANDS.max(self.every.saturating_mul(LOOKS_ON)))
    }

    pub(super) fn note(&mut self, node: u32, answer: Vec<u8>, now: Instant) {
        self.latest.insert(node, (now, answer));
    }

    pub(super) fn lost(&mut self, node: u32) {
        self.latest.remove(&node);
    }

    /// The answers that are as new as one to a question of now: one may be missing.
    pub(super) fn fresh(&self, now: Instant) -> impl Iterator<Item = (u32, Packed)> + '_ {
        let oldest = self.every * 5 / 2;
        let is_fresh = move |at: &Instant| now.saturating_duration_since(*at) < oldest;
        let fresh = self.latest.iter().filter(move |(_, (at, _))| is_fresh(at));
        fresh.map(|(node, (_, answer))| (*node, Packed::Deflated(answer.clone())))
    }
}

/// What node 0 wants to hear again and again.
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

    /// It is answered now, and then again. Gives the time until which this answer counts.
    pub(super) fn again(&mut self, now: Instant) -> Instant {
        self.next = later(now, self.every);
        self.next
    }
}

/// A deadline that another node wrote may be beyond all times.
pub(super) fn later(now: Instant, within: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(3600);
    now + within.min(LONGEST)
}
