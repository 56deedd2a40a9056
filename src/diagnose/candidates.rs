//! The roots of a run that may be the cause, and the strength of each.

use super::blocks::is_exception;
use super::catalogue::Catalogue;
use super::evidence::{Evidence, Place};
use super::prefixes::Level;
use super::rows::{Role, Row, Stream};
use super::run::Ended;

/// Lines of progress after which a remark counts as past.
const WORKED: u64 = 2;

/// Strength of a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strength {
    /// The writer of the root is not the program that failed: a shell that went on, a command
    /// before the job, a process that was still ending after the job.
    Aside,
    /// Only a warning mentions the root.
    Warned,
    /// The root is often a consequence, and a cause only if it is the first root.
    FirstOnly,
    /// An exception without a row, or an exit status.
    Weak,
    Strong,
}

/// A root that may be the cause.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) evidence: &'a Evidence,
    pub(super) row: &'a Row,
    pub(super) strength: Strength,
    pub(super) run: &'a Ended,
}

/// Condition under which a line that mentions a problem counts as evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Enough {
    /// No condition: the job failed.
    Told,
    /// The line has the form of an error.
    Stated,
    /// The log ends with the line: the log is an excerpt that somebody asks about.
    LastWord,
}

/// The roots of one run that were not survived, in the order of the run. If nothing shows that the
/// job failed, lines that only mention a problem do not count.
pub(super) fn candidates<'a>(
    catalogue: &'a Catalogue,
    run: &'a Ended,
    enough: Enough,
) -> Vec<Candidate<'a>> {
    let roots = run.evidence.iter().filter(|one| !one.fate.survived).filter_map(|evidence| {
        // The kernel's record about a GPU supports other causes. It is the cause if nothing else is
        // known.
        let is_alone = |row: &Row| {
            enough == Enough::LastWord
                && (row.stream, row.role) == (Stream::Kernel, Role::Confirmation)
        };
        let row = catalogue.row(evidence.row)?;
        if row.role != Role::Root && !is_alone(row) {
            return None;
        }
        let told = row.stream.is_record() || row.stream == Stream::Event;
        let is_enough = match enough {
            Enough::Told => true,
            Enough::Stated => told || evidence.stated || row.weak || row.first_only,
            Enough::LastWord => evidence.fate.at_end && is_complaint(&evidence.text),
        };
        if !is_enough {
            return None;
        }
        let user = catalogue.user_exception() == Some(evidence.row);
        let strength = match evidence.level {
            _ if evidence.alone || row.last_resort => Strength::Aside,
            _ if row.first_only => Strength::FirstOnly,
            // The type of an event is `Warning` for every problem.
            Level::Warning if !told => Strength::Warned,
            _ if row.weak || user => Strength::Weak,
            _ => Strength::Strong,
        };
        Some(Candidate { evidence, row, strength, run })
    });
    set_aside(roots.collect(), run)
}

/// Whether a line reports a problem of its program: the line is no data, and the program did not
/// use an alternative.
fn is_complaint(line: &str) -> bool {
    const GOES_ON: &[&str] = &[
        "instead",
        "falling back",
        "fall back",
        "fallback",
        "will retry",
        "retrying",
        "try again",
        "ignored",
        "ignoring",
        "skipping",
        "skipped",
        "continuing",
    ];
    let words = line.to_ascii_lowercase();
    !line.starts_with('{') && !GOES_ON.iter().any(|word| words.contains(word))
}

/// Weakens roots from other programs to [`Strength::Aside`], if the job itself says why it failed.
fn set_aside<'a>(mut roots: Vec<Candidate<'a>>, run: &Ended) -> Vec<Candidate<'a>> {
    let raised = roots.iter().find(|one| is_raised(one)).map(|one| one.evidence.first);
    let task = roots.iter().find(|one| one.evidence.of_task).map(|one| one.evidence.first);
    let follows =
        |end: Place, first: Place| raised.is_some_and(|raised| raised < end) && end < first;
    // The progress before the last exception that ended the program.
    let ended = roots.iter().filter(|one| is_fatal(one)).map(|one| one.evidence.progress).max();
    for one in &mut roots {
        let Evidence { first, of_task, by_shell, .. } = *one.evidence;
        let record = one.row.stream.is_record();
        // If the lines of the tasks have numbers, an earlier line without a number is the batch
        // script's.
        let before = !of_task && task.is_some_and(|task| first < task);
        // The kernel and Slurm write words of their own, and late.
        let strong = one.strength == Strength::Strong && is_exception(one.evidence.text.as_bytes());
        let after = strong && run.ended.is_some_and(|end| follows(end, first));
        // A remark of a program that went on to work before an exception ended it.
        let passed =
            is_remark(one) && ended.is_some_and(|end| end >= one.evidence.progress + WORKED);
        if one.row.weak && by_shell || !record && (before || after || passed) {
            one.strength = Strength::Aside;
        }
    }
    roots
}

/// Whether a root is an exception with a row that no code caught.
fn is_fatal(one: &Candidate<'_>) -> bool {
    one.strength == Strength::Strong && one.evidence.uncaught
}

/// Whether a program only mentioned the problem, in words that are no exception and no error.
fn is_remark(one: &Candidate<'_>) -> bool {
    let Evidence { uncaught, raised, level, .. } = one.evidence;
    one.strength == Strength::Strong && !uncaught && !raised && *level != Level::Error
}

/// Whether a root is an exception without a row that no code caught.
pub(super) fn is_raised(one: &Candidate<'_>) -> bool {
    one.strength == Strength::Weak && one.evidence.uncaught && !one.row.stream.is_record()
}
