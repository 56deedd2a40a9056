//! Chooses the variables to add for the ranks, and those that must not reach the engine.
//!
//! Takes the settings and the values of the plan; gives both lists. Only `--env` replaces a
//! variable of the container, and that is recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use crate::Notes;
use crate::devices::Hardware;
use crate::variables::{Variables, overrides};
use crate::{Layout, Membership, Plan};
use node::observe::Facts;
use settings::contract::{Contract, Field, Reading};
use settings::{Engine, Settings};
use text::order::InOrder;
use text::rank::RankId;
use text::text;

/// The values of the plan that the variables depend on.
#[derive(Debug, Clone)]
pub struct PlannedValues<'a> {
    pub membership: &'a Membership,
    pub nproc: u32,
    pub world: u32,
    pub layout: &'a Layout,
    pub engine: Engine,
    pub hardware: Hardware,
    /// CPUs per bound rank, the smallest number of all ranks.
    pub threads: Option<u32>,
    /// Variables of the device and network choice.
    pub chosen: Vec<(String, OsString)>,
}

/// Leftovers of a torchrun that is not our ancestor beside [`Contract::RANK_VARIABLES`]; torch would use them.
const LEFT_OVER: [&str; 4] =
    ["RANK", "WORLD_SIZE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"];

/// Variables to add.
pub fn added(
    settings: &Settings,
    facts: &Facts,
    decided: PlannedValues<'_>,
    notes: &mut Notes,
) -> BTreeMap<String, OsString> {
    let variables = Variables::new(settings, facts);
    let mut env = from_settings(settings, variables, notes);
    for (name, value) in &facts.python.activation {
        env.entry(name.clone()).or_insert_with(|| value.into());
    }
    let seen = facts.gpus.cuda_visible_devices.as_deref();
    for (name, value) in decided.chosen {
        // The chosen GPUs are some of the tokens of this setting, so they replace it.
        let narrows = |set: &OsString| name == "CUDA_VISIBLE_DEVICES" && set.to_str() == seen;
        if env.get(&name).is_none_or(narrows) {
            env.insert(name, value);
        }
    }
    let mut fill = |name: &str, value: String| {
        if !variables.is_set(name) {
            env.insert(name.to_owned(), value.into());
            true
        } else {
            false
        }
    };
    // Without OMP_NUM_THREADS every rank starts a thread per CPU of the node, or only one under torchrun.
    let limit = facts.limits.cpus;
    let given = given_cpus(facts);
    // For a task that is bound to its own CPUs, the limit is that of one task.
    let is_own = decided.membership.task.is_some()
        && given.as_ref().is_some_and(|(_, _, reading)| *reading == Reading::PerTask);
    let given = given.filter(|(count, ..)| *count < limit || is_own);
    let cpus = match given {
        Some((count, ..)) if limit > 0 => count.min(limit),
        Some((count, ..)) => count,
        None => limit,
    };
    let ranks = if is_own { 1 } else { decided.nproc };
    let share = cpus.checked_div(ranks).unwrap_or(1).max(1);
    let bound = decided.threads.filter(|threads| *threads < share);
    let threads = bound.unwrap_or(share);
    if cpus > 0 && fill("OMP_NUM_THREADS", threads.to_string()) {
        let because = if bound.is_some() {
            text!("the CPUs that a bound rank has to itself", "绑定后每个进程可独占的 CPU 数")
        } else {
            text!("{cpus} CPUs for {ranks} ranks", "{ranks} 个进程共用 {cpus} 个 CPU")
        };
        let source = given.map_or_else(|| "detected".to_owned(), |(_, source, _)| source);
        notes.decide("OMP_NUM_THREADS", threads, because, source);
    }
    // The last lines of a dying rank must not stay in its buffer.
    fill("PYTHONUNBUFFERED", "1".to_owned());
    // A crash in native code shows the line of Python that it came from.
    fill("PYTHONFAULTHANDLER", "1".to_owned());
    if let Some((name, value)) = decided.engine.row().on_cpus
        && decided.hardware == Hardware::Cpus
        && decided.world > 1
    {
        fill(name, value.to_owned());
    }
    if decided.engine.runs_a_command() {
        let Membership { nnodes, master_addr, master_port, .. } = decided.membership;
        for (name, value) in [
            ("NNODES", nnodes.to_string()),
            ("NODE_RANK", decided.membership.seat().to_string()),
            ("NPROC_PER_NODE", decided.nproc.to_string()),
            ("MASTER_ADDR", master_addr.clone()),
            ("MASTER_PORT", master_port.to_string()),
            ("ULYSSES_SIZE", decided.layout.ulysses_size.to_string()),
        ] {
            // These are the agreed values, so they replace those of the platform and of a setting: a launcher
            // with another meeting point than the other nodes would wait for them in vain.
            let stated = settings.env.iter().rev().find(|setting| setting.name == name);
            if let Some(setting) = stated.filter(|setting| setting.value != value.as_str()) {
                let source = &setting.source;
                let because = text!(
                    "the value of the plan, not that of {source}",
                    "采用计划中的值，而非 {source} 中的值"
                );
                notes.decide(name, &value, because, source);
            }
            env.insert(name.to_owned(), value.into());
        }
    }
    env
}

/// CPUs that the platform gave to this task without binding it, the variable, and its reading, which
/// tells whether the variable counts the CPUs of one task.
fn given_cpus(facts: &Facts) -> Option<(u32, String, Reading)> {
    let contract = &facts.contract;
    let found = contract.evidence.iter().find(|found| {
        // Variables of an outer platform describe the launcher, not the task.
        found.field == Field::Cpus && found.platform == contract.platform
    })?;
    let count = found.claim.value.trim().parse().ok().filter(|count| *count > 0)?;
    Some((count, found.claim.to_string(), found.reading))
}

/// Adds `--env` always, and the profile's variables only if they are not set.
fn from_settings(
    settings: &Settings,
    variables: Variables<'_>,
    notes: &mut Notes,
) -> BTreeMap<String, OsString> {
    let mut env = BTreeMap::new();
    let (strong, weak): (Vec<_>, Vec<_>) =
        settings.env.iter().partition(|setting| overrides(setting));
    let weak = weak.into_iter().map(|setting| (setting, false));
    for (setting, wins) in weak.chain(strong.into_iter().map(|setting| (setting, true))) {
        let (name, value) = (&setting.name, &setting.value);
        let outside = variables.outside(name);
        if wins || outside.is_none() {
            env.insert(name.clone(), value.clone());
        }
        let Some(outside) = outside.filter(|outside| outside.value.as_str() != value) else {
            continue;
        };
        if wins {
            let source = outside.source;
            let because = text!("overrides the value of {source}", "覆盖了 {source} 中的值");
            notes.decide(name, value.to_string_lossy(), because, &setting.source);
        } else {
            let source = &setting.source;
            let because = text!(
                "already set, so the value of {source} is not used",
                "已有取值，不采用 {source} 中的值"
            );
            notes.decide(name, outside.value, because, outside.source);
        }
    }
    env
}

/// Variables to remove for the engine.
///
/// A user's own launcher (`--engine command`) keeps the variables of the platform: it may read
/// WORLD_SIZE as nodes, or call torchrun and rely on PET_*.
pub fn removed(facts: &Facts, engine: Engine) -> Vec<String> {
    let stale = facts.contract.stale_rank_variables.iter();
    if engine.runs_a_command() {
        return stale.cloned().collect();
    }
    let names: BTreeSet<String> = Contract::RANK_VARIABLES
        .into_iter()
        .chain(LEFT_OVER)
        .map(str::to_owned)
        .chain(facts.contract.pet_variables.iter().map(|claim| claim.variable.clone()))
        .chain(stale.cloned())
        .in_set();
    names.into_iter().collect()
}

/// torch's `env://` variables of one rank, for an engine that starts ranks itself.
pub fn rank_env(plan: &Plan, rank: RankId) -> BTreeMap<String, OsString> {
    let Membership { nnodes, master_addr, master_port, .. } = &plan.membership;
    let seat = plan.membership.seat();
    let RankId { global: rank, local: local_rank } = rank;
    [
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", plan.device_rank.unwrap_or(local_rank).to_string()),
        ("WORLD_SIZE", plan.world_size.to_string()),
        ("LOCAL_WORLD_SIZE", plan.nproc_per_node.to_string()),
        ("GROUP_RANK", seat.to_string()),
        ("GROUP_WORLD_SIZE", nnodes.to_string()),
        // Read by Lightning and composer.
        ("NODE_RANK", seat.to_string()),
        ("MASTER_ADDR", master_addr.clone()),
        ("MASTER_PORT", master_port.to_string()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.into()))
    .in_map()
}
