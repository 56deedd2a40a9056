//! Rules about sequence-parallel sizes, the number of processes and the model's heads.
//!
//! The planner's own functions judge ([`plan::layout`], [`plan::select`]); this
//! file adds only lines and texts.

use std::ffi::OsString;

use super::super::findings::Findings;
use super::super::launchers::{FlagField, Launcher};
use super::super::profiles;
use super::super::scene::{LaunchSite, Scene, launch_sites};
use super::super::word::Word;
use super::sizes::{nodes, world as world_of};
use plan::layout::{LayoutProblem, Literal, is_legal, solve};
use plan::sizes::{self, Axis};
use plan::{Notes, conditional, heads as heads_of, select as rows};
use settings::{LayoutRule, Program, Settings, Source};
use text::text;
use verdict::{Id, Refusal};

/// The layout from ranklaunch's settings, or else from the known script.
fn settings<'b>(scene: &Scene<'_, 'b>, place: &LaunchSite<'_, 'b>) -> Option<&'b Settings> {
    let own = place.launch.settings.as_deref();
    if let Some(own) = own.filter(|own| own.layout.rule.source != Source::Default) {
        return Some(own);
    }
    let profile = place.launch.get(FlagField::Profile).map(Word::text);
    profiles::of(scene.layouts, place.launch, profile).map(|layout| &layout.settings)
}

/// The argument with a size.
fn stated(scene: &Scene<'_, '_>, place: &LaunchSite<'_, '_>, axis: Axis) -> Option<Word> {
    let known = settings(scene, place);
    let names = known.map(|known| sizes::names(known, known.layout.rule.value, axis));
    let names = names.filter(|names| !names.is_empty());
    place.launch.argument(&names.unwrap_or_else(|| sizes::known_names(axis).into()), sizes::is_size)
}

pub(super) fn ulysses(scene: &Scene<'_, '_>, place: &LaunchSite<'_, '_>) -> Option<Word> {
    stated(scene, place, Axis::Ulysses)
}

fn ring(scene: &Scene<'_, '_>, place: &LaunchSite<'_, '_>) -> Option<Word> {
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
fn arguments(place: &LaunchSite<'_, '_>) -> Vec<OsString> {
    let of_settings = place.launch.settings.as_ref().and_then(|settings| settings.program.as_ref());
    match of_settings {
        Some(program) => program.value.args().to_vec(),
        None => place.launch.args.iter().map(|word| word.text().into()).collect(),
    }
}

fn heads_in(settings: &Settings, place: &LaunchSite<'_, '_>) -> Option<u32> {
    let stated = place.launch.get(FlagField::Heads).and_then(number);
    let arguments = arguments(place);
    stated.or_else(|| {
        heads_of::heads(&settings.layout, &arguments, None, None, &mut Notes::default())
    })
}

/// The planner's problem, if the manifest has all of it; only for ranklaunch.
fn problem(
    scene: &Scene<'_, '_>,
    place: &LaunchSite<'_, '_>,
    known: &Settings,
) -> Option<LayoutProblem> {
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
fn refused(scene: &Scene<'_, '_>, place: &LaunchSite<'_, '_>) -> Option<(Refusal, usize, bool)> {
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

pub(super) fn world(scene: &Scene<'_, '_>, findings: &mut Findings) {
    for place in launch_sites(scene) {
        if let Some((refusal, line, false)) = refused(scene, &place) {
            findings.error(line, refusal.text, refusal.hint);
        }
        if place.launch.launcher == Launcher::Ranklaunch
            && settings(scene, &place)
                .is_some_and(|known| known.layout.rule.value != LayoutRule::None)
        {
            continue;
        }
        let Some(word) = ulysses(scene, &place) else { continue };
        let Some(ulysses) = number(&word) else { continue };
        let ring = match ring(scene, &place) {
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
        let Some(world) = world_of(scene, &place) else { continue };
        let rule = settings(scene, &place).map(|known| known.layout.rule.value);
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
fn given(
    scene: &Scene<'_, '_>,
    place: &LaunchSite<'_, '_>,
    known: &Settings,
) -> Option<(u32, Program)> {
    let launch = place.launch;
    if let Some(own) = launch.settings.as_deref() {
        let problem = problem(scene, place, known)?;
        let sizes = solve(&problem).ok()?;
        let program = own.program.as_ref()?.value.clone();
        let (nodes, notes) = (problem.nnodes, &mut Notes::default());
        let program = conditional::apply(own, program, nodes, sizes, notes);
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

pub(super) fn alone(scene: &Scene<'_, '_>, findings: &mut Findings) {
    for place in launch_sites(scene) {
        let Some(known) = settings(scene, &place) else { continue };
        let Some((world, program)) = given(scene, &place, known) else { continue };
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

pub(super) fn heads(scene: &Scene<'_, '_>, findings: &mut Findings) {
    for place in launch_sites(scene) {
        if let Some((refusal, line, true)) = refused(scene, &place) {
            findings.error(line, refusal.text, refusal.hint);
            continue;
        }
        let known = settings(scene, &place);
        let is_solved = known.is_some_and(|known| known.layout.rule.value != LayoutRule::None);
        if place.launch.launcher == Launcher::Ranklaunch && is_solved {
            continue;
        }
        let stated = place.launch.get(FlagField::Heads).and_then(number);
        let Some(heads) = stated.or_else(|| heads_in(known?, &place)) else { continue };
        let Some(word) = ulysses(scene, &place) else { continue };
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
pub(super) fn select(scene: &Scene<'_, '_>, findings: &mut Findings) {
    for place in launch_sites(scene) {
        let Some(own) = place.launch.settings.as_deref().filter(|own| !own.selects.is_empty())
        else {
            continue;
        };
        let (Some(problem), Some((_, line))) =
            (problem(scene, &place, own), place.container.gpus())
        else {
            continue;
        };
        let Ok(sizes) = solve(&problem) else { continue };
        let world = problem.nnodes.saturating_mul(sizes.nproc);
        let mut all: Vec<OsString> = own.engine_args.iter().map(OsString::from).collect();
        all.extend(own.env.iter().map(|setting| setting.value.clone()));
        all.extend(arguments(&place));
        let mut notes = Notes::default();
        let found = rows::select(
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
