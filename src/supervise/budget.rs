//! One budget for the end of a job: which step is over when.
//!
//! Takes the grace (`--grace`), which a platform enforces with SIGKILL of everything;
//! gives the time by which each step at the end is over, counted from the signal or the
//! failure that began it. Every room that ends, names, writes or says something at the
//! end takes its deadline from here, so that their sum stays within the grace whatever
//! hangs. A table; measures no time itself.

use std::time::{Duration, Instant};

/// The steps at the end, in their order. A step that is through sooner leaves its time
/// to those after it; one that is late costs its own part only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndStep {
    /// The engine may end its ranks by itself; then each process gets SIGTERM from us.
    Engine,
    /// The ranks may end by themselves; then SIGKILL begins.
    Ranks,
    /// SIGKILL works; what is still there is named and given up.
    Kill,
    /// Closing block and termination message are written: before anything that may be slow.
    LastWords,
    /// What the ranks wrote goes to the log files, as long as the disk takes it.
    Logs,
    /// run.json, the journal and the console are written out.
    Record,
    /// The agent is gone; one that is not hangs, and the guard ends it and speaks for it.
    Agent,
}

/// Shares of the time between the first SIGKILL and the end of the grace, in hundredths.
const AFTER_KILL: [(EndStep, u32); 5] = [
    (EndStep::Kill, 50),
    (EndStep::LastWords, 62),
    (EndStep::Logs, 80),
    (EndStep::Record, 88),
    (EndStep::Agent, 94),
];
/// What follows the first SIGKILL gets a tenth of the grace…
const TAIL_PART: u32 = 10;
/// …but no less than this, since a loaded machine needs it to reap and to write…
const TAIL_LEAST: Duration = Duration::from_secs(1);
/// …and no more: a disk that takes nothing for so long is not waited for…
const TAIL_MOST: Duration = Duration::from_secs(15);
/// …nor more than this part of a short grace, in hundredths: the rest is the ranks'.
const TAIL_SHARE: u32 = 35;

/// What SIGKILL is given to work where the ranks can spare it: a driver may take seconds to
/// give the memory of a GPU back.
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

    /// How long after the beginning of the end `step` is over at the latest.
    pub fn until(self, step: EndStep) -> Duration {
        let tail = (self.grace / TAIL_PART).clamp(TAIL_LEAST, TAIL_MOST);
        let tail = tail.min(self.grace * TAIL_SHARE / 100);
        let ranks = self.grace - tail;
        match step {
            EndStep::Engine => ranks * 2 / 3,
            EndStep::Ranks => ranks,
            step => AFTER_KILL
                .iter()
                .find(|(one, _)| *one == step)
                .map_or(self.grace, |(_, hundredths)| ranks + tail * *hundredths / 100),
        }
    }

    /// When SIGKILL begins at an end that nobody outside has asked for and will cut short:
    /// sooner than at a stop, so that what it may take is within the grace as well. No more
    /// than half of what the ranks have after the engine's share goes to it.
    pub fn own_kill(self) -> Duration {
        let ranks = self.until(EndStep::Ranks);
        let soonest = (self.until(EndStep::Engine) + ranks) / 2;
        self.until(EndStep::Kill).saturating_sub(UNKILLABLE).clamp(soonest, ranks)
    }

    /// What SIGKILL is given to work on leftovers, before they count as unkillable.
    pub fn after_kill(self) -> Duration {
        self.until(EndStep::Kill).min(UNKILLABLE)
    }

    /// What is left of the time until `step` is over, where the end began at `since`.
    pub fn left(self, step: EndStep, since: Instant) -> Duration {
        self.until(step).saturating_sub(since.elapsed())
    }

    /// From one step's end to another's; for work that begins when `from` is over, or
    /// where nothing was stopped and there is no beginning to count from.
    pub fn between(self, from: EndStep, to: EndStep) -> Duration {
        self.until(to).saturating_sub(self.until(from))
    }

    /// What an engine with a timeout of its own may take: it is through before its step is.
    pub fn engine_timeout(self) -> Duration {
        self.until(EndStep::Engine) * 5 / 6
    }

    /// What the guard has for its own last words, once it gave up the agent.
    pub fn guard(self) -> Duration {
        self.grace.saturating_sub(self.until(EndStep::Agent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [EndStep; 7] = [
        EndStep::Engine,
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
    fn every_grace_has_room_for_each_step_and_is_never_exceeded() {
        for grace in [0, 1, 500, 1000, 2000, 3000, 8000, 28_000, 60_000, 598_000, 86_400_000] {
            let steps = millis(grace);
            assert!(steps.is_sorted(), "{grace}: {steps:?}");
            assert!(steps.iter().all(|at| *at <= u128::from(grace)), "{grace}: {steps:?}");
            if grace >= 2000 {
                let first = EndBudget::of(Duration::from_millis(grace));
                for pair in STEPS.windows(2).skip(1) {
                    let room = first.between(pair[0], pair[1]);
                    assert!(room >= Duration::from_millis(40), "{grace}: {pair:?} {room:?}");
                }
                assert!(first.guard() >= Duration::from_millis(40), "{grace}");
                assert!(first.engine_timeout() < first.until(EndStep::Engine));
            }
        }
    }

    #[test]
    fn the_ranks_have_most_of_it() {
        assert_eq!(millis(2000), [866, 1300, 1650, 1734, 1860, 1916, 1958]);
        assert_eq!(millis(28_000), [16_800, 25_200, 26_600, 26_936, 27_440, 27_664, 27_832]);
        assert_eq!(
            millis(598_000),
            [388_666, 583_000, 590_500, 592_300, 595_000, 596_200, 597_100]
        );
    }

    #[test]
    fn where_nobody_waits_sigkill_has_its_five_seconds_if_the_grace_has_them() {
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
    fn what_is_left_shrinks_to_nothing() {
        let budget = EndBudget::of(Duration::from_secs(10));
        let now = Instant::now();
        assert!(budget.left(EndStep::Ranks, now) > Duration::from_secs(8));
        let Some(past) = now.checked_sub(Duration::from_secs(11)) else { return };
        assert_eq!(budget.left(EndStep::Agent, past), Duration::ZERO);
    }
}
