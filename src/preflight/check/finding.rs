//! The input of the checks and their results before the severity is known.
//!
//! The input: settings, facts, the planner's survey, and the results of trials ([`Tried`]), such as a connection to
//! the master. A result is a [`CheckFinding`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::prepare::WriteProblem;
use muster::LinkReport;
use node::observe::Facts;
use plan::{Plan, Survey};
use settings::Settings;
use text::lang::Text;
use text::letters::is_hidden;
use verdict::{Id, Refusal, Verdict};

/// Results of trials; None for a trial that does not apply.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Tried {
    /// Whether node 0 of several nodes can bind the master port.
    pub port: Option<Result<u16, Refusal>>,
    /// Whether a leftover of an earlier run holds that port, and a launch ends it.
    pub port_freed: Option<Text>,
    /// Whether leftovers hold memory of the chosen GPUs, and a launch ends them.
    #[serde(default)]
    pub gpus_freed: bool,
    /// The one connection to the master that the other nodes make.
    pub reach: Option<Result<SocketAddr, Reach>>,
    /// For `check`: the folder for logs, or the reason why no file could be written in it.
    pub write: Option<Result<PathBuf, WriteProblem>>,
    /// For `--torch`: the result of the ranks, or the reason of their failure.
    pub torch: Option<Result<Text, Text>>,
    /// The meeting with the other nodes; None for a capture, which covers one node.
    #[serde(skip)]
    pub nodes: Option<Nodes>,
}

/// Result of the meeting with the other nodes.
#[derive(Debug, Clone)]
pub enum Nodes {
    Found(Box<LinkReport>),
    /// A node takes no part, so only this node is examined.
    Alone(Text),
    /// A node did not come, or the nodes do not fit together.
    Refused(Box<Refusal>),
}

/// The reason why a connection to the master failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    pub peer: SocketAddr,
    pub cause: Text,
}

/// All inputs that a check may read.
#[derive(Debug, Clone, Copy)]
pub struct CheckInput<'a> {
    pub settings: &'a Settings,
    pub facts: &'a Facts,
    pub survey: &'a Survey,
    pub tried: &'a Tried,
}

impl<'a> CheckInput<'a> {
    /// The plan, if one could be made.
    pub(super) fn outline(&self) -> Option<&'a Plan> {
        self.survey.outline()
    }

    pub(super) fn nnodes(&self) -> u32 {
        self.outline().map_or(1, |plan| plan.membership.nnodes)
    }

    /// Number of processes on this node; without a plan, one per visible GPU.
    pub(super) fn nproc(&self) -> u32 {
        let visible = u32::try_from(self.facts.gpus.visible.len()).unwrap_or(u32::MAX);
        self.outline().map_or(visible.max(1), |plan| plan.nproc_per_node)
    }

    /// Number of processes of this node that compute on GPUs.
    pub(super) fn on_gpus(&self) -> u32 {
        match self.outline() {
            Some(plan) if !plan.gpus.iter().any(|gpu| gpu.selected) => 0,
            _ if self.facts.gpus.visible.is_empty() => 0,
            _ => self.nproc(),
        }
    }
}

/// One result of a check.
#[derive(Debug, Clone)]
pub(super) struct CheckFinding {
    pub(super) kind: FindingKind,
    pub(super) text: Text,
    pub(super) hint: Text,
    pub(super) planned: bool,
    /// Set if the exit code differs from that in the table of ids.
    pub(super) verdict: Option<Verdict>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FindingKind {
    /// Has the severity of the check.
    Bad,
    /// Fails whatever the severity is, because something was required by name.
    Refused,
    /// At most a warning.
    Doubtful,
    Info,
    Ok,
}

/// A result, and a hint unless it is empty.
fn finding(kind: FindingKind, (text, hint): (Text, Text)) -> CheckFinding {
    CheckFinding { kind, text, hint, planned: false, verdict: None }
}

pub(super) fn bad(said: (Text, Text)) -> CheckFinding {
    finding(FindingKind::Bad, said)
}

pub(super) fn doubtful(said: (Text, Text)) -> CheckFinding {
    finding(FindingKind::Doubtful, said)
}

/// Information with a hint.
pub(super) fn note(said: (Text, Text)) -> CheckFinding {
    finding(FindingKind::Info, said)
}

pub(super) fn info(text: Text) -> CheckFinding {
    finding(FindingKind::Info, (text, Text::same("")))
}

pub(super) fn ok(text: Text) -> CheckFinding {
    finding(FindingKind::Ok, (text, Text::same("")))
}

/// A text and its hint, each in both languages.
macro_rules! hinted {
    ($en:literal, $zh:literal, $hint:literal, $hint_zh:literal) => {
        (text::text!($en, $zh), text::text!($hint, $hint_zh))
    };
}
pub(super) use hinted;

/// These findings; without one, the finding that nothing is wrong.
pub(super) fn or(
    found: Vec<CheckFinding>,
    otherwise: impl FnOnce() -> CheckFinding,
) -> Vec<CheckFinding> {
    if found.is_empty() { vec![otherwise()] } else { found }
}

/// A path as one line: a name may contain control characters, which would forge lines of ours or
/// act on the terminal.
pub(super) fn shown(path: &Path) -> String {
    let mut shown = String::new();
    for letter in path.to_string_lossy().chars() {
        if is_hidden(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// A check and the function that judges it.
pub(super) type Judge = (Id, fn(&CheckInput<'_>) -> Vec<CheckFinding>);

/// The planner's findings with these ids: failures first, then warnings.
pub(super) fn planned(input: &CheckInput<'_>, ids: &[Id]) -> Vec<CheckFinding> {
    let survey = input.survey;
    let failures =
        survey.failures().iter().map(|one| (FindingKind::Refused, one.id, &one.text, &one.hint));
    let warnings =
        survey.warnings().iter().map(|one| (FindingKind::Bad, one.id, &one.text, &one.hint));
    failures
        .chain(warnings)
        .filter(|(_, id, ..)| ids.contains(id))
        .map(|(kind, _, text, hint)| CheckFinding {
            planned: true,
            ..finding(kind, (text.clone(), hint.clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_shown_on_one_line() {
        for (path, said) in [
            ("a b/it's.py", "a b/it's.py"),
            ("训练.py", "训练.py"),
            ("a\n\u{1b}[2Jb", r"a\n\u{1b}[2Jb"),
        ] {
            assert_eq!(shown(Path::new(path)), said);
        }
    }
}
