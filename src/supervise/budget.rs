//! The time budget for the end of a job: when each step must be over.
//!
//! Takes the grace period (`--grace`), which a platform enforces by SIGKILL of everything. Gives
//! the deadline of each step, counted from the signal or the failure that began the end. Every
//! room takes its deadlines at the end from here, so that their sum stays within the grace
//! period whatever hangs. A table; measures no time itself.

use std::time::{Duration, Instant};

/// The steps at the end, in order. A step that ends early leaves its time to the later ones; one
/// that hangs uses only its own part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndStep {
    /// The main processes may end, with what they have started; then what lives on below one that did not
    /// pass the signal on gets SIGTERM.
    Main,
    /// The ranks may end by themselves; then SIGKILL begins.
    Ranks,
    /// SIGKILL takes effect; processes that survive are named and given up.
    Kill,
    /// Closing block and termination message are written, before anything that may be slow.
    LastWords,
    /// The output of the ranks is written to the log files, as long as the disk makes progress.
    Logs,
    /// run.json, the journal and the console are written out.
    Record,
    /// The agent has ended. If it has not, it hangs, and the guard kills it and reports in its
    /// place.
    Agent,
}

/// Shares of the time between the first SIGKILL and the end of the grace period, in percent.
const AFTER_KILL: [(EndStep, u32); 5] = [
    (EndStep::Kill, 50),
    (EndStep::LastWords, 62),
    (EndStep::Logs, 80),
    (EndStep::Record, 88),
    (EndStep::Agent, 94),
];
/// The steps after the first SIGKILL get a tenth of the grace period…
const TAIL_PART: u32 = 10;
/// …but no less than this, which a loaded machine needs to reap and to write…
const TAIL_LEAST: Duration = Duration::from_secs(1);
/// …and no more, since a disk without progress for so long is given up…
const TAIL_MOST: Duration = Duration::from_secs(15);
/// …nor more than this percentage of a short grace period, whose rest belongs to the ranks.
const TAIL_SHARE: u32 = 35;

/// Time for SIGKILL to take effect, if the grace period is long enough: a driver may need
/// seconds to free the memory of a GPU.
pub(super) const UNKILLABLE: Duration = Duration::from_secs(5);

/// The whole of `--grace`, divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndBudget {
    grace: Duration,
}

impl EndBudget {
    pub fn of(grace: Duration) -> EndBudget {
        EndBudget { grace }
    }

    /// The latest time at which `step` is over, counted from the beginning of the end.
    pub fn until(self, step: EndStep) -> Duration {
        let tail = (self.grace / TAIL_PART).clamp(TAIL_LEAST, TAIL_MOST);
        let tail = tail.min(self.grace * TAIL_SHARE / 100);
        let ranks = self.grace - tail;
        match step {
            EndStep::Main => ranks * 2 / 3,
            EndStep::Ranks => ranks,
            step => AFTER_KILL
                .iter()
                .find(|(one, _)| *one == step)
                .map_or(self.grace, |(_, hundredths)| ranks + tail * *hundredths / 100),
        }
    }

    /// The start of SIGKILL at an end that was not requested from outside. It comes sooner than at a
    /// stop, so that the time for SIGKILL is within the grace period as well. It takes at most half of
    /// the ranks' time after the share of the main processes.
    pub(crate) fn own_kill(self) -> Duration {
        let ranks = self.until(EndStep::Ranks);
        let soonest = (self.until(EndStep::Main) + ranks) / 2;
        self.until(EndStep::Kill).saturating_sub(UNKILLABLE).clamp(soonest, ranks)
    }

    /// Time for SIGKILL to take effect on leftovers, before they count as unkillable.
    pub(crate) fn after_kill(self) -> Duration {
        self.until(EndStep::Kill).min(UNKILLABLE)
    }

    /// Time left until `step` must be over, if the end began at `since`.
    pub fn left(self, step: EndStep, since: Instant) -> Duration {
        self.until(step).saturating_sub(since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [EndStep; 7] = [
        EndStep::Main,
        EndStep::Ranks,
        EndStep::Kill,
        EndStep::LastWords,
        EndStep::Logs,
        EndStep::Record,
        EndStep::Agent,
    ];

    fn millis(grace: u64) -> [u128; 7] {
        let budget = EndBudget::of(Duration::from_millis(grace));
        STEPS.map(|step| budget.until(step).as_millis())
    }

    #[test]
    fn every_step_gets_time_within_the_grace() {
        for grace in [0, 1, 500, 1000, 2000, 3000, 8000, 28_000, 60_000, 598_000, 86_400_000] {
            let steps = millis(grace);
            assert!(steps.is_sorted(), "{grace}: {steps:?}");
            assert!(steps.iter().all(|at| *at <= u128::from(grace)), "{grace}: {steps:?}");
            if grace >= 2000 {
                let first = EndBudget::of(Duration::from_millis(grace));
                for pair in STEPS.windows(2).skip(1) {
                    let room = first.until(pair[1]).saturating_sub(first.until(pair[0]));
                    assert!(room >= Duration::from_millis(40), "{grace}: {pair:?} {room:?}");
                }
                assert!(
                    first.grace.saturating_sub(first.until(EndStep::Agent))
                        >= Duration::from_millis(40),
                    "{grace}"
                );
            }
        }
    }

    #[test]
    fn ranks_get_most_of_the_grace() {
        assert_eq!(millis(2000), [866, 1300, 1650, 1734, 1860, 1916, 1958]);
        assert_eq!(millis(28_000), [16_800, 25_200, 26_600, 26_936, 27_440, 27_664, 27_832]);
        assert_eq!(
            millis(598_000),
            [388_666, 583_000, 590_500, 592_300, 595_000, 596_200, 597_100]
        );
    }

    #[test]
    fn sigkill_gets_five_seconds_if_the_grace_allows() {
        for (grace, kill, works) in [
            (2000, 1083, 566),
            (8000, 5833, 1666),
            (28_000, 21_600, 5000),
            (598_000, 583_000, 7500),
        ] {
            let budget = EndBudget::of(Duration::from_millis(grace));
            let own = budget.own_kill();
            let given = budget.until(EndStep::Kill) - own;
            assert_eq!((own.as_millis(), given.as_millis()), (kill, works), "{grace}");
        }
    }

    #[test]
    fn time_left_shrinks_to_zero() {
        let budget = EndBudget::of(Duration::from_secs(10));
        let now = Instant::now();
        assert!(budget.left(EndStep::Ranks, now) > Duration::from_secs(8));
        let Some(past) = now.checked_sub(Duration::from_secs(11)) else { return };
        assert_eq!(budget.left(EndStep::Agent, past), Duration::ZERO);
    }
}
