//! Findings of the rules, with their places.

use std::collections::BTreeSet;

use serde::Serialize;

use text::lang::Text;
use verdict::Id;

/// Severity of a finding, which decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LintSeverity {
    /// The job will fail, hang or be killed.
    Error,
    /// The job may fail, or it wastes resources.
    Warning,
    /// Not checked, with the reason. Does not affect the exit code.
    Info,
}

/// One thing found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Stable id such as `shm.missing`.
    pub id: Id,
    pub importance: LintSeverity,
    pub file: String,
    /// Line of the value, from 1.
    pub line: usize,
    pub text: Text,
    pub hint: Text,
}

/// Collects the findings of the rules.
#[derive(Debug)]
pub(super) struct Findings {
    files: Vec<String>,
    file: usize,
    id: Id,
    found: Vec<(usize, Finding)>,
}

impl Findings {
    pub(super) fn new(files: Vec<String>) -> Findings {
        Findings { files, file: 0, id: Id::LintUnreadable, found: Vec::new() }
    }

    /// Sets file and id of the following findings.
    pub(super) fn at(&mut self, file: usize, id: Id) {
        self.file = file;
        self.id = id;
    }

    pub(super) fn error(&mut self, line: usize, text: Text, hint: Text) {
        self.push(LintSeverity::Error, line, text, hint);
    }

    pub(super) fn warning(&mut self, line: usize, text: Text, hint: Text) {
        self.push(LintSeverity::Warning, line, text, hint);
    }

    pub(super) fn info(&mut self, line: usize, text: Text, hint: Text) {
        self.push(LintSeverity::Info, line, text, hint);
    }

    pub(super) fn push(&mut self, importance: LintSeverity, line: usize, text: Text, hint: Text) {
        let file = self.files.get(self.file).cloned().unwrap_or_default();
        let id = self.id;
        self.found.push((self.file, Finding { id, importance, file, line, text, hint }));
    }

    /// Sorted by file and line, without duplicates.
    pub(super) fn sorted(mut self) -> Vec<Finding> {
        self.found.sort_by_key(|(file, found)| (*file, found.line, found.importance));
        let mut said = BTreeSet::new();
        self.found.retain(|(file, found)| {
            said.insert((*file, found.line, found.id, found.text.en.to_string()))
        });
        self.found.into_iter().map(|(_, found)| found).collect()
    }
}
