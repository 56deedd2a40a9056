//! The steps that a job reports, over time, and the time whose steps count.
//!
//! Takes when rank 0 reported how far it was, attempt by attempt, and when the job stood still; gives the goodput: the
//! time from the first to the last report of each attempt, without standstills and without what a later attempt did
//! again. Nothing is lost more than once, and what is not reported is not guessed: a counter that starts over for each
//! epoch tells no step that was done again. Pure: reads no clock.

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
    /// The share that is done, from 0 to 1; None if a counter other than the followed one gave the report.
    pub done: Option<f64>,
}

/// The reports of one attempt, in their order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Steps {
    pub attempt: u32,
    /// The number that the steps of the followed counter count up to; None if the job reports a share.
    pub total: Option<f64>,
    /// The counter starts over, as for each epoch, so its shares do not count the job.
    pub starts_over: bool,
    /// The first report, of whichever counter.
    since: Option<Millis>,
    /// From the first one of the followed counter on.
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

    /// The first report came no later than this.
    pub fn begin(&mut self, at: Millis) {
        self.since = Some(self.since.map_or(at, |since| since.min(at)));
    }

    /// A report of the counter with this total. The longest counter is followed: a shorter one before it, such as of a
    /// check of the evaluation, has other steps.
    pub fn note(&mut self, total: Option<f64>, mut report: Report) {
        if self.reports.is_empty() || total > self.total {
            self.total = total;
            self.reports.clear();
        }
        if total != self.total {
            report.done = None;
        }
        // The journal of another node may hold anything; no time of a run goes backwards.
        let is_news = self.reports.last().is_none_or(|last| {
            last.at < report.at && (report.done.is_none() || last.done != report.done)
        });
        if !is_news {
            return;
        }
        let had = self.reports.iter().rev().find_map(|one| one.done);
        self.starts_over |= report.done.is_some() && report.done < had;
        self.since.get_or_insert(report.at);
        if self.reports.len() >= MOST {
            let (mut at, last) = (0, MOST - 1);
            self.reports.retain(|_| {
                at += 1;
                at % 2 == 1 || at > last
            });
        }
        self.reports.push(report);
    }

    /// When the first report came, of whichever counter.
    pub fn since(&self) -> Option<Millis> {
        self.since
    }

    /// The first report of the followed counter.
    pub fn first(&self) -> Option<Report> {
        self.reports.first().copied()
    }

    pub fn last(&self) -> Option<Report> {
        self.reports.last().copied()
    }

    /// The moment at which more than this share was done; None if it never was, or is not known.
    fn passed(&self, share: f64) -> Option<Millis> {
        let mut shares = self.reports.iter().filter_map(|report| Some((report.at, report.done?)));
        let (mut at, mut had) = shares.next()?;
        if had >= share {
            return self.since;
        }
        for (next, done) in shares {
            if done > share {
                // Between two reports the steps took the same time.
                let part = ((share - had) / (done - had)).clamp(0.0, 1.0);
                #[expect(clippy::cast_sign_loss, reason = "reports are in their order")]
                let after = (next.saturating_sub(at) as f64 * part).round() as u64;
                return Some(at.saturating_add(after));
            }
            (at, had) = (next, done);
        }
        None
    }

    /// The moment up to which the steps count, since `later` attempts went on from there. The attempts are some of
    /// `all`: the first epoch of an attempt does not show that the counter starts over, but that of another may.
    fn counts_until(&self, later: &[Life<'_>], all: &[Life<'_>]) -> Option<Millis> {
        let last = self.last()?.at;
        let is_same = |life: &&Life<'_>| life.steps.total == self.total;
        if all.iter().filter(is_same).any(|life| life.steps.starts_over) {
            return Some(last);
        }
        let same = later.iter().filter(is_same);
        let again = same.filter_map(|life| self.passed(life.steps.first()?.done?));
        Some(again.fold(last, Millis::min))
    }
}

/// The time whose steps count, of all attempts in their order; None if no attempt reported two steps, since a single
/// one has no time.
pub fn goodput(lives: &[Life<'_>], standstills: &[(Millis, Millis)]) -> Option<Millis> {
    let mut sum = None;
    for (at, life) in lives.iter().enumerate() {
        let later = lives.get(at + 1..).unwrap_or_default();
        let is_span = |since: &Millis| life.steps.last().is_some_and(|last| *since < last.at);
        let since = life.steps.since().filter(is_span);
        let Some((since, until)) = since.zip(life.steps.counts_until(later, lives)) else {
            continue;
        };
        let (from, to) = (since.max(life.from), until.min(life.to));
        let lasted = to.saturating_sub(from).saturating_sub(stood(standstills, from, to));
        sum = Some(sum.unwrap_or(0_u64).saturating_add(lasted));
    }
    sum
}

/// The steps that were reported after `saved`, the time of the last checkpoint, in all attempts; without a checkpoint all
/// steps. None where they are not known: a counter that starts over counts no job, and a share alone has no steps.
pub(crate) fn steps_after(attempts: &[Steps], saved: Option<Millis>) -> Option<u64> {
    let last = attempts.iter().rfind(|steps| !steps.reports.is_empty())?;
    let same: Vec<&Steps> = attempts.iter().filter(|steps| steps.total == last.total).collect();
    if same.iter().any(|steps| steps.starts_over) {
        return None;
    }
    let until = last.reports.iter().rev().find_map(|report| report.done)?;
    let had = match saved {
        None => 0.0,
        Some(at) => done_at(&same, at)?,
    };
    // `as` saturates.
    #[expect(clippy::cast_sign_loss, reason = "it is not negative")]
    let steps = ((until - had).max(0.0) * last.total?).round() as u64;
    Some(steps)
}

/// The share that was done at this time; between two reports of an attempt the steps took the same time.
fn done_at(attempts: &[&Steps], at: Millis) -> Option<f64> {
    let of = |steps: &&Steps| {
        let shares = steps.reports.iter().filter_map(|report| Some((report.at, report.done?)));
        shares.collect::<Vec<_>>()
    };
    let attempts: Vec<Vec<(Millis, f64)>> = attempts.iter().map(of).collect();
    let before = attempts.iter().rfind(|shares| shares.first().is_some_and(|first| first.0 <= at));
    let Some(shares) = before else { return Some(attempts.first()?.first()?.1) };
    let next = shares.partition_point(|(reported, _)| *reported <= at);
    let (from, had) = *shares.get(next.checked_sub(1)?)?;
    let Some(&(to, done)) = shares.get(next) else { return Some(had) };
    let part = at.saturating_sub(from) as f64 / to.saturating_sub(from).max(1) as f64;
    Some(had + (done - had) * part)
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
        of_total(100.0, reports)
    }

    fn of_total(total: f64, reports: &[(u64, f64)]) -> Steps {
        let mut steps = Steps::default();
        let note = |&(at, done): &_| steps.note(Some(total), Report { at, done: Some(done) });
        reports.iter().for_each(note);
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
        let other = of_total(40.0, &[(20_000, 0.2), (21_000, 0.3)]);
        assert_eq!(goodput(&[alive(&first), alive(&other)], &[]), Some(9000));
        assert_eq!(goodput(&[alive(&Steps::default())], &[]), None);
    }

    #[test]
    fn one_report_is_no_goodput() {
        let (one, two) = (steps(&[(1000, 0.1)]), steps(&[(5000, 0.1), (6000, 0.2)]));
        assert_eq!(goodput(&[alive(&one)], &[]), None);
        assert_eq!(goodput(&[alive(&one), alive(&two)], &[]), Some(1000));
        assert_eq!(goodput(&[alive(&two), alive(&one)], &[]), Some(0), "all was done again");
    }

    #[test]
    fn epoch_counters_tell_no_repeated_step() {
        let epochs = steps(&[(1000, 0.1), (3000, 1.0), (4000, 0.1), (6000, 1.0)]);
        let next = steps(&[(20_000, 0.1), (21_000, 0.5)]);
        for lives in [[&epochs, &next], [&next, &epochs]] {
            assert_eq!(goodput(&lives.map(alive), &[]), Some(6000));
        }
    }

    #[test]
    fn shorter_counters_have_no_share_of_the_job() {
        let short = [(1000, 0.5), (2000, 1.0)];
        let long = |from: u64, at: u64| {
            (1..=3).map(move |one| (at + one * 1000, (from + one) as f64 / 100.0))
        };
        let run = |from, at: u64| {
            let mut steps = of_total(2.0, &short.map(|(after, done)| (at + after, done)));
            for (at, done) in long(from, at + 2000) {
                steps.note(Some(100.0), Report { at, done: Some(done) });
                steps.note(Some(10.0), Report { at: at + 1, done: Some(done) });
            }
            steps
        };
        let (first, goes_on, repeats) = (run(0, 0), run(3, 50_000), run(1, 50_000));
        assert_eq!((first.since(), first.first().map(|one| one.at)), (Some(1000), Some(3000)));
        assert!(!first.starts_over);
        assert_eq!(goodput(&[alive(&first), alive(&goes_on)], &[]), Some(4001 + 4001));
        // It went on from step 2, which was done after 4 s.
        assert_eq!(goodput(&[alive(&first), alive(&repeats)], &[]), Some(3000 + 4001));
        let same = run(0, 50_000);
        assert_eq!(goodput(&[alive(&first), alive(&same)], &[]), Some(4001));
    }

    #[test]
    fn steps_after_the_checkpoint_are_those_of_the_counter() {
        let first = steps(&[(1000, 0.1), (3000, 0.3), (9000, 0.9)]);
        let again = steps(&[(20_000, 0.2), (23_000, 0.5)]);
        let all = [first.clone(), again];
        for (saved, lost) in [
            (Some(9000), 0),
            (Some(3000), 60),
            (Some(6000), 30),
            // Before the first report, and after the last one.
            (Some(10), 80),
            (Some(50_000), 0),
            (None, 90),
        ] {
            assert_eq!(steps_after(&all[..1], saved), Some(lost), "{saved:?}");
        }
        // Saved in the first attempt, from which the second one went on.
        for (saved, lost) in [(Some(2000), 30), (Some(22_000), 10), (Some(9000), 0), (None, 50)] {
            assert_eq!(steps_after(&all, saved), Some(lost), "{saved:?}");
        }
        let epochs = steps(&[(1000, 0.1), (3000, 1.0), (4000, 0.1)]);
        assert_eq!(steps_after(&[first, epochs], Some(2000)), None, "the counter starts over");
        let mut share = Steps::default();
        share.note(None, Report { at: 1000, done: Some(0.5) });
        assert_eq!(steps_after(&[share], Some(10)), None, "no counter");
        assert_eq!(steps_after(&[], None), None);
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
            many.note(None, Report { at, done: Some(at as f64 / 1e5) });
            assert!(many.reports.len() <= MOST);
            assert_eq!((many.reports[0].at, many.reports[many.reports.len() - 1].at), (0, at));
        }
        assert!(many.reports.len() > MOST / 4);
        let middle = many.passed(0.5).expect("it was passed");
        assert!(middle.abs_diff(50_000) < 10, "{middle}");
        many.note(None, Report { at: 5, done: Some(0.0) });
        assert_eq!(many.last().map(|last| last.at), Some(99_999), "time never goes backwards");
    }
}
