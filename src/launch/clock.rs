//! How long what follows the ranks may take: all of it has one budget.

use std::time::{Duration, Instant};

use crate::supervise::{EndBudget, EndStep, Outcome};

/// How long a file system may take for a small file.
pub(super) const ANSWER: Duration = Duration::from_secs(3);

/// The budget of this end, and since when it runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    budget: EndBudget,
    grace: Duration,
    /// None: nobody from outside ends us, and all that is waited for can end.
    since: Option<Instant>,
}

impl Clock {
    pub(super) fn of(grace: Duration, outcome: Option<&Outcome>) -> Clock {
        // What outlived SIGKILL holds its pipes open: whatever waits for their end has no more
        // than the budget either.
        let counts = |outcome: &&Outcome| outcome.told || !outcome.survivors.is_empty();
        let since = outcome.filter(counts).and_then(|outcome| outcome.stopped_at);
        Clock { budget: EndBudget::of(grace), grace, since }
    }

    /// What is left until `step` is over.
    pub(super) fn left(self, step: EndStep) -> Duration {
        self.since.map_or(self.grace, |since| self.budget.left(step, since))
    }

    /// The same for something small, which is given at least a moment.
    pub(super) fn left_for_answer(self, step: EndStep) -> Duration {
        self.left(step).clamp(Duration::from_millis(50), ANSWER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stop_from_outside_runs_against_a_clock() {
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
