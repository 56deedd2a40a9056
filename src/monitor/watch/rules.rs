//! The rules of a profile (`[[watch]]`): the lines that a working job prints, and the use of its GPUs.
//!
//! Takes the output of ranks, the utilisation of GPUs and the starts and ends of ranks, each with its
//! time; gives a [`Breach`] once, and again only after the rule held in between. Reads no clock. Judges an
//! absence only up to a moment whose lines it has: a wrong alarm is worse than a late one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use linux::pace::spell;
use settings::{Expects, Lines, Reaction, Rule, Time};
use text::lang::{Lang, Text};
use text::letters::is_hidden;
use text::mask::mask_file;
use text::rank::GlobalRank;
use text::text;
use verdict::outcome::Stream;

/// Percent. An idle GPU shows a few of them now and then, when a console is drawn or the GPU is
/// read.
const IDLE: u32 = 1;

/// The rules of a job on this node.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<WatchedRule>,
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
struct WatchedRule {
    rule: Rule,
    ranks: BTreeMap<GlobalRank, RuleState>,
    idle_told: bool,
}

/// State of a rule for a rank.
#[derive(Debug, Default)]
struct RuleState {
    /// The last line that matches.
    seen: Option<Seen>,
    /// A breach was reported and has not ended.
    told: bool,
}

impl Rules {
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Rules {
        let watched = |rule| WatchedRule { rule, ranks: BTreeMap::new(), idle_told: false };
        Rules { rules: rules.into_iter().map(watched).collect(), ..Rules::default() }
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

impl WatchedRule {
    /// A whole line of a rank.
    fn take(
        &mut self,
        rank: GlobalRank,
        stream: Stream,
        at: Instant,
        line: &[u8],
    ) -> Option<Breach> {
        let WatchedRule { rule, ranks, .. } = self;
        match &rule.expects {
            Expects::Line(lines, _) => {
                if lines.concern(rank, stream) && lines.pattern.is_match(line) {
                    let seen = Some(Seen::of(at, line));
                    ranks.insert(rank, RuleState { seen, told: false });
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
        let WatchedRule { rule, ranks, .. } = self;
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

/// Maximum letters of a line that are shown.
const SHOWN: usize = 200;
/// Maximum bytes of a line that are kept: a secret is only recognised by the text after it.
const KEPT: usize = 2048;

/// A line, and the time at which it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub at: Instant,
    pub line: Vec<u8>,
}

impl Seen {
    fn of(at: Instant, line: &[u8]) -> Seen {
        Seen { at, line: line.get(..KEPT).unwrap_or(line).to_vec() }
    }

    /// The line without secrets and control characters.
    fn shown(&self) -> String {
        let line = String::from_utf8_lossy(&self.line);
        let masked = mask_file(line.trim()).replace(is_hidden, " ");
        masked.chars().take(SHOWN).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    pub rule: String,
    /// None if the breach concerns the whole node.
    pub rank: Option<GlobalRank>,
    /// Time at which the number came, the last line came, the rank began, or the GPUs became idle.
    pub since: Instant,
    /// The line of the number; for an absence, the last line of the rank.
    pub seen: Option<Seen>,
    pub on: Reaction,
    pub text: Text,
    pub hint: Option<Text>,
}

impl Breach {
    fn new(rule: &Rule, rank: Option<GlobalRank>, since: Instant, found: Text) -> Breach {
        let id = &rule.id;
        let Text { en, zh } = match &rule.text {
            Some(meaning) => {
                let Text { en: means, zh: means_zh } = meaning;
                let Text { en, zh } = found;
                text!("{means}: {en}", "{means_zh}：{zh}")
            }
            None => found,
        };
        Breach {
            rule: id.clone(),
            rank,
            since,
            seen: None,
            on: rule.on.unwrap_or(Reaction::Report),
            text: text!("rule {id}: {en}", "规则 {id}：{zh}"),
            hint: rule.hint.clone(),
        }
    }

    fn of_number(rule: &Rule, rank: GlobalRank, value: f64, seen: Seen) -> Breach {
        let allowed = match &rule.expects {
            Expects::Number { min: Some(min), max: Some(max), .. } => {
                text!("it must be from {min} to {max}", "应在 {min} 到 {max} 之间")
            }
            Expects::Number { min: Some(min), .. } => {
                text!("it must be at least {min}", "应不小于 {min}")
            }
            Expects::Number { max: Some(max), .. } => {
                text!("it must be at most {max}", "应不大于 {max}")
            }
            _ => text!("it must be finite", "应为有限数"),
        };
        let Text { en, zh } = allowed;
        let found = text!(
            "the value of rank {rank} is {value}, but {en}",
            "rank {rank} 的值为 {value}，{zh}"
        );
        Breach { seen: Some(seen.clone()), ..Breach::new(rule, Some(rank), seen.at, found) }
    }

    fn of_absence(rule: &Rule, rank: GlobalRank, since: Instant, last: Option<Seen>) -> Breach {
        let found = match &rule.expects {
            Expects::Line(lines, Time::Within(time)) => {
                let (pattern, time) = (lines.pattern.as_str(), spell(*time));
                text!(
                    "rank {rank} has printed no line with {pattern} within {time} of its start",
                    "rank {rank} 启动后 {time} 内没有输出匹配 {pattern} 的行"
                )
            }
            Expects::Line(lines, Time::Every(time)) => {
                let (pattern, time) = (lines.pattern.as_str(), spell(*time));
                text!(
                    "rank {rank} has printed no line with {pattern} for {time}",
                    "rank {rank} 已有 {time} 没有输出匹配 {pattern} 的行"
                )
            }
            _ => Text::same(""),
        };
        Breach { seen: last, ..Breach::new(rule, Some(rank), since, found) }
    }

    fn of_gpus(rule: &Rule, since: Instant) -> Breach {
        let time = match &rule.expects {
            Expects::BusyGpus(time) => spell(*time),
            _ => String::new(),
        };
        let found = text!(
            "all GPUs of the job on this node have been idle for {time}",
            "本节点上该任务的所有 GPU 已空闲 {time}"
        );
        Breach::new(rule, None, since, found)
    }

    /// The breach in words, with the last line that was seen.
    pub fn what(&self, now: Instant) -> Text {
        let Text { en, zh } = &self.text;
        let Some(seen) = self.seen.as_ref().filter(|seen| !seen.line.is_empty()) else {
            return self.text.clone();
        };
        let ago = spell(Duration::from_secs(now.saturating_duration_since(seen.at).as_secs()));
        let line = seen.shown();
        Text::new(
            format!("{en}; last line, {ago} ago: {line}"),
            format!("{zh}；最后一行（{ago} 前）：{line}"),
        )
    }

    /// Text for the console: the event, the last line, the hint, and the consequence.
    pub fn words(&self, now: Instant) -> Text {
        let nothing = || Text::same("");
        let Text { en: hint, zh: hint_zh } = self.hint.as_ref().map_or_else(nothing, |hint| {
            let Text { en, zh } = hint;
            Text::new(format!("\n  hint: {en}"), format!("\n  提示：{zh}"))
        });
        let Text { en: then, zh: then_zh } = match self.on {
            Reaction::Report => nothing(),
            Reaction::End => text!("\n  now: the job is ended", "\n  现在：任务将被终止"),
            Reaction::Restart => {
                text!("\n  now: the attempt is ended", "\n  现在：本次尝试将被终止")
            }
        };
        let Text { en, zh } = self.what(now);
        Text::new(format!("{en}{hint}{then}"), format!("{zh}{hint_zh}{then_zh}"))
    }

    /// The line that was seen, without secrets; empty if there was none.
    pub fn line(&self) -> String {
        self.seen.as_ref().map(Seen::shown).unwrap_or_default()
    }

    /// The event for agent.jsonl; `after_s`: seconds since the breach began.
    pub fn event(&self, now: Instant, lang: Lang) -> Value {
        json!({
            "message": "rule",
            "rule": {
                "id": self.rule,
                "rank": self.rank,
                "after_s": now.saturating_duration_since(self.since).as_secs(),
                "seen": self.seen.as_ref().map(Seen::shown),
                "on": self.on.name(),
                "text": self.text.get(lang),
                "hint": self.hint.as_ref().map(|hint| hint.get(lang)),
            },
        })
    }
}

/// Maximum bytes of a line that are kept.
const LONGEST_LINE: usize = 16 * 1024;

/// A line that is not complete yet.
#[derive(Debug, Default)]
pub(crate) struct Partial {
    bytes: Vec<u8>,
    /// The beginning of the line is missing, so it matches nothing.
    headless: bool,
}

impl Partial {
    /// Gives each line that `part` completes, without its end. A carriage return also ends a line: a
    /// progress bar has no other end.
    pub(crate) fn feed(&mut self, part: &[u8], mut each: impl FnMut(&[u8])) {
        let mut rest = part;
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            let (line, more) = rest.split_at(end);
            rest = more.get(1..).unwrap_or_default();
            let headless = std::mem::take(&mut self.headless);
            if self.bytes.is_empty() {
                if !headless && !line.is_empty() {
                    each(line.get(..LONGEST_LINE).unwrap_or(line));
                }
                continue;
            }
            self.keep(line);
            if !headless {
                each(&self.bytes);
            }
            self.bytes.clear();
        }
        self.keep(rest);
    }

    /// The bytes of the line that has no end yet. None if there are no bytes, or the beginning of the line is missing.
    pub(crate) fn unfinished(&self) -> Option<&[u8]> {
        (!self.headless && !self.bytes.is_empty()).then_some(self.bytes.as_slice())
    }

    fn keep(&mut self, more: &[u8]) {
        let room = LONGEST_LINE.saturating_sub(self.bytes.len()).min(more.len());
        self.bytes.extend_from_slice(more.get(..room).unwrap_or_default());
    }

    /// Bytes of the stream are missing here.
    pub(crate) fn skip(&mut self) {
        self.bytes.clear();
        self.headless = true;
    }
}

#[cfg(test)]
mod tests;
