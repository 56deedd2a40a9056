//! A row of the catalogue: its statement about a line, and the words of that statement.

use std::fmt;

use serde::{Deserialize, Serialize};

use text::lang::Text;
use verdict::{Owner, Retry};

/// The row for an exception that no other row explains. Its evidence comes from tracebacks.
pub(super) const USER_EXCEPTION: &str = "user_exception";

/// The rows of ranks that gave up waiting for another rank. The awaited rank is the cause, if it is known.
pub const GIVEN_UP: &[&str] = &["watchdog_timeout", "store_timeout"];

/// The rows of lines that ranks, shells and engines write when the launcher stops them.
pub(super) const ENDED_BY_SIGNAL: &[&str] = &["term_external", "worker_sigkill"];

/// The statement of a line about the end of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The cause of the failure.
    Root,
    /// A consequence of a failure elsewhere, and so a sign that something failed.
    Cascade,
    /// Supports another cause; is no cause by itself.
    Confirmation,
    /// Says nothing about the end: advice, warnings, retries.
    Context,
}

/// The domain of a cause.
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

/// The source of the lines of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    #[default]
    Log,
    Kernel,
    Scheduler,
    /// Events of the platform: `kubectl describe`, `kubectl get events`.
    Event,
    /// The statement of a launcher about the end of a process.
    Exit,
}

impl Stream {
    /// Whether the writer knows that something ended, rather than merely reporting an error.
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
    /// Yields to every root that is not weak, before or after it.
    #[serde(default)]
    pub weak: bool,
    /// A root only if it is the first one; otherwise a consequence of the root before it.
    #[serde(default)]
    pub first_only: bool,
    /// A root only if there is no other, not even in a warning: an earlier failure was swallowed. Otherwise a
    /// consequence of the other root.
    #[serde(default)]
    pub last_resort: bool,
    /// Lower-case ASCII. A line of this row holds at least one of the fragments, in any case.
    #[serde(default)]
    pub fragments: Vec<String>,
    /// A line of this row matches at least one of these patterns. Without patterns, the fragment is enough.
    #[serde(default)]
    pub patterns: Vec<String>,
    /// None of these matches a line of this row.
    #[serde(default)]
    pub except: Vec<String>,
    /// Ends of paths. A line of this row ends a traceback whose innermost frame lies in one of these files. Meant for
    /// exceptions whose words are shared by many failures.
    #[serde(default)]
    pub raised_in: Vec<String>,
    /// Ids whose evidence above a line of this row is void: the problem is over.
    #[serde(default)]
    pub clears: Vec<String>,
    /// Consequences of this row. If one of them would be the cause, a warning of this row above it, from the same
    /// rank, is the cause instead.
    #[serde(default)]
    pub leads_to: Vec<String>,
    /// Versions of software that have the failure. A log that tells other versions shows another failure.
    #[serde(default)]
    pub versions: Vec<Range>,
    /// The line says what its program waits for. A cause only if the log ends with it, and never a certain one.
    #[serde(default)]
    pub waits: bool,
    /// Description of the failure, in one sentence. `{name}` stands for the match of the group of that name.
    pub cause: Text,
    pub remedy: Text,
    /// Lines of this row, for tests.
    #[serde(default)]
    pub matches: Vec<String>,
    /// Lines that look similar and do not belong to this row, for tests.
    #[serde(default)]
    pub differs: Vec<String>,
}

/// The versions of a component in which a failure occurs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The name in lower case: `nccl`, `torch`.
    pub component: String,
    /// The first version; none: all before `below`.
    #[serde(default)]
    pub from: Option<String>,
    /// The first version in which the failure no longer occurs.
    #[serde(default)]
    pub below: Option<String>,
}

/// A row, by its place in the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowIndex(pub(super) usize);

/// The reason why a catalogue cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Flaw {
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

/// `text` with the matched words in place of `{name}`; an ellipsis if nothing was matched.
pub fn filled(text: &Text, captures: &[(String, String)]) -> Text {
    Text::new(filled_in(&text.en, captures), filled_in(&text.zh, captures))
}

/// The words that the group of that name has matched.
pub(super) fn captured<'c>(captures: &'c [(String, String)], name: &str) -> Option<&'c str> {
    captures.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
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
        out.push_str(captured(captures, name).unwrap_or("…"));
        rest = after;
    }
    out.push_str(rest);
    out
}
