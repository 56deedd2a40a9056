//! The use of torchrun's variables (PET_) that no contract of a platform reads.
//!
//! Takes the settings, the variables and the engine; gives the options that the engine torchrun
//! gets, a warning if the job may count on an option that is lost, and a line per variable for
//! `plan`. The meanings are those of [`settings::torchrun_options`].

use std::collections::BTreeMap;

use crate::{Membership, Notes, Plan, Scope, WeighedEvidence};
use node::observe::Facts;
use settings::contract::{Claim, Contract};
use settings::torchrun_options::{Becomes, TorchrunOption};
use settings::{Settings, Source};
use text::lang::Text;
use text::order::InOrder;
use text::text;
use verdict::Id;

/// Option → value, for the options that torchrun gets. `meets_by_c10d`: its processes meet through c10d.
pub(super) fn passed(
    settings: &Settings,
    contract: &Contract,
    meets_by_c10d: bool,
) -> BTreeMap<&'static str, String> {
    let is_torchrun = settings.engine.value.row().has_c10d;
    let claims = contract.pet_variables.iter().filter(|claim| is_torchrun && !claim.is_blank());
    let passed = claims.filter_map(|claim| {
        let option = TorchrunOption::of(&claim.variable)?;
        let is_passed = match option.becomes {
            Becomes::Passed => !(option.is_switch() && claim.value.trim() == "0"),
            Becomes::PassedWithC10d => meets_by_c10d,
            _ => false,
        };
        is_passed.then(|| (option.name, claim.value.clone()))
    });
    passed.in_map()
}

/// Warns of each variable without effect that the job may count on.
pub(super) fn check(settings: &Settings, facts: &Facts, plan: &Plan, notes: &mut Notes) {
    if plan.engine.runs_a_command() {
        return;
    }
    for claim in facts.contract.pet_variables.iter().filter(|claim| !claim.is_blank()) {
        let option = TorchrunOption::of(&claim.variable);
        let name = claim.variable.trim_start_matches("PET_").replace('_', "-").to_ascii_lowercase();
        let becomes = option.map(|option| option.becomes);
        let is_on = !option.is_some_and(TorchrunOption::is_switch) || claim.value.trim() != "0";
        let (because, instead) = match becomes {
            Some(Becomes::Lost(..)) => {
                let seconds = claim.value.trim().parse::<u64>().ok();
                let grace = settings.grace.value.as_secs();
                let Some(seconds) = seconds.filter(|seconds| *seconds > grace) else { continue };
                let because = text!("a stop takes {grace} s at most", "停止过程最长 {grace} 秒");
                let instead = text!(
                    "--grace {seconds}s, if the platform waits as long before it kills",
                    "若平台强制终止前会等待这么久，请用 --grace {seconds}s"
                );
                (because, instead)
            }
            Some(Becomes::Passed) if is_on && !plan.torchrun.contains_key(name.as_str()) => {
                let engine = plan.engine;
                let because = text!(
                    "the engine is {engine}, and only torchrun has the option",
                    "引擎为 {engine}，只有 torchrun 有此选项"
                );
                (
                    because,
                    text!(
                        "use --engine torchrun, or remove it",
                        "请使用 --engine torchrun，或去掉该变量"
                    ),
                )
            }
            None if plan.knows(&name, false) => (
                text!(
                    "this torchrun has an option --{name}, which is not known here",
                    "该版本的 torchrun 有 --{name} 选项，而本程序不认识它"
                ),
                text!(
                    "engine_args = [\"--{name}\", …] in a profile passes it on",
                    "在配置文件中写 engine_args = [\"--{name}\", …] 即可传递"
                ),
            ),
            _ => continue,
        };
        let Text { en, zh } = because;
        notes.warn(
            Id::EnvTorchrun,
            text!("{claim} is not used: {en}", "未采用 {claim}：{zh}"),
            instead,
        );
    }
}

/// A line for each variable that is not among `listed`.
pub(super) fn weighed(
    settings: &Settings,
    contract: &Contract,
    plan: Option<&Plan>,
    listed: &[WeighedEvidence],
) -> Vec<WeighedEvidence> {
    let is_listed = |claim: &Claim| {
        listed.iter().filter_map(|one| one.claim.as_ref()).any(|one| one.variable == claim.variable)
    };
    let others = contract.pet_variables.iter().filter(|claim| !is_listed(claim));
    let line = |claim: &Claim| {
        let (is_used, because) = use_of(settings, plan, claim);
        WeighedEvidence {
            platform: "torchrun-variables".to_owned(),
            field: None,
            reading: None,
            claim: Some(claim.clone()),
            is_used,
            because,
        }
    };
    others.map(line).collect()
}

fn use_of(settings: &Settings, plan: Option<&Plan>, claim: &Claim) -> (bool, Text) {
    if settings.engine.value.runs_a_command() {
        return (true, text!("left to the command", "留给该命令"));
    }
    if claim.is_blank() {
        return (false, text!("it is empty, or the word for nothing", "值为空，或是表示空的词"));
    }
    let Some(option) = TorchrunOption::of(&claim.variable) else {
        return (false, text!("torchrun 2.15 has no such option", "torchrun 2.15 没有这个选项"));
    };
    let name = option.name;
    match option.becomes {
        Becomes::Setting(setting) => {
            let source = match setting {
                "log-dir" => settings.log_dir.as_ref().map(|set| &set.source),
                _ => Some(&settings.max_restarts.source),
            };
            by_source(source, claim, setting)
        }
        Becomes::Start if claim.value.trim() == "0" => (false, text!("0 is no", "0 表示否")),
        Becomes::Start => {
            by_source(settings.program.as_ref().map(|set| &set.source), claim, "program")
        }
        Becomes::Passed | Becomes::PassedWithC10d => {
            if plan.is_some_and(|plan| plan.torchrun.contains_key(name)) {
                (true, text!("torchrun gets --{name}", "传给 torchrun：--{name}"))
            } else if settings.engine.value.row().has_c10d {
                (false, text!("only a c10d rendezvous has it", "只有 c10d 会合使用它"))
            } else {
                (false, text!("only the engine torchrun has it", "只有引擎 torchrun 使用它"))
            }
        }
        becomes => {
            let nothing = || text!("nothing was decided by it", "没有据此作出决定");
            (false, becomes.because().unwrap_or_else(nothing))
        }
    }
}

/// Whether the value with this source is that of the variable.
fn by_source(source: Option<&Source>, claim: &Claim, what: &str) -> (bool, Text) {
    let what = what.replace('-', "_");
    match source {
        Some(Source::Environment(variable)) if *variable == claim.variable => {
            (true, Text::same(what))
        }
        Some(source) if *source != Source::Default => {
            (false, text!("{what} comes from {source}", "{what} 取自 {source}"))
        }
        _ => (false, text!("nothing was decided by it", "没有据此作出决定")),
    }
}

/// Number of times that the engine itself starts its ranks again; above 0 only for an elastic job, whose
/// nodes agree on a restart in the engine's own rendezvous.
pub(crate) fn restarts(settings: &Settings, membership: &Membership) -> u32 {
    let by_itself = membership.elastic.is_some() && settings.engine.value.row().has_c10d;
    if by_itself { settings.max_restarts.value } else { 0 }
}

/// Warns before the launch if nothing could restart all nodes together: a single restarted node
/// would only wait for the others.
pub(crate) fn check_restarts(
    settings: &Settings,
    membership: &Membership,
    scope: Scope,
    notes: &mut Notes,
) {
    let most = &settings.max_restarts;
    let (count, source, nnodes) = (most.value, &most.source, membership.members());
    if count == 0 {
        return;
    }
    if restarts(settings, membership) > 0 {
        let because = text!(
            "torchrun starts the ranks of an elastic job again",
            "弹性任务的 rank 由 torchrun 重启"
        );
        notes.decide("max_restarts", count, because, source);
    } else if membership.elastic.is_some() {
        notes.warn(
            Id::RestartsElastic,
            text!(
                "max_restarts {count} [{source}] has no effect: the nodes of an elastic job change, so no node can tell all of them to start again",
                "max_restarts {count} [{source}] 不起作用：弹性任务的节点会变化，没有节点能通知全部节点重新启动"
            ),
            text!(
                "--engine torchrun starts an elastic job again by itself",
                "使用 --engine torchrun 时，弹性任务由它自行重启"
            ),
        );
    } else if nnodes > 1 && !scope.has_muster(settings) {
        notes.warn(
            Id::RestartsMuster,
            text!(
                "max_restarts {count} [{source}] has no effect on {nnodes} nodes without a muster: no node can tell the others to start again",
                "在没有集结的 {nnodes} 个节点上，max_restarts {count} [{source}] 不起作用：没有节点能通知其他节点重新启动"
            ),
            text!(
                "use --muster auto or required, with ranklaunch on every node; else let the platform restart the job",
                "请使用 --muster auto 或 required，并在每个节点上运行 ranklaunch；否则由平台重启任务"
            ),
        );
    }
}
