//! Volcano's plugins env and svc without its pytorch plugin: variables whose names contain the name of
//! a task (`VC_<TASK>_NUM`, `VC_<TASK>_HOSTS`; volcano, `plugins/svc/const.go`).
//!
//! Takes the environment; tells rows of [`super::table`] whether the job has one kind of task or
//! several, and gives the evidence that no fixed name of a row can.

use crate::contract::{Claim, Evidence, Field, Reading};
use linux::host::Host;

use super::row::Platform;

const ONE: &str = "volcano-workers";
const SEVERAL: &str = "volcano-tasks";

/// Whether the job has one kind of task. The index of this pod within its task is then its node rank.
pub(super) fn has_one_task(host: &Host) -> bool {
    has_index(host) && counts(host).len() == 1
}

pub(super) fn has_several_tasks(host: &Host) -> bool {
    has_index(host) && counts(host).len() > 1
}

fn has_index(host: &Host) -> bool {
    ["VC_TASK_INDEX", "VK_TASK_INDEX"].iter().any(|name| host.variable(name).is_some())
}

/// The number of pods of each task.
fn counts(host: &Host) -> Vec<Claim> {
    let names = host.environment().keys().filter_map(|name| name.to_str());
    let counts = names.filter(|name| name.starts_with("VC_") && name.ends_with("_NUM"));
    counts
        .filter_map(|name| Some(Claim { variable: name.to_owned(), value: host.variable(name)? }))
        .collect()
}

/// Count and master of a proven row of tasks.
pub(super) fn evidence(host: &Host, platform: &Platform) -> Vec<Evidence> {
    let found = |field, reading, claim, beside| Evidence {
        platform: platform.id.to_owned(),
        field,
        claim,
        reading,
        beside,
        strength: platform.strength,
    };
    if ![ONE, SEVERAL].contains(&platform.id) {
        return Vec::new();
    }
    let mut counts = counts(host);
    // The first task of a job is its master by custom only.
    counts.sort_by_key(|claim| claim.variable != "VC_MASTER_NUM");
    let Some((first, rest)) = counts.split_first() else { return Vec::new() };
    let sum = (!rest.is_empty()).then(|| {
        let names: Vec<&str> = rest.iter().map(|claim| claim.variable.as_str()).collect();
        let numbers: Option<Vec<u32>> =
            rest.iter().map(|claim| claim.value.trim().parse().ok()).collect();
        let sum =
            numbers.map(|numbers| numbers.iter().fold(0, |sum: u32, n| sum.saturating_add(*n)));
        Claim {
            variable: names.join("+"),
            value: sum.map_or_else(|| "?".to_owned(), |sum| sum.to_string()),
        }
    });
    let reading = if sum.is_some() { Reading::Sum } else { Reading::Plain };
    let hosts = first.variable.strip_suffix("_NUM").map(|task| format!("{task}_HOSTS"));
    let mut all = vec![found(Field::Nnodes, reading, first.clone(), sum)];
    if let Some(variable) = hosts
        && let Some(value) = host.variable(&variable)
    {
        let claim = Claim { variable, value };
        all.push(found(Field::MasterAddr, Reading::FirstOfList, claim, None));
    }
    all
}
