//! Sequence-parallel sizes against the number of processes and the model's heads.

use super::super::Scene;
use super::super::findings::Findings;
use super::super::launchers::{Field, Launcher};
use super::super::profiles::{self, Layout};
use super::super::word::Word;
use super::sizes::{nodes, world as world_of};
use super::{Place, places};
use crate::text;

const ULYSSES: &[&str] = &["--ulysses_size", "--ulysses_degree"];
const RING: &[&str] = &["--ring_size", "--ring_degree"];

fn layout<'b>(scene: &Scene<'_, 'b>, place: &Place<'_, '_>) -> Option<&'b Layout> {
    let profile = place.launch.get(Field::Profile).map(Word::text);
    profiles::of(scene.layouts, place.launch, profile)
}

/// The argument that states the ulysses size.
pub(super) fn ulysses(scene: &Scene<'_, '_>, place: &Place<'_, '_>) -> Option<Word> {
    let known = layout(scene, place).map(|layout| layout.ulysses.as_str());
    known.into_iter().chain(ULYSSES.iter().copied()).find_map(|name| place.launch.argument(name))
}

fn number(word: &Word) -> Option<u64> {
    word.is_plain().then(|| word.text().parse().ok())?.filter(|size| *size > 0)
}

pub(super) fn world(scene: &Scene<'_, '_>, findings: &mut Findings) {
    for place in places(scene) {
        let Some(word) = ulysses(scene, &place) else { continue };
        let Some(ulysses) = number(&word) else { continue };
        let ring = match RING.iter().find_map(|name| place.launch.argument(name)) {
            None => 1,
            Some(word) => match number(&word) {
                Some(ring) => ring,
                None => continue,
            },
        };
        let product = ulysses.saturating_mul(ring);
        if product == 1 {
            continue;
        }
        let by = if ring == 1 { String::new() } else { format!(" × ring {ring}") };
        let fills = layout(scene, &place).is_some_and(|layout| layout.fills_world);
        if place.launch.launcher == Launcher::Ranklaunch && place.launch.get(Field::Nproc).is_none()
        {
            // ranklaunch takes the literal as the size of the world, if the nodes can give it.
            let (Some(count), Some((gpus, _))) =
                (nodes(scene, &place).known().filter(|n| *n > 0), place.container.gpus())
            else {
                continue;
            };
            if fills && (product % count != 0 || product / count > gpus) {
                findings.error(
                    word.line,
                    text!(
                        "ulysses {ulysses}{by} cannot be the number of processes of {count} nodes of {gpus} GPUs",
                        "ulysses {ulysses}{by} 不可能等于 {count} 个节点 × {gpus} 个 GPU 的进程数"
                    ),
                    text!("write {{ulysses_size}} and let ranklaunch solve it", "请写 {{ulysses_size}}，由 ranklaunch 求解"),
                );
            }
            continue;
        }
        let Some(world) = world_of(scene, &place) else { continue };
        let legal = if fills { product == world } else { world % product == 0 };
        if !legal {
            let (rule_en, rule_zh) = if fills {
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
                    "请设为 {world}，或调整 副本数 × 每节点进程数"
                ),
            );
        }
    }
}

pub(super) fn heads(scene: &Scene<'_, '_>, findings: &mut Findings) {
    for place in places(scene) {
        let layout = layout(scene, &place);
        let stated = place.launch.get(Field::Heads).and_then(number);
        let Some(heads) = stated.or_else(|| layout?.heads(place.launch)) else { continue };
        if let Some(word) = ulysses(scene, &place)
            && let Some(ulysses) = number(&word)
        {
            if heads % ulysses != 0 {
                let legal = divisors(heads);
                findings.error(
                    word.line,
                    text!(
                        "{heads} attention heads cannot be divided evenly by ulysses {ulysses}",
                        "注意力头数 {heads} 不能被 ulysses {ulysses} 整除"
                    ),
                    text!("legal sizes: {legal}", "合法取值：{legal}"),
                );
            }
            continue;
        }
        // ranklaunch solves it; some numbers of nodes have no solution.
        let fills = layout.is_some_and(|layout| layout.fills_world);
        if place.launch.launcher != Launcher::Ranklaunch || !fills {
            continue;
        }
        let (Some(count), Some((gpus, _))) = (nodes(scene, &place).known(), place.container.gpus())
        else {
            continue;
        };
        let solvable = (1..=gpus.min(64)).any(|each| {
            count.checked_mul(each).is_some_and(|world| world > 0 && heads % world == 0)
        });
        if !solvable {
            let legal = divisors(heads);
            let most = scene.job.groups.iter().max_by_key(|group| group.replicas);
            findings.error(
                most.unwrap_or(place.group).replicas_line,
                text!(
                    "{heads} attention heads cannot be divided among {count} nodes",
                    "注意力头数 {heads} 无法分给 {count} 个节点"
                ),
                text!(
                    "use a number of nodes that divides one of: {legal}",
                    "请选择能整除以下某个数的节点数：{legal}"
                ),
            );
        }
    }
}

fn divisors(heads: u64) -> String {
    let all: Vec<String> =
        (1..=heads.min(4096)).filter(|n| heads.is_multiple_of(*n)).map(|n| n.to_string()).collect();
    all.join(", ")
}
