//! Rules about the sizes of a launch: processes beside GPUs, node counts, replicas and node ranks.

use crate::launches::{Launcher, base, option};
use crate::pods::{Container, Group};
use crate::scene::{Findings, LaunchSite, Scene};
use crate::workload::{Workload, passes_index};
use adopt::shell::Word;
use settings::launchers::FlagField;
use text::lang::Text;
use text::text;
use text::yaml::Node;

/// A number that the manifest may give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StatedSize {
    Known(u64, usize),
    /// Given, but decided at run time.
    Unread(Word),
    /// A word that the launcher resolves (auto, gpu, 1:4), or not given.
    Open,
}

impl StatedSize {
    fn of(number: Option<u64>, line: usize) -> StatedSize {
        number.map_or(StatedSize::Open, |number| StatedSize::Known(number, line))
    }

    pub(super) fn known(&self) -> Option<u64> {
        match self {
            StatedSize::Known(number, _) => Some(*number),
            _ => None,
        }
    }
}

/// A word, with known variables of the platform replaced.
fn read(job: &Workload<'_>, place: &LaunchSite<'_>, word: &Word) -> StatedSize {
    let counted = |name: &str| SLURM_NODES.contains(&name).then(|| by_slurm(place))?;
    let word = word.filled(|name| {
        let number = platform(job, name).or_else(|| counted(name));
        number.map(|number| number.to_string())
    });
    if !word.is_plain() {
        return StatedSize::Unread(word);
    }
    StatedSize::of(word.text().parse().ok(), word.line)
}

/// The variables in which Slurm counts the nodes.
const SLURM_NODES: &[&str] = &["SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"];

/// The options of srun above the launcher and those of sbatch, the stronger ones first; None without srun.
fn of_slurm<'a>(place: &LaunchSite<'a>) -> Option<[&'a [Word]; 2]> {
    let (srun, directives) = (&place.launch.under, &place.container.started.directives);
    let is_srun = srun.first().is_some_and(|word| base(word.text()) == "srun");
    is_srun.then_some([srun, directives])
}

/// The number of the strongest option of this name. `Some(None)`: it is not a plain number, such as `-N 4-6`.
fn slurm_number(layers: &[&[Word]], short: &str, long: &str) -> Option<Option<u64>> {
    let said = layers.iter().find_map(|words| option(words, short, long, true));
    said.map(|word| word.text().parse().ok())
}

/// The nodes on which srun starts the launcher; None where it is not one number, or not one task on each.
fn by_slurm(place: &LaunchSite<'_>) -> Option<u64> {
    let layers = of_slurm(place)?;
    let nodes = slurm_number(&layers, "-N", "--nodes")??;
    let tasks = slurm_number(&layers, "-n", "--ntasks");
    tasks.is_none_or(|tasks| tasks == Some(nodes)).then_some(nodes)
}

/// Several tasks where Slurm starts them on one node: their total and the nodes, or else how many each node has. As in
/// srun(1), `--ntasks-per-node` is only a limit beside `--ntasks`.
pub(super) fn several_tasks(place: &LaunchSite<'_>) -> Option<(u64, Option<u64>)> {
    let nodes = of_slurm(place).and_then(|layers| slurm_number(&layers, "-N", "--nodes")?);
    let layers = [&place.launch.under, &place.container.started.directives];
    let said = layers.into_iter().find_map(|layer| {
        let number = |short: &str, long: &str| slurm_number(&[layer], short, long);
        match (number("-n", "--ntasks"), nodes, number("", "--ntasks-per-node")) {
            (None, _, None) => None,
            (Some(Some(all)), Some(nodes), _) => Some((all > nodes).then_some((all, Some(nodes)))),
            (Some(None), ..) | (.., None | Some(None)) => Some(None),
            (.., Some(Some(each))) => Some((each > 1).then_some((each, None))),
        }
    });
    said.flatten()
}

/// The nodes on which the platform starts the launcher, those without a seat as well.
pub(super) fn handed(scene: &Scene<'_>, place: &LaunchSite<'_>) -> Option<u64> {
    match place.launch.under.is_empty() {
        true => scene.job.nodes().filter(|_| scene.job.is_one_job()),
        false => by_slurm(place),
    }
}

/// The nodes that come beside those with a seat; Open without any.
pub(super) fn spares(job: &Workload<'_>, place: &LaunchSite<'_>) -> StatedSize {
    match place.launch.get(FlagField::Spares).map(|word| read(job, place, word)) {
        None | Some(StatedSize::Known(0, _)) => StatedSize::Open,
        Some(size) => size,
    }
}

/// Variables whose value follows from the manifest.
fn platform(job: &Workload<'_>, name: &str) -> Option<u64> {
    let operator = || job.operator_nproc().and_then(|node| node.text()?.parse::<u64>().ok());
    match (job.kind.kind, name) {
        ("PyTorchJob" | "TrainJob", "PET_NNODES") => job.nodes(),
        ("PyTorchJob" | "TrainJob", "PET_NPROC_PER_NODE") => operator(),
        // The operator multiplies by nprocPerNode if that is a number (since 1.7).
        ("PyTorchJob", "WORLD_SIZE") => Some(job.nodes()?.saturating_mul(operator().unwrap_or(1))),
        ("TrainingJob", "WORLD_SIZE" | "NODE_COUNT") => job.nodes(),
        ("Job", "WORLD_SIZE") if job.kind.gives_master => job.nodes(),
        ("LeaderWorkerSet", "LWS_GROUP_SIZE") => job.nodes(),
        _ => None,
    }
}

/// Processes on each node.
pub(super) fn per_node(scene: &Scene<'_>, place: &LaunchSite<'_>) -> StatedSize {
    let (job, LaunchSite { container, launch, .. }) = (scene.job, place);
    let gpus = || {
        container.gpus().map_or(StatedSize::Open, |(count, line)| StatedSize::Known(count, line))
    };
    if let Some(stated) = launch.get(FlagField::Nproc) {
        return match read(job, place, stated) {
            StatedSize::Open if matches!(stated.text(), "auto" | "gpu") => {
                if launch.launcher == Launcher::Ranklaunch { StatedSize::Open } else { gpus() }
            }
            size => size,
        };
    }
    match launch.launcher {
        Launcher::Torchrun => {
            if let Some((value, line)) = container.literal("PET_NPROC_PER_NODE") {
                return value
                    .parse()
                    .map_or_else(|_| gpus(), |number| StatedSize::Known(number, line));
            }
            if let Some(node) = job.operator_nproc() {
                let number = node.text().and_then(|text| text.parse().ok());
                return number.map_or_else(gpus, |number| StatedSize::Known(number, node.line));
            }
            if job.kind.gives_pet { gpus() } else { StatedSize::Known(1, launch.line) }
        }
        Launcher::Deepspeed => gpus(),
        Launcher::Accelerate => {
            match (launch.get(FlagField::Processes), nodes(scene, place).known()) {
                (Some(all), Some(nodes)) if nodes > 0 => match read(job, place, all) {
                    StatedSize::Known(all, line) if all % nodes == 0 => {
                        StatedSize::Known(all / nodes, line)
                    }
                    StatedSize::Known(..) => StatedSize::Open,
                    size => size,
                },
                _ => StatedSize::Open,
            }
        }
        // ranklaunch reads PET_NPROC_PER_NODE as torchrun does.
        Launcher::Ranklaunch if job.kind.gives_pet => job
            .operator_nproc()
            .and_then(|node| Some(StatedSize::Known(node.text()?.parse().ok()?, node.line)))
            .unwrap_or(StatedSize::Open),
        Launcher::Ranklaunch | Launcher::Python => StatedSize::Open,
    }
}

/// Nodes in the launch itself; Open if the platform gives them.
pub(super) fn stated_nodes(scene: &Scene<'_>, place: &LaunchSite<'_>) -> StatedSize {
    let (job, LaunchSite { container, launch, .. }) = (scene.job, place);
    if let Some(standalone) = launch.get(FlagField::Standalone) {
        return StatedSize::Known(1, standalone.line);
    }
    if let Some(stated) = launch.get(FlagField::Nnodes) {
        return read(job, place, stated);
    }
    match launch.launcher {
        Launcher::Torchrun => match container.literal("PET_NNODES") {
            Some((value, line)) => StatedSize::of(value.parse().ok(), line),
            None if job.kind.gives_pet => StatedSize::Open,
            None => StatedSize::Known(1, launch.line),
        },
        Launcher::Accelerate | Launcher::Deepspeed
            if launch.get(FlagField::ConfigFile).is_none() =>
        {
            StatedSize::Known(1, launch.line)
        }
        _ => StatedSize::Open,
    }
}

/// Nodes of the launch that have a seat: the given number, else the nodes of the job but its spares.
pub(super) fn nodes(scene: &Scene<'_>, place: &LaunchSite<'_>) -> StatedSize {
    match stated_nodes(scene, place) {
        StatedSize::Open if place.launch.get(FlagField::Nnodes).is_none() => {
            let spares = match spares(scene.job, place) {
                StatedSize::Unread(_) => return StatedSize::Open,
                size => size.known().unwrap_or(0),
            };
            let all = match place.launch.under.is_empty() {
                true => scene.job.nodes(),
                false => by_slurm(place),
            };
            StatedSize::of(all.map(|all| all.saturating_sub(spares)), place.launch.line)
        }
        size => size,
    }
}

/// Processes of the whole job.
pub(super) fn world_of(scene: &Scene<'_>, place: &LaunchSite<'_>) -> Option<u64> {
    per_node(scene, place).known()?.checked_mul(nodes(scene, place).known()?)
}

pub(super) fn nproc(scene: &Scene<'_>, findings: &mut Findings) {
    for place in &scene.sites {
        let Some((gpus, _)) = place.container.gpus() else { continue };
        let StatedSize::Known(nproc, line) = per_node(scene, place) else { continue };
        if place.launch.launcher == Launcher::Accelerate {
            continue;
        }
        let by = place.launch.source(FlagField::Nproc);
        if nproc > gpus && place.launch.launcher == Launcher::Ranklaunch {
            findings.error(
                line,
                text!(
                    "{nproc} processes per node{by} and a limit of {gpus} GPUs: ranklaunch refuses to start (gpu.count)",
                    "每个节点 {nproc} 个进程{by}，而 GPU 限额为 {gpus}：ranklaunch 会拒绝启动（gpu.count）"
                ),
                text!("make both numbers equal", "请使两者相等"),
            );
        } else if nproc > gpus {
            findings.error(
                line,
                text!(
                    "{nproc} processes per node and a limit of {gpus} GPUs: CUDA error: invalid device ordinal",
                    "每个节点 {nproc} 个进程，而 GPU 限额为 {gpus}：会报 CUDA error: invalid device ordinal"
                ),
                text!("make both numbers equal", "请使两者相等"),
            );
        } else if nproc < gpus {
            let idle = gpus - nproc;
            findings.warning(
                line,
                text!(
                    "{nproc} processes per node{by} and a limit of {gpus} GPUs: {idle} GPUs stay idle",
                    "每个节点 {nproc} 个进程{by}，而 GPU 限额为 {gpus}：{idle} 个 GPU 闲置"
                ),
                text!(
                    "request {nproc} GPUs, or start {gpus} processes",
                    "请只申请 {nproc} 个 GPU，或启动 {gpus} 个进程"
                ),
            );
        }
    }
}

pub(super) fn single(scene: &Scene<'_>, findings: &mut Findings) {
    array(scene, findings);
    let Some(pods) = scene.job.nodes().filter(|pods| *pods > 1) else { return };
    for place in &scene.sites {
        // With spares the job is refused, which has a rule of its own.
        let is_alone = spares(scene.job, place) == StatedSize::Open;
        if place.launch.launcher == Launcher::Python || !is_alone {
            continue;
        }
        if let StatedSize::Known(1, line) = stated_nodes(scene, place) {
            let by = place.launch.source(FlagField::Nnodes);
            findings.error(
                line,
                text!(
                    "{pods} pods, but each is configured as the only node{by}: {pods} separate jobs, each with rank 0",
                    "共 {pods} 个 Pod，但每个都按单节点配置{by}：会变成 {pods} 个各自独立的任务，每个都有 rank 0"
                ),
                text!(
                    "set --nnodes={pods} and each pod's rank, or keep one pod",
                    "请设置 --nnodes={pods} 及各 Pod 的 rank，或只保留一个 Pod"
                ),
            );
        }
    }
}

/// Pods that are alone by ranklaunch's own flag, and do not tell their script the number of the pod.
fn array(scene: &Scene<'_>, findings: &mut Findings) {
    if !scene.job.is_array() {
        return;
    }
    for place in &scene.sites {
        let Some(pods) = place.group.replicas.filter(|pods| *pods > 1) else { continue };
        let Some(word) = place.launch.get(FlagField::Nnodes) else { continue };
        if !passes_index(place.container, place.launch) {
            findings.info(
                word.line,
                text!(
                    "{pods} pods, each a job of its own, as --nnodes 1 says; what tells them apart is not checked",
                    "共 {pods} 个 Pod，按 --nnodes 1 各为一个独立任务；未检查它们如何区分"
                ),
                text!(
                    "for one job set --nnodes {pods}; for separate ones pass $(JOB_COMPLETION_INDEX) to the script",
                    "若是同一任务，请设置 --nnodes {pods}；若各自独立，请把 $(JOB_COMPLETION_INDEX) 传给脚本"
                ),
            );
        }
    }
}

pub(super) fn processes(scene: &Scene<'_>, findings: &mut Findings) {
    let Some(pods) = scene.job.nodes() else { return };
    for place in &scene.sites {
        let Some(word) = place.launch.get(FlagField::Processes).filter(|word| word.is_plain())
        else {
            continue;
        };
        let (Ok(stated), Some((gpus, _))) = (word.text().parse::<u64>(), place.container.gpus())
        else {
            continue;
        };
        let all = pods.saturating_mul(gpus);
        let hint = text!(
            "set {all} processes, the total of all nodes",
            "请将总进程数设为 {all}（所有节点合计）"
        );
        if stated > all {
            findings.error(
                word.line,
                text!(
                    "{stated} processes, but {pods} pods of {gpus} GPUs have {all}",
                    "设置了 {stated} 个进程，而 {pods} 个 Pod × {gpus} 个 GPU 只有 {all}"
                ),
                hint,
            );
        } else if stated < all {
            findings.warning(
                word.line,
                text!(
                    "{stated} processes for {pods} pods of {gpus} GPUs, which have {all}",
                    "设置了 {stated} 个进程，而 {pods} 个 Pod × {gpus} 个 GPU 共有 {all}"
                ),
                hint,
            );
        }
    }
}

pub(super) fn world_size(scene: &Scene<'_>, findings: &mut Findings) {
    let Some(pods) = scene.job.nodes() else { return };
    if !scene.job.is_one_job() {
        return;
    }
    for (_, container) in scene.containers() {
        let Some((value, line)) = container.literal("WORLD_SIZE") else { continue };
        let Ok(stated) = value.parse::<u64>() else { continue };
        let per_node = scene
            .sites
            .iter()
            .find(|place| std::ptr::eq(place.container, container))
            .and_then(|place| per_node(scene, place).known())
            .or_else(|| container.gpus().map(|(gpus, _)| gpus));
        let all = per_node.map(|each| pods.saturating_mul(each));
        if stated == pods || Some(stated) == all {
            continue;
        }
        let or_en = all.map(|all| format!(" or {all} (processes)")).unwrap_or_default();
        let or_zh = all.map(|all| format!("或 {all}（进程）")).unwrap_or_default();
        findings.error(
            line,
            text!(
                "WORLD_SIZE is {stated}, but the replicas make {pods} (nodes){or_en}",
                "WORLD_SIZE 为 {stated}，而按副本数应为 {pods}（节点）{or_zh}"
            ),
            text!("set it to {pods}", "请设为 {pods}"),
        );
    }
}

/// Whether the rendezvous assigns the ranks, so that torchrun ignores the node rank
/// (torch/distributed/run.py; every backend but static).
pub(super) fn is_dynamic(scene: &Scene<'_>, place: &LaunchSite<'_>) -> bool {
    let launch = place.launch;
    let takes = matches!(launch.launcher, Launcher::Torchrun | Launcher::Accelerate);
    if let Some(backend) = launch.get(FlagField::Backend) {
        return takes && backend.text() != "static";
    }
    let of_container =
        place.container.literal("PET_RDZV_BACKEND").map(|(value, _)| value != "static");
    // The operator passes the policy's backend to torchrun, by default c10d.
    let policy = scene.job.object.at(&["spec", "elasticPolicy"]);
    let of_operator = policy.map(|policy| {
        let backend = policy.get("rdzvBackend").and_then(Node::text);
        scene.job.kind.gives_pet && backend.is_none_or(|backend| backend != "static")
    });
    launch.launcher == Launcher::Torchrun && of_container.or(of_operator).unwrap_or(false)
}

/// The completion index numbers the pods of one Job, but a JobSet with replicas has several
/// Jobs.
fn repeated_index(scene: &Scene<'_>, findings: &mut Findings) {
    let is_index = |container: &Container<'_>, name: &str| {
        let field = container.env.get(name).and_then(|variable| variable.field.as_deref());
        field.map_or(name == "JOB_COMPLETION_INDEX", |field| field.contains("job-completion-index"))
    };
    let mut say = |line: usize, group: &Group<'_>| {
        let (copies, role) = (group.copies, &group.role);
        findings.error(
            line,
            text!(
                "the completion index starts at 0 in each of the {copies} Jobs of {role}: {copies} pods get the same rank",
                "{role} 有 {copies} 个 Job，每个 Job 的完成索引都从 0 开始：{copies} 个 Pod 会使用同一个 rank"
            ),
            text!(
                "set replicas to 1 and parallelism to the number of nodes",
                "请将 replicas 设为 1，并将 parallelism 设为节点数"
            ),
        );
    };
    for place in scene.sites.iter().filter(|place| place.group.copies > 1) {
        let Some(word) = place.launch.get(FlagField::NodeRank) else { continue };
        let shown = word.shown();
        let names = shown.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        if !is_dynamic(scene, place) && names.into_iter().any(|n| is_index(place.container, n)) {
            say(word.line, place.group);
        }
    }
    for (group, container) in scene.containers().filter(|(group, _)| group.copies > 1) {
        for name in ["RANK", "NODE_RANK", "PET_NODE_RANK", "RANKLAUNCH_NODE_RANK"] {
            let Some(variable) = container.env.get(name) else { continue };
            if variable.field.is_some() && is_index(container, name) {
                say(variable.line, group);
            }
        }
    }
}

/// Volcano's index counts the pods within one task, and a literal rank is that of every pod: in two
/// tasks or templates neither is a node rank.
fn same_rank(scene: &Scene<'_>, findings: &mut Findings) {
    const INDEX: [&str; 4] =
        ["${VC_TASK_INDEX}", "$VC_TASK_INDEX", "${VK_TASK_INDEX}", "$VK_TASK_INDEX"];
    if !scene.job.is_one_job() {
        return;
    }
    let counts_tasks = scene.job.kind.owns("VC_TASK_INDEX");
    let mut taken: Vec<(std::ops::Range<u64>, &Group<'_>, usize)> = Vec::new();
    let mut index = None;
    for place in &scene.sites {
        let Some(word) = place.launch.get(FlagField::NodeRank) else { continue };
        if is_dynamic(scene, place) || nodes(scene, place).known() == Some(1) {
            continue;
        }
        let ranks = if counts_tasks && INDEX.contains(&word.shown().as_str()) {
            index.get_or_insert(word.line);
            place.group.replicas.map(|pods| 0..pods)
        } else if place.group.replicas == Some(1) {
            word.text().parse::<u64>().ok().map(|rank| rank..rank.saturating_add(1))
        } else {
            // Several pods of one template have the rank: that is a finding of its own.
            None
        };
        taken.extend(ranks.map(|ranks| (ranks, place.group, word.line)));
    }
    let pairs = taken
        .iter()
        .enumerate()
        .flat_map(|(at, one)| taken.iter().skip(at + 1).map(move |other| (one, other)));
    let same = pairs.into_iter().find(|((one, of, _), (other, task, _))| {
        !std::ptr::eq(*of, *task) && one.start.max(other.start) < one.end.min(other.end)
    });
    let Some(((one, of, _), (other, task, line))) = same else { return };
    let (rank, first, second) = (one.start.max(other.start), &of.role, &task.role);
    let Some(index) = index else {
        findings.error(
            *line,
            text!(
                "{first} and {second} both have node rank {rank}",
                "{first} 与 {second} 都有 node rank {rank}"
            ),
            by_platform(),
        );
        return;
    };
    findings.error(
        index,
        text!(
            "VC_TASK_INDEX counts the pods of one task from 0: {first} and {second} both have node rank {rank}",
            "VC_TASK_INDEX 在每个任务（task）内都从 0 开始：{first} 与 {second} 都有 node rank {rank}"
        ),
        text!(
            "add the number of pods of the tasks before it, $((VC_TASK_INDEX + 1)) behind one master; or use the pytorch plugin, which sets RANK",
            "请加上前面各任务的 Pod 数，例如一个 master 之后用 $((VC_TASK_INDEX + 1))；或使用设置 RANK 的 pytorch 插件"
        ),
    );
}

/// The hint for a rank that is written down.
fn by_platform() -> Text {
    text!(
        "take it from the platform (RANK, JOB_COMPLETION_INDEX), or leave it to ranklaunch",
        "请取自平台变量（RANK、JOB_COMPLETION_INDEX），或交由 ranklaunch 决定"
    )
}

pub(super) fn rank(scene: &Scene<'_>, findings: &mut Findings) {
    repeated_index(scene, findings);
    same_rank(scene, findings);
    let mut say = |line: usize, name: Text, value: &str, pods: u64| {
        let Text { en, zh } = name;
        findings.error(
            line,
            text!(
                "{en} is {value} in all {pods} pods of one template: they all get the same rank",
                "{zh} 在同一模板的 {pods} 个 Pod 中都为 {value}：它们的 rank 相同"
            ),
            by_platform(),
        );
    };
    if !scene.job.is_one_job() {
        return;
    }
    for place in &scene.sites {
        let Some(pods) = place.group.replicas.filter(|pods| *pods > 1) else { continue };
        if is_dynamic(scene, place) {
            continue;
        }
        if let Some(word) = place.launch.get(FlagField::NodeRank)
            && word.is_plain()
            && word.text().parse::<u64>().is_ok()
        {
            say(word.line, text!("the node rank", "node rank"), word.text(), pods);
        }
    }
    for (group, container) in scene.containers() {
        let Some(pods) = group.replicas.filter(|pods| *pods > 1) else { continue };
        let mut own = scene.sites.iter().filter(|place| std::ptr::eq(place.container, container));
        if own.any(|place| is_dynamic(scene, place)) {
            continue;
        }
        for name in ["RANK", "NODE_RANK", "PET_NODE_RANK", "RANKLAUNCH_NODE_RANK"] {
            if let Some((value, line)) = container.literal(name) {
                say(line, Text::same(name), value, pods);
            }
        }
    }
}
