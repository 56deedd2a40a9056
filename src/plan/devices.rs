//! Which devices the ranks use: GPUs or CPUs, how many, and which of them.
//!
//! Takes the GPUs that were seen and what was asked for; gives the [`Capacity`]
//! of this node and, once the number of processes is solved, the chosen GPUs
//! and the variables that select them. A node that was meant to have GPUs never
//! quietly becomes a CPU worker.

use std::ffi::OsString;

use crate::lang::Text;
use crate::observe::gpu;
use crate::observe::{Facts, Gpu, GpuFacts, GpuSource, VisibleGpu};
use crate::plan::distance::is_near;
use crate::plan::notes::{Notes, severity};
use crate::plan::rails::Rails;
use crate::plan::{AskedNproc, PlannedGpu};
use crate::probe::GpuProcess;
use crate::settings::{Device, LayoutRule, Settings};
use crate::text;
use crate::verdict::{Refusal, Severity, Verdict, Warning};

/// Bytes in use up to which a GPU counts as idle; a CUDA context alone takes some 500 MB.
const IDLE: u64 = 1 << 30;

/// More processes than a node has GPUs or cores for.
const MOST: u32 = 4096;

/// What the ranks compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hardware {
    Gpus,
    Cpus,
}

/// What one node can carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    pub hardware: Hardware,
    /// Most processes on this node, 1 or more.
    pub most: u32,
    /// A number that was asked for, and by whom.
    pub exact: Option<(u32, String)>,
}

/// GPUs or CPUs, and how many processes at most.
pub fn capacity(
    settings: &Settings,
    facts: &Facts,
    asked: &AskedNproc,
    notes: &mut Notes,
) -> Result<Capacity, Refusal> {
    if let AskedNproc::Count { n, source } = asked
        && !(1..=MOST).contains(n)
    {
        return Err(Refusal::new(
            Verdict::Usage,
            "nproc.range",
            text!(
                "{source} is {n}, and a node runs 1 to {MOST} processes",
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
    faults(settings, &facts.gpus, notes)?;
    if facts.gpus.visible.is_empty() {
        none_visible(settings, facts, asked, notes)?;
        return Ok(cpus(facts, asked));
    }
    gpus(settings, &facts.gpus, asked, notes)
}

fn cpus(facts: &Facts, asked: &AskedNproc) -> Capacity {
    let (most, exact) = match asked {
        AskedNproc::Count { n, source } => (*n, Some((*n, source.clone()))),
        AskedNproc::Cpu => (facts.limits.cpus.clamp(1, MOST), None),
        AskedNproc::Auto | AskedNproc::Gpus => (1, None),
    };
    Capacity { hardware: Hardware::Cpus, most, exact }
}

fn gpus(
    settings: &Settings,
    facts: &GpuFacts,
    asked: &AskedNproc,
    notes: &mut Notes,
) -> Result<Capacity, Refusal> {
    let visible = count(facts.visible.len());
    let source = source_name(facts.source);
    notes.decide(
        "device",
        "gpu",
        text!("{visible} GPUs visible, as {source} says", "{source} 显示有 {visible} 个可见 GPU"),
        "detected",
    );
    let mut most = visible;
    if has_mig(facts) {
        // A process enumerates a single MIG instance, so there is nothing for a second rank.
        most = 1;
        notes.warn(
            "gpu.mig",
            text!(
                "{visible} visible devices, but MIG is enabled: CUDA gives a process one MIG instance, so one process is started",
                "有 {visible} 个可见设备，但已启用 MIG：CUDA 只向每个进程提供一个 MIG 实例，因此只启动一个进程"
            ),
            text!(
                "request whole GPUs for a job of several ranks",
                "多进程任务请申请整卡"
            ),
        );
    }
    let mut exact = None;
    if let AskedNproc::Count { n, source } = asked {
        if *n > most {
            let attempts = what_sources_said(facts);
            let Text { en, zh } = attempts;
            notes.raise(
                severity(settings, "gpu.count", Severity::Fail),
                Verdict::GpuCount,
                Warning::new(
                    "gpu.count",
                    text!(
                        "{source} asks for {n} processes, and {most} GPUs can be used here ({en})",
                        "{source} 要求 {n} 个进程，而此处可用的 GPU 只有 {most} 个（{zh}）"
                    ),
                    text!(
                        "give the container {n} GPUs, or --nproc-per-node auto; --severity gpu.count=warn lets ranks share GPUs",
                        "请为容器分配 {n} 个 GPU，或使用 --nproc-per-node auto；--severity gpu.count=warn 允许多个进程共用 GPU"
                    ),
                ),
            )?;
            most = *n;
        }
        exact = Some((*n, source.clone()));
    }
    Ok(Capacity { hardware: Hardware::Gpus, most, exact })
}

/// Driver states that make the GPUs unusable.
fn faults(settings: &Settings, facts: &GpuFacts, notes: &mut Notes) -> Result<(), Refusal> {
    for fault in &facts.faults {
        let (check, verdict) = if fault.id.starts_with("gpu.fabric") {
            ("gpu.fabric", Verdict::GpuFabric)
        } else {
            ("gpu.fault", Verdict::GpuFault)
        };
        let severity = severity(settings, check, Severity::Fail);
        let mut fault = fault.clone();
        if !fault.hint.en.contains("--severity") {
            let Text { en, zh } = &fault.hint;
            fault.hint = text!(
                "{en}; --severity {check}=warn starts all the same",
                "{zh}；--severity {check}=warn 可照常启动"
            );
        }
        notes.raise(severity, verdict, fault)?;
    }
    Ok(())
}

/// No GPU is visible: an error when anything asked for one, else a CPU node.
fn none_visible(
    settings: &Settings,
    facts: &Facts,
    asked: &AskedNproc,
    notes: &mut Notes,
) -> Result<(), Refusal> {
    let mut asked_by = facts.gpus.requested_by.clone();
    if settings.device.value == Device::Gpu {
        asked_by.push(format!("device gpu ({})", settings.device.source));
    }
    if *asked == AskedNproc::Gpus {
        asked_by.push("nproc-per-node gpu".to_owned());
    }
    let Text { en, zh } = what_sources_said(&facts.gpus);
    if asked_by.is_empty() {
        notes.decide(
            "device",
            "cpu",
            text!("no GPU seen and none asked for", "未发现 GPU，也没有申请 GPU 的迹象"),
            "detected",
        );
        notes.warn(
            "gpu.none",
            text!(
                "no GPU seen and nothing says that one was asked for, so the ranks run on the CPU ({en})",
                "未发现 GPU，也没有申请 GPU 的迹象，各进程将在 CPU 上运行（{zh}）"
            ),
            text!(
                "pass --device gpu to make this an error, --device cpu to say that it is meant",
                "用 --device gpu 可将此视为错误，用 --device cpu 表示本意如此"
            ),
        );
        return Ok(());
    }
    let by = asked_by.join(", ");
    let (hidden_en, hidden_zh) = match &facts.gpus.cuda_visible_devices {
        Some(value) if !facts.gpus.gpus.is_empty() => {
            let all = facts.gpus.gpus.len();
            (
                format!("CUDA_VISIBLE_DEVICES={value:?} hides all {all}; "),
                format!("CUDA_VISIBLE_DEVICES={value:?} 屏蔽了全部 {all} 个；"),
            )
        }
        _ => (String::new(), String::new()),
    };
    notes.raise(
        severity(settings, "gpu.count", Severity::Fail),
        Verdict::GpuCount,
        Warning::new(
            "gpu.count",
            text!(
                "GPUs were asked for by {by}, and none can be used: {hidden_en}{en}",
                "{by} 表明申请了 GPU，但没有可用的：{hidden_zh}{zh}"
            ),
            text!(
                "check the container's GPU request, device plugin and driver; --device cpu starts CPU workers instead",
                "请检查容器的 GPU 申请、设备插件与驱动；若本意是用 CPU，请加 --device cpu"
            ),
        ),
    )?;
    notes.decide(
        "device",
        "cpu",
        text!("no GPU can be used", "没有可用的 GPU"),
        "--severity gpu.count",
    );
    Ok(())
}

/// Each source of GPU facts and its answer, in one clause.
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
        GpuSource::None => "-",
    }
}

/// The GPUs of the plan and the variables that narrow the choice.
#[derive(Debug, Clone, Default)]
pub struct Chosen {
    pub gpus: Vec<PlannedGpu>,
    pub env: Vec<(String, OsString)>,
}

/// Chooses `nproc` of the visible GPUs: idle ones, then one NUMA node, then those
/// next to an RDMA device, then their order.
///
/// The order of the visible GPUs is never changed, since allocators that virtualise
/// GPUs (HAMi) count limits by position.
pub fn choose(
    settings: &Settings,
    facts: &Facts,
    nproc: u32,
    exact: bool,
    rule: LayoutRule,
    notes: &mut Notes,
) -> Chosen {
    let visible = &facts.gpus.visible;
    let (selected, because) = select(facts, nproc as usize);
    let mut next = 0;
    let gpus = visible
        .iter()
        .enumerate()
        .map(|(position, token)| {
            let gpu = gpu_of(&facts.gpus, token);
            let selected = selected.contains(&position);
            let local_rank = selected.then_some(next);
            next += u32::from(selected);
            PlannedGpu {
                index: gpu.map_or(count(token.gpu), |gpu| gpu.index),
                uuid: gpu.and_then(|gpu| gpu.uuid.clone()),
                name: gpu.and_then(|gpu| gpu.name.clone()),
                pci: gpu.and_then(|gpu| gpu.pci.clone()),
                selected,
                local_rank,
            }
        })
        .collect();
    // Fail is the conductor's to carry out: only after stale processes were ended
    // does memory in use mean anything.
    if gpu::shared_by(facts).is_none()
        && severity(settings, "gpu.busy", Severity::Warn) != Severity::Off
    {
        busy(&facts.gpus, &selected, notes);
    }
    let mut chosen = Chosen { gpus, env: Vec::new() };
    if selected.len() == visible.len() || has_mig(&facts.gpus) {
        return chosen;
    }
    let tokens: Vec<&str> = selected
        .iter()
        .filter_map(|position| visible.get(*position))
        .map(|gpu| gpu.token.as_str())
        .collect();
    let tokens = tokens.join(",");
    unused(visible.len(), nproc, exact, rule, notes);
    notes.decide("CUDA_VISIBLE_DEVICES", &tokens, because, "solved");
    chosen.env.push(("CUDA_VISIBLE_DEVICES".to_owned(), tokens.into()));
    // Plain indices count in NVML's order only under PCI_BUS_ID (CUDA's default is fastest first).
    if !facts.environment.contains_key("CUDA_DEVICE_ORDER") {
        chosen.env.push(("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".into()));
    }
    chosen
}

/// Positions among the visible GPUs, rising, and why these.
fn select(facts: &Facts, nproc: usize) -> (Vec<usize>, Text) {
    let gpus = &facts.gpus;
    let rails = Rails::of(&facts.hcas, &facts.network, gpus.visible.len());
    let gpu = |position: &usize| gpus.visible.get(*position).and_then(|token| gpu_of(gpus, token));
    let used = |position: &usize| gpu(position).and_then(|gpu| gpu.memory_used).unwrap_or(0);
    let numa = |position: &usize| gpu(position).and_then(|gpu| gpu.numa_node);
    let near = |position: &usize| {
        gpu(position).is_some_and(|gpu| rails.kept.iter().any(|port| is_near(gpu, port.hca)))
    };
    let all: Vec<usize> = (0..gpus.visible.len()).collect();
    let idle: Vec<usize> = all.iter().copied().filter(|gpu| used(gpu) <= IDLE).collect();
    if idle.len() < nproc {
        let mut by_use = all;
        by_use.sort_by_key(|gpu| if used(gpu) <= IDLE { 0 } else { used(gpu) });
        by_use.truncate(nproc);
        by_use.sort_unstable();
        let count = idle.len();
        let because = text!(
            "only {count} GPUs are idle; the least used of the others",
            "只有 {count} 个 GPU 空闲；其余取占用最少者"
        );
        return (by_use, because);
    }
    let is_some_busy = idle.len() < all.len();
    let mut nodes: Vec<u32> = idle.iter().filter_map(numa).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let inside = |node: u32| -> Vec<usize> {
        idle.iter().copied().filter(|gpu| numa(gpu) == Some(node)).collect()
    };
    // Of nodes with room enough, the one with the most GPUs beside a rail.
    let node =
        nodes.iter().copied().filter(|node| inside(*node).len() >= nproc).min_by_key(|node| {
            (
                std::cmp::Reverse(inside(*node).iter().filter(|gpu| near(gpu)).count().min(nproc)),
                *node,
            )
        });
    let mut chosen = node.map_or_else(|| idle.clone(), inside);
    let rails_decide = chosen.len() > nproc && chosen.iter().any(near) && !chosen.iter().all(near);
    chosen.sort_by_key(|gpu| (!near(gpu), *gpu));
    chosen.truncate(nproc);
    chosen.sort_unstable();

    let mut en: Vec<String> = Vec::new();
    let mut zh: Vec<String> = Vec::new();
    let mut say = |words: Text| {
        en.push(words.en.into_owned());
        zh.push(words.zh.into_owned());
    };
    if is_some_busy {
        say(text!("idle", "空闲"));
    }
    if let Some(node) = node {
        say(text!("all on NUMA node {node}", "同在 NUMA 节点 {node}"));
    } else if nodes.len() > 1 {
        say(text!("no NUMA node has enough", "没有足够的同 NUMA 节点 GPU"));
    }
    if rails_decide {
        say(text!("next to an RDMA device", "靠近 RDMA 设备"));
    }
    say(text!("in order", "按原有顺序"));
    (chosen, Text::new(en.join(", "), zh.join("，")))
}

/// GPUs that are chosen although something already holds their memory.
fn busy(facts: &GpuFacts, selected: &[usize], notes: &mut Notes) {
    let busy: Vec<(&Gpu, u64)> = selected
        .iter()
        .filter_map(|position| gpu_of(facts, facts.visible.get(*position)?))
        .filter_map(|gpu| Some((gpu, gpu.memory_used.filter(|used| *used > IDLE)?)))
        .collect();
    if busy.is_empty() {
        return;
    }
    let list: Vec<String> = busy
        .iter()
        .map(|(gpu, used)| format!("{} ({:.1} GiB)", gpu.index, *used as f64 / IDLE as f64))
        .collect();
    let list = list.join(", ");
    let known: Option<Vec<_>> = busy.iter().map(|(gpu, _)| gpu.health.processes.as_ref()).collect();
    let Text { en: by, zh: by_zh } = holders(known.map(|lists| lists.into_iter().flatten()));
    notes.warn(
        "gpu.busy",
        text!(
            "memory is already in use on GPU (nvidia-smi index) {list}{by}",
            "以下 GPU（nvidia-smi 序号）的显存已被占用：{list}{by_zh}"
        ),
        text!(
            "see who holds it with ranklaunch clean --dry-run",
            "可用 ranklaunch clean --dry-run 查看占用者"
        ),
    );
}

/// Whom NVML names for the memory. Its pids are those of our pid namespace with
/// current drivers, the host's with old ones, and 0 where it hides them.
fn holders<'a>(listed: Option<impl Iterator<Item = &'a GpuProcess>>) -> Text {
    let Some(listed) = listed else { return Text::same("") };
    let mut pids: Vec<u32> = listed.map(|process| process.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    if pids.is_empty() {
        return text!(
            "; NVML lists no process there: it is another container's, or is being torn down, or MPS serves it",
            "；NVML 未列出其上的进程：可能属于其他容器、正在退出，或由 MPS 代管"
        );
    }
    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    text!(
        "; held by pid {pids} as NVML counts, which may be of another pid namespace",
        "；NVML 给出的占用者 pid 为 {pids}，可能属于其他 pid 命名空间"
    )
}

/// Says that GPUs stay idle.
fn unused(visible: usize, nproc: u32, exact: bool, rule: LayoutRule, notes: &mut Notes) {
    let idle = visible.saturating_sub(nproc as usize);
    let (batch_en, batch_zh) = if exact && rule == LayoutRule::None {
        ("; the global batch changes with the number of ranks", "；全局 batch 会随进程数改变")
    } else {
        ("", "")
    };
    notes.warn(
        "gpu.unused",
        text!(
            "{nproc} of {visible} GPUs are used on every node, {idle} stay idle{batch_en}",
            "每个节点只使用 {visible} 个 GPU 中的 {nproc} 个，{idle} 个闲置{batch_zh}"
        ),
        text!(
            "--min-nproc {visible} refuses a launch that leaves GPUs idle",
            "--min-nproc {visible} 可在有 GPU 闲置时拒绝启动"
        ),
    );
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
