//! The id of a run, which becomes the name of a folder, an argument, and a word that people type.

use serde::{Deserialize, Serialize};

/// `<job>-<UTC time>-<4 hex>`; empty before the nodes agree on an id. An id from any sender is one plain word: no
/// path, no escape of a terminal, and no hidden file.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

impl RunId {
    /// Whether a word can be an id: letters, digits, `.`, `-` and `_`.
    pub fn is_sound(word: &str) -> bool {
        (1..=128).contains(&word.len())
            && !word.starts_with('.')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<String> for RunId {
    type Error = &'static str;

    fn try_from(word: String) -> Result<RunId, &'static str> {
        match word.is_empty() || RunId::is_sound(&word) {
            true => Ok(RunId(word)),
            false => Err("no id of a run"),
        }
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> String {
        id.0
    }
}

impl std::fmt::Display for RunId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}
