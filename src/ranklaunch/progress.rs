//! Decides whether a job went on after somebody else had reported trouble.
//!
//! Takes the output of the ranks after the first report; gives an answer for the moment of each
//! report.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use diagnose::is_progress;

/// A job that reports progress this long after a moment, three times, has outlived the events of
/// that moment: ranks that wait for each other cannot go on without one of them.
const OUTLIVED: Duration = Duration::from_secs(60);
/// If no rank reports progress, trouble counts for this long: a hang ends by the time-out of the
/// collectives, which is seldom longer.
const COUNTS_FOR: Duration = Duration::from_secs(2 * 60 * 60);
/// Number of lines of progress that show that a job went on.
const WENT_ON: usize = 3;

/// Times at which the ranks last reported progress.
#[derive(Debug, Default)]
pub(super) struct Progress(VecDeque<Instant>);

impl Progress {
    /// Takes the output of a rank at that time. `trouble`: time of the first report; before it, and
    /// soon after it, nothing is read.
    pub(super) fn note(&mut self, at: Instant, part: &[u8], trouble: Option<Instant>) {
        if trouble.is_none_or(|trouble| at.saturating_duration_since(trouble) <= OUTLIVED) {
            return;
        }
        let lines = part.split(|byte| matches!(byte, b'\n' | b'\r'));
        for _ in lines.filter(|line| is_progress(line)).take(WENT_ON) {
            self.0.push_back(at);
        }
        self.0.drain(..self.0.len().saturating_sub(WENT_ON));
    }

    /// Whether the job went on for so long that no event of this moment ended it.
    pub(super) fn outlived(&self, moment: Instant) -> bool {
        let first = self.0.front().filter(|_| self.0.len() == WENT_ON);
        let went_on = first.is_some_and(|at| at.saturating_duration_since(moment) > OUTLIVED);
        went_on || moment.elapsed() > COUNTS_FOR
    }
}
