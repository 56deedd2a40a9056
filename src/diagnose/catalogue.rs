//! All rows and the automaton that finds them.

use std::collections::BTreeSet;
use std::io;
use std::sync::LazyLock;

use serde::Deserialize;

use super::matcher::{Found, Matcher};
use super::rows::{Flaw, Row, RowIndex, USER_EXCEPTION};

/// All rows, ready for searching.
#[derive(Debug)]
pub struct Catalogue {
    rows: Vec<Row>,
    user_exception: Option<RowIndex>,
    matcher: Matcher,
    /// Number of first rows that come from a profile.
    own: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    row: Vec<Row>,
}

/// `catalogue.toml` as build.rs has deflated it.
static DEFLATED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/catalogue.toml.zz"));

static EMBEDDED: LazyLock<Catalogue> = LazyLock::new(|| {
    // A test reads the same text and fails on any flaw.
    let text = embedded_text().unwrap_or_default();
    Catalogue::parse(&text).unwrap_or_else(|_| Catalogue::empty())
});

/// The text of the catalogue of this executable.
pub(super) fn embedded_text() -> io::Result<String> {
    embed::text(DEFLATED)
}

/// The catalogue of this executable, read on first use.
pub fn catalogue() -> &'static Catalogue {
    &EMBEDDED
}

impl Catalogue {
    /// Reads rows. The patterns of a row are compiled when a fragment of the row is first seen.
    pub fn parse(text: &str) -> Result<Catalogue, Flaw> {
        let File { row: rows } = toml::from_str(text)?;
        Catalogue::of(rows)
    }

    /// Builds a catalogue. Earlier rows win over later ones.
    pub(super) fn of(rows: Vec<Row>) -> Result<Catalogue, Flaw> {
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
        let matcher = Matcher::new(&rows)?;
        Ok(Catalogue { rows, user_exception, matcher, own: 0 })
    }

    fn empty() -> Catalogue {
        let matcher = Matcher::default();
        Catalogue { rows: Vec::new(), user_exception: None, matcher, own: 0 }
    }

    /// The same catalogue, with the first `own` rows as those of a profile.
    pub(super) fn preferring(self, own: usize) -> Catalogue {
        Catalogue { own, ..self }
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

    pub(super) fn user_exception(&self) -> Option<RowIndex> {
        self.user_exception
    }

    /// Whether a line holds anything that may matter. Few lines do, and the check is fast.
    pub(super) fn is_of_interest(&self, line: &[u8]) -> bool {
        self.matcher.is_of_interest(line)
    }

    /// The rows and signs in a line without its prefix.
    pub(super) fn find(&self, line: &[u8]) -> Found {
        self.matcher.find(&self.rows, line)
    }

    /// The text that the named groups of a row's pattern match in a line.
    pub(super) fn captures(&self, index: RowIndex, line: &[u8]) -> Vec<(String, String)> {
        let row = self.row(index);
        row.map_or_else(Vec::new, |row| self.matcher.captures(index, row, line))
    }
}
