//! Results of a check, before their severity is known.

use std::path::Path;

use super::input::CheckInput;
use text::lang::Text;
use text::letters::is_hidden;
use verdict::{Id, Verdict};

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

impl CheckFinding {
    pub(super) fn new(kind: FindingKind, text: Text, hint: Text) -> CheckFinding {
        CheckFinding { kind, text, hint, planned: false, verdict: None }
    }

    pub(super) fn bad(text: Text, hint: Text) -> CheckFinding {
        CheckFinding::new(FindingKind::Bad, text, hint)
    }

    pub(super) fn doubtful(text: Text, hint: Text) -> CheckFinding {
        CheckFinding::new(FindingKind::Doubtful, text, hint)
    }

    pub(super) fn info(text: Text) -> CheckFinding {
        CheckFinding::new(FindingKind::Info, text, Text::same(""))
    }

    pub(super) fn ok(text: Text) -> CheckFinding {
        CheckFinding::new(FindingKind::Ok, text, Text::same(""))
    }
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
            ..CheckFinding::new(kind, text.clone(), hint.clone())
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
