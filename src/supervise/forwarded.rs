//! USR1 and USR2 that reach a rank from two sides, so that it gets them once.
//!
//! `scancel --signal=USR1` and `sbatch --signal=USR1@60` signal every process of a step: the rank
//! itself, its shim, and the guard, which has the signal forwarded to every rank (proctrack of
//! Slurm; proctrack/pgid signals only the group of the task, so that no rank has it before).
//! A checkpoint on USR1 must not be written twice. What the shim got itself, the rank has too.
//!
//! Takes what came to the shim and what it has to forward; gives what the rank still lacks. Pure.

use std::time::{Duration, Instant};

use crate::sys::Signal;

/// The signals that are forwarded, and may come from two sides.
pub(super) const TWICE: &[Signal] = &[Signal::USR1, Signal::USR2];

/// Time in which one sender signals all processes of a job. The shim's own signal may come after
/// the request to forward it.
const SPREAD: Duration = Duration::from_millis(250);
/// Time in which a request may come after the shim's own signal: it passes guard and agent, which
/// may have little CPU time.
const LATE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Forwarded {
    /// Signals to the shim itself.
    own: Vec<(i32, Instant)>,
    /// Signals to forward unless the shim gets them itself until then.
    asked: Vec<(i32, Instant)>,
}

impl Forwarded {
    /// The shim itself got this signal.
    pub(super) fn came(&mut self, number: i32, now: Instant) {
        if !TWICE.iter().any(|signal| signal.as_raw() == number) {
            return;
        }
        self.forget(now);
        match self.asked.iter().position(|(asked, _)| *asked == number) {
            Some(at) => drop(self.asked.remove(at)),
            None => self.own.push((number, now)),
        }
    }

    /// The agent asks to forward this signal. Whether to do so at once.
    pub(super) fn asked(&mut self, number: i32, now: Instant) -> bool {
        if !TWICE.iter().any(|signal| signal.as_raw() == number) {
            return true;
        }
        self.forget(now);
        match self.own.iter().position(|(own, _)| *own == number) {
            Some(at) => drop(self.own.remove(at)),
            None => self.asked.push((number, now + SPREAD)),
        }
        false
    }

    fn forget(&mut self, now: Instant) {
        self.own.retain(|(_, at)| now.saturating_duration_since(*at) < LATE);
    }

    /// The signals to forward now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<i32> {
        let (due, later): (Vec<_>, Vec<_>) = self.asked.iter().partition(|(_, by)| *by <= now);
        self.asked = later;
        due.into_iter().map(|(number, _)| number).collect()
    }

    /// When [`Forwarded::due`] gives something next.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.asked.iter().map(|(_, by)| *by).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USR1: i32 = Signal::USR1.as_raw();
    const USR2: i32 = Signal::USR2.as_raw();

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
                assert!(!forwarded.asked(USR1, after(round + 100)));
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
        assert!(!forwarded.asked(USR1, start), "USR2 is another signal");
        assert_eq!(forwarded.due(start), Vec::<i32>::new());
        let wake = forwarded.wake().expect("a signal to forward");
        assert_eq!((forwarded.due(wake), forwarded.wake()), (vec![USR1], None));
    }

    #[test]
    fn an_old_signal_to_the_shim_alone_hides_no_later_one() {
        let start = Instant::now();
        let mut forwarded = Forwarded::default();
        forwarded.came(USR1, start);
        assert!(!forwarded.asked(USR1, start + LATE));
        assert_eq!(forwarded.due(start + LATE + SPREAD), [USR1]);
    }

    #[test]
    fn other_signals_are_forwarded_at_once() {
        let now = Instant::now();
        let mut forwarded = Forwarded::default();
        forwarded.came(Signal::TERM.as_raw(), now);
        assert!(forwarded.asked(Signal::TERM.as_raw(), now) && forwarded.wake().is_none());
    }
}
