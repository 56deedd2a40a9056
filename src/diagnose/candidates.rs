//! The roots of a run that may be the cause, and the strength of each.
//!
//! Roots also yield to facts that the launcher knows about a job's end. The two streams of a rank are two files, and nothing in them gives the order of lines from
//! different streams. So no line of a stream counts as progress after a line of the other stream.
//! Facts that need no order decide instead: the end of each rank, and the problems that the
//! launcher saw the ranks survive while they ran, when it read both streams as they arrived.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::blocks::is_exception;
use super::catalogue::Catalogue;
use super::evidence::{Evidence, Place};
use super::prefixes::Level;
use super::rows::{Role, Row, Stream, USER_EXCEPTION};
use super::run::Ended;
use super::scan::Scanned;
use super::versions::Versions;
use text::rank::GlobalRank;

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
    versions: &Versions,
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
        // A running job waits for much that comes.
        if !versions.allow(row) || row.waits && (enough == Enough::Stated || !evidence.fate.at_end)
        {
            return None;
        }
        let told = row.stream.is_record() || row.stream == Stream::Event;
        let is_enough = match enough {
            Enough::Told => true,
            Enough::Stated => told || evidence.stated || row.weak || row.first_only,
            Enough::LastWord => evidence.fate.at_end && (row.waits || is_complaint(&evidence.text)),
        };
        if !is_enough {
            return None;
        }
        let user = row.id == USER_EXCEPTION;
        let strength = match evidence.level {
            _ if evidence.alone || row.last_resort || row.waits => Strength::Aside,
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

/// Maximum number of survived problems that are kept of one attempt.
const MOST_SURVIVED: usize = 256;
/// Maximum number of characters kept of each line of a survived problem.
const WORDS: usize = 200;

/// A problem that would be a cause if its program had not gone on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survived {
    /// A row of the catalogue.
    pub id: String,
    /// Global rank.
    pub rank: Option<u32>,
    /// The beginning of the line.
    pub text: String,
}

/// The cause that was found while the ranks ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    pub id: String,
    pub rank: Option<GlobalRank>,
    /// Counts line feeds, from 1.
    pub line: u64,
}

/// Facts that are known about the end of one attempt.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// A line that mentions a problem counts as evidence, because the job is known to have failed.
    pub has_failed: bool,
    /// The logs are no excerpts, so the last line of a log has no special meaning.
    pub is_whole: bool,
    /// The attempt ended well, or was stopped from outside: nothing in its own logs is a cause.
    pub blameless: bool,
    /// No rank has failed so far. Programs survived the exceptions that some code caught. An
    /// exception that no code caught may be the reason why a rank hangs at its end.
    pub unended: bool,
    /// Ranks that ended with code 0: they survived their exceptions, whatever follows in their
    /// logs.
    pub ended_well: BTreeSet<GlobalRank>,
    /// The ranks that failed, the first one first. Ranks that were stopped because of it come last.
    pub failed: Vec<GlobalRank>,
    pub survived: Vec<Survived>,
    pub recorded: Option<Recorded>,
    /// The numbers of logs whose evidence does not count, because the recorded end explains more.
    pub unheard: BTreeSet<usize>,
}

impl Known {
    /// Marks the evidence that is known to have been survived.
    pub(super) fn settle(&self, catalogue: &Catalogue, logs: &mut [Scanned]) {
        for (number, log) in logs.iter_mut().enumerate() {
            let unheard = self.unheard.contains(&number);
            for one in log.runs.iter_mut().flat_map(|run| &mut run.evidence) {
                let ended_well = one.rank.is_some_and(|rank| self.ended_well.contains(&rank));
                let caught = self.unended && is_caught(catalogue, one);
                if unheard || ended_well || caught || self.is_survived(catalogue, one) {
                    one.fate.survived = true;
                    one.fate.failure = false;
                }
            }
        }
    }

    fn is_survived(&self, catalogue: &Catalogue, one: &Evidence) -> bool {
        let Some(row) = catalogue.row(one.row) else { return false };
        // Each rank has one piece of evidence per row; for exceptions without a row, one per
        // message.
        let alike = |text: &str| row.id != USER_EXCEPTION || beginning(&one.text) == text;
        self.survived.iter().any(|known| {
            known.id == row.id && known.rank == one.rank.map(|rank| rank.0) && alike(&known.text)
        })
    }
}

/// Whether a problem that would be a cause has ended no process so far.
fn is_caught(catalogue: &Catalogue, one: &Evidence) -> bool {
    let row = catalogue.row(one.row);
    !one.uncaught && row.is_some_and(|row| row.role == Role::Root && !row.stream.is_record())
}

/// The problems among these findings that the ranks survived, for [`Known::survived`] of a later
/// diagnosis.
pub fn survived(catalogue: &Catalogue, findings: &[Evidence]) -> Vec<Survived> {
    let roots = findings.iter().filter(|one| one.fate.survived).filter_map(|one| {
        let row = catalogue.row(one.row).filter(|row| row.role == Role::Root)?;
        let (id, rank) = (row.id.clone(), one.rank.map(|rank| rank.0));
        Some(Survived { id, rank, text: beginning(&one.text) })
    });
    roots.take(MOST_SURVIVED).collect()
}

fn beginning(text: &str) -> String {
    text.chars().take(WORDS).collect()
}
