//! Rules about the command of a container: no launcher, arguments that ranklaunch refuses, and
//! parts that cannot be read.

use super::super::findings::Findings;
use super::super::launchers::{FlagField, Launcher};
use super::super::pods::{Container, Group};
use super::super::scene::{Scene, containers, launch_sites};
use super::layout::ulysses;
use super::sizes::{StatedSize, per_node, stated_nodes};
use text::lang::Text;
use text::text;

pub(super) fn no_launcher(scene: &Scene<'_, '_>, findings: &mut Findings) {
    let job = scene.job;
    if job.kind.remote {
        return;
    }
    let launch_sites = launch_sites(scene);
    for (index, place) in launch_sites.iter().enumerate() {
        let Some((gpus, _)) = place.container.gpus().filter(|(gpus, _)| *gpus > 1) else {
            continue;
        };
        let started = &place.container.started;
        let others = started.launches.iter().any(|launch| launch.launcher != Launcher::Python);
        // If there are several scripts, only the last one is the job.
        let mut later = launch_sites.iter().skip(index + 1);
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

pub(super) fn cut(scene: &Scene<'_, '_>, findings: &mut Findings) {
    let starts = scene.job.groups.iter().flat_map(|group| &group.containers).map(|c| &c.started);
    for line in starts.chain([&scene.job.entrypoint]).flat_map(|started| &started.cut) {
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

pub(super) fn refused(scene: &Scene<'_, '_>, findings: &mut Findings) {
    let starts = scene.job.groups.iter().flat_map(|group| &group.containers).map(|c| &c.started);
    for refused in starts.chain([&scene.job.entrypoint]).flat_map(|started| &started.refused) {
        let Text { en, zh } = &refused.text;
        findings.error(
            refused.line,
            text!("ranklaunch refuses this: {en}", "ranklaunch 会拒绝：{zh}"),
            text!("see ranklaunch --help", "参见 ranklaunch --help"),
        );
    }
}

/// Ray's entry points are left out, since Ray stops them and not the kubelet.
pub(super) fn behind_shell(scene: &Scene<'_, '_>, findings: &mut Findings) {
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
pub(super) fn unread(scene: &Scene<'_, '_>, findings: &mut Findings) {
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
    for (group, container) in containers(scene) {
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
    for place in launch_sites(scene) {
        let mut sizes = vec![per_node(scene, &place), stated_nodes(scene, &place)];
        if let Some(word) = ulysses(scene, &place).filter(|word| !word.is_plain()) {
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
fn starts_unseen(scene: &Scene<'_, '_>, container: &Container<'_>) -> bool {
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
