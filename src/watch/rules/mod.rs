//! The rules of a profile (`[[watch]]`): what a job that works prints, and how busy its GPUs are.
//!
//! Takes the output of ranks, the utilisation of GPUs and the starts and ends of ranks, each with its
//! time; gives a [`Breach`] once, and again only after the rule held in between. Reads no clock. Judges an
//! absence only up to a moment whose lines it has: a wrong alarm is worse than a late one.

mod breach;
mod lines;
mod matcher;
#[cfg(test)]
mod tests;

use std::time::Duration;

use regex::bytes::Regex;

use crate::lang::Text;
use crate::rank::GlobalRank;
use crate::supervise::Stream;

pub(crate) use breach::Breach;
pub(super) use lines::Partial;
pub(crate) use matcher::Rules;

/// The group of a pattern whose text is the number.
pub(crate) const VALUE: &str = "value";

/// One row of `[[watch]]`.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub id: String,
    pub expects: Expects,
    /// None: what `--on-hang` says, which whoever starts the rules fills in.
    pub on: Option<OnBreach>,
    /// What a breach means, in place of what was expected.
    pub text: Option<Text>,
    pub hint: Option<Text>,
}

#[derive(Debug, Clone)]
pub(crate) enum Expects {
    Line(Lines, Time),
    /// A finite number from `min` to `max` in each line.
    Number {
        lines: Lines,
        min: Option<f64>,
        max: Option<f64>,
    },
    /// Not all GPUs of the job on this node are idle for so long.
    BusyGpus(Duration),
}

/// When a line is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    /// Once, so long after the start of the rank at the latest.
    Within(Duration),
    /// Again and again from the first one on, never so long apart.
    Every(Duration),
}

/// The lines that a rule is about.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    pub pattern: Regex,
    /// None: both.
    pub stream: Option<Stream>,
    pub ranks: Ranks,
}

/// Each of these ranks keeps the rule by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ranks {
    All,
    /// First and last of each range.
    Of(Vec<(u32, u32)>),
}

impl Ranks {
    pub(crate) fn has(&self, GlobalRank(rank): GlobalRank) -> bool {
        match self {
            Ranks::All => true,
            Ranks::Of(ranges) => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&rank))
            }
        }
    }
}

/// What a breach does to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnBreach {
    Report,
    End,
    Restart,
}

impl OnBreach {
    pub(crate) const NAMES: &[(&str, OnBreach)] =
        &[("report", OnBreach::Report), ("end", OnBreach::End), ("restart", OnBreach::Restart)];

    pub(crate) fn name(self) -> &'static str {
        let row = OnBreach::NAMES.iter().find(|(_, on)| *on == self);
        row.map_or("", |(name, _)| name)
    }
}
