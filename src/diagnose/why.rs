//! A diagnosis in the form that is printed, stored and sent.

use super::catalogue::Catalogue;
use super::evidence::Frame;
use super::rows::filled;
use super::select::Diagnosis;
use text::rank::GlobalRank;
use verdict::{AlsoFailed, Victims, Why};

/// The cause of `diagnosis`, if there is one. `logs`: the names of the logs, by their numbers.
pub fn why(catalogue: &Catalogue, diagnosis: &Diagnosis, logs: &[String]) -> Option<Why> {
    let cause = diagnosis.cause.clone()?;
    let victims = diagnosis.victims.iter().filter_map(|victims| {
        let row = catalogue.row(victims.row)?;
        let (ranks, id) = (numbers(&victims.ranks), row.id.clone());
        Some(Victims { ranks, id, text: filled(&row.cause, &[]) })
    });
    let also = diagnosis.also.iter().map(|other| AlsoFailed {
        id: other.id.clone(),
        text: other.text.clone(),
        rank: other.rank.map(|rank| rank.0),
    });
    Some(Why {
        id: cause.id,
        confidence: cause.confidence,
        text: cause.text,
        remedy: cause.remedy,
        owner: cause.owner,
        retry: cause.retry,
        rank: cause.rank.map(|rank| rank.0),
        frame: cause.frame.as_ref().map(with_function),
        log: logs.get(cause.evidence.first.log).cloned().unwrap_or_default(),
        line: cause.evidence.first.line,
        evidence: cause.evidence.text,
        missing: numbers(&cause.missing),
        victims: victims.collect(),
        also: also.collect(),
    })
}

fn numbers(ranks: &[GlobalRank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}

fn with_function(frame: &Frame) -> String {
    if frame.function.is_empty() {
        frame.to_string()
    } else {
        format!("{frame} {}", frame.function)
    }
}
