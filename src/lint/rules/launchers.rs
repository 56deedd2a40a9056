//! Rules about the command of a container: no launcher, arguments that ranklaunch refuses, parts
//! that cannot be read, and sequence-parallel sizes beside the processes and the model's heads.
//!
//! The planner's own functions judge sizes ([`plan::layout`], [`plan::placeholders`]); this file adds
//! only lines and texts.

use super::sizes::{StatedSize, nodes, per_node, stated_nodes, world_of};
use crate::launches::{Launcher, layout_of};
use crate::pods::{Container, Group};
use crate::scene::{Findings, LaunchSite, Scene};
use adopt::shell::Word;
use plan::layout::{LayoutProblem, Literal, is_legal, solve};
use plan::sizes::{self, Axis};
use plan::{Notes, placeholders};
use settings::launchers::FlagField;
use settings::{LayoutRule, Program, Settings, Source};
use std::ffi::OsString;
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

pub(super) fn no_launcher(scene: &Scene<'_>, findings: &mut Findings) {
    let job = scene.job;
    if job.kind.remote {
        return;
    }
    for (index, place) in scene.sites.iter().enumerate() {
        let Some((gpus, _)) = place.container.gpus().filter(|(gpus, _)| *gpus > 1) else {
            continue;
        };
        let started = &place.container.started;
        let others = started.launches.iter().any(|launch| launch.launcher != Launcher::Python);
        // If there are several scripts, only the last one is the job.
        let mut later = scene.sites.iter().skip(index + 1);
        let is_last = !later.any(|other| std::ptr::eq(other.container, place.container));
        let is_unread = started.serves || !started.unread.is_empty();
        if place.launch.launcher != Launcher::Python || others || !is_last || is_unread {
            continue;
        }
        let line = place.launch.line;
        let hint =
            text!("start it with torchrun or ranklaunch", "请用 torchrun 或 ranklaunch 启动");
        if job.kind.gives_master && ulysses(scene, place).is_some() {
            findings.error(
                line,
                text!(
                    "python starts one process for {gpus} GPUs, and the script reads the platform's node count as the world size",
                    "python 只为 {gpus} 个 GPU 启动一个进程，而脚本会把平台给出的节点数当作总进程数"
                ),
                hint,
            );
        } else if job.kind.gives_master || job.nodes().is_some_and(|nodes| nodes > 1) {
            findings.warning(
                line,
                text!(
                    "python starts one process for {gpus} GPUs: the others stay idle unless the script starts ranks itself",
                    "python 只为 {gpus} 个 GPU 启动一个进程：除非脚本自行启动其余进程，否则其他 GPU 闲置"
                ),
                hint,
            );
        } else {
            findings.info(
                line,
                text!(
                    "python starts one process for {gpus} GPUs; whether the script uses the others is not checked",
                    "python 只为 {gpus} 个 GPU 启动一个进程；未检查脚本是否使用其他 GPU"
                ),
                hint,
            );
        }
    }
}

pub(super) fn cut(scene: &Scene<'_>, findings: &mut Findings) {
    for line in scene.started().flat_map(|started| &started.cut) {
        findings.error(
            *line,
            text!(
                "this comment ends the command: the shell reads the options below it as a second command, which does not exist",
                "这条注释结束了上面的命令：其后的选项会被 shell 当作另一条命令，而该命令并不存在"
            ),
            text!(
                "move the comment above the command; no comment is allowed between lines that end in a backslash",
                "请将注释移到命令之前；以反斜杠续行的各行之间不能有注释"
            ),
        );
    }
}

pub(super) fn refused(scene: &Scene<'_>, findings: &mut Findings) {
    for refused in scene.started().flat_map(|started| &started.refused) {
        let Text { en, zh } = &refused.text;
        findings.error(
            refused.line,
            text!("ranklaunch refuses this: {en}", "ranklaunch 会拒绝：{zh}"),
            text!("see ranklaunch --help", "参见 ranklaunch --help"),
        );
    }
}

/// Ray's entry points are left out, since Ray stops them and not the kubelet.
pub(super) fn behind_shell(scene: &Scene<'_>, findings: &mut Findings) {
    for container in scene.job.groups.iter().flat_map(|group| &group.containers) {
        for line in &container.started.behind_shell {
            findings.warning(
                *line,
                text!(
                    "the shell stays the parent of ranklaunch and does not forward SIGTERM: a deleted pod is killed after its grace period without cleaning up",
                    "shell 仍是 ranklaunch 的父进程且不转发 SIGTERM：删除 Pod 时，宽限期过后会被直接终止，来不及清理"
                ),
                text!(
                    "make it the last command with exec before it, or use ranklaunch as the container's command",
                    "请将其作为最后一条命令并在前面加 exec，或直接把 ranklaunch 作为容器的 command"
                ),
            );
        }
    }
}

/// Lists everything that was not checked, so that the lack of findings does not look like a check.
pub(super) fn unread(scene: &Scene<'_>, findings: &mut Findings) {
    let hint = || {
        text!(
            "check it by hand, or run ranklaunch plan in the pod",
            "请手动检查，或在 Pod 中运行 ranklaunch plan"
        )
    };
    for unread in &scene.job.entrypoint.unread {
        findings.info(unread.line, unread.text.clone(), hint());
    }
    for group in &scene.job.groups {
        unrendered(group, findings);
    }
    for (group, container) in scene.containers() {
        if container.started.serves {
            continue;
        }
        for unread in &container.started.unread {
            findings.info(unread.line, unread.text.clone(), hint());
        }
        if starts_unseen(scene, container) {
            let name = &container.name;
            findings.info(
                container.line(),
                text!(
                    "no known launcher found in {name}; its sizes are not checked",
                    "{name} 中没有已知的启动器，未检查其并行规模"
                ),
                hint(),
            );
        }
        if !group.whole {
            let role = &group.role;
            findings.info(
                container.line(),
                text!(
                    "the runtime of {role} is not in the input; its volumes and limits are not checked",
                    "{role} 的 runtime 不在输入中，未检查其卷和限额"
                ),
                text!("pass the TrainingRuntime as well", "请同时传入 TrainingRuntime"),
            );
        }
    }
    for place in &scene.sites {
        let mut sizes = vec![per_node(scene, place), stated_nodes(scene, place)];
        if let Some(word) = ulysses(scene, place).filter(|word| !word.is_plain()) {
            sizes.push(StatedSize::Unread(word));
        }
        for size in sizes {
            let StatedSize::Unread(word) = size else { continue };
            let shown = word.shown();
            findings.info(
                word.line,
                text!(
                    "{shown} is known only at run time; the sizes are not checked against each other",
                    "{shown} 在运行时才确定，未核对各项规模"
                ),
                hint(),
            );
        }
        if let Some(file) = place.launch.get(FlagField::ConfigFile) {
            let shown = file.shown();
            findings.info(
                file.line,
                text!(
                    "{shown} is not in the manifest; it is not checked",
                    "{shown} 不在清单中，未检查"
                ),
                hint(),
            );
        }
    }
}

/// Placeholders in place of numbers, in a template before `envsubst` or `helm template`.
fn unrendered(group: &Group<'_>, findings: &mut Findings) {
    let hint = || {
        text!(
            "render the template first (envsubst, helm template, kustomize build)",
            "请先渲染模板（envsubst、helm template、kustomize build）"
        )
    };
    let role = &group.role;
    if group.whole && group.replicas.is_none() {
        findings.info(
            group.replicas_line,
            text!(
                "the number of pods of {role} is not a number; the sizes are not checked",
                "{role} 的 Pod 数量不是数字，未核对各项规模"
            ),
            hint(),
        );
    }
    for container in &group.containers {
        let Some(found) = container.unread_gpus() else { continue };
        let (name, text) = (&container.name, found.text);
        findings.info(
            found.line,
            text!(
                "{name} requests {text} GPUs, which is not a number; the pod is not checked",
                "{name} 申请的 GPU 数量 {text} 不是数字，未检查该 Pod"
            ),
            hint(),
        );
    }
}

/// Whether the container requests GPUs, but starts programs that cannot be seen.
fn starts_unseen(scene: &Scene<'_>, container: &Container<'_>) -> bool {
    let started = &container.started;
    let ours = container.env.keys().any(|name| name == "RANKLAUNCH_PROFILE");
    container.gpus().is_some()
        && started.launches.is_empty()
        && started.unread.is_empty()
        && started.refused.is_empty()
        && !started.serves
        && (container.has_command || !ours)
        && !scene.job.kind.remote
        && !scene.job.kind.stays
}

/// The layout from ranklaunch's settings, or else from the known script.
fn settings<'b>(scene: &Scene<'b>, place: &LaunchSite<'b>) -> Option<&'b Settings> {
    let own = place.launch.settings.as_deref();
    if let Some(own) = own.filter(|own| own.layout.rule.source != Source::Default) {
        return Some(own);
    }
    let profile = place.launch.get(FlagField::Profile).map(Word::text);
    layout_of(scene.layouts, place.launch, profile).map(|layout| &layout.settings)
}

/// The argument with a size.
fn stated(scene: &Scene<'_>, place: &LaunchSite<'_>, axis: Axis) -> Option<Word> {
    let known = settings(scene, place);
    let names = known.map(|known| sizes::names(known, known.layout.rule.value, axis));
    let names = names.filter(|names| !names.is_empty());
    place.launch.argument(&names.unwrap_or_else(|| sizes::known_names(axis).into()), sizes::is_size)
}

pub(super) fn ulysses(scene: &Scene<'_>, place: &LaunchSite<'_>) -> Option<Word> {
    stated(scene, place, Axis::Ulysses)
}

fn ring(scene: &Scene<'_>, place: &LaunchSite<'_>) -> Option<Word> {
    stated(scene, place, Axis::Ring)
}

fn number(word: &Word) -> Option<u32> {
    word.is_plain().then(|| word.text().parse().ok())?.filter(|size| *size > 0)
}

/// A number in the arguments; Err if it is decided at run time.
fn literal(word: Option<Word>) -> Result<Option<Literal>, ()> {
    let Some(word) = word.filter(|word| !word.text().starts_with('{')) else { return Ok(None) };
    let value = number(&word).ok_or(())?;
    Ok(Some(Literal { argument: "ulysses".to_owned(), value }))
}

/// The program's arguments, as ranklaunch will pass them.
fn arguments(place: &LaunchSite<'_>) -> Vec<OsString> {
    let of_settings = place.launch.settings.as_ref().and_then(|settings| settings.program.as_ref());
    match of_settings {
        Some(program) => program.value.args().to_vec(),
        None => place.launch.args.iter().map(|word| word.text().into()).collect(),
    }
}

fn heads_in(settings: &Settings, place: &LaunchSite<'_>) -> Option<u32> {
    let stated = place.launch.get(FlagField::Heads).and_then(number);
    let arguments = arguments(place);
    stated.or_else(|| sizes::heads(&settings.layout, &arguments, None, None, &mut Notes::default()))
}

/// The planner's problem, if the manifest has all of it; only for ranklaunch.
fn problem(scene: &Scene<'_>, place: &LaunchSite<'_>, known: &Settings) -> Option<LayoutProblem> {
    if place.launch.launcher != Launcher::Ranklaunch {
        return None;
    }
    let nnodes = u32::try_from(nodes(scene, place).known()?).ok().filter(|nodes| *nodes > 0)?;
    let (gpus, _) = place.container.gpus()?;
    let exact = match place.launch.get(FlagField::Nproc) {
        None => None,
        Some(word) if word.text() == "auto" => None,
        Some(word) => Some((number(word)?, "--nproc-per-node".to_owned())),
    };
    let named = |literal: Option<Literal>, name: Option<&String>| {
        let argument = name.cloned().unwrap_or_else(|| "ulysses".to_owned());
        literal.map(|literal| Literal { argument, ..literal })
    };
    let layout = &known.layout;
    Some(LayoutProblem {
        rule: layout.rule.value,
        nnodes,
        world: None,
        most: u32::try_from(gpus).ok()?,
        exact,
        heads: heads_in(known, place),
        ulysses: named(literal(ulysses(scene, place)).ok()?, layout.ulysses_argument.as_ref()),
        ring: named(literal(ring(scene, place)).ok()?, layout.ring_argument.as_ref()),
    })
}

/// The planner's refusal, with its line, and whether the heads are the reason.
fn planners_refusal(scene: &Scene<'_>, place: &LaunchSite<'_>) -> Option<(Refusal, usize, bool)> {
    let problem = problem(scene, place, settings(scene, place)?)?;
    let refusal = solve(&problem).err()?;
    let literal = ulysses(scene, place).or_else(|| ring(scene, place));
    let (line, by_heads) = match (refusal.id, literal, &problem.ulysses) {
        (Id::LayoutLiteral, Some(word), Some(stated)) => {
            (word.line, problem.heads.is_some_and(|heads| heads % stated.value != 0))
        }
        (Id::LayoutLiteral, Some(word), None) => (word.line, false),
        (Id::LayoutNproc, ..) => {
            (place.launch.get(FlagField::Nproc).map_or(place.launch.line, |word| word.line), false)
        }
        _ => {
            let most = scene.job.groups.iter().max_by_key(|group| group.replicas);
            (most.unwrap_or(place.group).replicas_line, true)
        }
    };
    Some((refusal, line, by_heads))
}

pub(super) fn world(scene: &Scene<'_>, findings: &mut Findings) {
    for place in &scene.sites {
        if let Some((refusal, line, false)) = planners_refusal(scene, place) {
            findings.error(line, refusal.text, refusal.hint);
        }
        if place.launch.launcher == Launcher::Ranklaunch
            && settings(scene, place)
                .is_some_and(|known| known.layout.rule.value != LayoutRule::None)
        {
            continue;
        }
        let Some(word) = ulysses(scene, place) else { continue };
        let Some(ulysses) = number(&word) else { continue };
        let ring = match ring(scene, place) {
            None => 1,
            Some(word) => match number(&word) {
                Some(ring) => ring,
                None => continue,
            },
        };
        let product = u64::from(ulysses) * u64::from(ring);
        if product == 1 {
            continue;
        }
        let by = if ring == 1 { String::new() } else { format!(" × ring {ring}") };
        let Some(world) = world_of(scene, place) else { continue };
        let rule = settings(scene, place).map(|known| known.layout.rule.value);
        let legal = match (rule, u32::try_from(world)) {
            (Some(rule), Ok(world)) => is_legal(rule, world, None, ulysses, ring),
            _ => world % product == 0,
        };
        if !legal {
            let (rule_en, rule_zh) = if rule.is_some() {
                ("should be equal to the number of processes", "应等于总进程数")
            } else {
                ("should divide the number of processes", "应整除总进程数")
            };
            findings.error(
                word.line,
                text!(
                    "ulysses {ulysses}{by} {rule_en}, which is {world}",
                    "ulysses {ulysses}{by} {rule_zh}（{world}）"
                ),
                text!(
                    "set it to {world}, or change replicas × processes",
                    "请设为 {world}，或调整“副本数 × 每节点进程数”"
                ),
            );
        }
    }
}

/// The processes of the job and the size in their arguments, if the manifest has both.
fn given(scene: &Scene<'_>, place: &LaunchSite<'_>, known: &Settings) -> Option<(u32, Program)> {
    let launch = place.launch;
    if let Some(own) = launch.settings.as_deref() {
        let problem = problem(scene, place, known)?;
        let sizes = solve(&problem).ok()?;
        let program = own.program.as_ref()?.value.clone();
        let (nodes, notes) = (problem.nnodes, &mut Notes::default());
        let program = placeholders::with_conditional(own, program, nodes, sizes, notes);
        return Some((nodes.saturating_mul(sizes.nproc), program));
    }
    let world = match launch.launcher {
        // A script without launcher takes the platform's count of nodes for processes.
        Launcher::Python if place.container.env.contains_key("WORLD_SIZE") => None,
        Launcher::Python => scene.job.nodes(),
        _ => world_of(scene, place),
    };
    let path = launch.script.as_ref()?.text().into();
    let args = launch.words().into_iter().map(OsString::from).collect();
    Some((u32::try_from(world?).ok()?, Program::Script { path, args }))
}

pub(super) fn alone(scene: &Scene<'_>, findings: &mut Findings) {
    for place in &scene.sites {
        let Some(known) = settings(scene, place) else { continue };
        let Some((world, program)) = given(scene, place, known) else { continue };
        let Err(refusal) = sizes::check_alone(known.layout.rule.value, world, &program) else {
            continue;
        };
        let launch = place.launch;
        let at = sizes::not_alone(&launch.words()).first().and_then(|at| launch.args.get(*at));
        let hint = match launch.launcher {
            Launcher::Ranklaunch => refusal.hint,
            _ => text!(
                "remove them on one GPU, or start two or more processes",
                "只用一个 GPU 时请去掉它们，或启动两个以上的进程"
            ),
        };
        findings.error(at.map_or(launch.line, |word| word.line), refusal.text, hint);
    }
}

pub(super) fn heads(scene: &Scene<'_>, findings: &mut Findings) {
    for place in &scene.sites {
        if let Some((refusal, line, true)) = planners_refusal(scene, place) {
            findings.error(line, refusal.text, refusal.hint);
            continue;
        }
        let known = settings(scene, place);
        let is_solved = known.is_some_and(|known| known.layout.rule.value != LayoutRule::None);
        if place.launch.launcher == Launcher::Ranklaunch && is_solved {
            continue;
        }
        let stated = place.launch.get(FlagField::Heads).and_then(number);
        let Some(heads) = stated.or_else(|| heads_in(known?, place)) else { continue };
        let Some(word) = ulysses(scene, place) else { continue };
        if let Some(ulysses) = number(&word)
            && heads % ulysses != 0
        {
            let legal = divisors(heads);
            findings.error(
                word.line,
                text!(
                    "{heads} attention heads are not divisible by ulysses {ulysses}",
                    "注意力头数 {heads} 不能被 ulysses {ulysses} 整除"
                ),
                text!("legal sizes: {legal}", "合法取值：{legal}"),
            );
        }
    }
}

/// `[[select]]`: a number of GPUs without a row in the profile.
pub(super) fn select(scene: &Scene<'_>, findings: &mut Findings) {
    for place in &scene.sites {
        let Some(own) = place.launch.settings.as_deref().filter(|own| !own.selects.is_empty())
        else {
            continue;
        };
        let (Some(problem), Some((_, line))) = (problem(scene, place, own), place.container.gpus())
        else {
            continue;
        };
        let Ok(sizes) = solve(&problem) else { continue };
        let world = problem.nnodes.saturating_mul(sizes.nproc);
        let mut all: Vec<OsString> = own.engine_args.iter().map(OsString::from).collect();
        all.extend(own.env.iter().map(|setting| setting.value.clone()));
        all.extend(arguments(place));
        let mut notes = Notes::default();
        let found = placeholders::select(
            &own.selects,
            (problem.nnodes, false),
            problem.most,
            world,
            &all,
            &mut notes,
        );
        if let Err(refusal) = found {
            findings.error(line, refusal.text, refusal.hint);
        }
    }
}

fn divisors(heads: u32) -> String {
    let all: Vec<String> =
        (1..=heads.min(4096)).filter(|n| heads.is_multiple_of(*n)).map(|n| n.to_string()).collect();
    all.join(", ")
}
