//! Signals that reach a rank from two sides, so that it gets them once.
//!
//! `scancel --signal=USR1` and `sbatch --signal=USR1@60` signal every process of a step: the rank
//! itself, its shim, and the guard, which has the signal forwarded to every rank (proctrack of
//! Slurm; proctrack/pgid signals only the group of the task, so that no rank has it before).
//! A checkpoint on USR1 must not be written twice. What the shim got itself, the rank has too.
//!
//! TERM comes from up to three sides: a manager signals every process ([`super::manager`]), torchrun
//! the group of each rank, and the agent asks for it at a stop. A rank that saves at TERM is not to
//! begin again, and none may be left without. That the shim got TERM proves nothing by itself:
//! `pkill ranklaunch` signals the shim and not its rank. Only a manager's TERM has reached both.
//!
//! Takes what came to the shim and what it has to forward; gives what the rank still lacks. Pure.

use std::time::{Duration, Instant};

use crate::sys::Signal;

/// The signals that may come again and again, each time from two sides.
pub(super) const TWICE: [Signal; 2] = [Signal::USR1, Signal::USR2];
/// All that a shim looks at. torchrun forwards the one of the last four that ended it.
pub(super) const WATCHED: [Signal; 6] =
    [Signal::USR1, Signal::USR2, Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Whether it is one of [`TWICE`].
pub(super) fn comes_twice(number: i32) -> bool {
    TWICE.iter().any(|signal| signal.as_raw() == number)
}

/// Time in which one sender signals all processes of a job. The shim's own signal may come after
/// the request to forward it.
const SPREAD: Duration = Duration::from_millis(250);
/// Time in which a request may come after the shim's own signal: it passes guard and agent, which
/// may have little CPU time.
const LATE: Duration = Duration::from_secs(2);

/// Who gets a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// The user's process; the agent signals the others below it, where it wants to.
    Rank,
    /// All that torchrun would have signalled: the workers of a data loader too.
    Group,
    /// The user's process, then every process below it.
    Tree,
}

#[derive(Debug, Default)]
pub(super) struct Forwarded {
    /// Time in which the manager above us, if there is one, signals every process of the job. `docker
    /// stop` and the like have none, and do not wait.
    manager: Option<Duration>,
    /// Signals to the shim itself.
    own: Vec<(i32, Instant)>,
    /// Signals to forward unless the shim gets them itself until then.
    asked: Vec<(i32, Reach, Instant)>,
    /// The rank has got TERM.
    has_term: bool,
}

const TERM: i32 = Signal::TERM.as_raw();

impl Forwarded {
    pub(super) fn new(manager: Option<Duration>) -> Forwarded {
        Forwarded { manager, ..Forwarded::default() }
    }

    /// The shim itself got this signal, and so did its rank.
    pub(super) fn came(&mut self, number: i32, now: Instant) {
        self.forget(now);
        let waiting = self.asked.iter().position(|(asked, ..)| *asked == number);
        if let Some(at) = waiting {
            self.asked.remove(at);
        }
        if number == TERM {
            self.has_term = true;
        } else if waiting.is_none() {
            self.own.push((number, now));
        }
    }

    /// The agent or the engine asks to forward this signal. Whether to do so at once.
    pub(super) fn asked(&mut self, number: i32, reach: Reach, now: Instant) -> bool {
        self.forget(now);
        if number == TERM {
            let is_asked = self.asked.iter().any(|(asked, ..)| *asked == TERM);
            if self.has_term || is_asked {
                return false;
            }
            match self.manager {
                Some(spread) => self.asked.push((TERM, reach, now + spread)),
                // Nothing can come that it would have to be told from.
                None => self.has_term = true,
            }
            return self.has_term;
        }
        let may_come = comes_twice(number) || (self.manager.is_some() && reach == Reach::Group);
        if !may_come {
            return true;
        }
        match self.own.iter().position(|(own, _)| *own == number) {
            Some(at) => {
                self.own.remove(at);
            }
            None => self.asked.push((number, reach, now + SPREAD)),
        }
        false
    }

    /// No manager has a reason to signal the job: what is asked for is due.
    pub(super) fn no_manager(&mut self, now: Instant) {
        self.manager = None;
        for (number, _, by) in &mut self.asked {
            if *number == TERM {
                *by = now;
            }
        }
    }

    fn forget(&mut self, now: Instant) {
        self.own.retain(|(_, at)| now.saturating_duration_since(*at) < LATE);
    }

    /// The signals to forward now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(i32, Reach)> {
        let (due, later): (Vec<_>, Vec<_>) = self.asked.iter().partition(|(.., by)| *by <= now);
        self.asked = later;
        self.has_term |= due.iter().any(|(number, ..)| *number == TERM);
        due.into_iter().map(|(number, reach, _)| (number, reach)).collect()
    }

    /// When [`Forwarded::due`] gives something next.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.asked.iter().map(|(.., by)| *by).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USR1: i32 = Signal::USR1.as_raw();
    const USR2: i32 = Signal::USR2.as_raw();
    const INT: i32 = Signal::INT.as_raw();

    #[test]
    fn what_the_shim_got_itself_is_not_forwarded() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        for shim_first in [true, false] {
            let mut forwarded = Forwarded::default();
            for round in [0, 300] {
                if shim_first {
                    forwarded.came(USR1, after(round));
                }
                assert!(!forwarded.asked(USR1, Reach::Rank, after(round + 100)));
                if !shim_first {
                    forwarded.came(USR1, after(round + 150));
                }
            }
            assert_eq!((forwarded.due(after(9_000)), forwarded.wake()), (vec![], None));
        }
    }

    #[test]
    fn what_only_the_guard_got_is_forwarded_after_a_moment() {
        let start = Instant::now();
        let mut forwarded = Forwarded::default();
        forwarded.came(USR2, start);
        assert!(!forwarded.asked(USR1, Reach::Rank, start), "USR2 is another signal");
        assert_eq!(forwarded.due(start), []);
        let wake = forwarded.wake().expect("a signal to forward");
        assert_eq!((forwarded.due(wake), forwarded.wake()), (vec![(USR1, Reach::Rank)], None));
    }

    #[test]
    fn an_old_signal_to_the_shim_alone_hides_no_later_one() {
        let start = Instant::now();
        let mut forwarded = Forwarded::default();
        forwarded.came(USR1, start);
        assert!(!forwarded.asked(USR1, Reach::Rank, start + LATE));
        assert_eq!(forwarded.due(start + LATE + SPREAD), [(USR1, Reach::Rank)]);
    }

    #[test]
    fn a_rank_gets_term_once_whoever_sends_it_in_whatever_order() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        // When a manager signalled all, the engine its groups, and the agent asked twice.
        for (manager, engine, agent) in [
            (Some(0), 3, 10),
            (Some(5), 3, 10),
            (Some(900), 3, 10),
            (Some(9), 12, 4),
            (None, 0, 20),
            (None, 20, 0),
        ] {
            let mut forwarded = Forwarded::new(Some(Duration::from_secs(1)));
            let mut given = usize::from(manager.is_some());
            for now in (0..1_500).chain(18_000..19_500) {
                if manager == Some(now) {
                    forwarded.came(TERM, after(now));
                }
                if engine == now {
                    assert!(!forwarded.asked(TERM, Reach::Group, after(now)));
                }
                if now == agent || now == 18_000 {
                    assert!(!forwarded.asked(TERM, Reach::Rank, after(now)));
                }
                given += forwarded.due(after(now)).len();
            }
            assert_eq!(given, 1, "{manager:?} {engine} {agent}");
        }
    }

    #[test]
    fn without_a_manager_term_is_forwarded_at_once_and_once() {
        let now = Instant::now();
        let mut forwarded = Forwarded::new(None);
        assert!(forwarded.asked(TERM, Reach::Group, now));
        assert!(!forwarded.asked(TERM, Reach::Rank, now) && forwarded.wake().is_none());
        for _ctrl_c in 0..3 {
            assert!(forwarded.asked(INT, Reach::Rank, now), "a debugger goes on after it");
        }
    }

    #[test]
    fn a_rank_does_not_wait_for_a_manager_that_has_no_reason() {
        let now = Instant::now();
        for engine_first in [true, false] {
            let mut forwarded = Forwarded::new(Some(Duration::from_secs(1)));
            if engine_first {
                assert!(!forwarded.asked(TERM, Reach::Group, now));
                forwarded.no_manager(now);
                assert_eq!(forwarded.due(now), [(TERM, Reach::Group)]);
            } else {
                forwarded.no_manager(now);
                assert!(forwarded.asked(TERM, Reach::Group, now));
            }
            assert!(!forwarded.asked(TERM, Reach::Rank, now) && forwarded.wake().is_none());
        }
    }

    #[test]
    fn int_of_a_manager_is_not_forwarded_by_torchrun_again() {
        let now = Instant::now();
        let mut forwarded = Forwarded::new(Some(Duration::from_secs(1)));
        forwarded.came(INT, now);
        assert!(!forwarded.asked(INT, Reach::Group, now));
        assert_eq!(forwarded.due(now + LATE), []);
        assert!(!forwarded.asked(INT, Reach::Group, now + LATE));
        assert_eq!(forwarded.due(now + LATE + SPREAD), [(INT, Reach::Group)]);
    }

    #[test]
    fn other_signals_are_forwarded_at_once_and_each_time() {
        let now = Instant::now();
        let mut forwarded = Forwarded::new(Some(Duration::from_secs(1)));
        for number in [Signal::WINCH.as_raw(), 40, 40] {
            assert!(forwarded.asked(number, Reach::Rank, now) && forwarded.wake().is_none());
        }
    }
}
