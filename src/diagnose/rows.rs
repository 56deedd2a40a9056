//! A row of the catalogue: what it says of a line, and in which words.

use std::fmt;

use serde::{Deserialize, Serialize};

use text::lang::Text;
use verdict::{Owner, Retry};

/// The row for an exception that no other row explains. Its evidence comes from tracebacks.
pub(super) const USER_EXCEPTION: &str = "user_exception";

/// The rows of ranks that gave up a wait for another one. Who that was is the cause, where it is known.
pub const GIVEN_UP: &[&str] = &["watchdog_timeout", "store_timeout"];

/// The rows of what a stop by the launcher makes ranks, shells and engines say.
pub(super) const ENDED_BY_SIGNAL: &[&str] = &["term_external", "worker_sigkill"];

/// What a line of a row says about the end of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Why the job failed.
    Root,
    /// A consequence of a failure elsewhere, and so a sign that something failed.
    Cascade,
    /// Supports another cause; is none by itself.
    Confirmation,
    /// Says nothing about the end: advice, warnings, retries.
    Context,
}

/// Where a cause lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Domain {
    User,
    Config,
    Env,
    Net,
    Storage,
    Gpu,
    Sched,
}

/// Where the lines of a row come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    #[default]
    Log,
    Kernel,
    Scheduler,
    /// Events of the platform: `kubectl describe`, `kubectl get events`.
    Event,
    /// The statement of a launcher about how a process ended.
    Exit,
}

impl Stream {
    /// Whether the writer knows that something ended, and did not merely report an error.
    pub(super) fn is_record(self) -> bool {
        matches!(self, Stream::Kernel | Stream::Scheduler | Stream::Exit)
    }
}

/// A failure that the program knows by name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub id: String,
    pub role: Role,
    pub domain: Domain,
    pub owner: Owner,
    pub retry: Retry,
    #[serde(default)]
    pub stream: Stream,
    /// Yields to every root that is not weak, wherever that stands.
    #[serde(default)]
    pub weak: bool,
    /// A root only where no other stands before it; otherwise a consequence of that one.
    #[serde(default)]
    pub first_only: bool,
    /// A root only where there is no other, not even in a warning: what failed before was
    /// swallowed. Otherwise a consequence of that one.
    #[serde(default)]
    pub last_resort: bool,
    /// Lower-case ASCII. A line of this row holds one of them, in any case.
    #[serde(default)]
    pub fragments: Vec<String>,
    /// One of these matches a line of this row; none given: the fragment is enough.
    #[serde(default)]
    pub patterns: Vec<String>,
    /// None of these matches a line of this row.
    #[serde(default)]
    pub except: Vec<String>,
    /// Ends of paths. A line of this row ends a traceback whose innermost frame lies in one of
    /// these files; for an exception whose words are those of many failures.
    #[serde(default)]
    pub raised_in: Vec<String>,
    /// Ids whose evidence above a line of this row is void: the trouble is over.
    #[serde(default)]
    pub clears: Vec<String>,
    /// Consequences of this row: where one of them is the cause by what else is known, a warning
    /// of this row above it, of the same rank, is the cause instead.
    #[serde(default)]
    pub leads_to: Vec<String>,
    /// What happened, in one sentence; `{name}` is what the group of that name matched.
    pub cause: Text,
    pub remedy: Text,
    /// Lines of this row, for tests.
    #[serde(default)]
    pub matches: Vec<String>,
    /// Lines that look like it and are none, for tests.
    #[serde(default)]
    pub differs: Vec<String>,
}

/// A row by its place in the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowIndex(pub(super) usize);

/// Why a catalogue cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    #[error("row {id}: {what}")]
    Row { id: String, what: String },
    #[error("{0}")]
    Fragments(#[from] aho_corasick::BuildError),
}

impl Flaw {
    pub(super) fn row(row: &Row, what: impl fmt::Display) -> Flaw {
        Flaw::Row { id: row.id.clone(), what: what.to_string() }
    }
}

/// `text` with what was matched in place of `{name}`; an ellipsis where nothing was.
pub fn filled(text: &Text, captures: &[(String, String)]) -> Text {
    Text::new(filled_in(&text.en, captures), filled_in(&text.zh, captures))
}

fn filled_in(text: &str, captures: &[(String, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let Some((name, after)) = after.split_once('}') else {
            out.push('{');
            rest = after;
            continue;
        };
        let value = captures.iter().find(|(known, _)| known == name);
        out.push_str(value.map_or("…", |(_, value)| value.as_str()));
        rest = after;
    }
    out.push_str(rest);
    out
}
