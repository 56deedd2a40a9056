//! All rows and the automaton that finds them.
//!
//! The rows of a line are found first by fragments, in one pass, then by patterns. Most lines of a log hold no fragment
//! and cost only that pass.

use std::collections::BTreeSet;
use std::sync::{LazyLock, OnceLock};
use std::{fmt, io};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex::bytes::Regex;

use super::lines::kept;
use super::rows::{Flaw, Row, RowIndex, USER_EXCEPTION};
use super::versions::TELLING;
use text::pattern::compile;

/// All rows, with the automaton over all their fragments and the patterns behind them.
#[derive(Default)]
pub struct Catalogue {
    rows: Vec<Row>,
    user_exception: Option<RowIndex>,
    fragments: Option<AhoCorasick>,
    owners: Vec<Owner>,
    compiled: Vec<OnceLock<Compiled>>,
    /// Number of first rows that come from a profile.
    own: usize,
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Catalogue").field("rows", &self.rows.len()).finish_non_exhaustive()
    }
}

/// The rows of the folder `catalogue` as build.rs has deflated them.
static DEFLATED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/catalogue.json.zz"));

// A test reads the same rows and fails on any flaw.
static EMBEDDED: LazyLock<Catalogue> =
    LazyLock::new(|| Catalogue::of(embedded().unwrap_or_default(), 0).unwrap_or_default());

/// The rows of this executable, without their examples.
pub(super) fn embedded() -> io::Result<Vec<Row>> {
    Ok(serde_json::from_slice(&embed::bytes(DEFLATED)?)?)
}

/// The catalogue of this executable, read on first use.
pub fn catalogue() -> &'static Catalogue {
    &EMBEDDED
}

impl Catalogue {
    /// Builds a catalogue. The patterns of a row are compiled when a fragment of the row is first seen. Earlier rows win
    /// over later ones. `own`: number of first rows that come from a profile.
    pub(super) fn of(rows: Vec<Row>, own: usize) -> Result<Catalogue, Flaw> {
        let mut ids = BTreeSet::new();
        for row in &rows {
            if !ids.insert(row.id.as_str()) {
                return Err(Flaw::row(row, "stands twice"));
            }
            let poor = |fragment: &&String| {
                fragment.len() < 3 || **fragment != fragment.to_ascii_lowercase()
            };
            if let Some(fragment) = row.fragments.iter().find(poor) {
                return Err(Flaw::row(
                    row,
                    format!("the fragment `{fragment}` is short or not lower-case"),
                ));
            }
        }
        let user_exception = rows.iter().position(|row| row.id == USER_EXCEPTION).map(RowIndex);
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
            (TELLING, Owner::Version),
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
        let fragments = Some(automaton);
        Ok(Catalogue { rows, user_exception, fragments, owners, compiled, own })
    }

    /// Whether a row comes from a profile: a profile's row wins over the other rows of its line.
    pub(super) fn is_own(&self, index: RowIndex) -> bool {
        index.0 < self.own
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn row(&self, index: RowIndex) -> Option<&Row> {
        self.rows.get(index.0)
    }

    pub fn by_id(&self, id: &str) -> Option<RowIndex> {
        self.rows.iter().position(|row| row.id == id).map(RowIndex)
    }

    /// The row of exceptions that no other row explains.
    pub(super) fn user_exception(&self) -> Option<(RowIndex, &Row)> {
        let index = self.user_exception?;
        Some((index, self.row(index)?))
    }

    /// Whether a line holds anything that may matter. Few lines do, and the check is fast.
    pub(super) fn is_of_interest(&self, line: &[u8]) -> bool {
        self.fragments.as_ref().is_some_and(|fragments| fragments.is_match(line))
    }

    /// The rows and signs in a line without its prefix.
    pub(super) fn find(&self, line: &[u8]) -> Found {
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
                Some(Owner::Version) => found.version = true,
                Some(Owner::Row(_) | Owner::Structure) | None => {}
            }
        }
        let matches = |patterns: &[Regex]| patterns.iter().any(|one| one.is_match(line));
        found.rows.retain(|index| {
            let needs_none = self.row(*index).is_some_and(|row| row.patterns.is_empty());
            self.compiled(*index).is_some_and(|Compiled { patterns, except }| {
                (needs_none || matches(patterns)) && !matches(except)
            })
        });
        found.rows.sort_unstable();
        found
    }

    fn compiled(&self, index: RowIndex) -> Option<&Compiled> {
        let row = self.row(index)?;
        let all =
            |patterns: &[String]| patterns.iter().filter_map(|one| compile(one).ok()).collect();
        let new = || Compiled { patterns: all(&row.patterns), except: all(&row.except) };
        Some(self.compiled.get(index.0)?.get_or_init(new))
    }

    /// The text that the named groups of the first matching pattern of a row match in a line.
    pub(super) fn captures(&self, index: RowIndex, line: &[u8]) -> Vec<(String, String)> {
        let mut patterns = self.compiled(index).into_iter().flat_map(|one| &one.patterns);
        let Some((pattern, groups)) = patterns.find_map(|one| Some((one, one.captures(line)?)))
        else {
            return Vec::new();
        };
        let named = pattern.capture_names().flatten();
        let value = |name: &str| Some(kept(groups.name(name)?.as_bytes()));
        named.filter_map(|name| Some((name.to_owned(), value(name)?))).collect()
    }
}

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
    Version,
}

/// Content of a line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// In the order of the catalogue.
    pub(super) rows: Vec<RowIndex>,
    pub(super) start: bool,
    pub(super) end: bool,
    pub(super) done: bool,
    /// The line may tell a version.
    pub(super) version: bool,
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
