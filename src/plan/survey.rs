//! One run of the planner: the plan, and all findings.
//!
//! A failed check refuses the launch but hides no other finding: the planner goes on as after a
//! warning. If no plan is possible, such as without a legal layout, the steps that need none
//! still run.

use crate::Notes;
use crate::devices::Hardware;
use crate::solve::plan_with;
use crate::variables::Variables;
use crate::{Plan, Scope, WeighedEvidence, hcas, nccl, python, torchrun, weighed};
use node::observe::{Facts, Gpu};
use settings::{Program, Settings};
use verdict::{Refusal, Warning};

/// Result of one run of the planner.
#[derive(Debug, Clone)]
pub struct Survey {
    /// The plan without regard to failed checks, or why there is none.
    outcome: Result<Plan, Refusal>,
    /// The first failed check before that outcome.
    first: Option<Refusal>,
    /// Failed checks, in the order in which they were found.
    failures: Vec<Refusal>,
    warnings: Vec<Warning>,
    /// The variables of the platform, and the use of each.
    evidence: Vec<WeighedEvidence>,
}

impl Survey {
    /// From the notes of the whole run.
    pub(super) fn of(outcome: Result<Plan, Refusal>, notes: Notes) -> Survey {
        let Notes { warnings, failures, .. } = notes;
        let first = failures.first().cloned();
        Survey { outcome, first, failures, warnings, evidence: Vec::new() }
    }

    /// The plan, unless something refuses it; `run` acts on this.
    pub fn plan(&self) -> Result<&Plan, &Refusal> {
        match &self.first {
            Some(failure) => Err(failure),
            None => self.outcome.as_ref(),
        }
    }

    /// The plan without regard to failed checks; None without membership or layout.
    pub fn outline(&self) -> Option<&Plan> {
        self.outcome.as_ref().ok()
    }

    /// The plan without regard to failed checks, or the reason why there is none.
    pub fn into_outline(self) -> Result<Plan, Refusal> {
        self.outcome
    }

    /// Failed checks, in the order in which they were found.
    pub fn failures(&self) -> &[Refusal] {
        &self.failures
    }

    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    pub fn evidence(&self) -> &[WeighedEvidence] {
        &self.evidence
    }
}

/// The plan with all findings, for a given knowledge of the other nodes.
pub fn survey(settings: &Settings, facts: &Facts, scope: Scope) -> Survey {
    let mut notes = Notes::default();
    let outcome = plan_with(settings, facts, scope, &mut notes);
    let first = notes.failures.first().cloned();
    if outcome.is_err() {
        without_plan(settings, facts, &mut notes);
    }
    let contract = &facts.contract;
    let mut evidence = weighed(contract, &notes.decisions);
    evidence.extend(torchrun::weighed(settings, contract, outcome.as_ref().ok(), &evidence));
    Survey { first, evidence, ..Survey::of(outcome, notes) }
}

/// The findings that need neither membership nor layout.
fn without_plan(settings: &Settings, facts: &Facts, notes: &mut Notes) {
    let variables = Variables::new(settings, facts);
    let hardware = if facts.gpus.visible.is_empty() { Hardware::Cpus } else { Hardware::Gpus };
    let program = settings.program.as_ref().map(|program| program.value.clone());
    let program = program.unwrap_or(Program::Command { argv: Vec::new() });
    let all: Vec<&Gpu> = facts.gpus.gpus.iter().collect();
    hcas::choose(settings, facts, variables, 1, &all, notes);
    nccl::lint(settings, facts, variables, 1, notes);
    python::check(settings, facts, &program, hardware, notes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{facts, flag, settings};
    use settings::{Device, Nproc};
    use verdict::Id;

    fn ids<'a>(ids: impl Iterator<Item = &'a Id>) -> Vec<Id> {
        ids.copied().collect()
    }

    #[test]
    fn failed_check_hides_no_other_finding() {
        let mut settings = settings(&[]);
        settings.nproc_per_node = flag(Nproc::Count(8), "--nproc-per-node");
        settings.device = flag(Device::Gpu, "--device");
        let mut node = facts(4);
        node.gpus.faults.push(Warning::new(
            Id::GpuFaultLost,
            text::lang::Text::same("lost"),
            text::lang::Text::same("reboot"),
        ));
        node.environment.insert("NCCL_TIMEOUT".into(), "1".into());
        node.python.torch = None;
        let found = survey(&settings, &node, Scope::Alone);
        assert_eq!(found.plan().expect_err("refused").id, Id::GpuFaultLost);
        let refused = ids(found.failures().iter().map(|refusal| &refusal.id));
        assert_eq!(refused, [Id::GpuFaultLost, Id::GpuCount]);
        let warned = ids(found.warnings().iter().map(|warning| &warning.id));
        assert!(warned.contains(&Id::EnvNccl) && warned.contains(&Id::PythonTorch), "{warned:?}");
        let outline = found.outline().expect("the plan as it would be");
        assert_eq!(outline.nproc_per_node, 8);
        assert_eq!(outline.warnings, found.warnings(), "and it says nothing that is refused");
    }

    #[test]
    fn unsolvable_layout_hides_no_other_finding() {
        let mut settings = settings(&["--ulysses_size", "7"]);
        settings.layout.rule = flag(settings::LayoutRule::UlyssesWorld, "--layout");
        settings.layout.heads = Some(flag(40, "--heads"));
        let mut node = facts(8);
        node.environment.insert("NCCL_TIMEOUT".into(), "1".into());
        let found = survey(&settings, &node, Scope::Alone);
        assert!(found.outline().is_none(), "{:?}", found.plan());
        let warned = ids(found.warnings().iter().map(|warning| &warning.id));
        assert_eq!(warned, [Id::EnvNccl]);
        // A finding of these last steps is not the reason that there is no plan.
        node.python.interpreter = None;
        let found = survey(&settings, &node, Scope::Alone);
        assert_eq!(found.plan().expect_err("refused").id, Id::LayoutLiteral);
        let failed = ids(found.failures().iter().map(|failure| &failure.id));
        assert_eq!(failed, [Id::PythonInterpreter]);
    }
}
