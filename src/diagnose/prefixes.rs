//! Prefixes of lines: the writer and the time.
//!
//! Launchers, Ray, Slurm and kubectl put the writer before each line; loggers put time and level
//! there. Prefixes of the first kind are removed, since a pattern must match lines of every writer.
//! Headers of loggers stay for the patterns and are only skipped to find tracebacks.
//!
//! The form of a line also makes statements, whatever its words mean. A line of a log may hold several lines of a
//! program: each part gets the prefixes of the whole line, since its writer, its node and its time are those of the
//! line.

use std::borrow::Cow;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use memchr::{memchr, memchr_iter, memmem};
use regex::bytes::{Captures, Regex};

use super::lines::{Pattern, kept};
use super::rows::{Row, Stream};
use text::pattern::compile;

/// The time of a line. Logs often omit the year, so two runs around New Year are in the wrong
/// order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Time {
    /// The line names its zone. Otherwise the zone is unknown.
    pub(super) utc: bool,
    /// Nanoseconds since the beginning of the year.
    pub(super) nanoseconds: u64,
}

impl Time {
    /// Whether this time is not after `other`; None if the two cannot be compared.
    pub(super) fn is_until(self, other: Time) -> Option<bool> {
        (self.utc == other.utc).then_some(self.nanoseconds <= other.nanoseconds)
    }
}

/// The level that a logger gave its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// A warning, or less.
    Warning,
    /// The line has no level.
    Unsaid,
    Error,
}

/// A line without its prefix.
#[derive(Debug)]
pub(super) struct Peeled<'a> {
    /// Text for patterns: without prefix and colours.
    pub(super) text: Cow<'a, [u8]>,
    /// End of a logger's header in `text`.
    pub(super) body: usize,
    /// The prefix as a whole, which is the same for all lines of one writer.
    pub(super) writer: Vec<u8>,
    pub(super) rank: Option<u32>,
    pub(super) node: Option<String>,
    /// The prefix begins with the number of a task, as `srun --label` writes it.
    pub(super) of_task: bool,
    pub(super) time: Option<Time>,
    pub(super) level: Level,
}

impl Peeled<'_> {
    /// The line with more words at its end.
    pub(super) fn with_words(self, words: &str) -> Peeled<'static> {
        let text = [self.text.trim_ascii_end(), b": ", words.as_bytes()].concat();
        let Peeled { body, writer, rank, node, of_task, time, level, .. } = self;
        Peeled { text: Cow::Owned(text), body, writer, rank, node, of_task, time, level }
    }
}

/// A prefix with the bytes that it may begin with: most lines need no pattern.
struct Prefix {
    first: &'static [u8],
    pattern: &'static str,
}

const LOWER: &[u8] = b"abcdefghijklmnopqrstuvwxyz";

const PREFIXES: &[Prefix] = &[
    // Our own console, torchrun's --tee and NCCL's and c10d's loggers, Lightning.
    Prefix {
        first: b"[ ",
        pattern: r"^ {0,12}\[(?:r|rank|rank: |default)\s*(?P<rank>\d{1,6})!?\]:?(?: |$)?",
    },
    // An excerpt that somebody quotes; NeMo-Run's commented lines.
    Prefix { first: b">", pattern: r"^> ?" },
    Prefix { first: b"#", pattern: r"^# [\w.-]+/\d{1,5} " },
    // kubectl logs --prefix
    Prefix { first: b"[", pattern: r"^\[pod/(?P<node>[^/\]]+)/[^\]]+\] ?" },
    // Ray; vLLM's workers.
    Prefix {
        first: b"(",
        pattern: r"^\([\w.:<>-]*(?: ?rank=(?P<rank>\d+))? ?(?:pid=\d+)(?:, ip=(?P<node>[0-9a-fA-F.:]+))?\) ?",
    },
    // Ray's own daemons, in the form that its driver shows.
    Prefix {
        first: b"(",
        pattern: r"^\((?:raylet|gcs_server|autoscaler)(?:, ip=(?P<node>[0-9a-fA-F.:]+))?\) ?",
    },
    // srun --label
    Prefix { first: b" 0123456789", pattern: r"^ *\d{1,5}: " },
    // kubectl logs --timestamps, docker logs --timestamps
    Prefix {
        first: b"0123456789",
        pattern: r"^(?P<stamp>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) ",
    },
    // mpirun --tag-output
    Prefix { first: b"[", pattern: r"^\[\d+,(?P<rank>\d{1,6})\]<std(?:out|err|diag)>: ?" },
    // pdsh and DeepSpeed's launcher over ssh. Only usual names of hosts match, since `Error: ` is
    // no host.
    Prefix { first: b"123456789", pattern: r"^(?P<node>\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}): ?" },
    Prefix {
        first: b"lnwhgcmsi",
        pattern: r"^(?P<node>localhost|(?:node|worker|host|gpu|compute|master|slave|nid|ip-)[\w.-]*\d[\w.-]*): ",
    },
    // docker compose
    Prefix { first: LOWER, pattern: r"^(?P<node>[a-z][\w.-]*[-_]\d{1,5}) +\| " },
    // stdout and stderr in the form that the container runtime keeps
    Prefix { first: b"s", pattern: r"^std(?:out|err) [FP] " },
];

/// Headers of loggers: glog and torch, Ray, vLLM, Python's logging in its usual formats.
const HEADERS: &[&str] = &[
    r"^\[?(?P<level>[IWEFD])\d{3,4} \d\d:\d\d:\d\d(?:\.\d+)?\s[^\]]{0,160}\] ?",
    r"^\[(?P<level>[IWEFD]) [\w.]+:\d+\] ?",
    r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?P<level>[IWEFC]) \d+ \d+\] ?",
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?: ?\[[^\]]+\])? ?",
    r"^\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?: ?-)? (?:\[?[\w.<>:/ -]{1,60}\]?(?: ?-)? ){0,3}?\[?(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\s*\]?(?: ?[-:|])? ?(?:\[[^\]]*\] ?)?",
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]*: ?",
    r"^\[(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\][ :]?",
    r"^(?:[\w./-]+: )?(?P<level>WARNING|Warning|WARN|warning)[: ] ?",
];

/// Warnings that Python prints with file and line before them.
static WARNINGS: Pattern = Pattern::new(r"^[^ ]{0,300}:\d+: \w*Warning: ");

/// Forms of times near the beginning of a line.
const TIMES: &[&str] = &[
    r"\d{4}[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d\b)?",
    r"^\[?[IWEFD](?P<month>\d{1,2})(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?",
    r"^[A-Z]+ (?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)",
];

/// Number of first bytes of a line that may hold its time.
const TIME_WITHIN: usize = 120;
/// Like [`TIME_WITHIN`], with the prefixes before the time.
pub(super) const DATED_WITHIN: usize = 2 * TIME_WITHIN;

struct Patterns {
    prefixes: Vec<(&'static [u8], Regex)>,
    headers: Vec<Regex>,
    times: Vec<Regex>,
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| {
    let all = |patterns: &[&str]| patterns.iter().filter_map(|one| compile(one).ok()).collect();
    let prefix = |prefix: &Prefix| Some((prefix.first, compile(prefix.pattern).ok()?));
    Patterns {
        prefixes: PREFIXES.iter().filter_map(prefix).collect(),
        headers: all(HEADERS),
        times: all(TIMES),
    }
});

/// The writer of a line, as [`peel`] gives it, without reading the rest.
pub(super) fn writer(line: &[u8]) -> Vec<u8> {
    const FIRST: &[u8] = b"[(># 0123456789\x1b";
    if line.first().is_some_and(|first| FIRST.contains(first) || LOWER.contains(first)) {
        prefixes(&without_colours(line)).writer
    } else {
        Vec::new()
    }
}

/// The prefixes of a line, which name the writer.
pub(super) fn prefix(line: &[u8]) -> &[u8] {
    line.get(..prefixes(line).length).unwrap_or_default()
}

/// Removes the prefixes.
pub(super) fn peel(line: &[u8]) -> Peeled<'_> {
    let mut text = without_colours(line);
    let Prefixes { length, writer, rank, node, stamp } = prefixes(&text);
    match &mut text {
        Cow::Borrowed(bytes) => *bytes = bytes.get(length..).unwrap_or_default(),
        Cow::Owned(bytes) => drop(bytes.drain(..length)),
    }
    let of_task = writer.trim_ascii_start().first().is_some_and(u8::is_ascii_digit)
        && writer.contains(&b':')
        && node.is_none();
    let (body, level) = header(&text);
    // The stamp names its zone; the line's own time may not.
    let time = stamp.or_else(|| time(&text));
    Peeled { body, writer, rank, node, of_task, time, level, text }
}

/// Content of the prefixes of a line.
#[derive(Debug, Default)]
struct Prefixes {
    length: usize,
    writer: Vec<u8>,
    rank: Option<u32>,
    node: Option<String>,
    stamp: Option<Time>,
}

fn prefixes(text: &[u8]) -> Prefixes {
    let mut all = Prefixes::default();
    // A line may have several prefixes: kubectl's before torchrun's.
    for _ in 0..4 {
        let rest = text.get(all.length..).unwrap_or_default();
        let begins = |first: &[u8]| rest.first().is_some_and(|byte| first.contains(byte));
        let mut all_found = PATTERNS.prefixes.iter().filter(|(first, _)| begins(first));
        let Some(found) = all_found.find_map(|(_, pattern)| pattern.captures(rest)) else { break };
        let taken = found.get(0).map_or(0, |whole| whole.end());
        let rank = || number(&found, "rank").and_then(|rank| u32::try_from(rank).ok());
        all.rank = all.rank.or_else(rank);
        all.node = all.node.or_else(|| word(&found, "node"));
        if found.name("stamp").is_some() {
            all.stamp = all.stamp.or_else(|| time(rest));
        } else {
            all.writer.extend_from_slice(rest.get(..taken).unwrap_or_default());
        }
        all.length += taken;
        if taken == 0 {
            break;
        }
    }
    all
}

fn header(text: &[u8]) -> (usize, Level) {
    let found = PATTERNS.headers.iter().find_map(|pattern| {
        let groups = pattern.captures(text)?;
        let level = groups.name("level")?.as_bytes();
        let end = groups.get(0)?.end();
        let level = match level.first() {
            Some(b'E' | b'C' | b'F') => Level::Error,
            _ => Level::Warning,
        };
        Some((end, level))
    });
    found.unwrap_or_else(|| {
        // NCCL has no other level for errors.
        if memmem::find(text, b" NCCL WARN ").is_some() || text.starts_with(b"NCCL WARN ") {
            return (0, Level::Error);
        }
        (0, if WARNINGS.is_match(text) { Level::Warning } else { Level::Unsaid })
    })
}

fn number(groups: &Captures<'_>, name: &str) -> Option<u64> {
    std::str::from_utf8(groups.name(name)?.as_bytes()).ok()?.parse().ok()
}

fn word(groups: &Captures<'_>, name: &str) -> Option<String> {
    Some(kept(groups.name(name)?.as_bytes()))
}

/// Whether a line may hold a time in the part that [`peel`] searches.
pub(super) fn may_be_dated(line: &[u8]) -> bool {
    let head = line.get(..DATED_WITHIN).unwrap_or(line);
    let digit = |at: usize| head.get(at).is_some_and(u8::is_ascii_digit);
    memchr_iter(b':', head).any(|at| {
        head.get(at + 3) == Some(&b':') && at > 0 && digit(at - 1) && digit(at + 1) && digit(at + 2)
    })
}

fn time(text: &[u8]) -> Option<Time> {
    /// Days of a leap year, so that a log without a year is not off by a day from a log with a
    /// year.
    const DAYS_BEFORE: [u64; 12] = [0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335];
    const SECOND: u64 = 1_000_000_000;
    let text = text.get(..TIME_WITHIN).unwrap_or(text);
    PATTERNS.times.iter().find_map(|pattern| {
        let groups = pattern.captures(text)?;
        let part = |name: &str| number(&groups, name);
        let month = usize::try_from(part("month")?).ok()?;
        let days = DAYS_BEFORE.get(month.checked_sub(1)?)? + part("day")?;
        let seconds = (days * 24 + part("hour")?) * 3600 + part("minute")? * 60 + part("second")?;
        let fraction = groups.name("fraction").map_or(0, |digits| {
            let digits = digits.as_bytes().iter().chain(std::iter::repeat(&b'0')).take(9);
            digits.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'))
        });
        let zone = groups.name("zone").map(|zone| zone.as_bytes());
        // The first of January is day 1, so that no zone makes the time negative.
        let seconds = seconds.checked_add_signed(-zone.map_or(0, east))?;
        Some(Time { utc: zone.is_some(), nanoseconds: seconds * SECOND + fraction })
    })
}

/// The seconds by which `+08:00` is before UTC.
fn east(zone: &[u8]) -> i64 {
    let digits = zone.iter().filter(|byte| byte.is_ascii_digit());
    let number = digits.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let seconds = (number / 100 * 60 + number % 100) * 60;
    if zone.first() == Some(&b'-') { -seconds } else { seconds }
}

/// The line without terminal sequences (`ESC [ … letter`).
fn without_colours(line: &[u8]) -> Cow<'_, [u8]> {
    const ESCAPE: u8 = 0x1b;
    if memchr(ESCAPE, line).is_none() {
        return Cow::Borrowed(line);
    }
    let mut out = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = memchr(ESCAPE, rest) {
        let (before, from) = rest.split_at(at);
        out.extend_from_slice(before);
        let parameters = from.get(1..).and_then(|from| from.strip_prefix(b"["));
        rest = match parameters
            .map(|rest| (rest, rest.iter().position(|byte| (0x40..0x7f).contains(byte))))
        {
            Some((rest, Some(end))) => rest.get(end + 1..).unwrap_or_default(),
            Some((_, None)) => b"",
            None => from.get(1..).unwrap_or_default(),
        };
    }
    out.extend_from_slice(rest);
    Cow::Owned(out)
}

/// `  what():  words`: C++ ends a process that does not catch this exception.
pub(super) fn terminates(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"what():")
}

/// `NAME=words`, as `env` and `set -x` print the environment: such a line says nothing about this
/// run.
pub(super) fn is_variable(body: &[u8]) -> bool {
    static PATTERN: Pattern =
        Pattern::new(r"^(?:\++ )?(?:(?:export|declare -x) )?[A-Z_][A-Z0-9_]*=");
    PATTERN.is_match(body)
}

/// `job.sh: line 3: python: command not found`
pub(super) fn is_by_shell(body: &[u8]) -> bool {
    static PATTERN: Pattern = Pattern::new(
        r"(?:\bline \d+|(?:^|[ /])(?:ba|da|z|k)?sh(?:: \d+)?): [^:]{1,80}: (?:command )?not found\s*$",
    );
    PATTERN.is_match(body)
}

/// `train.py: error: words`, the form of argparse and Slurm.
pub(super) fn is_error(text: &[u8]) -> bool {
    static PATTERN: Pattern = Pattern::new(
        r"^(?:\[[^\]]{1,40}\] |[\w./-]{1,100}: )?error: |\bslurmstepd\b.{0,40}: error: ",
    );
    PATTERN.is_match(text)
}

/// The time of a line. The line may be whole, or only its head.
pub(super) fn time_of(line: &[u8]) -> Option<Time> {
    if line.is_empty() { None } else { peel(line).time }
}

/// The pod of an event, if the list of events names it.
pub(super) fn object(row: &Row, text: &[u8]) -> Option<String> {
    static PATTERN: Pattern = Pattern::new(r"(?i)\b(?:pods?/)([\w.-]+)");
    if row.stream != Stream::Event {
        return None;
    }
    Some(kept(PATTERN.captures(text)?.get(1)?.as_bytes()))
}

/// A rank that the own words of a line name.
pub(super) fn inline_rank(text: &[u8]) -> Option<u32> {
    static PATTERN: Pattern =
        Pattern::new(r"(?i:\brank (\d{1,6})\]|\bfor rank (\d{1,6})\b|local_rank: (\d{1,6})\b)");
    let groups = PATTERN.captures(text)?;
    let digits = groups.iter().skip(1).flatten().next()?;
    std::str::from_utf8(digits.as_bytes()).ok()?.parse().ok()
}

/// The rank that a line names as the other end.
pub(super) fn peer_rank(text: &[u8]) -> Option<u32> {
    static PATTERN: Pattern = Pattern::new(
        r"(?i)\b(?:peer|remote|by|from|with|on|of|to) (?:peer )?[\[(]?(?:remote |global )?rank[: =]? ?(\d{1,6})\b",
    );
    let groups = PATTERN.captures(text)?;
    std::str::from_utf8(groups.get(1)?.as_bytes()).ok()?.parse().ok()
}

/// Whether a line reports that the program works: a progress bar, a step, a loss.
pub fn is_progress(line: &[u8]) -> bool {
    static WORDS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
        const WORDS: &[&str] = &["it/s", "s/it", "%|", "epoch", "step", "iteration", "loss"];
        AhoCorasick::builder().ascii_case_insensitive(true).build(WORDS).ok()
    });
    line.iter().any(u8::is_ascii_digit) && WORDS.as_ref().is_some_and(|words| words.is_match(line))
}

/// Maximum number of parts of a line that are read: the first half and the last half of them.
const MOST_PARTS: usize = 256;

/// The lines that one line holds; None if it holds only one.
pub(super) fn parts(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let parts = unescaped(line).or_else(|| unglued(line))?;
    let surplus = parts.len().saturating_sub(MOST_PARTS);
    let dropped = MOST_PARTS / 2..MOST_PARTS / 2 + surplus;
    let kept = parts.into_iter().enumerate().filter(|(number, _)| !dropped.contains(number));
    Some(kept.map(|(_, part)| part).collect())
}

/// The lines of several writes, each with the prefix of its rank.
fn unglued(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    static MARK: Pattern = Pattern::new(r"\[rank\d{1,6}\]:");
    let marks: Vec<usize> = MARK.get()?.find_iter(line).map(|mark| mark.start()).collect();
    if marks.iter().all(|mark| *mark == 0) {
        return None;
    }
    let own = prefix(line);
    let cuts: Vec<usize> = marks.iter().copied().filter(|mark| *mark >= own.len()).collect();
    if cuts.is_empty() {
        return None;
    }
    // The text before the rank of the first part is the prefix of all parts.
    let outer = marks.first().filter(|mark| **mark < own.len()).copied().unwrap_or(own.len());
    let (outer, _) = line.split_at_checked(outer)?;
    let ends = cuts.iter().copied().skip(1).chain([line.len()]);
    let mut parts = vec![line.get(..*cuts.first()?)?.to_vec()];
    for (from, to) in cuts.iter().zip(ends) {
        parts.push([outer, line.get(*from..to)?].concat());
    }
    Some(parts)
}

/// The lines of a traceback that JSON or `repr` wrote into one line. A logger that writes the
/// traceback as a warning has caught the exception.
fn unescaped(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    const HEAD: &[u8] = b"Traceback (most recent call last):";
    let at = memmem::find_iter(line, HEAD).find(|at| line.get(at + HEAD.len()) == Some(&b'\\'))?;
    let (before, _) = line.split_at_checked(at)?;
    if memmem::find(&before.to_ascii_lowercase(), b"warning").is_some() {
        return None;
    }
    let own = prefix(line);
    let mut parts = vec![Vec::new()];
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            parts.last_mut()?.push(byte);
            continue;
        }
        // Each backslash is doubled if the text was quoted twice.
        while bytes.next_if_eq(&b'\\').is_some() {}
        match bytes.peek() {
            Some(b'n') => {
                bytes.next();
                parts.push(Vec::new());
            }
            Some(b'"' | b'\'') => {}
            _ => parts.last_mut()?.push(byte),
        }
    }
    // The text before a head in the same line is not part of its traceback.
    let cut = |part: Vec<u8>| match memmem::find(&part, HEAD).map(|at| part.split_at(at)) {
        Some((before, head)) if !before.is_empty() => vec![before.to_vec(), head.to_vec()],
        _ => vec![part],
    };
    let parts = parts.into_iter().flat_map(cut).filter(|part| !part.is_empty());
    let with_prefix = |(number, part): (usize, Vec<u8>)| {
        if number == 0 { part } else { [own, part.as_slice()].concat() }
    };
    Some(parts.enumerate().map(with_prefix).collect())
}
