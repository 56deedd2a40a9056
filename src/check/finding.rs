//! What a check finds, before its severity is known.

use super::evidence::Evidence;
use crate::lang::Text;
use crate::verdict::{Id, Verdict};

/// What one row of the table has to say.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    pub(super) kind: Kind,
    pub(super) text: Text,
    pub(super) hint: Text,
    pub(super) planned: bool,
    /// Where it exits with another code than its row says.
    pub(super) verdict: Option<Verdict>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Of the severity that the check has.
    Bad,
    /// Fails whatever the severity is: something was required by name.
    Refused,
    /// A warning at most.
    Doubtful,
    Info,
    Ok,
}

impl Finding {
    pub(super) fn new(kind: Kind, text: Text, hint: Text) -> Finding {
        Finding { kind, text, hint, planned: false, verdict: None }
    }

    pub(super) fn bad(text: Text, hint: Text) -> Finding {
        Finding::new(Kind::Bad, text, hint)
    }

    pub(super) fn doubtful(text: Text, hint: Text) -> Finding {
        Finding::new(Kind::Doubtful, text, hint)
    }

    pub(super) fn info(text: Text) -> Finding {
        Finding::new(Kind::Info, text, Text::same(""))
    }

    pub(super) fn ok(text: Text) -> Finding {
        Finding::new(Kind::Ok, text, Text::same(""))
    }
}

/// One check and who judges it.
pub(super) type Judged = (Id, fn(&Evidence<'_>) -> Vec<Finding>);

/// What the planner found under these ids: what fails first, then what warns.
pub(super) fn planned(evidence: &Evidence<'_>, ids: &[Id]) -> Vec<Finding> {
    let survey = evidence.survey;
    let failures =
        survey.failures().iter().map(|one| (Kind::Refused, one.id, &one.text, &one.hint));
    let warnings = survey.warnings().iter().map(|one| (Kind::Bad, one.id, &one.text, &one.hint));
    failures
        .chain(warnings)
        .filter(|(_, id, ..)| ids.contains(id))
        .map(|(kind, _, text, hint)| Finding {
            planned: true,
            ..Finding::new(kind, text.clone(), hint.clone())
        })
        .collect()
}
