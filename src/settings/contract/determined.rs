//! Determined: a trial has several containers if one container has fewer slots than the trial.
//!
//! Takes the variables of a container (`master/pkg/tasks/task_trial.go`); gives evidence beside the
//! row of [`super::allocations`], which has no variable of a count under Determined's own agents.

use serde_json::Value;

use crate::contract::{Claim, Evidence, Field, Reading};
use linux::host::Host;

use super::row::Platform;

const CONFIG: &str = "DET_EXPERIMENT_CONFIG";
/// A list of numbers in JSON.
const SLOTS: &str = "DET_SLOT_IDS";

pub(super) fn evidence(host: &Host, platform: &Platform) -> Option<Evidence> {
    if platform.id != "determined" {
        return None;
    }
    let config: Value = serde_json::from_str(&host.variable(CONFIG)?).ok()?;
    let all = config.pointer("/resources/slots_per_trial")?.as_u64()?;
    let own = host.variable(SLOTS).and_then(|list| serde_json::from_str::<Vec<Value>>(&list).ok());
    let own = own.map_or(1, |slots| slots.len().max(1));
    (all > own as u64).then(|| Evidence {
        platform: platform.id.to_owned(),
        field: Field::Several,
        claim: Claim {
            variable: format!("{CONFIG}:resources.slots_per_trial"),
            value: all.to_string(),
        },
        reading: Reading::Count,
        beside: None,
        strength: platform.strength,
    })
}
