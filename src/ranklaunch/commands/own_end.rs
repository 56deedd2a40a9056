//! The ends of one launcher's ranks, as one of its files states them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use diagnose::{Origin, Recorded, Survived};
use text::lang::Text;
use text::rank::GlobalRank;
use verdict::outcome::End;

/// A statement that counts as a log of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stated {
    pub(super) origin: Origin,
    /// The line in the file that `origin` names.
    pub(super) line: u64,
    pub(super) text: String,
}

/// The end of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) rank: GlobalRank,
    /// None if its shim was lost.
    pub(super) end: Option<End>,
    /// Orders the ends of all launchers.
    pub(super) at: String,
    /// The rank ended after ranklaunch had begun to stop the ranks.
    pub(super) stopped: bool,
}

/// Statements of one launcher about the end.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) class: Option<String>,
    pub(super) oom: bool,
    /// The rank that failed first.
    pub(super) rank: Option<GlobalRank>,
    pub(super) ends: Vec<Seen>,
    pub(super) command: bool,
    /// The file that holds the ends.
    pub(super) file: PathBuf,
    pub(super) line: u64,
    pub(super) cause: Option<(Recorded, Stated)>,
    pub(super) survived: Vec<Survived>,
    pub(super) verdict: Option<Text>,
    /// The standstills of the job, with the ranks that the others waited for.
    pub(super) standstills: Vec<Text>,
}

impl Seen {
    pub(super) fn is_failed(&self) -> bool {
        !self.end.is_some_and(End::success)
    }
}

impl Told {
    pub(super) fn of_file(path: &Path) -> Told {
        Told { file: path.to_owned(), ..Told::default() }
    }
}

/// `{"code": 3}`, `{"signal": 11}`
pub(super) fn end(value: &Value) -> Option<End> {
    let number = |name: &str| value[name].as_i64().and_then(|number| i32::try_from(number).ok());
    number("signal").map(End::Signal).or_else(|| number("code").map(End::Code))
}
