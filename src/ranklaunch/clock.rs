//! The time budget for the steps after the ranks have ended.

use std::time::{Duration, Instant};

use supervise::{EndBudget, EndStep};
use verdict::outcome::Outcome;

/// Time limit for writing one small file.
pub(super) const ANSWER: Duration = Duration::from_secs(3);

/// The budget of this end, and the time at which it began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    budget: EndBudget,
    grace: Duration,
    /// None if no stop from outside limits the time, and nothing that we wait for can hang.
    since: Option<Instant>,
}

impl Clock {
    pub(super) fn of(grace: Duration, outcome: Option<&Outcome>) -> Clock {
        // A process that outlived SIGKILL keeps its pipes open, so waiting for their end needs
        // the limit too.
        let counts = |outcome: &&Outcome| outcome.told || !outcome.survivors.is_empty();
        let since = outcome.filter(counts).and_then(|outcome| outcome.stopped_at);
        Clock { budget: EndBudget::of(grace), grace, since }
    }

    /// Time left until `step` must be over.
    pub(super) fn left(self, step: EndStep) -> Duration {
        self.since.map_or(self.grace, |since| self.budget.left(step, since))
    }

    /// The same for one small file: at least 50 ms, at most [`ANSWER`].
    pub(super) fn left_for_answer(self, step: EndStep) -> Duration {
        self.left(step).clamp(Duration::from_millis(50), ANSWER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_outside_stop_limits_the_time() {
        let grace = Duration::from_secs(10);
        let past = Instant::now().checked_sub(Duration::from_secs(60));
        let outcome = |told| Outcome { told, stopped_at: past, ..Outcome::default() };
        assert_eq!(Clock::of(grace, None).left(EndStep::Logs), grace);
        assert_eq!(Clock::of(grace, Some(&outcome(false))).left(EndStep::Logs), grace);
        if past.is_some() {
            let over = Clock::of(grace, Some(&outcome(true)));
            assert_eq!(over.left(EndStep::Logs), Duration::ZERO);
            assert!(over.left_for_answer(EndStep::Record) > Duration::ZERO);
        }
    }
}
