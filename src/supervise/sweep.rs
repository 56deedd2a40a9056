//! The steps of ending processes: a moment to end by themselves, TERM, a wait, KILL, a wait, give
//! up.
//!
//! Takes the time; gives the step that is due ([`SweepStep`]) and the time of the next one. Sends no
//! signal and reads no process: the caller knows the processes, signals them and reports them. The
//! waits come from its [`EndBudget`](super::EndBudget).

use std::collections::HashSet;
use std::time::{Duration, Instant};

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
        Sweep { newcomers, term, kill, give_up, asked: HashSet::new() }
    }

    /// The step that is due, and the latest time of the next one.
    pub(super) fn step(&mut self, now: Instant) -> (SweepStep, Instant) {
        if now >= self.give_up {
            return (SweepStep::GiveUp, now);
        }
        if now >= self.kill {
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
