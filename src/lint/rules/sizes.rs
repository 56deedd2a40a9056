//! Sizes of a launch as the manifest states them, and processes against GPUs.

use super::super::findings::Findings;
use super::super::launchers::{Field, Launcher};
use super::super::scene::{Place, Scene, places};
use super::super::word::Word;
use super::super::workload::Workload;
use crate::text;

/// A number that the manifest states, or does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Size {
    Known(u64, usize),
    /// Written, and decided at run time.
    Unread(Word),
    /// A word that the launcher resolves (auto, gpu, 1:4), or nothing.
    Open,
}

impl Size {
    pub(super) fn known(&self) -> Option<u64> {
        match self {
            Size::Known(number, _) => Some(*number),
            _ => None,
        }
    }
}

/// A stated word, with what the platform is known to set put in.
fn read(job: &Workload<'_>, word: &Word) -> Size {
    let word = word.filled(|name| platform(job, name).map(|number| number.to_string()));
    if !word.is_plain() {
        return Size::Unread(word);
    }
    word.text().parse().map_or(Size::Open, |number| Size::Known(number, word.line))
}

/// Variables whose value follows from the manifest.
fn platform(job: &Workload<'_>, name: &str) -> Option<u64> {
    let operator = || job.operator_nproc().and_then(|node| node.text()?.parse::<u64>().ok());
    match (job.kind.kind, name) {
        ("PyTorchJob" | "TrainJob", "PET_NNODES") => job.nodes(),
        ("PyTorchJob" | "TrainJob", "PET_NPROC_PER_NODE") => operator(),
        // The operator multiplies by nprocPerNode where that is a number (since 1.7).
        ("PyTorchJob", "WORLD_SIZE") => Some(job.nodes()?.saturating_mul(operator().unwrap_or(1))),
        ("TrainingJob", "WORLD_SIZE" | "NODE_COUNT") => job.nodes(),
        ("Job", "WORLD_SIZE") if job.kind.gives_master => job.nodes(),
        _ => None,
    }
}

/// Processes on each node.
pub(super) fn per_node(scene: &Scene<'_, '_>, place: &Place<'_, '_>) -> Size {
    let (job, Place { container, launch, .. }) = (scene.job, place);
    let gpus = || container.gpus().map_or(Size::Open, |(count, line)| Size::Known(count, line));
    if let Some(stated) = launch.get(Field::Nproc) {
        return match read(job, stated) {
            Size::Open if matches!(stated.text(), "auto" | "gpu") => {
                if launch.launcher == Launcher::Ranklaunch { Size::Open } else { gpus() }
            }
            size => size,
        };
    }
    match launch.launcher {
        Launcher::Torchrun => {
            if let Some((value, line)) = container.literal("PET_NPROC_PER_NODE") {
                return value.parse().map_or_else(|_| gpus(), |number| Size::Known(number, line));
            }
            if let Some(node) = job.operator_nproc() {
                let number = node.text().and_then(|text| text.parse().ok());
                return number.map_or_else(gpus, |number| Size::Known(number, node.line));
            }
            if job.kind.gives_pet { gpus() } else { Size::Known(1, launch.line) }
        }
        Launcher::Deepspeed => gpus(),
        Launcher::Accelerate => match (launch.get(Field::Processes), nodes(scene, place).known()) {
            (Some(all), Some(nodes)) if nodes > 0 => match read(job, all) {
                Size::Known(all, line) if all % nodes == 0 => Size::Known(all / nodes, line),
                Size::Known(..) => Size::Open,
                size => size,
            },
            _ => Size::Open,
        },
        Launcher::Ranklaunch | Launcher::Python => Size::Open,
    }
}

/// Nodes that the launch itself states; Open where the platform says it.
pub(super) fn stated_nodes(scene: &Scene<'_, '_>, place: &Place<'_, '_>) -> Size {
    let (job, Place { container, launch, .. }) = (scene.job, place);
    if let Some(standalone) = launch.get(Field::Standalone) {
        return Size::Known(1, standalone.line);
    }
    if let Some(stated) = launch.get(Field::Nnodes) {
        return read(job, stated);
    }
    match launch.launcher {
        Launcher::Torchrun => match container.literal("PET_NNODES") {
            Some((value, line)) => value.parse().map_or(Size::Open, |n| Size::Known(n, line)),
            None if job.kind.gives_pet => Size::Open,
            None => Size::Known(1, launch.line),
        },
        Launcher::Accelerate | Launcher::Deepspeed if launch.get(Field::ConfigFile).is_none() => {
            Size::Known(1, launch.line)
        }
        _ => Size::Open,
    }
}

/// Nodes of the launch: stated, else those of the job.
pub(super) fn nodes(scene: &Scene<'_, '_>, place: &Place<'_, '_>) -> Size {
    match stated_nodes(scene, place) {
        Size::Open if place.launch.get(Field::Nnodes).is_none() => {
            scene.job.nodes().map_or(Size::Open, |nodes| Size::Known(nodes, place.launch.line))
        }
        size => size,
    }
}

/// Processes of the whole job.
pub(super) fn world(scene: &Scene<'_, '_>, place: &Place<'_, '_>) -> Option<u64> {
    per_node(scene, place).known()?.checked_mul(nodes(scene, place).known()?)
}

pub(super) fn nproc(scene: &Scene<'_, '_>, findings: &mut Findings) {
    for place in places(scene) {
        let Some((gpus, _)) = place.container.gpus() else { continue };
        let Size::Known(nproc, line) = per_node(scene, &place) else { continue };
        if place.launch.launcher == Launcher::Accelerate {
            continue;
        }
        let by = place.launch.source(Field::Nproc);
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
