//! Collects the planner's notes: decisions with their reasons, warnings, and findings whose
//! severity the user may change (`--severity ID=…`).
//!
//! Every part of the planner writes into one [`Notes`]. A finding never ends the planning, so
//! one run finds all of them.

use crate::Decision;
use settings::Settings;
use text::lang::Text;
use verdict::{Id, Refusal, Severity, Usual, Warning};

/// Decisions, warnings and failures, each in the order in which they were made.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    pub decisions: Vec<Decision>,
    pub warnings: Vec<Warning>,
    /// Findings of checks with the severity fail.
    pub failures: Vec<Refusal>,
}

impl Notes {
    pub fn decide(
        &mut self,
        what: impl Into<String>,
        value: impl ToString,
        because: Text,
        source: impl ToString,
    ) {
        self.decisions.push(Decision::new(what, value, because, source));
    }

    pub fn warn(&mut self, id: Id, text: Text, hint: Text) {
        self.warnings.push(Warning::new(id, text, hint));
    }

    /// Adds a finding with the severity that the user set for its check, else the default one.
    pub fn raise(&mut self, settings: &Settings, finding: Warning) {
        let usual = finding.id.usual().map_or(Severity::Warn, Usual::severity);
        self.raise_as(settings, usual, finding);
    }

    /// Like [`Notes::raise`], with another default severity than that of the check.
    pub(crate) fn raise_as(&mut self, settings: &Settings, usual: Severity, finding: Warning) {
        let Warning { id, text, hint } = finding;
        match severity(settings, id.check().unwrap_or(id), usual) {
            Severity::Fail => self.failures.push(Refusal::new(id, text, hint)),
            Severity::Warn => self.warn(id, text, hint),
            Severity::Off => {}
        }
    }

    /// Adds a finding about a network setting without effect or with harm.
    pub(crate) fn env_nccl(&mut self, settings: &Settings, text: Text, hint: Text) {
        self.raise(settings, Warning::new(Id::EnvNccl, text, hint));
    }
}

/// The severity of the finding `id`: the user's, else `usual`.
pub fn severity(settings: &Settings, id: Id, usual: Severity) -> Severity {
    settings.severities.get(&id).map_or(usual, |chosen| chosen.value)
}

/// `1, 2, 4 or 5` in both languages; `none` for an empty list.
pub(crate) fn one_of<T: ToString>(values: &[T]) -> Text {
    let words: Vec<String> = values.iter().map(ToString::to_string).collect();
    match words.split_last() {
        None => Text::new("none", "无"),
        Some((only, [])) => Text::same(only.clone()),
        Some((last, rest)) => Text::new(
            format!("{} or {last}", rest.join(", ")),
            format!("{} 或 {last}", rest.join("、")),
        ),
    }
}
