//! What the launcher knows of a job's end, beside what its logs say.
//!
//! The two streams of a rank are two files, and nothing in them says which line of one came
//! before a line of the other. So no line of a stream counts as progress after a line of the
//! other one. What needs no order decides instead: how each rank ended, and what the launcher saw
//! the ranks survive while they ran, when it read both streams as they came.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::catalogue::Catalogue;
use super::evidence::Evidence;
use super::rows::Role;
use super::scan::Scanned;
use text::rank::GlobalRank;

/// Survived troubles that are kept of one attempt.
const MOST_SURVIVED: usize = 256;
/// Characters of their lines.
const WORDS: usize = 200;

/// A trouble that would be a cause if its program had not gone on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survived {
    /// A row of the catalogue.
    pub id: String,
    /// Global rank.
    pub rank: Option<u32>,
    /// The beginning of its line.
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

/// What is known of the end of one attempt.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Words that name a trouble are one, since there is a failure to explain.
    pub has_failed: bool,
    /// The logs are no excerpts: how they end says nothing.
    pub is_whole: bool,
    /// It ended well, or was stopped from outside: nothing in its own logs is a cause.
    pub blameless: bool,
    /// No rank has failed so far. What some code caught, its program survived; what no code
    /// caught may be why a rank hangs at its end.
    pub unended: bool,
    /// An exception of a rank that ended with code 0 was survived, whatever follows it in its log.
    pub ended_well: BTreeSet<GlobalRank>,
    /// The ranks that failed, the first one first; those that were stopped because of it last.
    pub failed: Vec<GlobalRank>,
    pub survived: Vec<Survived>,
    pub recorded: Option<Recorded>,
    /// The numbers of logs that say nothing beside what the kernel did.
    pub unheard: BTreeSet<usize>,
}

impl Known {
    /// Marks as survived what is known to have been.
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
        // Of a row each rank has one piece of evidence; of exceptions without a row, one of each
        // message.
        let alike = |text: &str| {
            catalogue.user_exception() != Some(one.row) || beginning(&one.text) == text
        };
        self.survived.iter().any(|known| {
            known.id == row.id && known.rank == one.rank.map(|rank| rank.0) && alike(&known.text)
        })
    }
}

/// Whether a trouble that would be a cause has ended no process so far.
fn is_caught(catalogue: &Catalogue, one: &Evidence) -> bool {
    let row = catalogue.row(one.row);
    !one.uncaught && row.is_some_and(|row| row.role == Role::Root && !row.stream.is_record())
}

/// What the ranks survived of these findings, for [`Known::survived`] of a later diagnosis.
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
