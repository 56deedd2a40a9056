//! Checks as people and programs read them: a table, and JSON (DESIGN §4).
//!
//! Takes facts, checks and what became of the plan; gives text and values. Of the
//! environment only what bears on a launch is shown, secrets masked.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::plan_view;
use crate::check::{Check, Level};
use crate::lang::Lang;
use crate::mask::{mask_json, mask_value};
use crate::observe::Facts;
use crate::plan::Plan;
use crate::text;
use crate::verdict::Refusal;

/// Symbol and ANSI colour of each severity.
fn mark(level: Level) -> (&'static str, &'static str) {
    match level {
        Level::Fail => ("✗", "31"),
        Level::Warn => ("!", "33"),
        Level::Info => ("·", "36"),
        Level::Ok => ("✓", "32"),
    }
}

/// The table for people, ending in a line that counts.
pub fn text(checks: &[Check], plan: &Result<Plan, Refusal>, lang: Lang, colour: bool) -> String {
    let mut out = String::new();
    let wide = checks.iter().map(|check| check.id.len()).max().unwrap_or(0);
    for check in checks {
        let (symbol, code) = mark(check.severity);
        let id = check.id;
        let shown = if colour { format!("\x1b[{code}m{symbol}\x1b[0m") } else { symbol.to_owned() };
        let _ = writeln!(out, "{shown} {id:wide$}  {}", check.text.get(lang));
        let hint = check.hint.get(lang);
        if !hint.is_empty() {
            let _ = writeln!(out, "  {:wide$}  → {hint}", "");
        }
    }
    let _ = writeln!(out);
    match plan {
        Ok(plan) => {
            let (nodes, each, world) =
                (plan.membership.nnodes, plan.nproc_per_node, plan.world_size);
            let line = text!(
                "plan: {nodes} nodes × {each} ranks = {world}; ranklaunch plan says why",
                "计划：{nodes} 个节点 × {each} 个进程 = {world}；ranklaunch plan 可查看理由"
            );
            let _ = writeln!(out, "{}", line.get(lang));
        }
        Err(refusal) => {
            let (en, zh) = (&refusal.text.en, &refusal.text.zh);
            let line = text!("run refuses: {en}", "run 会拒绝启动：{zh}");
            let _ = writeln!(out, "{}\n  → {}", line.get(lang), refusal.hint.get(lang));
        }
    }
    let count = |level| checks.iter().filter(|check| check.severity == level).count();
    let (fail, warn, fine) =
        (count(Level::Fail), count(Level::Warn), count(Level::Ok) + count(Level::Info));
    let line = text!(
        "{fail} failed, {warn} warnings, {fine} in order",
        "{fail} 项失败，{warn} 项警告，{fine} 项正常"
    );
    let _ = writeln!(out, "{}", line.get(lang));
    out
}

/// The report for programs.
pub fn json(
    facts: &Facts,
    checks: &[Check],
    plan: &Result<Plan, Refusal>,
    lang: Lang,
    shim: &Path,
) -> Value {
    let checks: Vec<Value> = checks
        .iter()
        .map(|check| {
            json!({
                "id": check.id,
                "severity": check.severity,
                "text": check.text.get(lang),
                "hint": check.hint.get(lang),
            })
        })
        .collect();
    let plan = match plan {
        Ok(plan) => plan_view::json(plan, lang, shim),
        Err(refusal) => plan_view::refusal_json(refusal, lang),
    };
    json!({ "schema": 1, "facts": shown(facts), "checks": checks, "plan": plan })
}

/// Beginnings of the variables that bear on a launch.
const TELLING: &[&str] = &[
    "NCCL_", "TORCH", "CUDA_", "NVIDIA_", "GLOO_", "TP_", "NVSHMEM_", "UCX_", "FI_", "OMP_",
    "MASTER_", "PET_", "GPU_", "LD_", "PYTORCH", "SLURM_", "OMPI_",
];
const TELLING_WHOLE: &[&str] = &[
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "NNODES",
    "NPROC_PER_NODE",
    "PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "TMPDIR",
    "HOSTNAME",
];

/// Where else facts hold what somebody set. (Elsewhere a `token` is that of a GPU.)
const SETTINGS: &[&str] = &["/contract", "/network", "/python", "/state/hami"];

fn shown(facts: &Facts) -> Value {
    let mut value = serde_json::to_value(facts).unwrap_or_default();
    let environment: Map<String, Value> = facts
        .environment
        .iter()
        .filter(|(name, _)| {
            TELLING_WHOLE.contains(&name.as_str())
                || TELLING.iter().any(|start| name.starts_with(start))
        })
        .map(|(name, value)| (name.clone(), shown_value(name, value)))
        .collect();
    if let Some(slot) = value.get_mut("environment") {
        *slot = Value::Object(environment);
    }
    for place in SETTINGS {
        if let Some(part) = value.pointer_mut(place) {
            mask_json(part);
        }
    }
    value
}

fn shown_value(name: &str, value: &str) -> Value {
    mask_value(name, value.as_ref()).to_string_lossy().into_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Evidence, Tried, examine};
    use crate::plan::fixtures::{facts, settings};
    use crate::plan::survey;

    fn report(lang: Lang, colour: bool) -> (String, Value) {
        let mut node = facts(2);
        node.limits.shm_total = Some(64 << 20);
        node.environment.insert("HF_TOKEN".into(), "hunter2".into());
        node.environment.insert("NCCL_API_KEY".into(), "hunter2".into());
        node.environment.insert("NCCL_DEBUG".into(), "WARN".into());
        let settings = settings(&[]);
        let found = survey(&settings, &node);
        let tried = Tried::default();
        let checks =
            examine(&Evidence { settings: &settings, facts: &node, survey: &found, tried: &tried });
        (
            text(&checks, &found.plan, lang, colour),
            json(&node, &checks, &found.plan, lang, Path::new("/bin/ranklaunch")),
        )
    }

    #[test]
    fn people_see_symbol_id_text_and_hint() {
        let (en, _) = report(Lang::En, false);
        assert!(en.contains("! shm.size"), "{en}");
        assert!(en.contains("→ mount an emptyDir"), "{en}");
        assert!(en.contains("✓ gpu.count") && en.contains("0 failed, "), "{en}");
        assert!(!en.contains('\x1b'));
        let (zh, _) = report(Lang::Zh, true);
        assert!(zh.contains("\x1b[33m!\x1b[0m shm.size") && zh.contains("项失败"), "{zh}");
    }

    #[test]
    fn programs_get_facts_checks_and_plan_without_secrets() {
        let (_, value) = report(Lang::En, false);
        assert_eq!(value["schema"], 1);
        let keys: Vec<&String> = value.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["schema", "facts", "checks", "plan"]);
        let shm = value["checks"]
            .as_array()
            .and_then(|checks| checks.iter().find(|check| check["id"] == "shm.size"))
            .expect("the check");
        assert_eq!(shm["severity"], "warn");
        assert_eq!(shm.as_object().map(Map::len), Some(4));
        assert_eq!(value["facts"]["environment"]["NCCL_DEBUG"], "WARN");
        assert_eq!(value["facts"]["environment"]["NCCL_API_KEY"], "***");
        assert!(!value.to_string().contains("hunter2"));
        assert_eq!(value["plan"]["nproc_per_node"], 2);
    }
}
