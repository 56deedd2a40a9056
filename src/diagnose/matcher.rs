//! Finds the rows of a line: first by fragments, in one pass, then by patterns.
//!
//! Most lines of a log hold no fragment and cost only that pass.

use std::fmt;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex::bytes::Regex;

use super::lines::kept;
use super::rows::{Flaw, Row, RowIndex};
use text::pattern::compile;

/// Fragments besides those of the rows that make a line worth reading.
const STRUCTURE: &[&str] = &[
    "traceback (most recent call last)",
    "file \"",
    "│ /",
    "during handling of the above",
    "the above exception was",
    "exception ignored in",
    "(most recent call first)",
    "(local_rank:",
    "error: ",
    "exception: ",
    "assertionerror",
];

/// A launcher begins: the lines above belong to an earlier run in the same file.
const STARTS: &[&str] = &[
    "setting omp_num_threads environment variable",
    "starting elastic_operator with launch configs",
    "using nproc_per_node=",
];

/// A launcher reports that its job has failed and that the launcher ends. The lines below come from
/// processes that are still ending, or from another program.
const ENDS: &[&str] = &["childfailederror", "exits with return code = "];

/// A run reports that it is done.
const DONE: &[&str] = &[
    "training completed",
    "training complete",
    "training finished",
    "training done",
    "finished training",
    "training has completed",
    "training has finished",
    "done training",
    "finished successfully",
    "job succeeded",
    // The last metrics of transformers' Trainer.
    "train_runtime",
];

/// The meaning of one fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Row(RowIndex),
    Structure,
    Start,
    End,
    Done,
}

/// Content of a line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// In the order of the catalogue.
    pub(super) rows: Vec<RowIndex>,
    pub(super) start: bool,
    pub(super) end: bool,
    pub(super) done: bool,
    /// End of the first fragment of a row.
    pub(super) at: usize,
}

/// The patterns of one row, compiled. A pattern that does not compile matches nothing; a test names
/// such a pattern.
#[derive(Debug, Default)]
struct Compiled {
    patterns: Vec<Regex>,
    except: Vec<Regex>,
}

/// The automaton over all fragments and the patterns behind them.
#[derive(Default)]
pub(super) struct Matcher {
    fragments: Option<AhoCorasick>,
    owners: Vec<Owner>,
    compiled: Vec<OnceLock<Compiled>>,
}

impl fmt::Debug for Matcher {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Matcher").field("fragments", &self.owners.len()).finish_non_exhaustive()
    }
}

impl Matcher {
    pub(super) fn new(rows: &[Row]) -> Result<Matcher, Flaw> {
        let of_rows = rows.iter().enumerate().flat_map(|(index, row)| {
            row.fragments
                .iter()
                .map(move |fragment| (fragment.as_str(), Owner::Row(RowIndex(index))))
        });
        let others = [
            (STRUCTURE, Owner::Structure),
            (STARTS, Owner::Start),
            (ENDS, Owner::End),
            (DONE, Owner::Done),
        ];
        let others = others.into_iter().flat_map(|(fragments, owner)| {
            fragments.iter().map(move |fragment| (*fragment, owner))
        });
        let (fragments, owners): (Vec<&str>, Vec<Owner>) = of_rows.chain(others).unzip();
        let automaton = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::Standard)
            // The automaton is kept while a job runs: a DFA takes 8 MB more.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(&fragments)?;
        let compiled = rows.iter().map(|_| OnceLock::new()).collect();
        Ok(Matcher { fragments: Some(automaton), owners, compiled })
    }

    /// Whether the line holds any fragment.
    pub(super) fn is_of_interest(&self, line: &[u8]) -> bool {
        self.fragments.as_ref().is_some_and(|fragments| fragments.is_match(line))
    }

    /// Finds the rows and the signs in a line.
    pub(super) fn find(&self, rows: &[Row], line: &[u8]) -> Found {
        let mut found = Found::default();
        let Some(fragments) = &self.fragments else { return found };
        for hit in fragments.find_overlapping_iter(line) {
            match self.owners.get(hit.pattern().as_usize()) {
                Some(Owner::Row(row)) if !found.rows.contains(row) => {
                    if found.rows.is_empty() {
                        found.at = hit.end();
                    }
                    found.rows.push(*row);
                }
                Some(Owner::Start) => found.start = true,
                Some(Owner::End) => found.end = true,
                Some(Owner::Done) => found.done = true,
                Some(Owner::Row(_) | Owner::Structure) | None => {}
            }
        }
        let holds =
            |index: &RowIndex| rows.get(index.0).is_some_and(|row| self.holds(*index, row, line));
        found.rows.retain(holds);
        found.rows.sort_unstable();
        found
    }

    fn compiled(&self, index: RowIndex, row: &Row) -> Option<&Compiled> {
        let all =
            |patterns: &[String]| patterns.iter().filter_map(|one| compile(one).ok()).collect();
        self.compiled.get(index.0).map(|cell| {
            cell.get_or_init(|| Compiled { patterns: all(&row.patterns), except: all(&row.except) })
        })
    }

    fn holds(&self, index: RowIndex, row: &Row, line: &[u8]) -> bool {
        self.compiled(index, row).is_some_and(|compiled| {
            (row.patterns.is_empty() || compiled.patterns.iter().any(|one| one.is_match(line)))
                && !compiled.except.iter().any(|one| one.is_match(line))
        })
    }

    /// The text that the named groups of the first matching pattern match.
    pub(super) fn captures(
        &self,
        index: RowIndex,
        row: &Row,
        line: &[u8],
    ) -> Vec<(String, String)> {
        let Some(compiled) = self.compiled(index, row) else { return Vec::new() };
        let Some((pattern, groups)) =
            compiled.patterns.iter().find_map(|one| Some((one, one.captures(line)?)))
        else {
            return Vec::new();
        };
        let named = pattern.capture_names().flatten();
        let value = |name: &str| Some(kept(groups.name(name)?.as_bytes()));
        named.filter_map(|name| Some((name.to_owned(), value(name)?))).collect()
    }
}
