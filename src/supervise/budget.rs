//! The time budget for the end of a job: when each step must be over; and the steps of ending processes: a moment to end
//! by themselves, TERM, a wait, KILL, a wait, give up.
//!
//! Takes the grace period (`--grace`), which a platform enforces by SIGKILL of everything. Gives
//! the deadline of each step, counted from the signal or the failure that began the end. Every
//! room takes its deadlines at the end from here, so that their sum stays within the grace
//! period whatever hangs. A [`Sweep`] takes the time, and gives the step that is due and the time of the next one: the
//! caller knows the processes, signals them and reports them. Measures no time itself, sends no signal.

use std::collections::HashSet;
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

/// A process that ends this soon after its parent (multiprocessing's resource tracker) does not
/// count as a leftover.
pub(super) const SETTLE: Duration = Duration::from_millis(200);
/// Pause between two scans while something is being killed.
pub(super) const KILL_PAUSE: Duration = Duration::from_millis(10);
/// Pause between two scans while each process gets TERM as it appears.
const TERM_PAUSE: Duration = Duration::from_millis(100);

/// The action for the processes that exist now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SweepStep {
    Wait,
    /// Send TERM to each process for which [`Sweep::is_new`] holds.
    Term,
    /// Send KILL to all.
    Kill,
    /// Name them, and stop waiting.
    GiveUp,
}

/// Selects the processes that get TERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Newcomers {
    /// A process that appears after TERM gets its own.
    Asked,
    /// TERM is sent once. A process that is started during the shutdown, such as an upload, has
    /// the time until KILL.
    Spared,
}

#[derive(Debug)]
pub(super) struct Sweep {
    newcomers: Newcomers,
    /// None once TERM was due, if newcomers are spared.
    term: Option<Instant>,
    kill: Instant,
    /// KILL was due at a step.
    has_killed: bool,
    give_up: Instant,
    asked: HashSet<(i32, u64)>,
}

impl Sweep {
    /// TERM after `settle`, KILL after `grace`, both counted from `now`, and `last_wait` for
    /// KILL to take effect. A grace period that ends before TERM is due leaves TERM out.
    pub(super) fn begin(
        now: Instant,
        newcomers: Newcomers,
        settle: Duration,
        grace: Duration,
        last_wait: Duration,
    ) -> Sweep {
        let kill = now + grace;
        let (term, give_up) = (Some(now + settle), kill + last_wait);
        Sweep { newcomers, term, kill, has_killed: false, give_up, asked: HashSet::new() }
    }

    /// The step that is due, and the latest time of the next one.
    pub(super) fn step(&mut self, now: Instant) -> (SweepStep, Instant) {
        if now >= self.kill {
            if !self.has_killed {
                // A caller that got no CPU meanwhile must not give up processes that it never killed.
                let last_wait = self.give_up.saturating_duration_since(self.kill);
                (self.has_killed, self.give_up) = (true, now + last_wait);
            } else if now >= self.give_up {
                return (SweepStep::GiveUp, now);
            }
            return (SweepStep::Kill, now + KILL_PAUSE);
        }
        let step = match self.term {
            Some(term) if now >= term => SweepStep::Term,
            _ => SweepStep::Wait,
        };
        if step == SweepStep::Term && self.newcomers == Newcomers::Spared {
            self.term = None;
        }
        (step, self.wake(now))
    }

    /// The next time to call [`step`](Self::step).
    pub(super) fn wake(&self, now: Instant) -> Instant {
        if now >= self.kill {
            return now + KILL_PAUSE;
        }
        match self.term {
            Some(term) if now < term => term.min(self.kill),
            Some(_) if self.newcomers == Newcomers::Asked => self.kill.min(now + TERM_PAUSE),
            Some(_) => now,
            None => self.kill,
        }
    }

    /// True once for each process, identified by pid and start ticks.
    pub(super) fn is_new(&mut self, process: (i32, u64)) -> bool {
        self.asked.insert(process)
    }

    /// Moves KILL and the end of waiting forward to these times, if they are later.
    pub(super) fn kill_by(&mut self, kill: Instant, give_up: Instant) {
        self.kill = self.kill.min(kill);
        self.give_up = self.give_up.min(give_up);
    }

    /// Makes KILL due now, with `last_wait` to take effect.
    pub(super) fn kill_now(&mut self, now: Instant, last_wait: Duration) {
        self.term = None;
        self.kill = self.kill.min(now);
        self.give_up = self.give_up.min(self.kill + last_wait);
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

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The step at each time, and the time of the next one, in milliseconds.
    fn course(mut sweep: Sweep, begun: Instant, rows: &[(u64, SweepStep, u64)]) {
        for (at, step, wake) in rows {
            let now = begun + ms(*at);
            assert_eq!(sweep.step(now), (*step, begun + ms(*wake)), "at {at} ms");
        }
    }

    #[test]
    fn late_caller_kills_before_it_gives_up() {
        let now = Instant::now();
        let late = Sweep::begin(now, Newcomers::Asked, SETTLE, ms(1000), ms(500));
        let rows = [
            (9000, SweepStep::Kill, 9010),
            (9499, SweepStep::Kill, 9509),
            (9500, SweepStep::GiveUp, 9500),
        ];
        course(late, now, &rows);
    }

    #[test]
    fn sweep_sends_term_then_kill_then_gives_up() {
        let now = Instant::now();
        let asked = Sweep::begin(now, Newcomers::Asked, SETTLE, ms(1000), ms(500));
        course(
            asked,
            now,
            &[
                (0, SweepStep::Wait, 200),
                (199, SweepStep::Wait, 200),
                (200, SweepStep::Term, 300),
                (300, SweepStep::Term, 400),
                (950, SweepStep::Term, 1000),
                (1000, SweepStep::Kill, 1010),
                (1499, SweepStep::Kill, 1509),
                (1500, SweepStep::GiveUp, 1500),
            ],
        );
        let spared = Sweep::begin(now, Newcomers::Spared, ms(0), ms(1000), ms(500));
        course(
            spared,
            now,
            &[
                (0, SweepStep::Term, 1000),
                (1, SweepStep::Wait, 1000),
                (999, SweepStep::Wait, 1000),
                (1000, SweepStep::Kill, 1010),
                (2000, SweepStep::GiveUp, 2000),
            ],
        );
        // A grace period shorter than the settling time, or none: no TERM.
        for grace in [0, 150] {
            let sweep = Sweep::begin(now, Newcomers::Asked, SETTLE, ms(grace), ms(50));
            course(
                sweep,
                now,
                &[(grace, SweepStep::Kill, grace + 10), (200, SweepStep::GiveUp, 200)],
            );
        }
    }

    #[test]
    fn process_counts_as_new_only_once() {
        let mut sweep = Sweep::begin(Instant::now(), Newcomers::Asked, ms(0), ms(9), ms(9));
        assert!(sweep.is_new((7, 1)));
        assert!(!sweep.is_new((7, 1)));
        assert!(sweep.is_new((7, 2)), "another process with the same pid");
    }

    #[test]
    fn immediate_kill_only_shortens_the_sweep() {
        let now = Instant::now();
        let begin = || Sweep::begin(now, Newcomers::Spared, ms(400), ms(1000), ms(5000));
        let mut killed = begin();
        killed.kill_now(now + ms(100), ms(300));
        killed.kill_now(now + ms(200), ms(9000));
        course(
            killed,
            now,
            &[
                (99, SweepStep::Wait, 100),
                (100, SweepStep::Kill, 110),
                (400, SweepStep::GiveUp, 400),
            ],
        );
        let mut late = begin();
        late.kill_now(now + ms(5900), ms(9000));
        course(late, now, &[(1000, SweepStep::Kill, 1010), (6000, SweepStep::GiveUp, 6000)]);
    }
}
