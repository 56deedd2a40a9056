//! Facts that the launcher knows about a job's end, beside the content of its logs.
//!
//! The two streams of a rank are two files, and nothing in them gives the order of lines from
//! different streams. So no line of a stream counts as progress after a line of the other stream.
//! Facts that need no order decide instead: the end of each rank, and the problems that the
//! launcher saw the ranks survive while they ran, when it read both streams as they arrived.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::catalogue::Catalogue;
use super::evidence::Evidence;
use super::rows::Role;
use super::scan::Scanned;
use text::rank::GlobalRank;

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
        let alike = |text: &str| {
            catalogue.user_exception() != Some(one.row) || beginning(&one.text) == text
        };
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
