//! The plan as `plan --format json` shows it, in one language or in both.

use std::collections::BTreeSet;

use serde_json::Value;

use super::types::{CheckRow, DecisionRow, PlanRecord};
use super::value::{items, number, pairs, text, words};

pub(super) fn plan(document: &Value) -> PlanRecord {
    let is_used = |gpu: &&Value| gpu["selected"] == true;
    let gpus = items(&document["gpus"]).iter().filter(is_used).count();
    PlanRecord {
        engine: text(&document["engine"]),
        world_size: number(&document["world_size"]).unwrap_or_default(),
        gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
        decisions: items(&document["decisions"])
            .iter()
            .map(|one| DecisionRow {
                what: text(&one["what"]),
                value: text(&one["value"]),
                because: words(&one["because"]),
                source: text(&one["source"]),
            })
            .collect(),
        warnings: items(&document["warnings"]).iter().map(|one| row(one, "warn")).collect(),
        env: pairs(&document["env"]).collect(),
        argv: items(&document["argv"]).iter().map(text).collect(),
    }
}

/// NVML's numbers of the GPUs that the ranks of this launcher use.
pub(super) fn own_gpus(document: &Value, task: Option<u32>) -> BTreeSet<u32> {
    let is_own = |gpu: &&Value| {
        gpu["selected"] == true && (task.is_none() || number(&gpu["local_rank"]) == task)
    };
    let gpus = items(&document["gpus"]).iter().filter(is_own);
    gpus.filter_map(|gpu| number(&gpu["index"])).collect()
}

/// A check, or a warning, which has no severity of its own.
pub(super) fn row(one: &Value, severity: &str) -> CheckRow {
    CheckRow {
        id: text(&one["id"]),
        severity: one["severity"].as_str().unwrap_or(severity).to_owned(),
        text: words(&one["text"]),
        hint: words(&one["hint"]),
    }
}
