//! Checks of GPUs: their number and state, the share that a virtualiser (vGPU, HAMi) leaves, and impairments: memory
//! errors, throttling, slow links, modes that change how CUDA behaves.
//!
//! A value that NVML did not report counts as unknown, never as a failure.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::finding::{
    CheckFinding, CheckInput, FindingKind, Judge, bad, doubtful, hinted, info, note, ok, or,
    planned,
};
use node::observe::gpu::{ComputeMode, FabricState, RecoveryAction, THROTTLED, label};
use node::observe::{Gpu, GpuSource};
use plan::variables::Variables;
use text::lang::{Text, bytes};
use text::order::InOrder;
use text::text;
use verdict::{Id, Warning};

pub(super) const JUDGES: &[Judge] = &[
    (Id::GpuFault, faults),
    (Id::GpuFabric, fabric),
    (Id::GpuCount, count),
    (Id::GpuBusy, busy),
    (Id::HamiLimit, hami),
    (Id::GpuHealth, health),
    (Id::GpuLink, links),
    (Id::GpuMode, modes),
];

/// A GPU with less memory holds no CUDA context and no model.
const USEFUL: u64 = 1 << 30;

fn count(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let mut found = planned(input, &[Id::GpuCount, Id::GpuVendor]);
    // This is only a warning, whatever the severity of this check is.
    let on_cpu = planned(input, &[Id::GpuNone]).into_iter();
    found.extend(on_cpu.map(|one| CheckFinding { kind: FindingKind::Doubtful, ..one }));
    let gpus = &input.facts.gpus;
    let (all, visible) = (gpus.gpus.len(), gpus.visible.len());
    let mut found = or(found, || match (gpus.source, visible) {
        (GpuSource::None, _) | (_, 0) => info(text!(
            "no GPU is used: the ranks run on the CPU",
            "不使用 GPU：各 rank 在 CPU 上运行"
        )),
        _ if all == visible => {
            let models = listed(models(&gpus.gpus));
            ok(text!("{visible} GPUs ({models})", "{visible} 个 GPU（{models}）"))
        }
        _ => {
            let value = gpus.cuda_visible_devices.as_deref().unwrap_or_default();
            ok(text!(
                "{visible} of {all} GPUs, by CUDA_VISIBLE_DEVICES={value}",
                "{all} 个 GPU 中的 {visible} 个，由 CUDA_VISIBLE_DEVICES={value} 决定"
            ))
        }
    });
    if !gpus.uncounted.is_empty() {
        let nodes = listed(gpus.uncounted.iter().map(|minor| format!("/dev/nvidia{minor}")));
        found.push(doubtful(hinted!(
            "NVML lists {all} GPUs, but {nodes} can be opened as well: the driver failed to initialise that GPU",
            "NVML 列出 {all} 个 GPU，但还能打开 {nodes}：驱动初始化该 GPU 时失败",
            "look for the GPU's lines (NVRM, Xid) in the host's dmesg; reboot or replace the node",
            "请查看宿主机 dmesg 中该 GPU 的记录（NVRM、Xid）；重启或更换节点"
        )));
    }
    found
}

/// `NVIDIA H100`, each name once.
fn models(gpus: &[Gpu]) -> BTreeSet<&str> {
    gpus.iter().filter_map(|gpu| gpu.name.as_deref()).in_set()
}

/// The words with commas, or `?` without any.
fn listed(words: impl IntoIterator<Item = impl Display>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string()).collect();
    if words.is_empty() { "?".to_owned() } else { words.join(", ") }
}

/// Faults that the plan judges too.
fn of_plan(faults: &[Warning]) -> Vec<CheckFinding> {
    let of = |fault: &Warning| bad((fault.text.clone(), fault.hint.clone()));
    faults.iter().map(|fault| CheckFinding { planned: true, ..of(fault) }).collect()
}

fn faults(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let gpus = &input.facts.gpus;
    or(of_plan(&gpus.faults), || match (&gpus.driver_version, gpus.gpus.len()) {
        (_, 0) => ok(text!("no GPU, no fault", "无 GPU，无故障")),
        (Some(driver), _) => {
            let cuda = gpus.cuda_driver_version;
            let cuda = cuda.map(|(major, minor)| format!(" (CUDA {major}.{minor})"));
            let cuda = cuda.unwrap_or_default();
            ok(text!("no fault, driver {driver}{cuda}", "无故障，驱动版本 {driver}{cuda}"))
        }
        (None, _) => info(text!("unknown: NVML could not be queried", "未知：无法查询 NVML")),
    })
}

fn fabric(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let gpus = &input.facts.gpus;
    or(of_plan(&gpus.fabric_faults), || {
        let ready = gpus.gpus.iter().any(|gpu| gpu.fabric == Some(FabricState::Ready));
        ok(match ready {
            true => text!("NVSwitch fabric ready", "NVSwitch Fabric 已就绪"),
            false => text!("no NVSwitch fabric", "无 NVSwitch Fabric"),
        })
    })
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
    or(found, || match input.facts.gpus_shared_by() {
        _ if input.on_gpus() == 0 => ok(text!("no GPU in use", "未使用 GPU")),
        Some(sharer) => info(text!(
            "not checked: with {sharer} the memory in use does not belong only to this job's GPUs",
            "未检查：使用 {sharer} 时，已用显存不只属于本任务的 GPU"
        )),
        None => ok(text!("the chosen GPUs are idle", "所选 GPU 均空闲")),
    })
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
        return vec![ok(text!("no HAMi", "无 HAMi"))];
    };
    if hami.disabled {
        return vec![info(text!(
            "HAMi is present but disabled by CUDA_DISABLE_CONTROL",
            "有 HAMi，但已由 CUDA_DISABLE_CONTROL 关闭"
        ))];
    }
    let too_small = |name: &str, value: &str, size: u64| {
        let size = bytes(size);
        bad(hinted!(
            "HAMi limits a GPU to {size} ({name}={value}), too little for any CUDA program",
            "HAMi 将 GPU 显存限制为 {size}（{name}={value}），任何 CUDA 程序都无法运行",
            "remove nvidia.com/gpumem from the pod's limits, or give it in MiB as a plain number (gpumem: 40000)",
            "请从 Pod 的 limits 中删除 nvidia.com/gpumem，或以 MiB 为单位写成普通数字（gpumem: 40000）"
        ))
    };
    let limits = hami.variables.iter();
    let limits = limits.filter(|(name, _)| name.starts_with("CUDA_DEVICE_MEMORY_LIMIT"));
    let small = limits.filter_map(|(name, value)| {
        // The value 0 means no limit.
        let size = size(value).filter(|size| (1..USEFUL).contains(size))?;
        Some(too_small(name, value, size))
    });
    let mut found: Vec<CheckFinding> = small.collect();
    if found.is_empty() {
        let gpus = &input.facts.gpus.gpus;
        let smallest = gpus.iter().filter_map(|gpu| gpu.memory_total).min();
        if let Some(total) = smallest.filter(|total| *total < USEFUL) {
            found.push(too_small("memory.total", &total.to_string(), total));
        }
    }
    or(found, || {
        let by = hami.preloaded_by.as_deref().unwrap_or("CUDA_DEVICE_*");
        let limit = |(name, value)| format!(", {name}={value}");
        let limits: String = hami.variables.iter().map(limit).collect();
        note(hinted!(
            "HAMi hooks CUDA ({by}{limits}): it reports GPU memory by its own accounting and fixes the order of devices",
            "HAMi 接管了 CUDA（{by}{limits}）：显存按它自己的统计，设备顺序由它固定",
            "request whole GPUs without gpumem and gpucores for training",
            "训练任务请申请整个 GPU，不要设置 gpumem 与 gpucores"
        ))
    })
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

/// Two bits each of the fabric's health mask, by their shift; 1 is yes.
const FABRIC: &[(u32, &str, &str)] = &[
    (0, "degraded bandwidth", "带宽降级"),
    (2, "a route in recovery", "路由恢复中"),
    (4, "an unhealthy route", "路由不健康"),
    (6, "recovery from an access timeout", "访问超时恢复中"),
];

/// Maximum number of MIG instances that a line names; the report lists all.
const SHOWN: usize = 3;

/// Checks memory, clocks, and recovery actions that the driver requests while the GPU still works.
fn health(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let mut found: Vec<CheckFinding> = gpus(input).flat_map(of_memory).collect();
    found.extend(gpus(input).filter_map(throttle));
    found.extend(gpus(input).filter_map(late));
    let is_known = |gpu: &Gpu| gpu.health.ecc_volatile.is_some();
    let well = text!("no memory errors, no throttling", "无显存错误，无降频");
    or_in_order(input, found, is_known, well)
}

fn of_memory(gpu: &Gpu) -> Vec<CheckFinding> {
    let Text { en, zh } = label(gpu);
    let health = &gpu.health;
    let errors = health.ecc_volatile.filter(|errors| *errors > 0).map(|errors| {
        let life = health.ecc_aggregate.map_or("?".to_owned(), |count| count.to_string());
        text!(
            "{en}: {errors} uncorrected memory errors since the driver was loaded, 0 are allowed ({life} in total)",
            "{zh}：驱动加载以来有 {errors} 个不可纠正的显存错误，允许 0 个（累计 {life} 个）"
        )
    });
    let rows = health.remapped_rows.filter(|rows| rows.pending).map(|rows| {
        let count = rows.uncorrectable;
        text!(
            "{en}: memory rows are pending remapping, 0 are allowed ({count} remapped after uncorrectable errors)",
            "{zh}：有显存行等待重映射，允许 0 行（已因不可纠正错误重映射 {count} 行）"
        )
    });
    let pages = health.retired_pages_pending.filter(|pending| *pending).map(|_| {
        text!(
            "{en}: memory pages are pending retirement, 0 are allowed",
            "{zh}：有显存页等待退役，允许 0 页"
        )
    });
    let reset = || {
        text!(
            "end all processes on it and reset it (nvidia-smi --gpu-reset -i INDEX), or reboot the node",
            "请结束其上所有进程并重置（nvidia-smi --gpu-reset -i 序号），或重启节点"
        )
    };
    let texts = [errors, rows, pages].into_iter().flatten();
    let mut found: Vec<CheckFinding> = texts.map(|text| bad((text, reset()))).collect();
    if gpu.recovery_action == Some(RecoveryAction::DrainPeers) {
        found.push(bad(hinted!(
            "{en}: the driver requests that peer-to-peer traffic be drained (recovery action 3, only 0 is allowed)",
            "{zh}：驱动要求停止其 P2P 流量（恢复动作 3，应为 0）",
            "reset the GPUs of this node together before the next job; NCCL_P2P_DISABLE=1 avoids P2P until then",
            "请在下个任务前一并重置本节点的 GPU；在此之前可用 NCCL_P2P_DISABLE=1 避免 P2P"
        )));
    }
    found
}

fn throttle(gpu: &Gpu) -> Option<CheckFinding> {
    let reasons = gpu.health.throttle_reasons?;
    let set: Vec<_> = THROTTLED.iter().filter(|(bit, ..)| reasons & bit != 0).collect();
    if set.is_empty() {
        return None;
    }
    let (why, why_zh) = (listed(set.iter().map(|set| set.1)), listed(set.iter().map(|set| set.2)));
    let Text { en, zh } = label(gpu);
    let (celsius, celsius_zh) = match gpu.health.temperature {
        Some(celsius) => (format!(" at {celsius} °C"), format!("，温度 {celsius} °C")),
        None => (String::new(), String::new()),
    };
    Some(bad(hinted!(
        "{en}: clocks are throttled before the job starts: {why} (reasons {reasons:#x}{celsius})",
        "{zh}：任务开始前已降频：{why_zh}（原因码 {reasons:#x}{celsius_zh}）",
        "check the node's cooling and power (nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER); one slow GPU slows the whole job",
        "请检查节点的散热与供电（nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER）；一个变慢的 GPU 会拖慢整个任务"
    )))
}

/// NVML's health calls hung although the calls that count GPUs returned.
fn late(gpu: &Gpu) -> Option<CheckFinding> {
    let last = gpu.health.unknown.last().filter(|_| gpu.health.late)?;
    let Text { en, zh } = label(gpu);
    let (call, words) = (&last.call, &last.text);
    Some(bad(hinted!(
        "{en}: NVML lists it but does not report its health ({call}: {words})",
        "{zh}：NVML 能列出它，但未给出其健康状态（{call}：{words}）",
        "check whether nvidia-smi -q -i INDEX also hangs; if it does, reboot the node",
        "请查看 nvidia-smi -q -i N（N 为序号）是否同样无响应；若是，请重启节点"
    )))
}

/// Checks PCIe, NVLink and fabric: links that work but are slower than they should be.
fn links(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let mut found: Vec<CheckFinding> = gpus(input).filter_map(narrow).collect();
    let most = |name: &Option<String>| {
        gpus(input)
            .filter(|gpu| gpu.name == *name)
            .filter_map(|gpu| Some(gpu.health.nvlinks.as_ref()?.up))
            .max()
            .unwrap_or(0)
    };
    found.extend(gpus(input).filter_map(|gpu| nvlinks(gpu, most(&gpu.name))));
    found.extend(gpus(input).filter_map(fabric_health));
    let is_known = |gpu: &Gpu| gpu.health.pcie.width.is_some();
    let well = text!("PCIe and NVLink run at full width", "PCIe 与 NVLink 均为最大宽度");
    or_in_order(input, found, is_known, well)
}

/// Compares the width only: the generation drops while the GPU is idle.
fn narrow(gpu: &Gpu) -> Option<CheckFinding> {
    let pcie = gpu.health.pcie;
    let (width, most) = (pcie.width?, pcie.max_width?);
    if width == 0 || width >= most {
        return None;
    }
    let Text { en, zh } = label(gpu);
    Some(bad(hinted!(
        "{en}: PCIe link width is x{width}, the maximum is x{most}",
        "{zh}：PCIe 链路宽度为 x{width}，最大为 x{most}",
        "reseat the GPU, or check its slot and riser; until then its data transfers are slower",
        "请重新插拔该 GPU，或检查插槽与转接卡；在此之前其数据传输较慢"
    )))
}

fn nvlinks(gpu: &Gpu, most: u32) -> Option<CheckFinding> {
    let links = gpu.health.nvlinks.as_ref()?;
    if links.up >= most {
        return None;
    }
    let up = links.up;
    let down = listed(&links.down);
    let Text { en, zh } = label(gpu);
    Some(bad(hinted!(
        "{en}: {up} NVLinks are up, other GPUs of this model have {most} (down: {down})",
        "{zh}：{up} 条 NVLink 正常，同型号的其他 GPU 为 {most} 条（断开：{down}）",
        "reset the GPUs of this node together, or take it out of service; nvidia-smi nvlink -s shows the links",
        "请一并重置本节点的 GPU，或将节点下线；nvidia-smi nvlink -s 可查看链路"
    )))
}

fn fabric_health(gpu: &Gpu) -> Option<CheckFinding> {
    let mask = gpu.fabric_health?;
    let set = FABRIC.iter().filter(|(shift, ..)| (mask >> shift) & 3 == 1);
    let (why, why_zh): (Vec<&str>, Vec<&str>) = set.map(|(_, en, zh)| (*en, *zh)).unzip();
    if why.is_empty() {
        return None;
    }
    let (why, why_zh) = (why.join(", "), why_zh.join("、"));
    let Text { en, zh } = label(gpu);
    Some(bad(hinted!(
        "{en}: the NVSwitch fabric is up but not healthy: {why} (health mask {mask:#x})",
        "{zh}：NVSwitch Fabric 已就绪但不健康：{why_zh}（健康掩码 {mask:#x}）",
        "read the fabric manager's log on the host (/var/log/fabricmanager.log)",
        "请查看宿主机上 fabric manager 的日志（/var/log/fabricmanager.log）"
    )))
}

/// Checks modes set by an administrator: the users of a GPU, and the way in which CUDA counts it.
fn modes(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let mut found: Vec<CheckFinding> = gpus(input).filter_map(exclusive).collect();
    found.extend(without_instances(input));
    found.extend(order(input));
    let off = indices(input, |gpu| gpu.health.persistence == Some(false));
    if !off.is_empty() {
        found.push(note(hinted!(
            "persistence mode is off on GPU (nvidia-smi index) {off}: the driver is initialised again at each first use, which takes seconds",
            "以下 GPU（nvidia-smi 序号）未开启持久模式：{off}；GPU 每次从空闲状态启用时都要重新初始化驱动，耗时数秒",
            "run nvidia-smi -pm 1 on the host",
            "在宿主机上执行 nvidia-smi -pm 1"
        )));
    }
    found.extend(instances(input));
    let is_known = |gpu: &Gpu| gpu.health.compute_mode.is_some();
    or_in_order(input, found, is_known, text!("default modes", "均为默认模式"))
}

/// Exclusive mode: only one process at a time may use the GPU. This suffices for one rank if no
/// other process uses it.
fn exclusive(gpu: &Gpu) -> Option<CheckFinding> {
    let mode = ComputeMode::of(gpu.health.compute_mode?)?.exclusive()?;
    let Text { en, zh } = label(gpu);
    let mut holders = gpu.health.processes.iter().flatten().map(|process| process.pid).peekable();
    if holders.peek().is_none() {
        return Some(info(text!(
            "{en}: compute mode {mode}, one process at a time",
            "{zh}：计算模式为 {mode}，同时只允许一个进程"
        )));
    }
    let holders = listed(holders);
    Some(bad(hinted!(
        "{en}: compute mode {mode} allows one process, but one already uses it (pid {holders} as NVML reports it, possibly of another pid namespace)",
        "{zh}：计算模式 {mode} 只允许一个进程，而其上已有进程（NVML 给出的 pid 为 {holders}，可能属于其他 pid 命名空间）",
        "end that process, or set nvidia-smi -c DEFAULT; otherwise its rank fails with \"all CUDA-capable devices are busy or unavailable\"",
        "请结束该进程，或执行 nvidia-smi -c DEFAULT；否则该处的进程会报 all CUDA-capable devices are busy or unavailable"
    )))
}

fn without_instances(input: &CheckInput<'_>) -> Option<CheckFinding> {
    let none =
        |gpu: &Gpu| gpu.health.mig_devices.as_ref().is_some_and(|all| all.devices.is_empty());
    let empty = indices(input, none);
    if empty.is_empty() {
        return None;
    }
    Some(bad(hinted!(
        "MIG is enabled, but this container has no MIG instance of GPU (nvidia-smi index) {empty}, so CUDA cannot see it",
        "以下 GPU（nvidia-smi 序号）已启用 MIG，但本容器没有分到其 MIG 实例，CUDA 看不到它：{empty}",
        "create instances (nvidia-smi mig -cgi …), request one (nvidia.com/mig-…), or disable MIG (nvidia-smi -mig 0)",
        "请创建实例（nvidia-smi mig -cgi …）、申请一个（nvidia.com/mig-…），或关闭 MIG（nvidia-smi -mig 0）"
    )))
}

/// Reports the MIG instances, since no count of GPUs shows how CUDA counts them.
fn instances(input: &CheckInput<'_>) -> Option<CheckFinding> {
    let devices = || gpus(input).filter_map(|gpu| gpu.health.mig_devices.as_ref());
    let devices = || devices().flat_map(|all| &all.devices);
    let count = devices().count();
    if count == 0 {
        return None;
    }
    let mut shown = listed(devices().take(SHOWN).map(|one| {
        let uuid = one.uuid.as_deref().unwrap_or("MIG-?");
        one.memory_total.map_or(uuid.to_owned(), |size| format!("{uuid} {}", bytes(size)))
    }));
    if count > SHOWN {
        shown.push_str(", …");
    }
    Some(info(text!(
        "{count} MIG instances ({shown}): a CUDA process can use only the first one in CUDA_VISIBLE_DEVICES",
        "{count} 个 MIG 实例（{shown}）：每个 CUDA 进程只能使用 CUDA_VISIBLE_DEVICES 中的第一个"
    )))
}

/// By default CUDA numbers the fastest GPU 0, while NVML orders by PCI address. With a single model
/// both orders are the same.
fn order(input: &CheckInput<'_>) -> Option<CheckFinding> {
    let facts = &input.facts.gpus;
    let models = models(&facts.gpus);
    let order = Variables::new(input.settings, input.facts).get("CUDA_DEVICE_ORDER");
    let order = order.as_ref().map(|order| order.value.as_str());
    let named = facts.cuda_visible_devices.as_deref();
    let by_uuid = named.is_some_and(|list| list.starts_with("GPU-") || list.starts_with("MIG-"));
    if models.len() < 2 || order == Some("PCI_BUS_ID") || by_uuid {
        return None;
    }
    let order = order.unwrap_or("FASTEST_FIRST");
    let models = listed(models);
    Some(doubtful(hinted!(
        "GPUs of several models ({models}) with CUDA_DEVICE_ORDER={order}: CUDA numbers them differently from nvidia-smi, which orders by PCI address",
        "GPU 型号不一（{models}），且 CUDA_DEVICE_ORDER={order}：CUDA 的编号与 nvidia-smi 的序号（按 PCI 地址排列）不一致",
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID in CUDA_VISIBLE_DEVICES",
        "请设置 CUDA_DEVICE_ORDER=PCI_BUS_ID，或在 CUDA_VISIBLE_DEVICES 中使用 UUID"
    )))
}

fn gpus<'a>(input: &'a CheckInput<'_>) -> impl Iterator<Item = &'a Gpu> + use<'a> {
    input.facts.gpus.gpus.iter()
}

fn indices(input: &CheckInput<'_>, is: impl Fn(&Gpu) -> bool) -> String {
    let all = gpus(input).filter(|gpu| is(gpu));
    all.map(|gpu| gpu.index.to_string()).collect::<Vec<_>>().join(", ")
}

/// The result without a problem: all is well, or the values are unknown.
fn or_in_order(
    input: &CheckInput<'_>,
    found: Vec<CheckFinding>,
    is_known: impl Fn(&Gpu) -> bool,
    well: Text,
) -> Vec<CheckFinding> {
    if !found.is_empty() {
        return found;
    }
    let facts = &input.facts.gpus;
    if facts.gpus.is_empty() {
        return vec![ok(text!("no GPU", "无 GPU"))];
    }
    let unknown = indices(input, |gpu| !is_known(gpu));
    if unknown.is_empty() {
        return vec![ok(well)];
    }
    let (why, why_zh) = match facts.gpus.iter().find(|gpu| !is_known(gpu)) {
        _ if facts.source != GpuSource::Nvml => {
            ("NVML could not be asked".to_owned(), "无法询问 NVML".to_owned())
        }
        Some(Gpu { health, .. }) => match health.unknown.first() {
            Some(first) => {
                let said = format!("{}: {}", first.call, first.text);
                (said.clone(), said)
            }
            None => ("ECC is off".to_owned(), "ECC 已关闭".to_owned()),
        },
        None => (String::new(), String::new()),
    };
    vec![info(text!(
        "no fault found; GPU (nvidia-smi index) {unknown} reports only part of its state ({why})",
        "未发现异常；以下 GPU（nvidia-smi 序号）的信息不全：{unknown}（{why_zh}）"
    ))]
}
