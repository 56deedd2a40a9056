//! A plan, or the reason why there is none, as JSON.
//!
//! Takes a [`Plan`] or a [`Refusal`]; gives JSON values without secrets.

use std::ffi::OsString;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::evidence_view;
use super::plan_shell::masked_env;
use super::plan_view::shown;
use plan::{EngineOptions, Plan, WeighedEvidence, argv, exec_argv};
use text::lang::Lang;
use text::mask::mask_args;
use verdict::Refusal;

/// The plan as JSON. `shim` is the path of this executable.
pub fn json(plan: &Plan, lang: Lang, shim: &Path) -> Value {
    let words = |argv: &[OsString]| -> Vec<String> {
        mask_args(argv).iter().map(|word| word.to_string_lossy().into_owned()).collect()
    };
    let env: Map<String, Value> = masked_env(plan)
        .into_iter()
        .map(|(name, value)| (name, Value::from(value.to_string_lossy().into_owned())))
        .collect();
    let decisions: Vec<Value> = plan
        .decisions
        .iter()
        .map(|decision| {
            json!({
                "what": decision.what,
                "value": shown(decision),
                "because": decision.because.get(lang),
                "source": decision.source,
            })
        })
        .collect();
    let warnings: Vec<Value> = plan
        .warnings
        .iter()
        .map(|warning| {
            json!({
                "id": warning.id,
                "text": warning.text.get(lang),
                "hint": warning.hint.get(lang),
            })
        })
        .collect();
    json!({
        "schema": 1,
        "scope": "local",
        "assumed": plan.decision("assumed").map(|decision| &decision.value),
        "membership": plan.membership,
        "nproc_per_node": plan.nproc_per_node,
        "world_size": plan.world_size,
        "gpus": plan.gpus,
        "layout": plan.layout,
        "network": plan.network,
        "env": env,
        "env_remove": plan.env_remove,
        "working_directory": plan.chdir,
        "engine": plan.engine,
        "argv": words(&argv(plan)),
        "exec_argv": words(&exec_argv(plan, shim, &EngineOptions::default())),
        "decisions": decisions,
        "warnings": warnings,
    })
}

/// A refusal for programs.
pub fn refusal_json(refusal: &Refusal, lang: Lang) -> Value {
    outlook_json(None, Some(refusal), &[], lang, Path::new(""))
}

/// The plan as far as it could be made. `refused` gives the reason if `run` would refuse it,
/// `evidence` the variables of the platform.
pub fn outlook_json(
    plan: Option<&Plan>,
    refusal: Option<&Refusal>,
    evidence: &[WeighedEvidence],
    lang: Lang,
    shim: &Path,
) -> Value {
    let mut document = json!({ "schema": 1 });
    if let Some(refusal) = refusal {
        document["refused"] = refused(refusal, lang);
    }
    if let (Some(Value::Object(plan)), Value::Object(document)) =
        (plan.map(|plan| json(plan, lang, shim)), &mut document)
    {
        document.extend(plan);
    }
    if !evidence.is_empty() {
        document["evidence"] = evidence_view::json(evidence, lang);
    }
    document
}

/// A refusal as a JSON value.
pub(super) fn refused(refusal: &Refusal, lang: Lang) -> Value {
    json!({
        "id": refusal.id,
        "text": refusal.text.get(lang),
        "hint": refusal.hint.get(lang),
    })
}
