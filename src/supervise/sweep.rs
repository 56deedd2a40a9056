//! The course of ending processes: a moment to end by themselves, TERM, time, KILL, time, give up.
//!
//! Takes the time; gives what is due ([`Step`]) and when to look again. Signals nothing and looks
//! at no process: whose processes they are, how a signal gets to them and what is said of them is
//! the caller's, and how long each part takes comes from its [`EndBudget`](super::EndBudget).

use std::collections::HashSet;
use std::time::{Duration, Instant};

/// What ends by itself so soon after its parent was about to (multiprocessing's resource
/// tracker): it is no leftover.
pub(super) const SETTLE: Duration = Duration::from_millis(200);
/// Pause between two scans while something is being killed.
pub(super) const KILL_PAUSE: Duration = Duration::from_millis(10);
/// Pause between two scans while each process gets TERM as it appears.
const TERM_PAUSE: Duration = Duration::from_millis(100);

/// What is to be done to the processes that are there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Wait,
    /// TERM to each that [`Sweep::is_new`].
    Term,
    /// KILL to all.
    Kill,
    /// Name them, and leave them.
    GiveUp,
}

/// Who gets TERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Newcomers {
    /// A process that appears after TERM gets its own.
    Asked,
    /// TERM goes out once: what a process starts in order to end well (an upload) has the time
    /// until KILL.
    Spared,
}

#[derive(Debug)]
pub(super) struct Sweep {
    newcomers: Newcomers,
    /// None once TERM was due and newcomers are spared.
    term: Option<Instant>,
    kill: Instant,
    give_up: Instant,
    asked: HashSet<(i32, u64)>,
}

impl Sweep {
    /// TERM after `settle`, KILL after `grace`, both from `now` on, and `last_wait` for KILL to
    /// work. A grace that ends before TERM is due leaves TERM out.
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

    /// What is due now, and when the next step is at the latest.
    pub(super) fn step(&mut self, now: Instant) -> (Step, Instant) {
        if now >= self.give_up {
            return (Step::GiveUp, now);
        }
        if now >= self.kill {
            return (Step::Kill, now + KILL_PAUSE);
        }
        let step = match self.term {
            Some(term) if now >= term => Step::Term,
            _ => Step::Wait,
        };
        if step == Step::Term && self.newcomers == Newcomers::Spared {
            self.term = None;
        }
        (step, self.wake(now))
    }

    /// When [`step`](Self::step) has something new to say at the latest.
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

    /// True once for each process: pid and start ticks.
    pub(super) fn is_new(&mut self, process: (i32, u64)) -> bool {
        self.asked.insert(process)
    }

    /// Whether TERM has gone out, to whoever was there.
    pub(super) fn has_asked(&self) -> bool {
        self.term.is_none()
    }

    /// TERM is due now, unless it has gone out.
    pub(super) fn term_now(&mut self, now: Instant) {
        self.term = self.term.map(|term| term.min(now));
    }

    /// KILL is due now, and works `last_wait` at most.
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

    /// What is due at each time, and when it looks again; all in milliseconds.
    fn course(mut sweep: Sweep, begun: Instant, rows: &[(u64, Step, u64)]) {
        for (at, step, wake) in rows {
            let now = begun + ms(*at);
            assert_eq!(sweep.step(now), (*step, begun + ms(*wake)), "at {at} ms");
        }
    }

    #[test]
    fn term_then_kill_then_nothing_more() {
        let now = Instant::now();
        let asked = Sweep::begin(now, Newcomers::Asked, SETTLE, ms(1000), ms(500));
        course(
            asked,
            now,
            &[
                (0, Step::Wait, 200),
                (199, Step::Wait, 200),
                (200, Step::Term, 300),
                (300, Step::Term, 400),
                (950, Step::Term, 1000),
                (1000, Step::Kill, 1010),
                (1499, Step::Kill, 1509),
                (1500, Step::GiveUp, 1500),
            ],
        );
        let spared = Sweep::begin(now, Newcomers::Spared, ms(0), ms(1000), ms(500));
        course(
            spared,
            now,
            &[
                (0, Step::Term, 1000),
                (1, Step::Wait, 1000),
                (999, Step::Wait, 1000),
                (1000, Step::Kill, 1010),
                (2000, Step::GiveUp, 2000),
            ],
        );
        // A grace below the settling, or none: no TERM.
        for grace in [0, 150] {
            let sweep = Sweep::begin(now, Newcomers::Asked, SETTLE, ms(grace), ms(50));
            course(sweep, now, &[(grace, Step::Kill, grace + 10), (200, Step::GiveUp, 200)]);
        }
    }

    #[test]
    fn each_process_is_asked_once() {
        let mut sweep = Sweep::begin(Instant::now(), Newcomers::Asked, ms(0), ms(9), ms(9));
        assert!(sweep.is_new((7, 1)));
        assert!(!sweep.is_new((7, 1)));
        assert!(sweep.is_new((7, 2)), "another process with the same pid");
    }

    #[test]
    fn a_hurry_shortens_and_never_lengthens() {
        let now = Instant::now();
        let begin = || Sweep::begin(now, Newcomers::Spared, ms(400), ms(1000), ms(5000));
        let mut killed = begin();
        killed.kill_now(now + ms(100), ms(300));
        killed.kill_now(now + ms(200), ms(9000));
        course(
            killed,
            now,
            &[(99, Step::Wait, 100), (100, Step::Kill, 110), (400, Step::GiveUp, 400)],
        );
        let mut late = begin();
        late.kill_now(now + ms(5900), ms(9000));
        course(late, now, &[(1000, Step::Kill, 1010), (6000, Step::GiveUp, 6000)]);

        let mut sooner = begin();
        assert!(!sooner.has_asked());
        sooner.term_now(now + ms(100));
        sooner.term_now(now + ms(300));
        assert_eq!(sooner.wake(now), now + ms(100));
        assert_eq!(sooner.step(now + ms(100)), (Step::Term, now + ms(1000)));
        assert!(sooner.has_asked());
        sooner.term_now(now + ms(200));
        assert_eq!(sooner.step(now + ms(200)).0, Step::Wait, "it has gone out");
    }
}
