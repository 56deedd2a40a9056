//! Decides which rules hold at the moment.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::breach::{Breach, Seen};
use super::lines::Partial;
use settings::{Expects, Lines, Rule, Time};
use text::rank::GlobalRank;
use verdict::outcome::Stream;

/// Percent. An idle GPU shows a few of them now and then, when a console is drawn or the GPU is
/// read.
const IDLE: u32 = 1;

/// The rules of a job on this node.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Watched>,
    streams: BTreeMap<(GlobalRank, Stream), Partial>,
    /// Start times of the running ranks. The first lines of a rank may be read before its start is
    /// reported.
    ranks: BTreeMap<GlobalRank, Instant>,
    last: BTreeMap<GlobalRank, Seen>,
    /// Time since which all GPUs are idle, and time of the last look that confirmed it.
    idle: Option<(Instant, Instant)>,
    found: Vec<Breach>,
    stopped: bool,
}

#[derive(Debug)]
struct Watched {
    rule: Rule,
    ranks: BTreeMap<GlobalRank, State>,
    idle_told: bool,
}

/// State of a rule for a rank.
#[derive(Debug, Default)]
struct State {
    /// The last line that matches.
    seen: Option<Seen>,
    /// A breach was reported and has not ended.
    told: bool,
}

impl Rules {
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Rules {
        let watched = |rule| Watched { rule, ranks: BTreeMap::new(), idle_told: false };
        Rules {
            rules: rules.into_iter().map(watched).collect(),
            streams: BTreeMap::new(),
            ranks: BTreeMap::new(),
            last: BTreeMap::new(),
            idle: None,
            found: Vec::new(),
            stopped: false,
        }
    }

    pub fn began(&mut self, rank: GlobalRank, at: Instant) {
        self.ranks.insert(rank, at);
    }

    /// Nothing could be written before this moment, since neither the ranks nor their watcher ran.
    pub fn begin_afresh(&mut self, at: Instant) {
        self.ranks.values_mut().for_each(|began| *began = at);
        let states = self.rules.iter_mut().flat_map(|watched| watched.ranks.values_mut());
        states.filter_map(|state| state.seen.as_mut()).for_each(|seen| seen.at = at);
        self.idle = None;
    }

    /// Nothing is expected of a rank that has ended.
    pub fn ended(&mut self, rank: GlobalRank) {
        self.ranks.remove(&rank);
    }

    /// Nothing is expected of a job that is stopped.
    pub fn stopping(&mut self) {
        self.stopped = true;
    }

    /// A part of a rank's output. `skipped`: bytes before it are missing.
    pub fn feed(
        &mut self,
        (rank, stream): (GlobalRank, Stream),
        at: Instant,
        skipped: bool,
        part: &[u8],
    ) {
        let Rules { rules, streams, last, found, .. } = self;
        let partial = streams.entry((rank, stream)).or_default();
        if skipped {
            partial.skip();
            rules.iter_mut().for_each(|watched| watched.excuse(rank, stream, at));
        }
        partial.feed(part, |line| {
            for watched in &mut *rules {
                found.extend(watched.take(rank, stream, at, line));
            }
            last.insert(rank, Seen::of(at, line));
        });
    }

    /// The utilisation of the job's GPUs on this node in percent. Without an answer nothing is known
    /// about them.
    pub fn gpus(&mut self, at: Instant, utilisation: &[u32]) {
        let is_idle = !utilisation.is_empty() && utilisation.iter().all(|percent| *percent <= IDLE);
        self.idle = match self.idle {
            _ if !is_idle || self.ranks.is_empty() => None,
            Some((since, _)) => Some((since, at)),
            None => Some((at, at)),
        };
        if self.idle.is_none() {
            self.rules.iter_mut().for_each(|watched| watched.idle_told = false);
        }
    }

    /// Interval at which the GPUs have to be read; None if no rule concerns them.
    pub fn gpu_pace(&self) -> Option<Duration> {
        let times = self.rules.iter().filter_map(|watched| match watched.rule.expects {
            Expects::BusyGpus(time) => Some(time),
            _ => None,
        });
        let shortest = times.min()? / 10;
        Some(shortest.clamp(Duration::from_secs(1), Duration::from_secs(30)))
    }

    /// The rules that were broken since the last call. All output before `now` has been fed.
    pub fn judge(&mut self, now: Instant) -> Vec<Breach> {
        let Rules { rules, ranks, last, idle, found, stopped, .. } = self;
        if *stopped {
            found.clear();
            return Vec::new();
        }
        for watched in rules {
            found.extend(watched.absent(ranks, last, now));
            found.extend(watched.idle(*idle));
        }
        std::mem::take(found)
    }
}

impl Watched {
    /// A whole line of a rank.
    fn take(
        &mut self,
        rank: GlobalRank,
        stream: Stream,
        at: Instant,
        line: &[u8],
    ) -> Option<Breach> {
        let Watched { rule, ranks, .. } = self;
        match &rule.expects {
            Expects::Line(lines, _) => {
                if lines.concern(rank, stream) && lines.pattern.is_match(line) {
                    let seen = Some(Seen::of(at, line));
                    ranks.insert(rank, State { seen, told: false });
                }
                None
            }
            Expects::Number { lines, min, max } => {
                let value = lines.concern(rank, stream).then(|| number(lines, line))??;
                let holds = value.is_finite()
                    && min.is_none_or(|min| value >= min)
                    && max.is_none_or(|max| value <= max);
                let state = ranks.entry(rank).or_default();
                let news = !holds && !state.told;
                state.told = !holds;
                news.then(|| Breach::of_number(rule, rank, value, Seen::of(at, line)))
            }
            Expects::BusyGpus(_) => None,
        }
    }

    /// The expected line may have been among the missing lines.
    fn excuse(&mut self, rank: GlobalRank, stream: Stream, at: Instant) {
        if let Expects::Line(lines, _) = &self.rule.expects
            && lines.concern(rank, stream)
        {
            let state = self.ranks.entry(rank).or_default();
            let first = matches!(self.rule.expects, Expects::Line(_, Time::Within(_)));
            if first || state.seen.is_some() {
                state.seen = Some(Seen::of(at, b""));
            }
        }
    }

    fn absent(
        &mut self,
        running: &BTreeMap<GlobalRank, Instant>,
        last: &BTreeMap<GlobalRank, Seen>,
        now: Instant,
    ) -> Vec<Breach> {
        let Watched { rule, ranks, .. } = self;
        let Expects::Line(lines, time) = &rule.expects else { return Vec::new() };
        let mut found = Vec::new();
        for (rank, began) in running.iter().filter(|(rank, _)| lines.ranks.has(**rank)) {
            let state = ranks.entry(*rank).or_default();
            let (since, most) = match (time, &state.seen) {
                (Time::Within(most), None) => (*began, *most),
                (Time::Every(most), Some(seen)) => (seen.at, *most),
                (Time::Within(_), Some(_)) | (Time::Every(_), None) => continue,
            };
            if !state.told && now.saturating_duration_since(since) >= most {
                state.told = true;
                found.push(Breach::of_absence(rule, *rank, since, last.get(rank).cloned()));
            }
        }
        found
    }

    fn idle(&mut self, idle: Option<(Instant, Instant)>) -> Option<Breach> {
        let (Expects::BusyGpus(most), Some((since, until))) = (&self.rule.expects, idle) else {
            return None;
        };
        let news = !self.idle_told && until.saturating_duration_since(since) >= *most;
        self.idle_told |= news;
        news.then(|| Breach::of_gpus(&self.rule, since))
    }
}

/// The number of a matching line. None if the value is not a number (`-`, `?`).
fn number(lines: &Lines, line: &[u8]) -> Option<f64> {
    let found = lines.pattern.captures(line)?;
    std::str::from_utf8(found.name(Lines::VALUE)?.as_bytes()).ok()?.trim().parse().ok()
}
