//! Expectations of a profile about a job that works, `[[watch]]`: the rules, and the groups of patterns
//! that give numbers.

use std::time::Duration;

use regex::bytes::Regex;
use serde::{Deserialize, Serialize};

use text::lang::Text;
use text::rank::GlobalRank;
use verdict::outcome::Stream;

/// One row of `[[watch]]`.
#[derive(Debug, Clone)]
pub struct Rule {
    pub id: String,
    pub expects: Expects,
    /// None: the value of `--on-hang`, which the caller that starts the rules fills in.
    pub on: Option<Reaction>,
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
    /// The group of a pattern whose text is the number.
    pub const VALUE: &str = "value";

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

/// The reaction to a job that stands still or breaks a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reaction {
    /// The job is reported, and goes on.
    #[default]
    Report,
    /// All nodes end with code 91, without another attempt.
    End,
    /// The attempt ends; another one follows within `--max-restarts`.
    Restart,
}

impl Reaction {
    pub(crate) const NAMES: &[&str] = &["report", "end", "restart"];

    pub fn name(self) -> &'static str {
        match self {
            Reaction::Report => "report",
            Reaction::End => "end",
            Reaction::Restart => "restart",
        }
    }
}
