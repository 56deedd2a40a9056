//! Whether a further attempt follows a failure, when it begins, and why not.
//!
//! Takes how an attempt ended and how long it lasted; gives the pause before the
//! next one. One policy for one node and for many: with several it is node 0's,
//! and the muster carries its decision. Never starts anything itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lang::Text;
use crate::muster::{Again, Cause, Decide};
use crate::plan::RunIdentity;
use crate::report::Ending;

use crate::text;
use crate::verdict::{Class, Id};

/// An attempt that ended sooner made no progress worth a further one.
const QUICK: Duration = Duration::from_secs(60);
/// Quick attempts with the same end, one after the other, that end the restarts.
const REPEATS: usize = 3;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What of an end decides about a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    rank: Option<u32>,
    id: Id,
    class: Class,
    code: i32,
    /// A node is gone; another one may take its place.
    node_lost: bool,
}

impl From<&Ending> for Failure {
    fn from(ending: &Ending) -> Failure {
        let Ending { rank, class, code, .. } = *ending;
        Failure { rank, id: ending.id, class, code, node_lost: false }
    }
}

impl From<&Cause> for Failure {
    fn from(cause: &Cause) -> Failure {
        let Cause { rank, class, code, .. } = *cause;
        Failure { rank, id: cause.id, class, code, node_lost: cause.loss.is_some() }
    }
}

impl Failure {
    /// Whether a new start can turn out better.
    fn retry_helps(&self) -> bool {
        match self.class {
            // 2 is a usage error of nearly every program; 126 and 127: not executable, not found.
            Class::Script => !matches!(self.code, 0 | 2 | 126 | 127) && self.id != Id::RankExec,
            // The engine would be asked for the same again, and its own files are the same.
            Class::Engine => self.id != Id::EngineRanks,
            Class::Launcher => self.node_lost || self.code >= 128,
            Class::Done | Class::Stopped => false,
        }
    }
}

/// The attempts so far, and what follows from them.
#[derive(Debug, Clone)]
struct RestartPolicy {
    /// `--max-restarts`
    most: u32,
    /// Number of the attempt that runs, from 0.
    attempt: u32,
    /// How the last quick attempts ended, oldest first.
    quick: Vec<Failure>,
    why_not: Option<Text>,
}

impl RestartPolicy {
    fn forbids(&self, failure: &Failure) -> Option<Text> {
        let most = self.most;
        if !failure.retry_helps() {
            Some(text!("not started again: it would end the same way", "不再重启：重启后结果相同"))
        } else if self.quick.len() >= REPEATS {
            let seconds = QUICK.as_secs();
            Some(text!(
                "not started again: the last {REPEATS} attempts ended the same way, each within {seconds} s",
                "不再重启：最近 {REPEATS} 次尝试均在 {seconds} 秒内以同样方式结束"
            ))
        } else if self.attempt >= most {
            Some(text!(
                "not started again: --max-restarts is {most}",
                "不再重启：--max-restarts 为 {most}"
            ))
        } else {
            None
        }
    }

    fn after(&mut self, failure: Failure, lasted: Duration) -> Option<Again> {
        let asked = self.most > 0 && !matches!(failure.class, Class::Done | Class::Stopped);
        if !asked {
            return None;
        }
        if lasted >= QUICK || self.quick.last().is_some_and(|last| *last != failure) {
            self.quick.clear();
        }
        if lasted < QUICK {
            self.quick.push(failure.clone());
        }
        self.why_not = self.forbids(&failure);
        if self.why_not.is_some() {
            return None;
        }
        let pause = Duration::from_secs(1)
            .saturating_mul(2u32.saturating_pow(self.attempt))
            .min(LONGEST_PAUSE);
        self.attempt += 1;
        let pause = u64::try_from(pause.as_millis()).unwrap_or_default();
        Some(Again { attempt: self.attempt, pause })
    }
}

/// The one policy of a job, which the muster's task and the conductor share.
#[derive(Debug, Clone)]
pub(super) struct Restarts(Arc<Mutex<RestartPolicy>>);

impl Restarts {
    /// `most`: `--max-restarts`; 0 on a node that does not decide.
    pub(super) fn new(most: u32) -> Restarts {
        let policy = RestartPolicy { most, attempt: 0, quick: Vec::new(), why_not: None };
        Restarts(Arc::new(Mutex::new(policy)))
    }

    fn policy(&self) -> MutexGuard<'_, RestartPolicy> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how the attempt ended; the next one, where it makes sense.
    pub(super) fn after(&self, failure: impl Into<Failure>, lasted: Duration) -> Option<Again> {
        self.policy().after(failure.into(), lasted)
    }

    /// Why there is no further attempt, where some were asked for.
    pub(super) fn why_not(&self) -> Option<Text> {
        self.policy().why_not.clone()
    }

    /// For the muster, which asks once per attempt.
    pub(super) fn decide(&self) -> Decide {
        let restarts = self.clone();
        Box::new(move |cause, lasted| restarts.after(cause, lasted))
    }
}

/// What a further attempt of all nodes takes from the one before.
pub(super) struct Next {
    pub(super) attempt: u32,
    pub(super) identity: RunIdentity,
    pub(super) restarts: Restarts,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: i32) -> Failure {
        Failure { rank: Some(1), id: Id::RankExit, class: Class::Script, code, node_lost: false }
    }

    #[test]
    fn only_what_a_new_start_can_help_is_started_again() {
        let of = |class, id, code| Failure { class, id, ..failed(code) };
        let lost = Failure { node_lost: true, ..of(Class::Launcher, Id::NodeSilent, 137) };
        for (failure, helps) in [
            (failed(1), true),
            (failed(137), true),
            (failed(2), false),
            (failed(126), false),
            (failed(127), false),
            // A permission that is missing has code 126 or whatever errno the shim knew.
            (of(Class::Script, Id::RankExec, 1), false),
            (of(Class::Engine, Id::EngineGone, 137), true),
            (of(Class::Engine, Id::EngineStart, 68), true),
            (of(Class::Engine, Id::EngineRanks, 68), false),
            (of(Class::Launcher, Id::ShimKilled, 137), true),
            (of(Class::Launcher, Id::EngineExec, 68), false),
            (of(Class::Launcher, Id::LayoutUnsolvable, 66), false),
            (of(Class::Stopped, Id::StoppedSignal, 143), false),
            (of(Class::Done, Id::Done, 0), false),
            (lost, true),
        ] {
            let restarts = Restarts::new(5);
            let again = restarts.after(failure.clone(), Duration::from_secs(600));
            assert_eq!(again.is_some(), helps, "{failure:?}");
            // A stop from outside and a success need no excuse.
            let said = !helps && !matches!(failure.class, Class::Done | Class::Stopped);
            assert_eq!(restarts.why_not().is_some(), said, "{failure:?}");
            // Nobody asked: nothing is said either.
            let none = Restarts::new(0);
            assert_eq!(none.after(failure, Duration::from_secs(600)), None);
            assert_eq!(none.why_not(), None);
        }
    }

    #[test]
    fn restarts_end_by_number_or_without_progress() {
        let long = Duration::from_secs(3600);
        let restarts = Restarts::new(2);
        let pauses: Vec<_> = (0..4)
            .map(|_| restarts.after(failed(1), long).map(|again| (again.attempt, again.pause)))
            .collect();
        assert_eq!(pauses, [Some((1, 1000)), Some((2, 2000)), None, None]);

        let restarts = Restarts::new(100);
        let quick: Vec<bool> =
            (0..4).map(|_| restarts.after(failed(1), Duration::ZERO).is_some()).collect();
        assert_eq!(quick, [true, true, false, false]);

        // Another end, or a long attempt, is progress.
        let restarts = Restarts::new(100);
        for (code, lasted) in [(1, 0), (3, 0), (1, 0), (1, 0), (1, 100), (1, 0), (1, 0)] {
            let again = restarts.after(failed(code), Duration::from_secs(lasted));
            assert!(again.is_some(), "{code} after {lasted} s");
        }

        // The pause has a bound.
        let restarts = Restarts::new(100);
        let pauses: Vec<_> = (0..20).filter_map(|_| restarts.after(failed(1), long)).collect();
        assert_eq!(pauses.last().map(|again| again.pause), Some(30_000));
    }
}
