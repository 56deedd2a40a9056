//! What the kinds ask for, and what of a command cannot be read.

use super::super::Scene;
use super::super::findings::Findings;
use super::super::launchers::{Field, Launcher};
use super::super::workload::Container;
use super::super::yaml::Node;
use super::layout::ulysses;
use super::sizes::{Size, per_node, stated_nodes};
use super::{containers, places};
use crate::lang::Text;
use crate::text;

/// The JobSpec of a plain or a cron Job.
fn job_spec<'a>(scene: &Scene<'a, '_>) -> Option<&'a Node> {
    let object = scene.job.object;
    match (scene.job.kind.kind, scene.job.kind.gives_master) {
        ("Job", false) => object.get("spec"),
        ("CronJob", _) => object.at(&["spec", "jobTemplate", "spec"]),
        _ => None,
    }
    .filter(|_| scene.job.is_one_job())
}

fn is_indexed(spec: &Node) -> bool {
    spec.get("completionMode").and_then(Node::text) == Some("Indexed")
}

pub(super) fn job_index(scene: &Scene<'_, '_>, findings: &mut Findings) {
    let Some(spec) = job_spec(scene) else { return };
    let pods = scene.job.nodes().unwrap_or(1);
    if pods > 1 && !is_indexed(spec) {
        let line = spec.get("parallelism").map_or(spec.line, |node| node.line);
        findings.error(
            line,
            text!(
                "{pods} pods of a plain Job, none of which knows its rank or the master",
                "普通 Job 的 {pods} 个 Pod 都不知道自己的 rank，也不知道 master"
            ),
            text!(
                "add completionMode: Indexed, completions: {pods} and a headless Service, or use a PyTorchJob",
                "请加上 completionMode: Indexed、completions: {pods} 和 headless Service，或改用 PyTorchJob"
            ),
        );
    }
}

pub(super) fn job_completions(scene: &Scene<'_, '_>, findings: &mut Findings) {
    let Some(spec) = job_spec(scene).filter(|spec| is_indexed(spec)) else { return };
    let number = |key: &str| {
        let node = spec.get(key)?;
        Some((node.text()?.parse::<u64>().ok()?, node.line))
    };
    let (pods, _) = number("parallelism").unwrap_or((1, spec.line));
    let (completions, line) = number("completions").unwrap_or((1, spec.line));
    if pods > 1 && completions != pods {
        findings.error(
            line,
            text!(
                "{completions} completions and {pods} pods at a time: the nodes of one job must run together",
                "completions 为 {completions}，而同时运行 {pods} 个 Pod：同一任务的节点必须同时运行"
            ),
            text!("set completions: {pods}", "请设置 completions: {pods}"),
        );
    }
}

pub(super) fn job_subdomain(scene: &Scene<'_, '_>, findings: &mut Findings) {
    if job_spec(scene).is_none_or(|spec| !is_indexed(spec))
        || scene.job.nodes().is_none_or(|pods| pods < 2)
    {
        return;
    }
    for group in scene.job.groups.iter().filter(|group| group.works()) {
        if group.pod.get("subdomain").is_none()
            && !group.pod.get("hostNetwork").is_some_and(Node::is_true)
        {
            findings.warning(
                group.pod.line(),
                text!(
                    "no subdomain, so no pod can be found by name and nobody finds the master",
                    "没有 subdomain，Pod 没有域名，也就找不到 master"
                ),
                text!(
                    "add subdomain: NAME and a headless Service of that name",
                    "请加上 subdomain: NAME 及同名的 headless Service"
                ),
            );
        }
    }
}

fn is_pytorchjob(scene: &Scene<'_, '_>) -> bool {
    scene.job.kind.kind == "PyTorchJob"
}

pub(super) fn master_replicas(scene: &Scene<'_, '_>, findings: &mut Findings) {
    if !is_pytorchjob(scene) {
        return;
    }
    for group in scene.job.groups.iter().filter(|group| group.role == "Master") {
        let Some(masters) = group.replicas.filter(|masters| *masters != 1) else { continue };
        findings.error(
            group.replicas_line,
            text!(
                "{masters} masters, and a PyTorchJob has one",
                "有 {masters} 个 Master，而 PyTorchJob 只能有一个"
            ),
            text!(
                "set Master replicas to 1, the rest are Workers",
                "请将 Master 副本数设为 1，其余为 Worker"
            ),
        );
    }
}

pub(super) fn container(scene: &Scene<'_, '_>, findings: &mut Findings) {
    if !is_pytorchjob(scene) {
        return;
    }
    for group in &scene.job.groups {
        if !group.containers.iter().any(|container| container.name == "pytorch") {
            let line = group.containers.first().map_or(group.pod.line(), |first| {
                first.node.get("name").map_or(first.line(), |name| name.line)
            });
            let role = &group.role;
            findings.error(
                line,
                text!(
                    "{role} has no container named pytorch, without which the operator refuses the job",
                    "{role} 中没有名为 pytorch 的容器，operator 会拒绝该任务"
                ),
                text!("name the training container pytorch", "请将训练容器命名为 pytorch"),
            );
        }
    }
}

pub(super) fn elastic(scene: &Scene<'_, '_>, findings: &mut Findings) {
    let Some(policy) = scene.job.object.at(&["spec", "elasticPolicy"]) else { return };
    if let Some(standalone) = policy.get("standalone").filter(|node| node.is_true()) {
        findings.error(
            standalone.line,
            text!(
                "standalone sets an empty PET_STANDALONE, at which torchrun ends with a ValueError",
                "standalone 会设置空的 PET_STANDALONE，torchrun 会因 ValueError 退出"
            ),
            text!("remove it", "请删除"),
        );
    }
    if is_pytorchjob(scene) && scene.job.groups.iter().any(|group| group.role == "Master") {
        findings.warning(
            policy.line,
            text!(
                "elasticPolicy beside a Master: PET_NNODES counts Workers only and WORLD_SIZE counts both",
                "elasticPolicy 与 Master 并存：PET_NNODES 只计 Worker，而 WORLD_SIZE 两者都计"
            ),
            text!("make all replicas Workers", "请全部使用 Worker"),
        );
    }
}

pub(super) fn reserved(scene: &Scene<'_, '_>, findings: &mut Findings) {
    const RESERVED: &[&str] = &[
        "PET_NNODES",
        "PET_NPROC_PER_NODE",
        "PET_NODE_RANK",
        "PET_MASTER_ADDR",
        "PET_MASTER_PORT",
    ];
    if scene.job.kind.kind != "TrainJob" {
        return;
    }
    for container in scene.job.groups.iter().flat_map(|group| &group.containers) {
        for (name, variable) in &container.env {
            if RESERVED.contains(&name.as_str()) {
                findings.error(
                    variable.line,
                    text!(
                        "{name} is the Trainer's own variable; the webhook refuses the job",
                        "{name} 是 Trainer 保留的变量，webhook 会拒绝该任务"
                    ),
                    text!("use numNodes and numProcPerNode", "请使用 numNodes 和 numProcPerNode"),
                );
            }
        }
    }
}

pub(super) fn ray_nodes(scene: &Scene<'_, '_>, findings: &mut Findings) {
    if !scene.job.kind.kind.starts_with("Ray") {
        return;
    }
    for launch in &scene.job.entrypoint.launches {
        let Some(word) = launch.get(Field::Nnodes) else { continue };
        let Some(nodes) = word.text().parse::<u64>().ok().filter(|nodes| *nodes > 1) else {
            continue;
        };
        findings.error(
            word.line,
            text!(
                "an entry point runs once, on one node, and this one waits for {nodes}",
                "entrypoint 只在一个节点上运行一次，而它在等待 {nodes} 个节点"
            ),
            text!(
                "start it on every node through Ray (a task for each), with its node rank and the first node's address",
                "请通过 Ray 在每个节点上各启动一次，并给出节点 rank 和第一个节点的地址"
            ),
        );
    }
}

pub(super) fn no_launcher(scene: &Scene<'_, '_>, findings: &mut Findings) {
    if !scene.job.kind.gives_master {
        return;
    }
    for place in places(scene) {
        let Some((gpus, _)) = place.container.gpus().filter(|(gpus, _)| *gpus > 1) else {
            continue;
        };
        if place.launch.launcher == Launcher::Python && ulysses(scene, &place).is_some() {
            findings.error(
                place.launch.line,
                text!(
                    "python starts one process for {gpus} GPUs, and it takes the platform's node count for the world size",
                    "python 只为 {gpus} 个 GPU 启动一个进程，并会把平台给出的节点数当作总进程数"
                ),
                text!("start it with torchrun or ranklaunch", "请用 torchrun 或 ranklaunch 启动"),
            );
        }
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

/// An entry point of Ray is stopped by Ray, not by the kubelet.
pub(super) fn behind_shell(scene: &Scene<'_, '_>, findings: &mut Findings) {
    for container in scene.job.groups.iter().flat_map(|group| &group.containers) {
        for line in &container.started.behind_shell {
            findings.warning(
                *line,
                text!(
                    "the shell stays above ranklaunch and does not pass SIGTERM on: a pod that is deleted is killed after its grace, without a last word",
                    "shell 留在 ranklaunch 之上且不转发 SIGTERM：Pod 被删除时，宽限期过后会被直接杀死，来不及收尾"
                ),
                text!(
                    "make it the last command and write exec before it, or name ranklaunch as the command itself",
                    "请将其作为最后一条命令并在前面加 exec，或直接把 ranklaunch 作为 command"
                ),
            );
        }
    }
}

/// What was not checked, so that silence means that something was.
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
    for (group, container) in containers(scene) {
        for unread in &container.started.unread {
            findings.info(unread.line, unread.text.clone(), hint());
        }
        if starts_unseen(scene, container) {
            let name = &container.name;
            findings.info(
                container.line(),
                text!(
                    "no launcher that is known is seen in {name}, so its sizes are not checked",
                    "{name} 中没有看到已知的启动器，未检查其并行规模"
                ),
                hint(),
            );
        }
        if !group.whole {
            let role = &group.role;
            findings.info(
                container.line(),
                text!(
                    "the runtime of {role} is not in the input, so its volumes and limits are not checked",
                    "{role} 的 runtime 不在输入中，未检查其卷和限额"
                ),
                text!("give the TrainingRuntime as well", "请同时给出 TrainingRuntime"),
            );
        }
    }
    for place in places(scene) {
        let mut sizes = vec![per_node(scene, &place), stated_nodes(scene, &place)];
        if let Some(word) = ulysses(scene, &place).filter(|word| !word.is_plain()) {
            sizes.push(Size::Unread(word));
        }
        for size in sizes {
            let Size::Unread(word) = size else { continue };
            let shown = word.shown();
            findings.info(
                word.line,
                text!(
                    "{shown} is decided at run time, so the sizes are not checked against each other",
                    "{shown} 在运行时才确定，未核对各项规模"
                ),
                hint(),
            );
        }
        if let Some(file) = place.launch.get(Field::ConfigFile) {
            let shown = file.shown();
            findings.info(
                file.line,
                text!(
                    "{shown} is not in the manifest and is not checked",
                    "{shown} 不在清单中，未检查"
                ),
                hint(),
            );
        }
    }
}

/// GPUs are asked for, and nothing tells who uses them.
fn starts_unseen(scene: &Scene<'_, '_>, container: &Container<'_>) -> bool {
    let started = &container.started;
    let ours = container.env.keys().any(|name| name == "RANKLAUNCH_PROFILE");
    container.gpus().is_some()
        && started.launches.is_empty()
        && started.unread.is_empty()
        && started.refused.is_empty()
        && (container.has_command || !ours)
        && !scene.job.kind.kind.starts_with("Ray")
}
