//! Shows the results of checks: a table for people, JSON for programs.
//!
//! Takes facts, checks and the plan or its refusal; gives text and values. Shows only the part
//! of the environment that affects a launch, with secrets masked.
//! Also shows the nodes of a job and the measured links between them.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::both_languages::one_language;
use super::{plan_forms, plan_view};
use muster::{Link, LinkReport, Measured, Speed};
use node::observe::Facts;
use plan::Plan;
use preflight::check::{Check, CheckStatus};
use text::columns::{fold, table};
use text::lang::{Lang, Text, counted};
use text::mask::{mask_json, mask_value};
use text::style::{Style, paint};
use text::text;
use verdict::Refusal;

/// Symbol and colour of each severity.
fn mark(level: CheckStatus) -> String {
    match level {
        CheckStatus::Fail => paint(Style::Fail, "✗"),
        CheckStatus::Warn => paint(Style::Warn, "!"),
        CheckStatus::Info => paint(Style::Info, "·"),
        CheckStatus::Ok => paint(Style::Good, "✓"),
    }
}

/// Selects the rows of the table that are shown, and their form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// Includes the checks that passed.
    pub all: bool,
    /// Columns of the terminal.
    pub width: Option<usize>,
}

/// The overall result of the checks.
#[derive(Debug, Clone, Copy)]
pub struct OverallResult<'a> {
    /// The refusal of `run`, if it would refuse.
    pub refusal: Option<&'a Refusal>,
    pub exit_code: i32,
}

/// The table for people, with a last line of counts. Checks that passed are only counted, unless
/// all rows are requested.
pub fn text(
    checks: &[Check],
    plan: Result<&Plan, &Refusal>,
    lang: Lang,
    Shown { all, width }: Shown,
) -> String {
    let mut out = String::new();
    let is_shown = |check: &&Check| match check.severity {
        CheckStatus::Fail | CheckStatus::Warn => true,
        CheckStatus::Info => all || !check.hint.en.is_empty(),
        CheckStatus::Ok => all,
    };
    let wide =
        checks.iter().filter(is_shown).map(|check| check.id.as_str().len()).max().unwrap_or(0);
    let indent = 2 + wide + 2;
    for check in by_severity(checks).filter(is_shown) {
        let (symbol, id) = (mark(check.severity), check.id);
        fold(&mut out, &format!("{symbol} {id:wide$}  {}", check.text.get(lang)), indent, width);
        let hint = check.hint.get(lang);
        if !hint.is_empty() {
            let arrow = paint(Style::Info, "→");
            fold(&mut out, &format!("{:indent$}{arrow} {hint}", ""), indent + 2, width);
        }
    }
    if !out.is_empty() {
        let _ = writeln!(out);
    }
    if let Ok(plan) = plan {
        let (Text { en, zh }, nodes) = (plan_view::sentence(plan), plan.membership.nnodes);
        let line = match nodes {
            1 => text!(
                "plan: {en}; ranklaunch plan says why",
                "计划：{zh}；ranklaunch plan 可查看理由"
            ),
            _ => text!(
                "plan, as far as this node knows: {en}; ranklaunch plan says why",
                "计划（就本节点所知）：{zh}；ranklaunch plan 可查看理由"
            ),
        };
        let _ = writeln!(out, "{}", line.get(lang));
    }
    let Count { fail, warn, info, ok } = Count::of(checks);
    let (fine, warnings) = (info + ok, counted(warn, "warning"));
    let line = text!(
        "{fail} failed, {warnings}, {fine} in order",
        "{fail} 项失败，{warn} 项警告，{fine} 项正常"
    );
    let more = match all {
        true => text!("", ""),
        false => text!(" (shown with --all)", "（加 --all 显示）"),
    };
    let _ = writeln!(out, "{}{}", line.get(lang), more.get(lang));
    out
}

/// The failures first, then the warnings; rows of equal severity keep the order of the checks.
fn by_severity(checks: &[Check]) -> impl Iterator<Item = &Check> {
    let order = [CheckStatus::Fail, CheckStatus::Warn, CheckStatus::Info, CheckStatus::Ok];
    order.into_iter().flat_map(|level| checks.iter().filter(move |one| one.severity == level))
}

/// Number of checks by result.
#[derive(Debug, Default, Serialize)]
struct Count {
    fail: usize,
    warn: usize,
    info: usize,
    ok: usize,
}

impl Count {
    fn of(checks: &[Check]) -> Count {
        let mut count = Count::default();
        for check in checks {
            *match check.severity {
                CheckStatus::Fail => &mut count.fail,
                CheckStatus::Warn => &mut count.warn,
                CheckStatus::Info => &mut count.info,
                CheckStatus::Ok => &mut count.ok,
            } += 1;
        }
        count
    }
}

/// The report for programs.
pub fn json(
    facts: &Facts,
    checks: &[Check],
    plan: Result<&Plan, &Refusal>,
    verdict: OverallResult<'_>,
    lang: Lang,
    shim: &Path,
) -> Value {
    let summary = Count::of(checks);
    let rows: Vec<Value> = checks.iter().map(row).collect();
    let plan = match plan {
        Ok(plan) => plan_forms::json(plan, lang, shim),
        Err(refusal) => plan_forms::refusal_json(refusal, lang),
    };
    let refused = verdict.refusal.map(|refusal| plan_forms::refused(refusal, lang));
    json!({
        "schema": 1,
        "exit_code": verdict.exit_code,
        "refused": refused,
        "summary": summary,
        "checks": rows.iter().map(|row| one_language(row, lang)).collect::<Vec<_>>(),
        "plan": plan,
        "facts": shown(facts),
    })
}

/// A check, in both languages.
pub(super) fn row(check: &Check) -> Value {
    let Check { id, severity, text, hint, .. } = check;
    json!({ "id": id, "severity": severity, "text": text, "hint": hint })
}

/// Prefixes of the variables that affect a launch.
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

/// The parts of the facts that hold values set by users, in which secrets are masked. (Elsewhere
/// a `token` belongs to a GPU.)
const SETTINGS: &[&str] = &["/contract", "/network", "/python", "/state/hami"];

fn shown(facts: &Facts) -> Value {
    let mut value = serde_json::to_value(facts).unwrap_or_default();
    if let Some(slot) = value.get_mut("environment") {
        *slot = Value::Object(environment(facts));
    }
    for place in SETTINGS {
        if let Some(part) = value.pointer_mut(place) {
            mask_json(part);
        }
    }
    value
}

/// The variables that affect the launch, without secrets.
pub(super) fn environment(facts: &Facts) -> Map<String, Value> {
    facts
        .environment
        .iter()
        .filter(|(name, _)| {
            TELLING_WHOLE.contains(&name.as_str())
                || TELLING.iter().any(|start| name.starts_with(start))
        })
        .map(|(name, value)| {
            (name.clone(), mask_value(name, value.as_ref()).to_string_lossy().into())
        })
        .collect()
}

/// Maximum number of nodes for which a matrix is printed.
const WIDEST: u32 = 16;

/// The nodes, and the links between them as two matrices: the row sends, the column receives.
pub fn nodes_text(found: &LinkReport, lang: Lang) -> String {
    let mut out = String::new();
    let nodes = found.nnodes;
    let _ = writeln!(out, "{}", text!("{nodes} nodes", "{nodes} 个节点").get(lang));
    if nodes > WIDEST {
        return out;
    }
    let rows = found.nodes.iter().map(|visited| {
        let or_dash = |word: Option<String>| word.unwrap_or_else(|| "-".to_owned());
        let station = &visited.endpoint;
        vec![
            visited.node.to_string(),
            visited.hostname.clone(),
            or_dash(station.interface.clone()),
            or_dash(station.address.map(|address| address.ip().to_string())),
        ]
    });
    table(&mut out, rows.collect());
    let title = text!("round trip, median (ms)", "往返延迟中位数（ms）");
    matrix(&mut out, found, title.get(lang), |speed| format!("{:.3}", speed.median as f64 / 1e3));
    let title = text!("bandwidth (Gb/s)", "带宽（Gb/s）");
    matrix(&mut out, found, title.get(lang), |speed| format!("{:.2}", speed.gigabits()));
    let _ = writeln!(out);
    out
}

fn matrix(out: &mut String, found: &LinkReport, title: &str, shown: impl Fn(&Speed) -> String) {
    let _ = writeln!(out, "{title}");
    let head = std::iter::once("→".to_owned()).chain((0..found.nnodes).map(|to| to.to_string()));
    let mut rows: Vec<Vec<String>> = vec![head.collect()];
    for from in 0..found.nnodes {
        let cell = |to: u32| {
            let link = found.links.iter().find(|link| (link.from, link.to) == (from, to));
            match link.map(|link| &link.measured) {
                Some(Measured::Speed(speed)) => shown(speed),
                Some(Measured::Failed(_)) => "✗".to_owned(),
                None => "-".to_owned(),
            }
        };
        rows.push(std::iter::once(from.to_string()).chain((0..found.nnodes).map(cell)).collect());
    }
    table(out, rows);
}

/// Members of the report: `nodes` and `links`.
pub fn nodes_json(found: &LinkReport, lang: Lang) -> [(&'static str, Value); 2] {
    let node = |visited: &muster::NodeResult| {
        let failed = visited.endpoint.failed.as_ref();
        json!({
            "node": visited.node,
            "hostname": visited.hostname,
            "interface": visited.endpoint.interface,
            "address": visited.endpoint.address.map(|address| address.ip()),
            "megabits": visited.endpoint.megabits,
            "lost": found.lost.iter().find(|(node, _)| *node == visited.node).map(|(_, loss)| loss),
            "failed": failed.map(|refusal| json!({
                "id": refusal.id,
                "code": refusal.verdict.code(),
                "text": refusal.text.get(lang),
            })),
        })
    };
    [
        ("nodes", found.nodes.iter().map(node).collect()),
        ("links", found.links.iter().map(link).collect()),
    ]
}

fn link(link: &Link) -> Value {
    let (from, to) = (link.from, link.to);
    match &link.measured {
        Measured::Speed(speed) => json!({
            "from": from,
            "to": to,
            "rtt_min_us": speed.floor,
            "rtt_median_us": speed.median,
            "rtt_p99_us": speed.p99,
            "gigabits_per_second": (speed.gigabits() * 1e3).round() / 1e3,
        }),
        Measured::Failed(error) => json!({ "from": from, "to": to, "error": error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::fixtures::{facts, settings};
    use plan::{Scope, survey};
    use preflight::check::{CheckInput, Tried, examine};
    use text::style;

    fn report(lang: Lang, all: bool) -> (String, Value) {
        let mut node = facts(2);
        node.limits.shm_total = Some(64 << 20);
        node.environment.insert("HF_TOKEN".into(), "hunter2".into());
        node.environment.insert("NCCL_API_KEY".into(), "hunter2".into());
        node.environment.insert("NCCL_DEBUG".into(), "WARN".into());
        let settings = settings(&[]);
        let found = survey(&settings, &node, Scope::Alone);
        let tried = Tried::default();
        let checks = examine(&CheckInput {
            settings: &settings,
            facts: &node,
            survey: &found,
            tried: &tried,
        });
        let verdict = OverallResult { refusal: None, exit_code: 0 };
        (
            text(&checks, found.plan(), lang, Shown { all, width: None }),
            json(&node, &checks, found.plan(), verdict, lang, Path::new("/bin/ranklaunch")),
        )
    }

    #[test]
    fn text_report_shows_symbol_id_and_hint() {
        let plain = |lang, all| {
            let (text, value) = report(lang, all);
            (style::plain(&text).into_owned(), value)
        };
        let (en, _) = plain(Lang::En, false);
        assert!(en.contains("! shm.size"), "{en}");
        assert!(en.contains("→ mount an emptyDir"), "{en}");
        assert!(!en.contains('✓') && en.contains("0 failed, ") && en.contains("--all"), "{en}");
        let (all, value) = plain(Lang::En, true);
        assert!(all.contains("✓ gpu.count") && !all.contains("--all"), "{all}");
        let lines = |mark: char| all.lines().filter(|line| line.starts_with(mark)).count();
        let counted = |level: &str| value["summary"][level].as_u64().map(|n| n as usize);
        assert_eq!((Some(lines('!')), Some(lines('✓'))), (counted("warn"), counted("ok")), "{all}");
        let at = |mark: char| all.lines().position(|line| line.starts_with(mark));
        assert!(at('!') < at('·') && at('·') < at('✓'), "{all}");
        let (zh, _) = report(Lang::Zh, true);
        assert!(zh.contains("\x1b[33m!\x1b[0m shm.size") && zh.contains("项失败"), "{zh}");
    }

    #[test]
    fn json_has_facts_checks_and_plan_without_secrets() {
        let (_, value) = report(Lang::En, false);
        assert_eq!(value["schema"], 1);
        let keys: Vec<&String> = value.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["schema", "exit_code", "refused", "summary", "checks", "plan", "facts"]);
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
