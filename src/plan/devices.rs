//! The devices of the ranks: GPUs or CPUs, and how many processes the node can run.
//!
//! Takes the GPUs found and the requested number of processes; gives the [`Capacity`] of this
//! node. [`choose()`] then selects the GPUs, and excludes busy ones. A node that should have
//! GPUs never silently becomes a CPU worker.

mod choose;

pub(crate) use choose::planned;
pub use choose::{Chosen, IDLE, Wish, choose};

use serde::{Deserialize, Serialize};

use crate::Notes;
use crate::{AskedNproc, Task};
use node::observe::{Facts, Gpu, GpuFacts, GpuSource, OtherAccelerator, VisibleGpu, gpu};
use settings::contract::{Evidence, Field};
use settings::{Device, Settings};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal, Severity, Warning};

/// Upper limit, larger than the GPUs or cores of any node.
const MOST: u32 = 4096;

/// The kind of device that the ranks use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hardware {
    Gpus,
    Cpus,
}

/// The number of processes that one node can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    pub hardware: Hardware,
    /// Most processes on this node, 1 or more.
    pub most: u32,
    /// A fixed number, and its source.
    pub exact: Option<(u32, String)>,
}

/// Decides between GPUs and CPUs, and the largest number of processes.
pub fn capacity(
    settings: &Settings,
    facts: &Facts,
    task: Option<&Task>,
    asked: &AskedNproc,
    notes: &mut Notes,
) -> Result<Capacity, Refusal> {
    if let AskedNproc::Count { n, source } = asked
        && !(1..=MOST).contains(n)
    {
        return Err(Refusal::new(
            Id::NprocRange,
            text!(
                "{source} is {n}, but a node runs 1 to {MOST} processes",
                "{source} 为 {n}，而每个节点的进程数应在 1 到 {MOST} 之间"
            ),
            text!(
                "set --nproc-per-node auto or a number in this range",
                "请设置 --nproc-per-node auto 或该范围内的数"
            ),
        ));
    }
    let device = settings.device.value;
    if device == Device::Cpu || (*asked == AskedNproc::Cpu && device != Device::Gpu) {
        let because = text!("asked for", "按要求");
        let source = if device == Device::Cpu {
            settings.device.source.to_string()
        } else {
            "nproc-per-node cpu".to_owned()
        };
        notes.decide("device", "cpu", because, source);
        return Ok(cpus(facts, asked));
    }
    faults(settings, &facts.gpus, notes);
    if facts.gpus.visible.is_empty() {
        none_visible(settings, facts, asked, notes);
        return Ok(cpus(facts, asked));
    }
    if let Some(element) = &facts.gpus.unreadable_device {
        notes.raise(settings, no_device(element, &facts.gpus));
    }
    if let Some(task) = task.filter(|task| has_own_gpus(facts, task)) {
        let (of, exact) = (task.of, Some((task.of, task.source.clone())));
        let because = text!(
            "this task sees GPUs of its own, as {of} tasks share the node",
            "本 task 只可见分配给自己的 GPU，本节点共有 {of} 个 task"
        );
        notes.decide("device", "gpu", because, "detected");
        return Ok(Capacity { hardware: Hardware::Gpus, most: of, exact });
    }
    Ok(gpus(settings, &facts.gpus, asked, notes))
}

/// Whether each task of the node has its own GPUs (`srun --gpus-per-task`, a wrapper that sets
/// CUDA_VISIBLE_DEVICES): a task sees fewer GPUs than the node has tasks, while the node has
/// more.
pub(crate) fn has_own_gpus(facts: &Facts, task: &Task) -> bool {
    let visible = facts.gpus.visible.len();
    let counted = facts.contract.first(Field::GpuCount);
    let counted = counted.and_then(|claim| claim.value.trim().parse::<usize>().ok()).unwrap_or(0);
    visible > 0
        && visible < task.of as usize
        && (facts.gpus.gpus.len().max(counted) > visible || has_mig(&facts.gpus))
}

fn cpus(facts: &Facts, asked: &AskedNproc) -> Capacity {
    let (most, exact) = match asked {
        AskedNproc::Count { n, source } => (*n, Some((*n, source.clone()))),
        AskedNproc::Cpu => (facts.limits.cpus.clamp(1, MOST), None),
        AskedNproc::Auto | AskedNproc::Gpus => (1, None),
    };
    Capacity { hardware: Hardware::Cpus, most, exact }
}

fn gpus(settings: &Settings, facts: &GpuFacts, asked: &AskedNproc, notes: &mut Notes) -> Capacity {
    let visible = count(facts.visible.len());
    let source = source_name(facts.source);
    notes.decide(
        "device",
        "gpu",
        text!("{visible} GPUs visible, as {source} says", "{source} 显示有 {visible} 个可见 GPU"),
        if facts.source == GpuSource::Assumed { source } else { "detected" },
    );
    let mut most = visible;
    if has_mig(facts) {
        // A process enumerates a single MIG instance, so a second rank would have none.
        most = 1;
        notes.warn(
            Id::GpuMig,
            text!(
                "{visible} visible devices, but MIG is enabled: CUDA gives a process one MIG instance, so one process is started",
                "有 {visible} 个可见设备，但已启用 MIG：CUDA 只向每个进程提供一个 MIG 实例，因此只启动一个进程"
            ),
            text!(
                "request whole GPUs for a job of several ranks",
                "多 rank 任务请申请整个 GPU"
            ),
        );
    }
    let mut exact = None;
    if let AskedNproc::Count { n, source } = asked {
        if *n > most {
            let attempts = what_sources_said(facts);
            let Text { en, zh } = attempts;
            notes.raise(
                settings,
                Warning::new(
                    Id::GpuCount,
                    text!(
                        "{source} requests {n} processes, but {most} GPUs can be used here ({en})",
                        "{source} 要求 {n} 个进程，而此处可用的 GPU 只有 {most} 个（{zh}）"
                    ),
                    text!(
                        "give the container {n} GPUs, or --nproc-per-node auto; --severity gpu.count=warn lets ranks share GPUs",
                        "请为容器分配 {n} 个 GPU，或使用 --nproc-per-node auto；--severity gpu.count=warn 允许多个进程共用 GPU"
                    ),
                ),
            );
            most = *n;
        }
        exact = Some((*n, source.clone()));
    }
    Capacity { hardware: Hardware::Gpus, most, exact }
}

/// Driver states that make the GPUs unusable.
fn faults(settings: &Settings, facts: &GpuFacts, notes: &mut Notes) {
    for fault in facts.faults.iter().chain(&facts.fabric_faults) {
        let check = fault.id.check().unwrap_or(fault.id);
        let Text { en, zh } = &fault.hint;
        let hint = text!(
            "{en}; --severity {check}=warn starts anyway",
            "{zh}；--severity {check}=warn 可强制启动"
        );
        notes.raise(settings, Warning { hint, ..fault.clone() });
    }
}

/// No GPU is visible: an error if anything requires one, hides one or is an accelerator of another
/// kind, else a CPU node.
fn none_visible(settings: &Settings, facts: &Facts, asked: &AskedNproc, notes: &mut Notes) {
    let gpus = &facts.gpus;
    let mut asked_by = Vec::new();
    if settings.device.value == Device::Gpu {
        asked_by.push(format!("device gpu ({})", settings.device.source));
    }
    if *asked == AskedNproc::Gpus {
        asked_by.push("nproc-per-node gpu".to_owned());
    }
    let value = gpus.cuda_visible_devices.as_deref();
    let other = gpus.others.first();
    let refusal = match value {
        // Existing hardware is no request to use it.
        Some(value) if gpus.mean_cpu() && asked_by.is_empty() && other.is_none() => {
            return chosen_by_variable(value, gpus, notes);
        }
        Some(value) if !gpus.gpus.is_empty() => hidden(value, gpus, &asked_by),
        _ => {
            let is_count =
                |one: &&Evidence| one.field == Field::GpuCount && gpu::counts(&one.claim.value);
            let counted = facts.contract.evidence.iter().filter(is_count);
            let counted = counted.map(|one| one.claim.to_string());
            let mut requested = gpus.requested_by.clone();
            requested.extend(counted.filter(|one| !gpus.requested_by.contains(one)));
            asked_by.splice(0..0, requested);
            match other {
                Some(other) => of_another_vendor(other),
                None if asked_by.is_empty() => return none_requested(gpus, notes),
                None => none_usable(gpus, &asked_by),
            }
        }
    };
    let check = refusal.id.check().unwrap_or(refusal.id);
    // Only a severity that lets the job start decides for the CPU.
    let chosen = settings.severities.get(&check).filter(|chosen| chosen.value != Severity::Fail);
    let source = chosen.map_or_else(|| "detected".to_owned(), |chosen| chosen.source.to_string());
    notes.raise(settings, refusal);
    notes.decide("device", "cpu", text!("no GPU can be used", "没有可用的 GPU"), source);
}

/// Records the choice of the CPU by a CUDA_VISIBLE_DEVICES that is empty or -1.
fn chosen_by_variable(value: &str, gpus: &GpuFacts, notes: &mut Notes) {
    let because = text!("an empty list or -1 means the CPU", "列表为空或为 -1 表示使用 CPU");
    notes.decide("device", "cpu", because, format!("CUDA_VISIBLE_DEVICES={value:?}"));
    let said = match gpus.gpus.len() {
        0 => text!(
            "no GPU found, and CUDA_VISIBLE_DEVICES={value:?} asks for none, so the ranks run on the CPU",
            "未发现 GPU，且 CUDA_VISIBLE_DEVICES={value:?} 表示不使用 GPU，各进程将在 CPU 上运行"
        ),
        all => text!(
            "CUDA_VISIBLE_DEVICES={value:?} hides all {all} GPUs of this node, so the ranks run on the CPU",
            "CUDA_VISIBLE_DEVICES={value:?} 屏蔽了本节点全部 {all} 个 GPU，各进程将在 CPU 上运行"
        ),
    };
    notes.warn(
        Id::GpuNone,
        said,
        text!(
            "remove the variable to use the GPUs, pass --device cpu if the CPU is intended",
            "若要使用 GPU，请删除该变量；若本意是用 CPU，请加 --device cpu"
        ),
    );
}

/// Records a node without a GPU and without a request for one.
fn none_requested(gpus: &GpuFacts, notes: &mut Notes) {
    let Text { en, zh } = what_sources_said(gpus);
    let because = text!("no GPU found and none requested", "未发现 GPU，也没有申请 GPU 的迹象");
    notes.decide("device", "cpu", because, "detected");
    notes.warn(
        Id::GpuNone,
        text!(
            "no GPU found and nothing requests one, so the ranks run on the CPU ({en})",
            "未发现 GPU，也没有申请 GPU 的迹象，各进程将在 CPU 上运行（{zh}）"
        ),
        text!(
            "pass --device gpu to make this an error, --device cpu if it is intended",
            "用 --device gpu 可将此视为错误，用 --device cpu 表示本意如此"
        ),
    );
}

/// GPUs that CUDA_VISIBLE_DEVICES hides.
fn hidden(value: &str, gpus: &GpuFacts, asked_by: &[String]) -> Warning {
    let (all, source) = (gpus.gpus.len(), source_name(gpus.source));
    let Text { en, zh } = gpus.why_hidden();
    let (by_en, by_zh) = match asked_by.join(", ") {
        by if by.is_empty() => (String::new(), String::new()),
        by => (format!(", but {by} requests GPUs"), format!("，而 {by} 要求 GPU")),
    };
    Warning::new(
        Id::GpuCount,
        text!(
            "CUDA_VISIBLE_DEVICES={value:?} hides all {all} GPUs of this node ({source}): {en}{by_en}",
            "CUDA_VISIBLE_DEVICES={value:?} 屏蔽了本节点全部 {all} 个 GPU（{source}）：{zh}{by_zh}"
        ),
        text!(
            "correct CUDA_VISIBLE_DEVICES or remove it; --device cpu if the CPU is intended",
            "请更正或删除 CUDA_VISIBLE_DEVICES；若本意是用 CPU，请加 --device cpu"
        ),
    )
}

/// The finding for a CUDA_VISIBLE_DEVICES that CUDA reads only in part.
fn no_device(element: &str, gpus: &GpuFacts) -> Warning {
    let value = gpus.cuda_visible_devices.as_deref().unwrap_or_default();
    let (visible, all) = (gpus.visible.len(), gpus.gpus.len());
    Warning::new(
        Id::GpuCount,
        text!(
            "CUDA_VISIBLE_DEVICES={value:?}: {element:?} is no number of a device and no UUID, so only {visible} of {all} GPUs would be used",
            "CUDA_VISIBLE_DEVICES={value:?}：{element:?} 既不是设备编号也不是 UUID，{all} 个 GPU 中只会使用 {visible} 个"
        ),
        text!(
            "write numbers or UUIDs (GPU-…) with commas between them: 0,1,2,3; --severity gpu.count=warn starts anyway",
            "请写成以逗号分隔的编号或 UUID（GPU-…），如 0,1,2,3；--severity gpu.count=warn 可强制启动"
        ),
    )
}

/// A node whose accelerators are no NVIDIA GPUs.
fn of_another_vendor(other: &OtherAccelerator) -> Warning {
    let evidence = other.evidence.join(", ");
    let Text { en, zh } = &other.vendor;
    Warning::new(
        Id::GpuVendor,
        text!(
            "this node is one with {en} ({evidence}), which ranklaunch neither counts nor assigns: it would start one process on the CPU",
            "本节点的加速器：{zh}（{evidence}）；ranklaunch 不统计也不分配这类加速器，只会在 CPU 上启动一个进程"
        ),
        text!(
            "--device cpu --nproc-per-node N starts N processes, which choose their devices by LOCAL_RANK; if this variable or device is not the job's, --device cpu",
            "--device cpu --nproc-per-node N 会启动 N 个进程，由程序按 LOCAL_RANK 选择设备；若该变量或设备与任务无关，请加 --device cpu"
        ),
    )
}

/// GPUs that are requested, and none that can be used.
fn none_usable(gpus: &GpuFacts, asked_by: &[String]) -> Warning {
    let by = asked_by.join(", ");
    let Text { en, zh } = what_sources_said(gpus);
    Warning::new(
        Id::GpuCount,
        text!(
            "GPUs are requested by {by}, but none can be used: {en}",
            "{by} 表明申请了 GPU，但没有可用的：{zh}"
        ),
        text!(
            "check the container's GPU request, device plugin and driver; --device cpu starts CPU workers instead",
            "请检查容器的 GPU 申请、设备插件与驱动；若本意是用 CPU，请加 --device cpu"
        ),
    )
}

/// One clause with each source of GPU facts and its answer.
fn what_sources_said(facts: &GpuFacts) -> Text {
    let mut en = Vec::new();
    let mut zh = Vec::new();
    for (source, answer) in &facts.attempts {
        let name = source_name(*source);
        en.push(format!("{name}: {}", answer.en));
        zh.push(format!("{name}：{}", answer.zh));
    }
    if facts.source != GpuSource::None {
        let (name, seen) = (source_name(facts.source), facts.gpus.len());
        en.push(format!("{name}: {seen} GPUs"));
        zh.push(format!("{name}：{seen} 个 GPU"));
    }
    if en.is_empty() {
        return text!("no source of GPU facts answered", "没有任何 GPU 信息来源给出回答");
    }
    Text::new(en.join("; "), zh.join("；"))
}

fn source_name(source: GpuSource) -> &'static str {
    match source {
        GpuSource::Nvml => "NVML",
        GpuSource::DeviceNodes => "/dev/nvidia*",
        GpuSource::ProcDriver => "/proc/driver/nvidia",
        GpuSource::NvidiaSmi => "nvidia-smi",
        GpuSource::Assumed => "--assume",
        GpuSource::None => "-",
    }
}

fn gpu_of<'a>(facts: &'a GpuFacts, token: &VisibleGpu) -> Option<&'a Gpu> {
    facts.gpus.get(token.gpu)
}

fn has_mig(facts: &GpuFacts) -> bool {
    facts.visible.iter().any(|token| gpu_of(facts, token).is_some_and(|gpu| gpu.mig))
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
