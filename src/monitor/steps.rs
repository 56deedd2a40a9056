//! The steps that a job reports, over time, and the time whose steps count.
//!
//! Takes when rank 0 reported how far it was, attempt by attempt, and when the job stood still; gives the goodput: the
//! time from the first to the last report of each attempt, without standstills and without what a later attempt did
//! again. Nothing is lost more than once, and what is not reported is not guessed. Pure: reads no clock.

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970, UTC.
type Millis = u64;

/// Maximum number of reports that are kept of an attempt; the first and the last one always are.
const MOST: usize = 512;

/// One report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    pub at: Millis,
    /// The share of the job that is done, from 0 to 1; None if the counter starts over and so does not count the job.
    pub done: Option<f64>,
}

/// The reports of one attempt, in their order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Steps {
    pub attempt: u32,
    /// The number that the steps count up to; None if the job reports a share.
    pub total: Option<f64>,
    reports: Vec<Report>,
}

/// The time in which all ranks of an attempt lived, and its steps.
#[derive(Debug, Clone, Copy)]
pub struct Life<'s> {
    pub from: Millis,
    pub to: Millis,
    pub steps: &'s Steps,
}

impl Steps {
    pub fn of(attempt: u32) -> Steps {
        Steps { attempt, ..Steps::default() }
    }

    pub fn note(&mut self, report: Report) {
        // The journal of another node may hold anything; no time of a run goes backwards.
        let is_news = self.reports.last().is_none_or(|last| {
            last.at < report.at && (report.done.is_none() || last.done != report.done)
        });
        if !is_news {
            return;
        }
        if self.reports.len() >= MOST {
            let (mut at, last) = (0, MOST - 1);
            self.reports.retain(|_| {
                at += 1;
                at % 2 == 1 || at > last
            });
        }
        self.reports.push(report);
    }

    pub fn first(&self) -> Option<Report> {
        self.reports.first().copied()
    }

    pub fn last(&self) -> Option<Report> {
        self.reports.last().copied()
    }

    /// The moment at which more than this share was done; None if it never was, or is not known.
    fn passed(&self, share: f64) -> Option<Millis> {
        let mut before: Option<(Millis, f64)> = None;
        for report in &self.reports {
            let done = report.done?;
            if done > share {
                // Between two reports the steps took the same time.
                return Some(before.map_or(report.at, |(at, had)| {
                    let part = ((share - had) / (done - had)).clamp(0.0, 1.0);
                    #[expect(clippy::cast_sign_loss, reason = "reports are in their order")]
                    let after = (report.at.saturating_sub(at) as f64 * part).round() as u64;
                    at.saturating_add(after)
                }));
            }
            before = Some((report.at, done));
        }
        None
    }

    /// The moment up to which the steps count, since `later` attempts went on from there.
    fn counts_until(&self, later: &[Life<'_>]) -> Option<Millis> {
        let last = self.last()?.at;
        let same = later.iter().filter(|life| life.steps.total == self.total);
        let again = same.filter_map(|life| self.passed(life.steps.first()?.done?));
        Some(again.fold(last, Millis::min))
    }
}

/// The time whose steps count, of all attempts in their order; None if no attempt reported a step.
pub fn goodput(lives: &[Life<'_>], standstills: &[(Millis, Millis)]) -> Option<Millis> {
    let mut sum = None;
    for (at, life) in lives.iter().enumerate() {
        let later = lives.get(at + 1..).unwrap_or_default();
        let Some((first, until)) = life.steps.first().zip(life.steps.counts_until(later)) else {
            continue;
        };
        let (from, to) = (first.at.max(life.from), until.min(life.to));
        let lasted = to.saturating_sub(from).saturating_sub(stood(standstills, from, to));
        sum = Some(sum.unwrap_or(0_u64).saturating_add(lasted));
    }
    sum
}

/// The time of these standstills within a span; time that two of them share counts once.
pub(crate) fn stood(standstills: &[(Millis, Millis)], from: Millis, to: Millis) -> Millis {
    let mut within: Vec<_> =
        standstills.iter().map(|&(began, over)| (began.max(from), over.min(to))).collect();
    within.sort_unstable();
    let (mut sum, mut done) = (0_u64, from);
    for (began, over) in within {
        let began = began.max(done);
        sum = sum.saturating_add(over.saturating_sub(began));
        done = done.max(over);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(reports: &[(u64, f64)]) -> Steps {
        let mut steps = Steps { total: Some(100.0), ..Steps::default() };
        reports.iter().for_each(|&(at, done)| steps.note(Report { at, done: Some(done) }));
        steps
    }

    fn alive(steps: &Steps) -> Life<'_> {
        Life { from: 0, to: u64::MAX, steps }
    }

    #[test]
    fn repeated_steps_do_not_count_twice() {
        let first = steps(&[(1000, 0.1), (3000, 0.3), (9000, 0.9)]);
        for (from, counts) in [(0.91, 8000), (0.9, 8000), (0.6, 5000), (0.2, 1000), (0.05, 0)] {
            let second = steps(&[(20_000, from), (21_000, from + 0.05)]);
            let lives = [alive(&first), alive(&second)];
            assert_eq!(goodput(&lives, &[]), Some(counts + 1000), "from {from}");
        }
        // Numbers of another total are not the same steps.
        let other = Steps { total: Some(40.0), ..steps(&[(20_000, 0.2), (21_000, 0.3)]) };
        assert_eq!(goodput(&[alive(&first), alive(&other)], &[]), Some(9000));
        assert_eq!(goodput(&[alive(&Steps::default())], &[]), None);
    }

    #[test]
    fn overlapping_standstills_count_once() {
        let stands = [(50, 100), (90, 120), (0, 60), (500, 400), (119, u64::MAX)];
        assert_eq!(stood(&stands, 10, 110), 100);
        assert_eq!(stood(&stands, 100, 200), 100);
        assert_eq!(stood(&[], 0, 10), 0);
        let one = steps(&[(1000, 0.1), (9000, 0.9)]);
        assert_eq!(goodput(&[alive(&one)], &[(2000, 5000), (8500, 20_000)]), Some(4500));
    }

    #[test]
    fn reports_stay_bounded_between_first_and_last() {
        let mut many = Steps::default();
        for at in 0..100_000_u64 {
            many.note(Report { at, done: Some(at as f64 / 1e5) });
            assert!(many.reports.len() <= MOST);
            assert_eq!((many.reports[0].at, many.reports[many.reports.len() - 1].at), (0, at));
        }
        assert!(many.reports.len() > MOST / 4);
        let middle = many.passed(0.5).expect("it was passed");
        assert!(middle.abs_diff(50_000) < 10, "{middle}");
        many.note(Report { at: 5, done: Some(0.0) });
        assert_eq!(many.last().map(|last| last.at), Some(99_999), "time never goes backwards");
    }
}
