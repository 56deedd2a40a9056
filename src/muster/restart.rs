//! Whether all nodes begin anew after a failure.

use std::time::Duration;

use super::types::{Again, Cause};
use crate::lang::Text;
use crate::text;

/// An attempt that ended sooner made no progress worth a further one.
const QUICK: Duration = Duration::from_secs(60);
/// Quick attempts with the same end, one after the other, that end the restarts.
const REPEATS: usize = 3;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What node 0 knows of the attempts so far.
#[derive(Debug, Clone)]
pub struct Restarts {
    /// `--max-restarts`
    pub most: u32,
    /// Number of the attempt that runs, from 0.
    pub attempt: u32,
    /// How the last quick attempts ended, oldest first.
    quick: Vec<(Option<u32>, String, i32)>,
    end: Option<Text>,
}

impl Restarts {
    pub fn new(most: u32) -> Restarts {
        Restarts { most, attempt: 0, quick: Vec::new(), end: None }
    }

    /// Why there is no further attempt, where some were asked for.
    pub fn why_not(&self) -> Option<&Text> {
        self.end.as_ref()
    }

    fn ends(&self, cause: &Cause) -> Option<Text> {
        let most = self.most;
        if most == 0 {
            None
        } else if !cause.retry_helps() {
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

    /// Notes how the attempt ended; the next one, where it makes sense.
    pub fn after(&mut self, cause: &Cause, lasted: Duration) -> Option<Again> {
        let end = (cause.rank, cause.id.clone(), cause.code);
        if lasted >= QUICK || self.quick.last().is_some_and(|last| *last != end) {
            self.quick.clear();
        }
        if lasted < QUICK {
            self.quick.push(end);
        }
        self.end = self.ends(cause);
        if self.end.is_some() || self.most == 0 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::muster::types::Loss;

    fn cause(code: i32) -> Cause {
        let lost = Cause::lost(1, "h", Loss::Died, None, Duration::ZERO, 0);
        Cause { class: "script".into(), id: "rank.exit".into(), code, loss: None, ..lost }
    }

    #[test]
    fn only_what_a_new_start_can_help_is_started_again() {
        let lost = Cause::lost(1, "h", Loss::Silent, None, Duration::ZERO, 0);
        let refused = Cause { class: "launcher".into(), code: 66, loss: None, ..lost.clone() };
        let stopped = Cause { class: "stopped".into(), code: 143, loss: None, ..lost.clone() };
        for (cause, helps) in [
            (cause(1), true),
            (cause(137), true),
            (cause(2), false),
            (cause(127), false),
            (lost, true),
            (refused, false),
            (stopped, false),
        ] {
            let again = Restarts::new(5).after(&cause, Duration::from_secs(600));
            assert_eq!(again.is_some(), helps, "{cause:?}");
        }
    }

    #[test]
    fn restarts_end_by_number_or_without_progress() {
        let long = Duration::from_secs(3600);
        let mut restarts = Restarts::new(2);
        let pauses: Vec<_> = (0..4)
            .map(|_| restarts.after(&cause(1), long).map(|again| (again.attempt, again.pause)))
            .collect();
        assert_eq!(pauses, [Some((1, 1000)), Some((2, 2000)), None, None]);

        let mut restarts = Restarts::new(100);
        let quick: Vec<bool> =
            (0..4).map(|_| restarts.after(&cause(1), Duration::ZERO).is_some()).collect();
        assert_eq!(quick, [true, true, false, false]);

        // Another end, or a long attempt, is progress.
        let mut restarts = Restarts::new(100);
        for (code, lasted) in [(1, 0), (3, 0), (1, 0), (1, 0), (1, 100), (1, 0), (1, 0)] {
            let again = restarts.after(&cause(code), Duration::from_secs(lasted));
            assert!(again.is_some(), "{code} after {lasted} s");
        }
    }
}
