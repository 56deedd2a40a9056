//! Checks of GPUs: their number, their state, and the share that a virtualiser (vGPU, HAMi)
//! leaves.

use super::finding::{CheckFinding, FindingKind, Judge, planned};
use super::input::CheckInput;
use node::observe::gpu::{ComputeMode, FabricState};
use node::observe::{Gpu, GpuSource};
use text::lang::{Text, bytes};
use text::text;
use verdict::{Id, Warning};

pub(super) const JUDGES: &[Judge] = &[
    (Id::GpuFault, faults),
    (Id::GpuFabric, fabric),
    (Id::GpuCount, count),
    (Id::GpuBusy, busy),
    (Id::HamiLimit, hami),
];

/// A GPU with less memory holds no CUDA context and no model.
const USEFUL: u64 = 1 << 30;

fn count(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let mut found = planned(input, &[Id::GpuCount, Id::GpuVendor]);
    // This is only a warning, whatever the severity of this check is.
    let on_cpu = planned(input, &[Id::GpuNone]).into_iter();
    found.extend(on_cpu.map(|one| CheckFinding { kind: FindingKind::Doubtful, ..one }));
    let gpus = &input.facts.gpus;
    if found.is_empty() {
        let (all, visible) = (gpus.gpus.len(), gpus.visible.len());
        found.push(match (gpus.source, visible) {
            (GpuSource::None, _) | (_, 0) => CheckFinding::info(text!(
                "no GPU is used: the ranks run on the CPU",
                "不使用 GPU：各 rank 在 CPU 上运行"
            )),
            _ if all == visible => {
                let models = models(&gpus.gpus);
                CheckFinding::ok(text!("{visible} GPUs ({models})", "{visible} 个 GPU（{models}）"))
            }
            _ => {
                let value = gpus.cuda_visible_devices.clone().unwrap_or_default();
                CheckFinding::ok(text!(
                    "{visible} of {all} GPUs, by CUDA_VISIBLE_DEVICES={value}",
                    "{all} 个 GPU 中的 {visible} 个，由 CUDA_VISIBLE_DEVICES={value} 决定"
                ))
            }
        });
    }
    if !gpus.uncounted.is_empty() {
        let nodes: Vec<String> =
            gpus.uncounted.iter().map(|minor| format!("/dev/nvidia{minor}")).collect();
        let (nodes, all) = (nodes.join(", "), gpus.gpus.len());
        found.push(CheckFinding::doubtful(
            text!(
                "NVML lists {all} GPUs, but {nodes} can be opened as well: the driver failed to initialise that GPU",
                "NVML 列出 {all} 个 GPU，但还能打开 {nodes}：驱动初始化该 GPU 时失败"
            ),
            text!(
                "look for the GPU's lines (NVRM, Xid) in the host's dmesg; reboot or replace the node",
                "请查看宿主机 dmesg 中该 GPU 的记录（NVRM、Xid）；重启或更换节点"
            ),
        ));
    }
    found
}

/// `NVIDIA H100`, each name once.
fn models(gpus: &[Gpu]) -> String {
    let mut names: Vec<&str> = gpus.iter().filter_map(|gpu| gpu.name.as_deref()).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() { "?".to_owned() } else { names.join(", ") }
}

/// Faults that the plan judges too.
fn bad(faults: &[Warning]) -> Vec<CheckFinding> {
    let bad = |fault: &Warning| CheckFinding {
        planned: true,
        ..CheckFinding::bad(fault.text.clone(), fault.hint.clone())
    };
    faults.iter().map(bad).collect()
}

fn faults(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let gpus = &input.facts.gpus;
    let mut found = bad(&gpus.faults);
    if found.is_empty() {
        found.push(match (&gpus.driver_version, gpus.gpus.len()) {
            (_, 0) => CheckFinding::ok(text!("no GPU, no fault", "无 GPU，无故障")),
            (Some(driver), _) => {
                let cuda = gpus.cuda_driver_version;
                let cuda = cuda.map(|(major, minor)| format!(" (CUDA {major}.{minor})"));
                let cuda = cuda.unwrap_or_default();
                CheckFinding::ok(text!(
                    "no fault, driver {driver}{cuda}",
                    "无故障，驱动版本 {driver}{cuda}"
                ))
            }
            (None, _) => CheckFinding::info(text!(
                "unknown: NVML could not be queried",
                "未知：无法查询 NVML"
            )),
        });
    }
    found
}

fn fabric(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let gpus = &input.facts.gpus;
    let mut found = bad(&gpus.fabric_faults);
    if found.is_empty() {
        let ready = gpus.gpus.iter().any(|gpu| gpu.fabric == Some(FabricState::Ready));
        found.push(CheckFinding::ok(if ready {
            text!("NVSwitch fabric ready", "NVSwitch Fabric 已就绪")
        } else {
            text!("no NVSwitch fabric", "无 NVSwitch Fabric")
        }));
    }
    found
}

fn busy(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let mut found = planned(input, &[Id::GpuBusy]);
    if input.tried.gpus_freed {
        for finding in &mut found {
            let Text { en, zh } = &finding.text;
            finding.text = text!(
                "{en}: a leftover of an earlier run holds it, which run ends",
                "{zh}：被之前运行的残留进程占用，run 会终止它们"
            );
            finding.kind = FindingKind::Info;
        }
    }
    if found.is_empty() {
        let shared = input.facts.gpus_shared_by();
        found.push(if input.on_gpus() == 0 {
            CheckFinding::ok(text!("no GPU in use", "未使用 GPU"))
        } else if let Some(sharer) = shared {
            CheckFinding::info(text!(
                "not checked: with {sharer} the memory in use does not belong only to this job's GPUs",
                "未检查：使用 {sharer} 时，已用显存不只属于本任务的 GPU"
            ))
        } else {
            CheckFinding::ok(text!("the chosen GPUs are idle", "所选 GPU 均空闲"))
        });
    }
    found
}

/// Whether a chosen GPU can run no further process: its mode admits only one, or no memory is left
/// for a CUDA context. In that case memory in use refuses a launch.
pub(super) fn is_full(input: &CheckInput<'_>) -> bool {
    /// Minimum free memory: a context and NCCL's buffers take more than this.
    const ROOM: u64 = 512 << 20;
    let Some(plan) = input.outline() else { return false };
    if input.facts.gpus_shared_by().is_some() {
        return false;
    }
    plan.gpus.iter().filter(|gpu| gpu.selected).any(|planned| {
        let seen = input.facts.gpus.gpus.iter().find(|gpu| gpu.index == planned.index);
        seen.is_some_and(|gpu| {
            let left = gpu.memory_total.zip(gpu.memory_used);
            let full = left.is_some_and(|(all, used)| all > 0 && all.saturating_sub(used) < ROOM);
            let users = gpu.health.processes.as_ref().is_some_and(|users| !users.is_empty());
            let mode = gpu.health.compute_mode.and_then(ComputeMode::of);
            full || (users && mode.is_some_and(|mode| mode.exclusive().is_some()))
        })
    })
}

fn hami(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(hami) = &input.facts.state.hami else {
        return vec![CheckFinding::ok(text!("no HAMi", "无 HAMi"))];
    };
    if hami.disabled {
        return vec![CheckFinding::info(text!(
            "HAMi is present but disabled by CUDA_DISABLE_CONTROL",
            "有 HAMi，但已由 CUDA_DISABLE_CONTROL 关闭"
        ))];
    }
    let mut found: Vec<CheckFinding> = Vec::new();
    let too_small = |name: &str, value: &str, size: u64| {
        let size = bytes(size);
        CheckFinding::bad(
            text!(
                "HAMi limits a GPU to {size} ({name}={value}), too little for any CUDA program",
                "HAMi 将 GPU 显存限制为 {size}（{name}={value}），任何 CUDA 程序都无法运行"
            ),
            text!(
                "remove nvidia.com/gpumem from the pod's limits, or give it in MiB as a plain number (gpumem: 40000)",
                "请从 Pod 的 limits 中删除 nvidia.com/gpumem，或以 MiB 为单位写成普通数字（gpumem: 40000）"
            ),
        )
    };
    for (name, value) in &hami.variables {
        if !name.starts_with("CUDA_DEVICE_MEMORY_LIMIT") {
            continue;
        }
        // The value 0 means no limit.
        if let Some(size) = size(value).filter(|size| (1..USEFUL).contains(size)) {
            found.push(too_small(name, value, size));
        }
    }
    if found.is_empty() {
        let gpus = &input.facts.gpus.gpus;
        let smallest = gpus.iter().filter_map(|gpu| gpu.memory_total).min();
        if let Some(total) = smallest.filter(|total| *total < USEFUL) {
            found.push(too_small("memory.total", &total.to_string(), total));
        }
    }
    if found.is_empty() {
        let by = hami.preloaded_by.as_deref().unwrap_or("CUDA_DEVICE_*");
        let limits: Vec<String> =
            hami.variables.iter().map(|(name, value)| format!(", {name}={value}")).collect();
        let limits = limits.concat();
        found.push(CheckFinding::new(
            FindingKind::Info,
            text!(
                "HAMi hooks CUDA ({by}{limits}): it reports GPU memory by its own accounting and fixes the order of devices",
                "HAMi 接管了 CUDA（{by}{limits}）：显存按它自己的统计，设备顺序由它固定"
            ),
            text!(
                "request whole GPUs without gpumem and gpucores for training",
                "训练任务请申请整个 GPU，不要设置 gpumem 与 gpucores"
            ),
        ));
    }
    found
}

/// `64k`, `3000m`, `10g`, or bytes, as HAMi-core reads its limits.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "ki" | "kib" => 1 << 10,
        "m" | "mb" | "mi" | "mib" => 1 << 20,
        "g" | "gb" | "gi" | "gib" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}
