//! Signals that reach a rank from two sides, so that it gets them once.
//!
//! `scancel --signal=USR1` and `sbatch --signal=USR1@60` signal every process of a step: the rank
//! itself, its shim, and the guard, which has the signal forwarded to every rank (proctrack of
//! Slurm; proctrack/pgid signals only the group of the task, so that no rank has it before).
//! A checkpoint on USR1 must not be written twice. The rank also has each signal that the shim got itself.
//!
//! A stop comes from up to three sides: a [`Manager`] signals every process, torchrun
//! the group of each rank, and the agent asks for it. A rank that saves must not begin again, and no
//! rank may be left without a signal. A TERM to the shim proves nothing by itself: `pkill ranklaunch`
//! signals the shim and not its rank. Only a manager's TERM has reached both.
//!
//! Takes the signals that came to the shim and those that it has to forward; gives the signals that the rank
//! still lacks.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::asked::is_stop;
use super::tree;
use linux::sys::{Pid, Signal, own_pid};

/// The signals that may come again and again, each time from two sides.
pub(super) const TWICE: [Signal; 2] = [Signal::USR1, Signal::USR2];
/// All signals that a shim watches. torchrun forwards the signal that ended it, if that is one of the last
/// four.
pub(super) const WATCHED: [Signal; 6] =
    [Signal::USR1, Signal::USR2, Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Whether the signal is one of [`TWICE`].
pub(super) fn comes_twice(number: i32) -> bool {
    TWICE.iter().any(|signal| signal.as_raw() == number)
}

/// Time in which one sender signals all processes of a job. The shim's own signal may come after
/// the request to forward it.
const SPREAD: Duration = Duration::from_millis(250);
/// Time in which a request may come after the shim's own signal: it passes guard and agent, which
/// may have little CPU time.
const LATE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Forwarded {
    /// Time in which the manager above us, if there is one, signals every process of the job. `docker
    /// stop` and the like have none, and do not wait.
    manager: Option<Duration>,
    /// Signals to the shim itself.
    own: Vec<(i32, Instant)>,
    /// Signals to forward unless the shim gets them itself until then.
    asked: Vec<(i32, Instant)>,
    /// The signals of a stop that the rank has got.
    stops: HashSet<i32>,
}

impl Forwarded {
    pub(super) fn new(manager: Option<Duration>) -> Forwarded {
        Forwarded { manager, ..Forwarded::default() }
    }

    /// The shim itself got this signal, and so did its rank.
    pub(super) fn came(&mut self, number: i32, now: Instant) {
        self.forget(now);
        let waiting = self.asked.iter().position(|(asked, _)| *asked == number);
        if let Some(at) = waiting {
            self.asked.remove(at);
        }
        if is_stop(number) {
            self.stops.insert(number);
        } else if waiting.is_none() {
            self.own.push((number, now));
        }
    }

    /// The agent asks to forward this signal. Whether to do so at once.
    pub(super) fn asked(&mut self, number: i32, now: Instant) -> bool {
        self.forget(now);
        if !comes_twice(number) {
            return true;
        }
        match self.own.iter().position(|(own, _)| *own == number) {
            Some(at) => {
                self.own.remove(at);
            }
            None => self.asked.push((number, now + SPREAD)),
        }
        false
    }

    /// The agent or the engine asks for a stop by this signal. Whether to forward it at once.
    pub(super) fn stops(&mut self, number: i32, now: Instant) -> bool {
        let is_asked = self.asked.iter().any(|(asked, _)| *asked == number);
        if is_asked || self.stops.contains(&number) {
            return false;
        }
        match self.manager {
            Some(spread) => self.asked.push((number, now + spread)),
            // No other request can arrive that would have to be distinguished from this one.
            None => drop(self.stops.insert(number)),
        }
        self.manager.is_none()
    }

    /// No manager has a reason to signal the job, so requested signals are due now.
    pub(super) fn no_manager(&mut self, now: Instant) {
        self.manager = None;
        for (number, by) in &mut self.asked {
            if is_stop(*number) {
                *by = now;
            }
        }
    }

    fn forget(&mut self, now: Instant) {
        self.own.retain(|(_, at)| now.saturating_duration_since(*at) < LATE);
    }

    /// The signals to forward now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<i32> {
        let (due, later): (Vec<_>, Vec<_>) = self.asked.iter().partition(|(_, by)| *by <= now);
        self.asked = later;
        let due: Vec<i32> = due.into_iter().map(|(number, _)| number).collect();
        self.stops.extend(due.iter().filter(|number| is_stop(**number)));
        due
    }

    /// The next time at which [`Forwarded::due`] gives something.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.asked.iter().map(|(_, by)| *by).min()
    }
}

/// A process above us that signals every process of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manager {
    pub(super) pid: i32,
    /// Time in which the manager signals all processes. A stop signal to the guard alone is delayed by
    /// this time.
    pub(super) spread: Duration,
}

/// Names as in /proc/PID/comm, and the time that the signals take.
const MANAGERS: [(&str, Duration); 2] = [
    // Slurm runs one slurmstepd for each step on a node: `scancel`, the time limit and `--signal` signal
    // every process of the step (src/slurmd/slurmstepd/req.c, proctrack plugins). On a busy machine it
    // may be interrupted between two of them; there is hardly another way to stop a step.
    ("slurmstepd", Duration::from_secs(1)),
    // KillMode=control-group, the default: "all remaining processes in the control group of this unit
    // will be killed" (systemd.kill(5)). systemd is above every process of a host, so a `kill` by hand
    // must not wait for long.
    ("systemd", Duration::from_millis(100)),
];
const OF_HIDDEN: Duration = Duration::from_millis(250);
/// Maximum length of a chain of parents.
const GENERATIONS: usize = 64;

/// The nearest manager among our ancestors.
pub(super) fn manager_above() -> Option<Manager> {
    above_in(own_pid(), &|pid| {
        let process = tree::process(pid)?;
        Some((process.ppid, String::from_utf8_lossy(&process.comm).into_owned()))
    })
}

/// `seen` gives parent and name of a process; None if the process is hidden.
fn above_in(from: i32, seen: &dyn Fn(i32) -> Option<(i32, String)>) -> Option<Manager> {
    let (mut at, _) = seen(from)?;
    for _ in 0..GENERATIONS {
        Pid::from_raw(at)?;
        // hidepid hides only processes of other users: the launcher, and whoever started it by hand, are
        // of our own user.
        let Some((parent, name)) = seen(at) else {
            return Some(Manager { pid: at, spread: OF_HIDDEN });
        };
        if let Some((_, spread)) = MANAGERS.iter().find(|(manager, _)| *manager == name) {
            return Some(Manager { pid: at, spread: *spread });
        }
        at = parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const USR1: i32 = Signal::USR1.as_raw();
    const USR2: i32 = Signal::USR2.as_raw();
    const INT: i32 = Signal::INT.as_raw();
    const TERM: i32 = Signal::TERM.as_raw();

    #[test]
    fn signal_received_by_the_shim_is_not_forwarded() {
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
    fn guard_only_signal_is_forwarded_after_a_delay() {
        let start = Instant::now();
        let mut forwarded = Forwarded::default();
        forwarded.came(USR2, start);
        assert!(!forwarded.asked(USR1, start), "USR2 is another signal");
        assert!(forwarded.due(start).is_empty());
        let wake = forwarded.wake().expect("a signal to forward");
        assert_eq!((forwarded.due(wake), forwarded.wake()), (vec![USR1], None));
    }

    #[test]
    fn old_shim_signal_does_not_mask_later_ones() {
        let start = Instant::now();
        let mut forwarded = Forwarded::default();
        forwarded.came(USR1, start);
        assert!(!forwarded.asked(USR1, start + LATE));
        assert_eq!(forwarded.due(start + LATE + SPREAD), [USR1]);
    }

    #[test]
    fn rank_gets_one_term_regardless_of_sender_order() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        // Times at which a manager signalled all processes, the engine its groups, and the agent asked twice.
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
                    assert!(!forwarded.stops(TERM, after(now)));
                }
                if now == agent || now == 18_000 {
                    assert!(!forwarded.stops(TERM, after(now)));
                }
                given += forwarded.due(after(now)).len();
            }
            assert_eq!(given, 1, "{manager:?} {engine} {agent}");
        }
    }

    #[test]
    fn term_without_manager_is_forwarded_immediately_and_once() {
        let now = Instant::now();
        let mut forwarded = Forwarded::new(None);
        assert!(forwarded.stops(TERM, now));
        assert!(!forwarded.stops(TERM, now) && forwarded.wake().is_none());
        for _ctrl_c in 0..3 {
            assert!(forwarded.asked(INT, now), "a debugger goes on after it");
        }
    }

    #[test]
    fn term_is_forwarded_once_a_manager_is_excluded() {
        let now = Instant::now();
        for engine_first in [true, false] {
            let mut forwarded = Forwarded::new(Some(Duration::from_secs(1)));
            if engine_first {
                assert!(!forwarded.stops(TERM, now));
                forwarded.no_manager(now);
                assert_eq!(forwarded.due(now), [TERM]);
            } else {
                forwarded.no_manager(now);
                assert!(forwarded.stops(TERM, now));
            }
            assert!(!forwarded.stops(TERM, now) && forwarded.wake().is_none());
        }
    }

    #[test]
    fn each_stop_signal_is_delivered_once() {
        let now = Instant::now();
        let mut forwarded = Forwarded::new(Some(Duration::from_secs(1)));
        forwarded.came(INT, now);
        assert!(!forwarded.stops(INT, now), "torchrun forwards what the manager has sent");
        assert!(forwarded.due(now + LATE).is_empty());
        assert!(!forwarded.stops(TERM, now));
        assert_eq!(forwarded.due(now + LATE), [TERM], "another signal");
    }

    #[test]
    fn other_signals_are_forwarded_immediately_every_time() {
        let now = Instant::now();
        let mut forwarded = Forwarded::new(Some(Duration::from_secs(1)));
        for number in [Signal::WINCH.as_raw(), INT, INT, 40, 40] {
            assert!(forwarded.asked(number, now) && forwarded.wake().is_none());
        }
    }

    #[test]
    fn only_known_or_hidden_ancestors_are_managers() {
        let chain = |name: Option<&'static str>| {
            move |pid: i32| match pid {
                40 => Some((30, "ranklaunch".to_owned())),
                30 => Some((20, "bash".to_owned())),
                20 => name.map(|name| (1, name.to_owned())),
                1 => Some((0, "tini".to_owned())),
                _ => None,
            }
        };
        for (name, manager) in [
            (Some("slurmstepd"), Some(20)),
            (Some("systemd"), Some(20)),
            (None, Some(20)),
            // The shell's `kill $(pgrep ranklaunch)` leaves out the ranks.
            (Some("bash"), None),
            (Some("orted"), None),
        ] {
            let found = above_in(40, &chain(name)).map(|manager| manager.pid);
            assert_eq!(found, manager, "{name:?}");
        }
        assert_eq!(above_in(7, &|_| None), None, "a root without /proc");
        assert_eq!(above_in(7, &|_| Some((7, String::new()))), None, "a circle");
    }
}
