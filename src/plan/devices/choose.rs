//! Selects GPUs if the layout uses fewer than are visible, and excludes busy ones.
//!
//! Takes the facts and the number of processes; gives the chosen GPUs and the variables that
//! select them (CUDA_VISIBLE_DEVICES). Warns of chosen GPUs whose memory is in use, and of GPUs
//! that stay idle.

use std::ffi::OsString;

use super::{count, gpu_of, has_mig, has_own_gpus};
use crate::rails::Rails;
use crate::rails::is_near;
use crate::variables::Variables;
use crate::{Notes, severity};
use crate::{PlannedGpu, Task};
use node::observe::{Facts, Gpu, GpuFacts, VisibleGpu};
use node::probe::GpuProcess;
use settings::{LayoutRule, Settings};
use text::lang::Text;
use text::order::Ordered;
use text::rank::LocalRank;
use text::text;
use verdict::{Id, Severity};

/// Up to this many bytes in use a GPU counts as idle. A CUDA context takes about 500 MB.
pub const IDLE: u64 = 1 << 30;

/// The GPUs of the plan and the variables that narrow the choice.
#[derive(Debug, Clone, Default)]
pub struct Chosen {
    pub gpus: Vec<PlannedGpu>,
    pub env: Vec<(String, OsString)>,
    /// LOCAL_RANK of a task that sees only its own GPUs.
    pub device_rank: Option<LocalRank>,
}

/// The ranks for which GPUs are chosen.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    pub nproc: u32,
    /// The number was requested, not solved.
    pub exact: bool,
    pub rule: LayoutRule,
    /// For a task: the rank that is started from here.
    pub task: Option<&'a Task>,
}

/// Chooses `nproc` of the visible GPUs: idle ones, then one NUMA node, then those
/// next to an RDMA device, then their order.
///
/// The order of the visible GPUs is never changed, since allocators that virtualise
/// GPUs (HAMi) count limits by position.
pub fn choose(settings: &Settings, facts: &Facts, wish: &Wish<'_>, notes: &mut Notes) -> Chosen {
    let Wish { nproc, exact, rule, task } = *wish;
    let visible = &facts.gpus.visible;
    let own = task.filter(|task| has_own_gpus(facts, task));
    let (selected, because) = match task {
        // Each task chooses for itself, and all must choose the same.
        Some(_) => {
            let used = if own.is_some() { 1 } else { nproc as usize };
            let first = (0..visible.len()).take(used).collect();
            (first, text!("in order", "按原有顺序"))
        }
        None => select(facts, nproc as usize),
    };
    let mut next = own.map_or(0, |task| task.local.0);
    let gpus = visible
        .iter()
        .enumerate()
        .map(|(position, token)| {
            let selected = selected.contains(&position);
            let local_rank = selected.then_some(next);
            next += u32::from(selected);
            planned(&facts.gpus, token, local_rank)
        })
        .collect();
    // The conductor applies the severity fail, since memory in use means something only after
    // stale processes have ended.
    if facts.gpus_shared_by().is_none()
        && severity(settings, Id::GpuBusy, Severity::Warn) != Severity::Off
    {
        busy(&facts.gpus, &selected, notes);
    }
    let mut chosen = Chosen { gpus, ..Chosen::default() };
    if let Some(task) = own {
        chosen.device_rank = device_rank(facts, task, notes);
        return chosen;
    }
    if task.is_some() && selected.len() < visible.len() {
        // LOCAL_RANK is the index among the visible GPUs, so no variable is needed.
        unused(visible.len(), nproc, exact, rule, notes);
        return chosen;
    }
    if selected.len() == visible.len() || has_mig(&facts.gpus) {
        return chosen;
    }
    let order = Variables::new(settings, facts).get("CUDA_DEVICE_ORDER");
    let ours = facts.gpus.cuda_visible_devices.is_none();
    // Our indices are NVML's, by PCI address. Under another CUDA_DEVICE_ORDER of the user CUDA
    // would take them for other GPUs, so UUIDs are used.
    let by_uuid = ours && order.as_ref().is_some_and(|order| order.value != "PCI_BUS_ID");
    let tokens: Vec<&str> = selected
        .iter()
        .filter_map(|position| visible.get(*position))
        .map(|seen| {
            let uuid = gpu_of(&facts.gpus, seen).and_then(|gpu| gpu.uuid.as_deref());
            uuid.filter(|_| by_uuid).unwrap_or(&seen.token)
        })
        .collect();
    let tokens = tokens.join(",");
    unused(visible.len(), nproc, exact, rule, notes);
    notes.decide("CUDA_VISIBLE_DEVICES", &tokens, because, "solved");
    chosen.env.push(("CUDA_VISIBLE_DEVICES".to_owned(), tokens.into()));
    // Plain indices mean NVML's order only under PCI_BUS_ID (CUDA's default is fastest first).
    if order.is_none() {
        chosen.env.push(("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".into()));
    }
    chosen
}

/// A visible GPU; without a local rank it is not selected.
pub(crate) fn planned(facts: &GpuFacts, token: &VisibleGpu, local_rank: Option<u32>) -> PlannedGpu {
    let gpu = gpu_of(facts, token);
    PlannedGpu {
        index: gpu.map_or(count(token.gpu), |gpu| gpu.index),
        uuid: gpu.and_then(|gpu| gpu.uuid.clone()),
        name: gpu.and_then(|gpu| gpu.name.clone()),
        pci: gpu.and_then(|gpu| gpu.pci.clone()),
        selected: local_rank.is_some(),
        local_rank,
    }
}

/// Most scripts select the device by LOCAL_RANK. A task that sees only its own GPUs uses the
/// first, so it gets 0, as with torchrun's `--virtual-local-rank`. A LOCAL_RANK that is already
/// set is kept.
fn device_rank(facts: &Facts, task: &Task, notes: &mut Notes) -> Option<LocalRank> {
    let (local, of) = (task.local, task.of);
    let visible = count(facts.gpus.visible.len());
    if local.0 < visible {
        return None;
    }
    let set = facts.environment.get("LOCAL_RANK").filter(|value| !value.trim().is_empty());
    if let Some(set) = set {
        notes.warn(
            Id::GpuLocalRank,
            text!(
                "LOCAL_RANK={set} is no device of this task, which sees {visible} of the node's GPUs: torch.cuda.set_device(LOCAL_RANK) fails with \"invalid device ordinal\"",
                "LOCAL_RANK={set} 不是本 task 可见的设备（它只可见本节点的 {visible} 个 GPU）：torch.cuda.set_device(LOCAL_RANK) 会因 \"invalid device ordinal\" 失败"
            ),
            text!(
                "let every task see all GPUs of the node, unset LOCAL_RANK, or use LOCAL_RANK % torch.cuda.device_count() in the script",
                "请让各 task 可见本节点的全部 GPU、取消设置 LOCAL_RANK，或在脚本中使用 LOCAL_RANK % torch.cuda.device_count()"
            ),
        );
        return None;
    }
    notes.decide(
        "LOCAL_RANK",
        0,
        text!(
            "this task sees only its own GPUs, the first of which is device 0 (as torchrun --virtual-local-rank); its place among the {of} tasks of the node is {local}",
            "本 task 只可见分配给自己的 GPU，其中第一个为设备 0（与 torchrun --virtual-local-rank 相同）；它在本节点 {of} 个 task 中的位置为 {local}"
        ),
        "detected",
    );
    Some(LocalRank(0))
}

/// Positions among the visible GPUs, ascending, and the reason.
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
        by_use.order_by_key(|gpu| if used(gpu) <= IDLE { 0 } else { used(gpu) });
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
    // The NUMA node with the most GPUs near a rail, among those with enough idle GPUs.
    let node =
        nodes.iter().copied().filter(|node| inside(*node).len() >= nproc).min_by_key(|node| {
            (
                std::cmp::Reverse(inside(*node).iter().filter(|gpu| near(gpu)).count().min(nproc)),
                *node,
            )
        });
    let mut chosen = node.map_or_else(|| idle.clone(), inside);
    let rails_decide = chosen.len() > nproc && chosen.iter().any(near) && !chosen.iter().all(near);
    chosen.order_by_key(|gpu| (!near(gpu), *gpu));
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

/// Warns of chosen GPUs whose memory is already in use.
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
        Id::GpuBusy,
        text!(
            "memory is already in use on GPU (nvidia-smi index) {list}{by}",
            "以下 GPU（nvidia-smi 序号）的显存已被占用：{list}{by_zh}"
        ),
        text!(
            "ranklaunch clean --dry-run shows which processes hold it; --severity gpu.busy=warn starts anyway",
            "可用 ranklaunch clean --dry-run 查看占用显存的进程；--severity gpu.busy=warn 可照常启动"
        ),
    );
}

/// The processes that NVML names as users of the memory. Their pids are of our pid namespace with current
/// drivers, of the host with old drivers, and 0 if hidden.
fn holders<'a>(listed: Option<impl Iterator<Item = &'a GpuProcess>>) -> Text {
    let Some(listed) = listed else { return Text::same("") };
    let mut pids: Vec<u32> = listed.map(|process| process.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    if pids.is_empty() {
        return text!(
            "; NVML lists no process there: it belongs to another container, is exiting, or MPS manages it",
            "；NVML 未列出其上的进程：可能属于其他容器、正在退出，或由 MPS 代管"
        );
    }
    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    text!(
        "; held by pid {pids} as NVML counts, which may be of another pid namespace",
        "；NVML 给出的占用者 pid 为 {pids}，可能属于其他 pid 命名空间"
    )
}

/// Records that GPUs stay idle.
fn unused(visible: usize, nproc: u32, exact: bool, rule: LayoutRule, notes: &mut Notes) {
    let idle = visible.saturating_sub(nproc as usize);
    let (batch_en, batch_zh) = if exact && rule == LayoutRule::None {
        ("; the global batch changes with the number of ranks", "；全局 batch 会随进程数改变")
    } else {
        ("", "")
    };
    notes.warn(
        Id::GpuUnused,
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
