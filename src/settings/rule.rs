//! Expectations of a profile about a job that works: the rules of `[[watch]]`, and the groups of patterns that give
//! numbers.

use std::time::Duration;

use regex::bytes::Regex;

use text::lang::Text;
use text::rank::GlobalRank;
use verdict::outcome::Stream;

/// The groups of a pattern that tell how far a job is.
pub const PERCENT: &str = "percent";
pub const STEPS: &str = "step";
pub const TOTAL: &str = "total";

/// Whether a pattern tells how far a job is: it has the group `percent`, or `step` and `total`.
pub(crate) fn tells_progress(pattern: &Regex) -> bool {
    let has = |wanted: &str| pattern.capture_names().flatten().any(|name| name == wanted);
    has(PERCENT) || (has(STEPS) && has(TOTAL))
}

/// The group of a pattern whose text is the number.
pub const VALUE: &str = "value";

/// One row of `[[watch]]`.
#[derive(Debug, Clone)]
pub struct Rule {
    pub id: String,
    pub expects: Expects,
    /// None: the value of `--on-hang`, which the caller that starts the rules fills in.
    pub on: Option<OnBreach>,
    /// The text for a breach, in place of the expectation.
    pub text: Option<Text>,
    pub hint: Option<Text>,
}

#[derive(Debug, Clone)]
pub enum Expects {
    Line(Lines, Time),
    /// A finite number from `min` to `max` in each line.
    Number {
        lines: Lines,
        min: Option<f64>,
        max: Option<f64>,
    },
    /// The GPUs of the job on this node are never all idle for this long.
    BusyGpus(Duration),
}

/// The time at which a line must come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// Once, at the latest this long after the start of the rank.
    Within(Duration),
    /// Repeatedly from the first line on, with less than this between two lines.
    Every(Duration),
}

/// The lines that a rule is about.
#[derive(Debug, Clone)]
pub struct Lines {
    pub pattern: Regex,
    /// None: both.
    pub stream: Option<Stream>,
    pub ranks: Ranks,
}

impl Lines {
    /// Whether a line of this rank and stream may be one of these lines.
    pub fn concern(&self, rank: GlobalRank, stream: Stream) -> bool {
        self.ranks.has(rank) && self.stream.is_none_or(|own| own == stream)
    }
}

/// The ranks that keep a rule, each by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ranks {
    All,
    /// First and last of each range.
    Of(Vec<(u32, u32)>),
}

impl Ranks {
    pub fn has(&self, GlobalRank(rank): GlobalRank) -> bool {
        match self {
            Ranks::All => true,
            Ranks::Of(ranges) => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&rank))
            }
        }
    }
}

/// The effect of a breach on the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBreach {
    Report,
    End,
    Restart,
}

impl OnBreach {
    pub const NAMES: &[(&str, OnBreach)] =
        &[("report", OnBreach::Report), ("end", OnBreach::End), ("restart", OnBreach::Restart)];

    pub fn name(self) -> &'static str {
        let row = OnBreach::NAMES.iter().find(|(_, on)| *on == self);
        row.map_or("", |(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_or_step_with_total_tells_progress() {
        for (pattern, tells) in [
            (r"done (?P<percent>[\d.]+) %, loss (?P<loss>\S+)", true),
            (r"it (?P<step>\d+) of (?P<total>\d+)", true),
            (r"(?P<step>\d+)", false),
        ] {
            assert_eq!(tells_progress(&text::pattern::compile(pattern).expect("a pattern")), tells);
        }
    }
}
