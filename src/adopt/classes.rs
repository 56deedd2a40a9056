//! What becomes of a line, and remarks on a launch.

use text::lang::Text;

/// What becomes of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Class {
    /// The launch line.
    Replaced,
    /// Fails, or does something else than it seems to.
    Wrong,
    NotUnderstood,
    Unnecessary,
    /// Belongs into the image or the script.
    Kept,
}

/// A remark on a part of a launch.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    pub(crate) kind: NoteKind,
    pub(crate) text: Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoteKind {
    Unnecessary,
    Wrong,
    /// The program sees something else than before.
    Changes,
    NotUnderstood,
}
