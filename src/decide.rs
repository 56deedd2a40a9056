//! One decision: what this node would do, and all that stands in its way.
//!
//! Takes settings and facts; gives what was [`Decided`], the only way to a plan that may start.
//! `run`, `plan`, `check` and the muster come here, once for each [`Scope`] and each look at the
//! node. Pure: no file, no socket, no clock.

use crate::check::{self, Check, Evidence, Level, Tried};
use crate::observe::Facts;
use crate::plan::{self, Plan, Scope, Survey};
use crate::settings::Settings;
use crate::verdict::Refusal;

/// When a launch is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Memory that a stale process holds is not held against the node.
    BeforeClearing,
    BeforeStart,
}

/// The plan of one node and what its checks say.
#[derive(Debug, Clone)]
pub struct Decided {
    survey: Survey,
    checks: Vec<Check>,
}

/// Plans once and lets every check judge.
pub fn decide(settings: &Settings, facts: &Facts, scope: Scope) -> Decided {
    let survey = plan::survey(settings, facts, scope);
    let checks = judge(settings, facts, &survey, &Tried::default());
    let decided = Decided { survey, checks };
    let refused = decided.refusal(Stage::BeforeStart).map(|refusal| refusal.id.as_str());
    tracing::info!(?scope, refused, "decided");
    decided
}

fn judge(settings: &Settings, facts: &Facts, survey: &Survey, tried: &Tried) -> Vec<Check> {
    check::examine(&Evidence { settings, facts, survey, tried })
}

impl Decided {
    /// The same plan, judged by what was tried on the network and elsewhere as well.
    pub fn tried(&mut self, settings: &Settings, facts: &Facts, tried: &Tried) {
        self.checks = judge(settings, facts, &self.survey, tried);
    }

    /// Every check, in the order of the report.
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// What the planner alone says.
    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    /// The plan as it would be without checks that fail; None without membership or layout. The
    /// warnings of the checks stand in it.
    pub fn outline(&self) -> Option<Plan> {
        let mut plan = self.survey.outline()?.clone();
        plan.warnings.extend(check::warnings(&self.checks));
        Some(plan)
    }

    /// What `run` would say first: the planner's refusal, else the first check that fails.
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

    /// Whether memory is in use on a chosen GPU, and the refusal if that is one.
    pub fn memory_in_use(&self) -> (bool, Option<Refusal>) {
        let own = || self.checks.iter().filter(|check| check.is_of_memory_in_use());
        let in_use = own().any(|check| check.severity <= Level::Warn);
        (in_use, check::refusal(own()))
    }
}
