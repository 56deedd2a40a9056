//! The decision: the plan of this node, and everything that refuses it.
//!
//! Takes settings and facts; gives a [`Decided`], the only way to a plan that may start. `run`,
//! `plan`, `check` and the muster call it, once for each [`Scope`] and each reading of the
//! facts. Pure: no file, no socket, no clock.

#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;

use crate::check::{self, Check, CheckInput, CheckStatus, Tried};
use node::observe::Facts;
use plan::{Plan, Scope, Survey};
use settings::Settings;
use verdict::Refusal;

/// The moment at which the launch is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Memory in use does not refuse the launch yet, since stale processes may hold it.
    BeforeClearing,
    BeforeStart,
}

/// The plan of one node and the results of its checks.
#[derive(Debug, Clone)]
pub struct Decided {
    survey: Survey,
    checks: Vec<Check>,
}

/// Plans once and runs every check.
pub fn decide(settings: &Settings, facts: &Facts, scope: Scope) -> Decided {
    let survey = plan::survey(settings, facts, scope);
    let checks = judge(settings, facts, &survey, &Tried::default());
    let decided = Decided { survey, checks };
    let refused = decided.refusal(Stage::BeforeStart).map(|refusal| refusal.id.as_str());
    tracing::info!(?scope, refused, "decided");
    decided
}

fn judge(settings: &Settings, facts: &Facts, survey: &Survey, tried: &Tried) -> Vec<Check> {
    check::examine(&CheckInput { settings, facts, survey, tried })
}

impl Decided {
    /// Judges the same plan again, with the results of trials.
    pub fn tried(&mut self, settings: &Settings, facts: &Facts, tried: &Tried) {
        self.checks = judge(settings, facts, &self.survey, tried);
    }

    /// Every check, in the order of the report.
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// The result of the planner alone.
    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    /// The plan without regard to failed checks, with the warnings of the checks; None without
    /// membership or layout.
    pub fn outline(&self) -> Option<Plan> {
        let mut plan = self.survey.outline()?.clone();
        plan.warnings.extend(check::warnings(&self.checks));
        Some(plan)
    }

    /// The refusal of `run`: the planner's, else that of the first failed check.
    pub fn refusal(&self, stage: Stage) -> Option<Refusal> {
        let counts = |check: &&Check| stage == Stage::BeforeStart || !check.is_of_memory_in_use();
        let failed = || check::refusal(self.checks.iter().filter(counts));
        self.survey.plan().err().cloned().or_else(failed)
    }

    /// The plan, unless it or a check refuses.
    ///
    /// # Errors
    /// [`Decided::refusal`].
    pub fn plan(&self, stage: Stage) -> Result<Plan, Refusal> {
        match (self.refusal(stage), self.outline()) {
            (Some(refusal), _) => Err(refusal),
            (None, Some(plan)) => Ok(plan),
            (None, None) => Err(Refusal::internal("neither a plan nor a refusal")),
        }
    }

    /// Whether memory is in use on a chosen GPU, and the refusal if such memory refuses the launch.
    pub fn memory_in_use(&self) -> (bool, Option<Refusal>) {
        let own = || self.checks.iter().filter(|check| check.is_of_memory_in_use());
        let in_use = own().any(|check| check.severity <= CheckStatus::Warn);
        (in_use, check::refusal(own()))
    }
}
