//! Everything that the planner finds, also where it refuses at the first of it.
//!
//! Takes settings and facts; gives the plan as `run` would have it and, beside
//! it, the findings that a refusal kept from being seen. Owns no rule of its own:
//! it plans again with the refusing check made a warning.

use crate::observe::{Facts, Gpu};
use crate::plan::devices::Hardware;
use crate::plan::notes::Notes;
use crate::plan::variables::Variables;
use crate::plan::{Plan, hcas, nccl, plan_with, python};
use crate::settings::{Program, Rdma, Settings, Sourced};
use crate::verdict::{Refusal, Severity, Warning};

/// A plan, or the reasons why there is none, and all findings on the way.
#[derive(Debug, Clone)]
pub struct Survey {
    /// What `run` does.
    pub plan: Result<Plan, Refusal>,
    /// Each check that refuses, in the order in which they were met.
    pub refusals: Vec<Refusal>,
    pub warnings: Vec<Warning>,
    /// The plan as it would be without the refusals of checks; None when there is
    /// no membership or no layout either.
    pub outline: Option<Plan>,
}

/// Plans until no check refuses any more.
pub fn survey(settings: &Settings, facts: &Facts) -> Survey {
    survey_with(settings, facts, None)
}

/// The same where `fewest`, the least that another node can carry, is known.
pub fn survey_with(settings: &Settings, facts: &Facts, fewest: Option<u32>) -> Survey {
    let first = plan_with(settings, facts, fewest);
    let mut found =
        Survey { plan: first.clone(), refusals: Vec::new(), warnings: Vec::new(), outline: None };
    let mut lenient = settings.clone();
    let mut planned = first;
    loop {
        match planned {
            Ok(outline) => {
                found.warnings = outline.warnings.clone();
                found.outline = Some(outline);
                return found;
            }
            Err(refusal) => {
                let again = found.refusals.iter().any(|before| before.id == refusal.id);
                let is_check = relax(&mut lenient, &refusal.id);
                found.refusals.push(refusal);
                if again || !is_check {
                    break;
                }
            }
        }
        planned = plan_with(&lenient, facts, fewest);
    }
    found.warnings = apart(&lenient, facts);
    found
}

/// Makes the check behind this refusal a warning; false when it is no check.
fn relax(settings: &mut Settings, id: &str) -> bool {
    let warn = || Sourced::default_value(Severity::Warn);
    let family = ["gpu.fault", "gpu.fabric"].into_iter().find(|family| id.starts_with(family));
    let id = match id {
        "gpu.count" | "rdma.ports" | "env.nccl" | "python.torch" | "python.interpreter" => id,
        _ => match family {
            Some(family) => family,
            None => return false,
        },
    };
    if id == "rdma.ports" {
        settings.rdma.value = Rdma::Auto;
    }
    settings.severities.insert(id.to_owned(), warn());
    true
}

/// The findings that need neither membership nor layout.
fn apart(settings: &Settings, facts: &Facts) -> Vec<Warning> {
    let mut lenient = settings.clone();
    for id in ["rdma.ports", "env.nccl", "python.torch", "python.interpreter"] {
        relax(&mut lenient, id);
    }
    let variables = Variables::new(&lenient, facts);
    let mut notes = Notes::default();
    let gpus = facts.gpus.visible.len();
    let hardware = if gpus > 0 { Hardware::Gpus } else { Hardware::Cpus };
    let program = lenient.program.as_ref().map(|program| program.value.clone());
    let program = program.unwrap_or(Program::Command { argv: Vec::new() });
    // None of them refuses once it is relaxed.
    let all: Vec<&Gpu> = facts.gpus.gpus.iter().collect();
    let _ = hcas::choose(&lenient, facts, variables, 1, &all, &mut notes);
    let _ = nccl::lint(&lenient, facts, variables, 1, &mut notes);
    let _ = python::check(&lenient, facts, &program, hardware, &mut notes);
    notes.warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::{facts, flag, settings};
    use crate::settings::{Device, Nproc};

    fn ids<'a>(ids: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
        ids.map(String::as_str).collect()
    }

    #[test]
    fn a_refusal_hides_nothing() {
        let mut settings = settings(&[]);
        settings.nproc_per_node = flag(Nproc::Count(8), "--nproc-per-node");
        settings.device = flag(Device::Gpu, "--device");
        let mut node = facts(4);
        node.gpus.faults.push(Warning::new(
            "gpu.fault.lost",
            crate::lang::Text::same("lost"),
            crate::lang::Text::same("reboot"),
        ));
        node.environment.insert("NCCL_TIMEOUT".into(), "1".into());
        node.python.torch = None;
        let found = survey(&settings, &node);
        assert_eq!(found.plan.expect_err("refused").id, "gpu.fault.lost");
        let refused = ids(found.refusals.iter().map(|refusal| &refusal.id));
        assert_eq!(refused, ["gpu.fault.lost", "gpu.count"]);
        let warned = ids(found.warnings.iter().map(|warning| &warning.id));
        assert!(warned.contains(&"env.nccl") && warned.contains(&"python.torch"), "{warned:?}");
        assert!(found.outline.is_some());
    }

    #[test]
    fn a_layout_that_cannot_be_solved_still_lets_the_rest_be_seen() {
        let mut settings = settings(&["--ulysses_size", "7"]);
        settings.layout.rule = flag(crate::settings::LayoutRule::UlyssesWorld, "--layout");
        settings.layout.heads = Some(flag(40, "--heads"));
        let mut node = facts(8);
        node.environment.insert("NCCL_TIMEOUT".into(), "1".into());
        let found = survey(&settings, &node);
        assert!(found.outline.is_none(), "{:?}", found.plan);
        let warned = ids(found.warnings.iter().map(|warning| &warning.id));
        assert_eq!(warned, ["env.nccl"]);
    }
}
