//! The progress of a job, from the lines of its rank 0.
//!
//! Takes the output of one rank; gives the share that is done, the remaining time, the numbers beside them, and the
//! steps so far to whoever holds the [`StepReports`]. Reads no clock. Without a pattern of the user's, only
//! unmistakable lines count: a progress bar without a title, or `step 3/100`. A wrong number is worse than none.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use regex::bytes::{Captures, Regex};

use super::rules::Partial;
use crate::held;
use settings::TellsProgress;
use text::letters::is_hidden;
use text::pattern;
use verdict::outcome::Stream;

/// A progress bar of tqdm without a title: one with a title counts files, shards or the batches of an epoch.
const BAR: &str =
    r"^\s*\d{1,3}%\|[^|]*\| *(?P<step>\d+)/(?P<total>\d+) \[[\d:]+<(?P<left>[\d:]+|\?)";
/// `step 3/100`, `Iteration [3/100]`, `global_step: 3 of 100`; with the group `other`, of a counter that is not the
/// job's: `val step 1/10`.
const STEP: &str = r"(?i-u:(?P<other>\b(?:eval|evaluation|val|valid|validation|test|sanity|warmup)\W+)?\b(?:global[_ ])?(?:step|iter|iteration)s?\b[\s:=\[(#]*(?P<step>\d+)\s*(?:/|of)\s*(?P<total>\d+)\b)";
/// `loss=0.23`, `lr: 1e-4`.
const NUMBER: &str = r"(?P<name>[A-Za-z_][\w./-]*)['\x22]?\s*[:=]\s*(?P<value>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?:[\s,;)\]}]|$)";

/// Maximum number of values that are kept.
const MOST: usize = 32;
/// Maximum characters of a name and of a value.
const LONGEST: usize = 64;

/// Maximum time from the first to the last line of those that were written at once.
const BURST: Duration = Duration::from_millis(20);
/// Number of steps whose times are kept.
const RECENT: usize = 120;
/// Maximum number of reports that are kept until somebody takes them.
const MOST_REPORTS: usize = 512;

/// The group of the time that is left.
const LEFT: &str = "left";
/// The group of a word by which a built-in pattern counts something else.
const OTHER: &str = "other";
/// Maximum count: a larger one has no exact value, and no job has so many steps.
const MOST_STEPS: f64 = (1_u64 << 53) as f64;

#[derive(Debug, Clone, PartialEq)]
pub struct JobProgress {
    /// The share that is done, from 0 to 1.
    pub done: f64,
    pub remaining: Option<Duration>,
    /// Names and values as they were printed: at most 32, of 64 letters.
    pub metrics: Vec<(String, String)>,
}

/// The reports of the job so far. Clones are the same; each use is a short lock.
#[derive(Debug, Clone, Default)]
pub struct StepReports(Arc<Mutex<Reported>>);

/// What the lines of a job have reported.
#[derive(Debug, Clone, Default)]
pub struct Reported {
    /// The count of the last line, and the number that it counts up to; None if the lines give a share.
    pub step: Option<(f64, f64)>,
    /// The last report of the whole job; None if the counter starts over.
    pub latest: Option<JobProgress>,
    /// When the lines came, the share that was done and the number that their counter counts up to, of the lines that
    /// nobody has taken yet.
    pub news: VecDeque<(Instant, f64, Option<f64>)>,
    /// Seconds of each of the last steps.
    pub recent: VecDeque<f64>,
    /// The counter starts over for each epoch, so it does not count the job.
    pub starts_over: bool,
}

impl StepReports {
    /// What was reported so far. The news are taken.
    pub fn take(&self) -> Reported {
        let mut reported = held(&self.0);
        let news = std::mem::take(&mut reported.news);
        Reported { news, ..reported.clone() }
    }

    pub fn latest(&self) -> Option<JobProgress> {
        held(&self.0).latest.clone()
    }
}

/// Reads the lines of one rank.
#[derive(Debug, Default)]
pub struct ProgressLines {
    patterns: Vec<Regex>,
    /// The pattern of the numbers in a line, if the user gives none.
    number: Option<Regex>,
    out: Partial,
    err: Partial,
    /// The total that the lines count up to, and their last count.
    followed: Option<(f64, f64)>,
    /// The first line, for the rate.
    first: Option<(Instant, f64)>,
    /// The last line that counted: its step and its total.
    last: Option<(f64, Option<f64>)>,
    /// The line from which the time of the next steps counts; without its step, the counter was set back since.
    paced: Option<(Instant, Option<f64>)>,
    reports: StepReports,
    /// The counter starts over for each epoch, so it does not count the job.
    starts_over: bool,
}

/// The progress that one line reports.
struct Said {
    done: f64,
    step: f64,
    /// None if the line gives a share.
    total: Option<f64>,
    left: Option<Duration>,
}

impl Said {
    /// What a built-in pattern finds may count something else.
    fn counts_the_job(&self, captures: &Captures<'_>) -> bool {
        captures.name(OTHER).is_none() && self.total.is_none_or(|total| self.step <= total)
    }
}

impl ProgressLines {
    /// `pattern`: the user's, which replaces the built-in ones.
    pub fn new(pattern: Option<Regex>) -> ProgressLines {
        let own = pattern.is_some();
        let known =
            || [BAR, STEP].iter().filter_map(|known| pattern::compile(known).ok()).collect();
        ProgressLines {
            patterns: pattern.map_or_else(known, |pattern| vec![pattern]),
            number: if own { None } else { pattern::compile(NUMBER).ok() },
            ..ProgressLines::default()
        }
    }

    /// A part of what the rank writes. `skipped`: bytes before it are missing.
    pub fn feed(&mut self, stream: Stream, at: Instant, skipped: bool, part: &[u8]) {
        let own = if stream == Stream::Out { &mut self.out } else { &mut self.err };
        let mut partial = std::mem::take(own);
        if skipped {
            partial.skip();
        }
        partial.feed(part, |line| self.take(at, line));
        // A progress bar writes the carriage return before the line, so its last one has no end.
        if let Some(line) = partial.unfinished().filter(|line| line.ends_with(b"]")) {
            self.take(at, line);
        }
        *(if stream == Stream::Out { &mut self.out } else { &mut self.err }) = partial;
    }

    /// The reports so far, and those to come.
    pub fn reports(&self) -> StepReports {
        self.reports.clone()
    }

    fn take(&mut self, at: Instant, line: &[u8]) {
        let found =
            self.patterns.iter().find_map(|pattern| Some((pattern, pattern.captures(line)?)));
        let Some((pattern, captures)) = found else { return };
        let is_own = self.number.is_none();
        let Some(said) = said(&captures).filter(|said| is_own || said.counts_the_job(&captures))
        else {
            return;
        };
        let metrics = match &self.number {
            Some(number) => numbers(number, line),
            None => groups(pattern, &captures),
        };
        if self.number.is_some() && !self.follows(&said) {
            return;
        }
        let first = self.first.get_or_insert((at, said.done));
        if is_one_burst(first.0, at) {
            first.1 = said.done;
        }
        let (since, from) = *first;
        let gained = said.done - from;
        let by_rate = || {
            let spent = at.saturating_duration_since(since).as_secs_f64();
            let left = spent * (1.0 - said.done) / gained;
            (gained > 0.0 && spent > 0.0).then(|| Duration::try_from_secs_f64(left).ok())?
        };
        let remaining = said.left.or_else(by_rate);
        let last = self.last.replace((said.step, said.total));
        let took = self.step_took(at, &said, last);
        let whole = !self.starts_over;
        let mut reported = held(&self.reports.0);
        reported.starts_over = self.starts_over;
        reported.step = said.total.map(|total| (said.step, total));
        reported.latest = whole.then_some(JobProgress { done: said.done, remaining, metrics });
        if last == Some((said.step, said.total)) {
            return;
        }
        reported.news.push_back((at, said.done, said.total));
        if reported.news.len() > MOST_REPORTS {
            // The newest report stays.
            reported.news.remove(MOST_REPORTS / 2);
        }
        reported.recent.extend(took);
        let surplus = reported.recent.len().saturating_sub(RECENT);
        reported.recent.drain(..surplus);
    }

    /// Seconds of each step since the last burst of lines. A rank that buffers its output writes many lines at once, so
    /// the first line of a burst comes as many steps after the first one of the burst before as that one had lines.
    fn step_took(
        &mut self,
        at: Instant,
        said: &Said,
        last: Option<(f64, Option<f64>)>,
    ) -> Option<f64> {
        let is_set_back = last.is_some_and(|(step, total)| total != said.total || said.step < step);
        if let Some((_, from)) = self.paced.as_mut().filter(|_| is_set_back) {
            *from = None;
        }
        if self.paced.is_some_and(|(since, _)| is_one_burst(since, at)) {
            return None;
        }
        let (since, from) = self.paced.replace((at, Some(said.step)))?;
        let steps =
            said.total.and(from.map(|from| said.step - from)).filter(|steps| *steps > 0.0)?;
        Some(at.saturating_duration_since(since).as_secs_f64() / steps)
    }

    /// If there are several counters, the one with the most steps counts the job: an evaluation has fewer.
    fn follows(&mut self, said: &Said) -> bool {
        let Some(total) = said.total else { return true };
        match self.followed {
            Some((known, _)) if known > total => return false,
            Some((known, done)) if known == total && said.done < done => self.starts_over = true,
            Some((known, _)) if known == total => {}
            _ => self.first = None,
        }
        self.followed = Some((total, said.done));
        true
    }
}

fn is_one_burst(first: Instant, at: Instant) -> bool {
    at.saturating_duration_since(first) < BURST
}

fn text<'l>(captures: &Captures<'l>, name: &str) -> Option<&'l str> {
    std::str::from_utf8(captures.name(name)?.as_bytes()).ok().map(str::trim)
}

fn said(captures: &Captures<'_>) -> Option<Said> {
    let number = |name| text(captures, name)?.parse::<f64>().ok().filter(|one| one.is_finite());
    let left = text(captures, LEFT).and_then(clock);
    if let Some(percent) = number(TellsProgress::PERCENT) {
        let done = (percent / 100.0).clamp(0.0, 1.0);
        return Some(Said { done, step: percent, total: None, left });
    }
    let (step, total) = (number(TellsProgress::STEPS)?, number(TellsProgress::TOTAL)?);
    let is_count = step >= 0.0 && step.max(total) <= MOST_STEPS;
    (total > 0.0 && is_count).then(|| {
        let done = (step / total).clamp(0.0, 1.0);
        Said { done, step, total: Some(total), left }
    })
}

/// `1:02:03`, `02:03`, or seconds.
fn clock(text: &str) -> Option<Duration> {
    let add = |sum: u64, part: &str| sum.checked_mul(60)?.checked_add(part.parse().ok()?);
    text.split(':').try_fold(0, add).map(Duration::from_secs)
}

fn short(text: &str) -> String {
    text.chars().filter(|letter| !is_hidden(*letter)).take(LONGEST).collect()
}

fn numbers(number: &Regex, line: &[u8]) -> Vec<(String, String)> {
    let found = number.captures_iter(line).take(MOST).filter_map(|captures| {
        Some((short(text(&captures, "name")?), short(text(&captures, "value")?)))
    });
    let counts = |name: &str| ["step", "iter", "epoch"].iter().any(|word| name.contains(word));
    found.filter(|(name, _)| !counts(&name.to_ascii_lowercase())).collect()
}

fn groups(pattern: &Regex, captures: &Captures<'_>) -> Vec<(String, String)> {
    let names = pattern.capture_names().flatten();
    let metrics = names.filter(|name| {
        ![TellsProgress::PERCENT, TellsProgress::STEPS, TellsProgress::TOTAL, LEFT].contains(name)
    });
    let found = metrics.filter_map(|name| Some((short(name), short(text(captures, name)?))));
    found.take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The progress after lines that come 10 s apart.
    fn after(pattern: Option<&str>, parts: &[&str]) -> Option<JobProgress> {
        let pattern = pattern.map(|text| pattern::compile(text).expect("a pattern"));
        let mut lines = ProgressLines::new(pattern);
        let mut at = Instant::now();
        for part in parts {
            lines.feed(Stream::Err, at, false, part.as_bytes());
            at += Duration::from_secs(10);
        }
        lines.reports().latest()
    }

    fn shown(progress: Option<JobProgress>) -> String {
        let Some(JobProgress { done, remaining, metrics }) = progress else { return String::new() };
        let left = remaining.map_or_else(String::new, |left| format!(" {} s", left.as_secs()));
        let metrics = metrics.iter().map(|(name, value)| format!(" {name}={value}"));
        format!("{:.0} %{left}{}", done * 100.0, metrics.collect::<String>())
    }

    #[test]
    fn progress_bars_and_step_lines_yield_job_progress() {
        let bar = "  3%|▎         | 30/1000 [00:10<1:05:20,  3.03it/s, loss=0.23, v_num=4]";
        assert_eq!(shown(after(None, &[bar])), "3 % 3920 s loss=0.23 v_num=4");
        let begins = "  0%|          | 0/1000 [00:00<?, ?it/s]";
        assert_eq!(shown(after(None, &["\r", begins, "\r", bar])), "3 % 3920 s loss=0.23 v_num=4");
        let steps = ["step 10/100 loss: 2.5\n", "step 20/100 loss: 1.5, lr: 1e-4 grad.norm=nan\n"];
        assert_eq!(shown(after(None, &steps)), "20 % 80 s loss=1.5 lr=1e-4");
        assert_eq!(shown(after(None, &["Iteration [5/10] ok\n"])), "50 %");
        assert_eq!(shown(after(None, &["{'loss': 0.5, 'global_step': '5 of 10'}\n"])), "");
        for other in [
            "Loading checkpoint shards: 100%|████| 4/4 [00:01<00:00,  3.1it/s]\n",
            "Epoch 1:  50%|█████     | 5/10 [00:01<00:01,  3.1it/s]\n",
            "2026/11/23 step\n",
            "step 3/0\n",
            "footstep 3/10\n",
            "step 11/10\n",
            "step 99999999999999999999/999999999999999999999\n",
            "step 3/9007199254740993000\n",
        ] {
            assert_eq!(shown(after(None, &[other])), "", "{other}");
        }
    }

    #[test]
    fn evaluation_and_epoch_counts_are_not_job_progress() {
        let evaluation = ["step 10/100\n", "  50%|█████| 5/10 [00:01<00:01,  3.1it/s]\n"];
        assert_eq!(shown(after(None, &evaluation)), "10 %");
        assert_eq!(shown(after(None, &["step 5/10\n", "step 10/100\n"])), "10 %");
        for word in ["eval", "Val:", "valid", "[Validation]", "test", "sanity", "WARMUP global"] {
            let line = format!("{word} step 5/1000\n");
            assert_eq!(shown(after(None, &[&line])), "", "{line}");
            let lines = ["step 10/100\n", &line, "step 20/100\n"];
            assert_eq!(shown(after(None, &lines)), "20 % 160 s", "{line}");
        }
        for line in ["train step 5/10\n", "val 0.3 step 5/10\n", "interval step 5/10\n"] {
            assert!(shown(after(None, &[line])).starts_with("50 %"), "{line}");
        }
        let epochs = ["step 99/100\n", "step 1/100\n", "step 2/100\n"];
        assert_eq!(shown(after(None, &epochs)), "", "it counts the steps of each epoch");
    }

    #[test]
    fn step_times_and_changes_are_reported() {
        let mut lines = ProgressLines::new(None);
        let reports = lines.reports();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        for (second, line) in
            [(0, "step 1/9\n"), (4, "step 3/9\n"), (5, "step 3/9\n"), (8, "step 4/9\n")]
        {
            lines.feed(Stream::Out, at(second), false, line.as_bytes());
        }
        let taken = reports.take();
        assert_eq!(taken.step, Some((4.0, 9.0)));
        assert_eq!(taken.recent, [2.0, 3.0]);
        let seen: Vec<_> = taken.news.iter().map(|(when, ..)| *when).collect();
        assert_eq!(seen, [at(0), at(4), at(8)], "a count that stays is no progress");
        assert!(reports.take().news.is_empty());
        lines.feed(Stream::Out, at(9), false, b"step 1/9\n");
        let again = reports.take();
        assert_eq!(again.news, [(at(9), 1.0 / 9.0, Some(9.0))]);
        assert!(again.starts_over && again.latest.is_none() && again.recent == [2.0, 3.0]);
        for second in 10..5000 {
            let line = format!("step {second}/9999\n");
            lines.feed(Stream::Out, at(second), false, line.as_bytes());
        }
        let many = reports.take();
        assert_eq!((many.news.len(), many.recent.len()), (MOST_REPORTS, RECENT));
        assert_eq!(many.news.back().map(|(when, ..)| *when), Some(at(4999)));
    }

    /// A rank that buffers its output: a step each 250 ms, and some lines at once.
    #[test]
    fn bursts_of_lines_keep_pace_and_remaining_time() {
        for (size, split) in [(1, 0), (2, 0), (12, 0), (12, 5), (40, 0)] {
            let mut lines = ProgressLines::new(None);
            let began = Instant::now();
            for burst in 0..6 {
                let at = began + Duration::from_millis(burst * size * 250);
                let late = at + Duration::from_millis(3);
                for line in 1..=size {
                    let at = if line <= split { at } else { late };
                    let text = format!("step {}/1000\n", burst * size + line);
                    lines.feed(Stream::Out, at, false, text.as_bytes());
                }
            }
            let reports = lines.reports().take();
            assert_eq!(reports.recent.len(), 5, "{size}");
            for took in reports.recent {
                assert!((took - 0.25).abs() < 0.01, "{size}: {took}");
            }
            let left = reports.latest.and_then(|latest| latest.remaining).expect("a rate");
            let expected = (1000 - 6 * size) as f64 * 0.25;
            assert!((left.as_secs_f64() / expected - 1.0).abs() < 0.01, "{size}: {left:?}");
        }
    }

    #[test]
    fn counters_set_back_within_a_burst_have_no_pace() {
        let mut lines = ProgressLines::new(None);
        let began = Instant::now();
        for (second, text) in [
            (0, "step 2/9\nstep 9/9\nstep 1/9\nstep 2/9\n"),
            (3, "step 3/9\nstep 5/9\n"),
            (5, "step 7/9\nstep 1/10\n"),
            (6, "step 8/10\n"),
            (7, "step 9/10\n"),
        ] {
            let at = began + Duration::from_secs(second);
            lines.feed(Stream::Out, at, false, text.as_bytes());
        }
        assert_eq!(lines.reports().take().recent, [0.5, 1.0]);
    }

    #[test]
    fn user_pattern_replaces_the_builtin_patterns() {
        let share = r"done (?P<percent>[\d.]+) %, loss (?P<loss>\S+)";
        assert_eq!(shown(after(Some(share), &["done 12.5 %, loss 0.1\n"])), "12 % loss=0.1");
        assert_eq!(shown(after(Some(share), &["step 10/100\n"])), "");
        let steps = r"it (?P<step>\d+) of (?P<total>\d+), (?P<left>\d+) s left";
        let again = ["it 9 of 10, 1 s left\n", "it 1 of 10, 9 s left\n"];
        assert_eq!(shown(after(Some(steps), &again)), "10 % 9 s", "it was set back");
        let other = r"(?P<other>\w+) (?P<step>\S+) of (?P<total>\d+)";
        assert_eq!(shown(after(Some(other), &["val 12 of 10\n"])), "100 % other=val");
        assert_eq!(shown(after(Some(other), &["val -1 of 10\n"])), "");
    }
}
