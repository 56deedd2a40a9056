//! Sizes of a launch in the manifest, and the rule that compares processes with GPUs.

use super::super::findings::Findings;
use super::super::launchers::{FlagField, Launcher};
use super::super::scene::{LaunchSite, Scene, launch_sites};
use super::super::word::Word;
use super::super::workload::Workload;
use text::text;

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
    pub(super) fn known(&self) -> Option<u64> {
        match self {
            StatedSize::Known(number, _) => Some(*number),
            _ => None,
        }
    }
}

/// A word, with known variables of the platform replaced.
fn read(job: &Workload<'_>, word: &Word) -> StatedSize {
    let word = word.filled(|name| platform(job, name).map(|number| number.to_string()));
    if !word.is_plain() {
        return StatedSize::Unread(word);
    }
    word.text().parse().map_or(StatedSize::Open, |number| StatedSize::Known(number, word.line))
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
        _ => None,
    }
}

/// Processes on each node.
pub(super) fn per_node(scene: &Scene<'_, '_>, place: &LaunchSite<'_, '_>) -> StatedSize {
    let (job, LaunchSite { container, launch, .. }) = (scene.job, place);
    let gpus = || {
        container.gpus().map_or(StatedSize::Open, |(count, line)| StatedSize::Known(count, line))
    };
    if let Some(stated) = launch.get(FlagField::Nproc) {
        return match read(job, stated) {
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
                (Some(all), Some(nodes)) if nodes > 0 => match read(job, all) {
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
pub(super) fn stated_nodes(scene: &Scene<'_, '_>, place: &LaunchSite<'_, '_>) -> StatedSize {
    let (job, LaunchSite { container, launch, .. }) = (scene.job, place);
    if let Some(standalone) = launch.get(FlagField::Standalone) {
        return StatedSize::Known(1, standalone.line);
    }
    if let Some(stated) = launch.get(FlagField::Nnodes) {
        return read(job, stated);
    }
    match launch.launcher {
        Launcher::Torchrun => match container.literal("PET_NNODES") {
            Some((value, line)) => {
                value.parse().map_or(StatedSize::Open, |n| StatedSize::Known(n, line))
            }
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

/// Nodes of the launch: the given number, else the nodes of the job.
pub(super) fn nodes(scene: &Scene<'_, '_>, place: &LaunchSite<'_, '_>) -> StatedSize {
    match stated_nodes(scene, place) {
        StatedSize::Open if place.launch.get(FlagField::Nnodes).is_none() => scene
            .job
            .nodes()
            .map_or(StatedSize::Open, |nodes| StatedSize::Known(nodes, place.launch.line)),
        size => size,
    }
}

/// Processes of the whole job.
pub(super) fn world(scene: &Scene<'_, '_>, place: &LaunchSite<'_, '_>) -> Option<u64> {
    per_node(scene, place).known()?.checked_mul(nodes(scene, place).known()?)
}

pub(super) fn nproc(scene: &Scene<'_, '_>, findings: &mut Findings) {
    for place in launch_sites(scene) {
        let Some((gpus, _)) = place.container.gpus() else { continue };
        let StatedSize::Known(nproc, line) = per_node(scene, &place) else { continue };
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
