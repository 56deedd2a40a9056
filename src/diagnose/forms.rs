//! Statements that the form of a line makes, whatever its words mean.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use regex::bytes::Regex;

use super::lines::kept;
use super::prefixes::{Time, peel};
use super::rows::{Row, Stream};
use text::pattern::compile;

/// `  what():  words`: C++ ends a process that does not catch this exception.
pub(super) fn terminates(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"what():")
}

/// `NAME=words`, as `env` and `set -x` print the environment: such a line says nothing about this
/// run.
pub(super) fn is_variable(body: &[u8]) -> bool {
    static PATTERN: LazyLock<Option<Regex>> =
        LazyLock::new(|| compile(r"^(?:\++ )?(?:(?:export|declare -x) )?[A-Z_][A-Z0-9_]*=").ok());
    PATTERN.as_ref().is_some_and(|pattern| pattern.is_match(body))
}

/// `job.sh: line 3: python: command not found`
pub(super) fn is_by_shell(body: &[u8]) -> bool {
    static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| {
        compile(r"(?:\bline \d+|(?:^|[ /])(?:ba|da|z|k)?sh(?:: \d+)?): [^:]{1,80}: (?:command )?not found\s*$").ok()
    });
    PATTERN.as_ref().is_some_and(|pattern| pattern.is_match(body))
}

/// `train.py: error: words`, the form of argparse and Slurm.
pub(super) fn is_error(text: &[u8]) -> bool {
    static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| {
        compile(r"^(?:\[[^\]]{1,40}\] |[\w./-]{1,100}: )?error: |\bslurmstepd\b.{0,40}: error: ")
            .ok()
    });
    PATTERN.as_ref().is_some_and(|pattern| pattern.is_match(text))
}

/// The time of a line. The line may be whole, or only its head.
pub(super) fn time_of(line: &[u8]) -> Option<Time> {
    if line.is_empty() { None } else { peel(line).time }
}

/// The pod of an event, if the list of events names it.
pub(super) fn object(row: &Row, text: &[u8]) -> Option<String> {
    static PATTERN: LazyLock<Option<Regex>> =
        LazyLock::new(|| compile(r"(?i)\b(?:pods?/)([\w.-]+)").ok());
    if row.stream != Stream::Event {
        return None;
    }
    Some(kept(PATTERN.as_ref()?.captures(text)?.get(1)?.as_bytes()))
}

/// A rank that the own words of a line name.
pub(super) fn inline_rank(text: &[u8]) -> Option<u32> {
    static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| {
        compile(r"(?i:\brank (\d{1,6})\]|\bfor rank (\d{1,6})\b|local_rank: (\d{1,6})\b)").ok()
    });
    let groups = PATTERN.as_ref()?.captures(text)?;
    let digits = groups.iter().skip(1).flatten().next()?;
    std::str::from_utf8(digits.as_bytes()).ok()?.parse().ok()
}

/// Whether a line reports that the program works: a progress bar, a step, a loss.
pub fn is_progress(line: &[u8]) -> bool {
    static WORDS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
        const WORDS: &[&str] = &["it/s", "s/it", "%|", "epoch", "step", "iteration", "loss"];
        AhoCorasick::builder().ascii_case_insensitive(true).build(WORDS).ok()
    });
    line.iter().any(u8::is_ascii_digit) && WORDS.as_ref().is_some_and(|words| words.is_match(line))
}
