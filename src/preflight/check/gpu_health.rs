//! Checks of GPUs that are usable but impaired: memory errors, throttling, slow links, and modes
//! that change how CUDA behaves.
//!
//! A value that NVML did not report counts as unknown, never as a failure.

use super::finding::{CheckFinding, FindingKind, Judge};
use super::input::CheckInput;
use node::observe::gpu::{ComputeMode, RecoveryAction, THROTTLED, label};
use node::observe::{Gpu, GpuSource};
use plan::variables::Variables;
use text::lang::Text;
use text::text;
use verdict::Id;

pub(super) const JUDGES: &[Judge] =
    &[(Id::GpuHealth, health), (Id::GpuLink, links), (Id::GpuMode, modes)];

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
    or_in_order(
        input,
        found,
        |gpu| gpu.health.ecc_volatile.is_some(),
        || text!("no memory errors, no throttling", "无显存错误，无降频"),
    )
}

fn of_memory(gpu: &Gpu) -> Vec<CheckFinding> {
    let Text { en, zh } = label(gpu);
    let health = &gpu.health;
    let mut found = Vec::new();
    if let Some(errors) = health.ecc_volatile.filter(|errors| *errors > 0) {
        let life = health.ecc_aggregate.map_or("?".to_owned(), |count| count.to_string());
        found.push(CheckFinding::bad(
            text!(
                "{en}: {errors} uncorrected memory errors since the driver was loaded, 0 are allowed ({life} in total)",
                "{zh}：驱动加载以来有 {errors} 个不可纠正的显存错误，允许 0 个（累计 {life} 个）"
            ),
            reset(),
        ));
    }
    if let Some(rows) = health.remapped_rows.filter(|rows| rows.pending) {
        let count = rows.uncorrectable;
        found.push(CheckFinding::bad(
            text!(
                "{en}: memory rows are pending remapping, 0 are allowed ({count} remapped after uncorrectable errors)",
                "{zh}：有显存行等待重映射，允许 0 行（已因不可纠正错误重映射 {count} 行）"
            ),
            reset(),
        ));
    }
    if health.retired_pages_pending == Some(true) {
        found.push(CheckFinding::bad(
            text!(
                "{en}: memory pages are pending retirement, 0 are allowed",
                "{zh}：有显存页等待退役，允许 0 页"
            ),
            reset(),
        ));
    }
    if gpu.recovery_action == Some(RecoveryAction::DrainPeers) {
        found.push(CheckFinding::bad(
            text!(
                "{en}: the driver requests that peer-to-peer traffic be drained (recovery action 3, only 0 is allowed)",
                "{zh}：驱动要求停止其 P2P 流量（恢复动作 3，应为 0）"
            ),
            text!(
                "reset the GPUs of this node together before the next job; NCCL_P2P_DISABLE=1 avoids P2P until then",
                "请在下个任务前一并重置本节点的 GPU；在此之前可用 NCCL_P2P_DISABLE=1 避免 P2P"
            ),
        ));
    }
    found
}

fn reset() -> Text {
    text!(
        "end all processes on it and reset it (nvidia-smi --gpu-reset -i INDEX), or reboot the node",
        "请结束其上所有进程并重置（nvidia-smi --gpu-reset -i 序号），或重启节点"
    )
}

fn throttle(gpu: &Gpu) -> Option<CheckFinding> {
    let reasons = gpu.health.throttle_reasons?;
    let set: Vec<_> = THROTTLED.iter().filter(|(bit, _, _)| reasons & bit != 0).collect();
    if set.is_empty() {
        return None;
    }
    let all = |words: fn(&&(u64, &'static str, &'static str)) -> &'static str| {
        set.iter().map(words).collect::<Vec<_>>().join(", ")
    };
    let (why, why_zh) = (all(|set| set.1), all(|set| set.2));
    let Text { en, zh } = label(gpu);
    let (celsius, celsius_zh) = match gpu.health.temperature {
        Some(celsius) => (format!(" at {celsius} °C"), format!("，温度 {celsius} °C")),
        None => (String::new(), String::new()),
    };
    Some(CheckFinding::bad(
        text!(
            "{en}: clocks are throttled before the job starts: {why} (reasons {reasons:#x}{celsius})",
            "{zh}：任务开始前已降频：{why_zh}（原因码 {reasons:#x}{celsius_zh}）"
        ),
        text!(
            "check the node's cooling and power (nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER); one slow GPU slows the whole job",
            "请检查节点的散热与供电（nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER）；一个变慢的 GPU 会拖慢整个任务"
        ),
    ))
}

/// NVML's health calls hung although the calls that count GPUs returned.
fn late(gpu: &Gpu) -> Option<CheckFinding> {
    let last = gpu.health.unknown.last().filter(|_| gpu.health.late)?;
    let Text { en, zh } = label(gpu);
    let (call, words) = (&last.call, &last.text);
    Some(CheckFinding::bad(
        text!(
            "{en}: NVML lists it but does not report its health ({call}: {words})",
            "{zh}：NVML 能列出它，但未给出其健康状态（{call}：{words}）"
        ),
        text!(
            "check whether nvidia-smi -q -i INDEX also hangs; if it does, reboot the node",
            "请查看 nvidia-smi -q -i N（N 为序号）是否同样无响应；若是，请重启节点"
        ),
    ))
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
    found.extend(gpus(input).filter_map(fabric));
    or_in_order(
        input,
        found,
        |gpu| gpu.health.pcie.width.is_some(),
        || text!("PCIe and NVLink run at full width", "PCIe 与 NVLink 均为最大宽度"),
    )
}

/// Compares the width only: the generation drops while the GPU is idle.
fn narrow(gpu: &Gpu) -> Option<CheckFinding> {
    let pcie = gpu.health.pcie;
    let (width, most) = (pcie.width?, pcie.max_width?);
    if width == 0 || width >= most {
        return None;
    }
    let Text { en, zh } = label(gpu);
    Some(CheckFinding::bad(
        text!(
            "{en}: PCIe link width is x{width}, the maximum is x{most}",
            "{zh}：PCIe 链路宽度为 x{width}，最大为 x{most}"
        ),
        text!(
            "reseat the GPU, or check its slot and riser; until then its data transfers are slower",
            "请重新插拔该 GPU，或检查插槽与转接卡；在此之前其数据传输较慢"
        ),
    ))
}

fn nvlinks(gpu: &Gpu, most: u32) -> Option<CheckFinding> {
    let links = gpu.health.nvlinks.as_ref()?;
    if links.up >= most {
        return None;
    }
    let up = links.up;
    let down: Vec<String> = links.down.iter().map(u32::to_string).collect();
    let down = if down.is_empty() { "?".to_owned() } else { down.join(", ") };
    let Text { en, zh } = label(gpu);
    Some(CheckFinding::bad(
        text!(
            "{en}: {up} NVLinks are up, other GPUs of this model have {most} (down: {down})",
            "{zh}：{up} 条 NVLink 正常，同型号的其他 GPU 为 {most} 条（断开：{down}）"
        ),
        text!(
            "reset the GPUs of this node together, or take it out of service; nvidia-smi nvlink -s shows the links",
            "请一并重置本节点的 GPU，或将节点下线；nvidia-smi nvlink -s 可查看链路"
        ),
    ))
}

fn fabric(gpu: &Gpu) -> Option<CheckFinding> {
    let mask = gpu.fabric_health?;
    let set: Vec<_> = FABRIC.iter().filter(|(shift, _, _)| (mask >> shift) & 3 == 1).collect();
    if set.is_empty() {
        return None;
    }
    let why: Vec<&str> = set.iter().map(|set| set.1).collect();
    let why_zh: Vec<&str> = set.iter().map(|set| set.2).collect();
    let (why, why_zh) = (why.join(", "), why_zh.join("、"));
    let Text { en, zh } = label(gpu);
    Some(CheckFinding::bad(
        text!(
            "{en}: the NVSwitch fabric is up but not healthy: {why} (health mask {mask:#x})",
            "{zh}：NVSwitch Fabric 已就绪但不健康：{why_zh}（健康掩码 {mask:#x}）"
        ),
        text!(
            "read the fabric manager's log on the host (/var/log/fabricmanager.log)",
            "请查看宿主机上 fabric manager 的日志（/var/log/fabricmanager.log）"
        ),
    ))
}

/// Checks modes set by an administrator: the users of a GPU, and the way in which CUDA counts it.
fn modes(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let mut found: Vec<CheckFinding> = gpus(input).filter_map(exclusive).collect();
    found.extend(without_instances(input));
    found.extend(order(input));
    let off = indices(input, |gpu| gpu.health.persistence == Some(false));
    if !off.is_empty() {
        found.push(CheckFinding::new(
            FindingKind::Info,
            text!(
                "persistence mode is off on GPU (nvidia-smi index) {off}: the driver is initialised again at each first use, which takes seconds",
                "以下 GPU（nvidia-smi 序号）未开启持久模式：{off}；GPU 每次从空闲状态启用时都要重新初始化驱动，耗时数秒"
            ),
            text!("run nvidia-smi -pm 1 on the host", "在宿主机上执行 nvidia-smi -pm 1"),
        ));
    }
    found.extend(instances(input));
    or_in_order(
        input,
        found,
        |gpu| gpu.health.compute_mode.is_some(),
        || text!("default modes", "均为默认模式"),
    )
}

/// Exclusive mode: only one process at a time may use the GPU. This suffices for one rank if no
/// other process uses it.
fn exclusive(gpu: &Gpu) -> Option<CheckFinding> {
    let mode = ComputeMode::of(gpu.health.compute_mode?)?.exclusive()?;
    let Text { en, zh } = label(gpu);
    let holders: Vec<String> =
        gpu.health.processes.iter().flatten().map(|process| process.pid.to_string()).collect();
    if holders.is_empty() {
        return Some(CheckFinding::new(
            FindingKind::Info,
            text!(
                "{en}: compute mode {mode}, one process at a time",
                "{zh}：计算模式为 {mode}，同时只允许一个进程"
            ),
            Text::same(""),
        ));
    }
    let holders = holders.join(", ");
    Some(CheckFinding::bad(
        text!(
            "{en}: compute mode {mode} allows one process, but one already uses it (pid {holders} as NVML reports it, possibly of another pid namespace)",
            "{zh}：计算模式 {mode} 只允许一个进程，而其上已有进程（NVML 给出的 pid 为 {holders}，可能属于其他 pid 命名空间）"
        ),
        text!(
            "end that process, or set nvidia-smi -c DEFAULT; otherwise its rank fails with \"all CUDA-capable devices are busy or unavailable\"",
            "请结束该进程，或执行 nvidia-smi -c DEFAULT；否则该处的进程会报 all CUDA-capable devices are busy or unavailable"
        ),
    ))
}

fn without_instances(input: &CheckInput<'_>) -> Option<CheckFinding> {
    let none =
        |gpu: &Gpu| gpu.health.mig_devices.as_ref().is_some_and(|all| all.devices.is_empty());
    let empty = indices(input, none);
    if empty.is_empty() {
        return None;
    }
    Some(CheckFinding::bad(
        text!(
            "MIG is enabled, but this container has no MIG instance of GPU (nvidia-smi index) {empty}, so CUDA cannot see it",
            "以下 GPU（nvidia-smi 序号）已启用 MIG，但本容器没有分到其 MIG 实例，CUDA 看不到它：{empty}"
        ),
        text!(
            "create instances (nvidia-smi mig -cgi …), request one (nvidia.com/mig-…), or disable MIG (nvidia-smi -mig 0)",
            "请创建实例（nvidia-smi mig -cgi …）、申请一个（nvidia.com/mig-…），或关闭 MIG（nvidia-smi -mig 0）"
        ),
    ))
}

/// Reports the MIG instances, since no count of GPUs shows how CUDA counts them.
fn instances(input: &CheckInput<'_>) -> Option<CheckFinding> {
    let names: Vec<String> = gpus(input)
        .flat_map(|gpu| gpu.health.mig_devices.iter().flat_map(|all| &all.devices))
        .map(|one| {
            let uuid = one.uuid.as_deref().unwrap_or("MIG-?");
            one.memory_total
                .map_or(uuid.to_owned(), |size| format!("{uuid} {}", text::lang::bytes(size)))
        })
        .collect();
    if names.is_empty() {
        return None;
    }
    let count = names.len();
    let mut shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if count > SHOWN {
        shown.push_str(", …");
    }
    Some(CheckFinding::new(
        FindingKind::Info,
        text!(
            "{count} MIG instances ({shown}): a CUDA process can use only the first one in CUDA_VISIBLE_DEVICES",
            "{count} 个 MIG 实例（{shown}）：每个 CUDA 进程只能使用 CUDA_VISIBLE_DEVICES 中的第一个"
        ),
        Text::same(""),
    ))
}

/// By default CUDA numbers the fastest GPU 0, while NVML orders by PCI address. With a single model
/// both orders are the same.
fn order(input: &CheckInput<'_>) -> Option<CheckFinding> {
    let facts = &input.facts.gpus;
    let mut models: Vec<&str> = gpus(input).filter_map(|gpu| gpu.name.as_deref()).collect();
    models.sort_unstable();
    models.dedup();
    let order = Variables::new(input.settings, input.facts).get("CUDA_DEVICE_ORDER");
    let order = order.as_ref().map(|order| order.value.as_str());
    let named = facts.cuda_visible_devices.as_deref();
    let by_uuid = named.is_some_and(|list| list.starts_with("GPU-") || list.starts_with("MIG-"));
    if models.len() < 2 || order == Some("PCI_BUS_ID") || by_uuid {
        return None;
    }
    let order = order.unwrap_or("FASTEST_FIRST");
    let models = models.join(", ");
    Some(CheckFinding::doubtful(
        text!(
            "GPUs of several models ({models}) with CUDA_DEVICE_ORDER={order}: CUDA numbers them differently from nvidia-smi, which orders by PCI address",
            "GPU 型号不一（{models}），且 CUDA_DEVICE_ORDER={order}：CUDA 的编号与 nvidia-smi 的序号（按 PCI 地址排列）不一致"
        ),
        text!(
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID in CUDA_VISIBLE_DEVICES",
            "请设置 CUDA_DEVICE_ORDER=PCI_BUS_ID，或在 CUDA_VISIBLE_DEVICES 中使用 UUID"
        ),
    ))
}

fn gpus<'a>(input: &'a CheckInput<'_>) -> impl Iterator<Item = &'a Gpu> + use<'a> {
    input.facts.gpus.gpus.iter()
}

fn indices(input: &CheckInput<'_>, is: impl Fn(&Gpu) -> bool) -> String {
    let all: Vec<String> =
        gpus(input).filter(|gpu| is(gpu)).map(|gpu| gpu.index.to_string()).collect();
    all.join(", ")
}

/// The result without a problem: all is well, or the values are unknown.
fn or_in_order(
    input: &CheckInput<'_>,
    found: Vec<CheckFinding>,
    is_known: impl Fn(&Gpu) -> bool,
    in_order: impl FnOnce() -> Text,
) -> Vec<CheckFinding> {
    if !found.is_empty() {
        return found;
    }
    let facts = &input.facts.gpus;
    if facts.gpus.is_empty() {
        return vec![CheckFinding::ok(text!("no GPU", "无 GPU"))];
    }
    let unknown = indices(input, |gpu| !is_known(gpu));
    if unknown.is_empty() {
        return vec![CheckFinding::ok(in_order())];
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
    vec![CheckFinding::info(text!(
        "no fault found; GPU (nvidia-smi index) {unknown} reports only part of its state ({why})",
        "未发现异常；以下 GPU（nvidia-smi 序号）的信息不全：{unknown}（{why_zh}）"
    ))]
}
