//! For `ranklaunch plan`: predicts the plan, the refusal and the warnings of a launch without
//! touching the node.

use std::sync::Arc;

use super::own_plan::interactive;
use super::stale::survey;
use linux::host::Host;
use node::observe::Facts;
use plan::{Plan, WeighedEvidence};
use preflight::decide::{Decided, Stage};
use settings::Settings;
use verdict::Refusal;

/// The predicted result of a launch on this node.
pub(super) struct Outlook {
    /// The plan as far as it can be made, even if the launch is refused.
    pub(super) plan: Option<Plan>,
    /// The refusal that `run` would report first.
    pub(super) refusal: Option<Refusal>,
    /// The variables of the platform, and the effect of each.
    pub(super) evidence: Vec<WeighedEvidence>,
}

impl Outlook {
    pub(super) fn refused(refusal: Refusal) -> Outlook {
        Outlook { plan: None, refusal: Some(refusal), evidence: Vec::new() }
    }
}

/// The plan and everything for which `run` would refuse before it touches the node.
pub(super) fn outlook(settings: &Settings, decided: &Decided) -> Outlook {
    let plan = decided.outline();
    let mut refusal = decided.refusal(Stage::BeforeClearing);
    // The ability of this machine to start the job says nothing about an assumed node.
    if let (Some(plan), None, None) = (&plan, &refusal, &settings.assumed) {
        let ready = match settings.host_root {
            Some(_) => plan.has_program(),
            None => plan.runnable(),
        };
        refusal = ready.and_then(|()| interactive(settings, plan)).err();
    }
    Outlook { plan, refusal, evidence: decided.survey().evidence().to_vec() }
}

/// Adds the stale processes that `run` would end or refuse for.
pub(super) async fn beside_stale(
    host: &Arc<Host>,
    settings: &Settings,
    facts: &Facts,
    decided: &Decided,
    outlook: Outlook,
) -> Outlook {
    if settings.assumed.is_some() {
        // Processes of this machine say nothing about an assumed node.
        return outlook;
    }
    let Outlook { plan: Some(mut plan), mut refusal, evidence } = outlook else { return outlook };
    match survey(host, settings, &plan, facts).await {
        Ok(survey) => {
            if refusal.is_none() && host.is_live() {
                refusal = survey.obstacle(host, settings);
            }
            if refusal.is_none() && !survey.frees_gpus() {
                let refused = decided.refusal(Stage::BeforeStart);
                refusal = refused.map(|refusal| survey.named(refusal));
            }
            plan.warnings.extend(survey.warnings());
        }
        Err(other) => refusal = refusal.or(Some(other)),
    }
    Outlook { plan: Some(plan), refusal, evidence }
}
