//! The roots of a run that may be the cause, and how much each is worth.

use super::blocks::is_exception;
use super::catalogue::Catalogue;
use super::evidence::{Evidence, Place};
use super::prefixes::Level;
use super::rows::{Role, Row, Stream};
use super::run::Ended;

/// Lines of work after which a remark is one of the past.
const WORKED: u64 = 2;

/// How much a root is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strength {
    /// What wrote it is not what failed: a shell that went on, a command before the job, what
    /// still ended after it.
    Aside,
    /// It stands only in a warning.
    Warned,
    /// It is often a consequence, and a cause only where it is the first.
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

/// What a line must have so that the trouble that it tells of is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Enough {
    /// Nothing: the job failed.
    Told,
    /// The form of an error.
    Stated,
    /// The log ends with it: an excerpt that somebody asks about.
    LastWord,
}

/// The roots of one run that were not survived, in its order. Where nothing says that the job
/// came to a bad end, words that happen to name a trouble are none.
pub(super) fn candidates<'a>(
    catalogue: &'a Catalogue,
    run: &'a Ended,
    enough: Enough,
) -> Vec<Candidate<'a>> {
    let roots = run.evidence.iter().filter(|one| !one.fate.survived).filter_map(|evidence| {
        // What the kernel says of a GPU supports other causes; alone it is what there is.
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
            // The type of an event is `Warning` for everything that goes wrong.
            Level::Warning if !told => Strength::Warned,
            _ if row.weak || user => Strength::Weak,
            _ => Strength::Strong,
        };
        Some(Candidate { evidence, row, strength, run })
    });
    set_aside(roots.collect(), run)
}

/// Whether a line tells of a trouble of its program: it is no data, and nothing is done instead.
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

/// Ranks down what another program wrote, where the job itself says why it failed.
fn set_aside<'a>(mut roots: Vec<Candidate<'a>>, run: &Ended) -> Vec<Candidate<'a>> {
    let raised = roots.iter().find(|one| is_raised(one)).map(|one| one.evidence.first);
    let task = roots.iter().find(|one| one.evidence.of_task).map(|one| one.evidence.first);
    let follows =
        |end: Place, first: Place| raised.is_some_and(|raised| raised < end) && end < first;
    // The last exception that ended the program, by the work before it.
    let ended = roots.iter().filter(|one| is_fatal(one)).map(|one| one.evidence.progress).max();
    for one in &mut roots {
        let Evidence { first, of_task, by_shell, .. } = *one.evidence;
        let record = one.row.stream.is_record();
        // With a number before the lines of all tasks, one without is the batch script's.
        let before = !of_task && task.is_some_and(|task| first < task);
        // The kernel and Slurm write their own words, and late.
        let strong = one.strength == Strength::Strong && is_exception(one.evidence.text.as_bytes());
        let after = strong && run.ended.is_some_and(|end| follows(end, first));
        // Words of a program that went on to work, and that an exception ended later.
        let passed =
            is_remark(one) && ended.is_some_and(|end| end >= one.evidence.progress + WORKED);
        if one.row.weak && by_shell || !record && (before || after || passed) {
            one.strength = Strength::Aside;
        }
    }
    roots
}

/// Whether it is an exception with a row that no code caught.
fn is_fatal(one: &Candidate<'_>) -> bool {
    one.strength == Strength::Strong && one.evidence.uncaught
}

/// Whether a program only said it, in words that are no exception's.
fn is_remark(one: &Candidate<'_>) -> bool {
    let Evidence { uncaught, raised, level, .. } = one.evidence;
    one.strength == Strength::Strong && !uncaught && !raised && *level != Level::Error
}

/// Whether it is an exception without a row that no code caught.
pub(super) fn is_raised(one: &Candidate<'_>) -> bool {
    one.strength == Strength::Weak && one.evidence.uncaught && !one.row.stream.is_record()
}
