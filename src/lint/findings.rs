//! Findings: what a rule says, and where.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::lang::Text;
use crate::verdict::Id;

/// What a finding does to the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Importance {
    /// The job will fail, hang or be killed.
    Error,
    /// It may, or it wastes what it was given.
    Warning,
    /// Not checked, and why. Does not count.
    Info,
}

/// One thing found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Stable id such as `shm.missing`.
    pub id: Id,
    pub importance: Importance,
    pub file: String,
    /// Of the value, from 1.
    pub line: usize,
    pub text: Text,
    pub hint: Text,
}

/// Where rules put what they find.
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

    /// What is found from here on lies in this file and has this id.
    pub(super) fn at(&mut self, file: usize, id: Id) {
        self.file = file;
        self.id = id;
    }

    pub(super) fn error(&mut self, line: usize, text: Text, hint: Text) {
        self.push(Importance::Error, line, text, hint);
    }

    pub(super) fn warning(&mut self, line: usize, text: Text, hint: Text) {
        self.push(Importance::Warning, line, text, hint);
    }

    pub(super) fn info(&mut self, line: usize, text: Text, hint: Text) {
        self.push(Importance::Info, line, text, hint);
    }

    pub(super) fn push(&mut self, importance: Importance, line: usize, text: Text, hint: Text) {
        let file = self.files.get(self.file).cloned().unwrap_or_default();
        let id = self.id;
        self.found.push((self.file, Finding { id, importance, file, line, text, hint }));
    }

    /// By file and line; the same words at the same place are said once.
    pub(super) fn sorted(mut self) -> Vec<Finding> {
        self.found.sort_by_key(|(file, found)| (*file, found.line, found.importance));
        let mut said = BTreeSet::new();
        self.found.retain(|(file, found)| {
            said.insert((*file, found.line, found.id, found.text.en.to_string()))
        });
        self.found.into_iter().map(|(_, found)| found).collect()
    }
}
