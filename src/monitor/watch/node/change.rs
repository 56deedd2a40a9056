//! Changes on the node between two readings, and the abnormal ones among them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::counters::{GroupReading, Pressure, RankReading, Stall};
use super::{GpuReading, GpuUse, NodeReading};
use node::observe::Growth;
use node::observe::gpu::THROTTLED;
use text::lang::Text;
use text::order::{InOrder, Ordered};
use text::rank::GlobalRank;
use text::text;

/// Below these numbers a share says nothing.
const FEWEST_SEGMENTS: u64 = 1000;
const FEWEST_DROPS: u64 = 100;
/// Minimum time between two readings that makes shares of it meaningful.
const SHORTEST: Duration = Duration::from_millis(500);
/// SW_POWER_CAP of nvmlClocksEventReason: normal under full load, unless other GPUs run faster.
const POWER_CAP: u64 = 0x4;

/// Serialized it is evidence: the reasons with their sentences, and the GPUs as they are now.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct NodeChange {
    /// Seconds between the two readings.
    pub seconds: f64,
    reasons: Vec<Reason>,
    /// Shares of the time for which some task of the node stood still.
    pressure: BTreeMap<&'static str, f64>,
    /// Parts that did not answer in time.
    late: Vec<&'static str>,
    gpus: Vec<GpuReading>,
}

impl NodeReading {
    /// Changes since an earlier reading of the same [`NodeReader`](super::NodeReader).
    pub(crate) fn since(&self, earlier: &NodeReading) -> NodeChange {
        let passed = self.at.saturating_duration_since(earlier.at);
        let both = Both { seconds: passed.max(SHORTEST).as_secs_f64(), old: earlier, new: self };
        let mut reasons = Vec::new();
        both.groups(&mut reasons);
        both.ranks(&mut reasons);
        both.pressure(&mut reasons);
        both.network(&mut reasons);
        both.hcas(&mut reasons);
        both.gpus(&mut reasons);
        NodeChange {
            seconds: passed.as_secs_f64(),
            reasons,
            pressure: both.shares(),
            late: self.late.clone(),
            gpus: self.gpus.clone(),
        }
    }
}

impl NodeChange {
    /// The abnormal findings; those of control groups and ranks come first.
    pub(crate) fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    /// The current use of the ranks' GPUs.
    pub(crate) fn gpu_use(&self) -> Vec<GpuUse> {
        self.gpus.iter().filter_map(GpuUse::of).collect()
    }

    /// The abnormal findings for this rank of the node; those that name ranks come before those of the whole node.
    pub(crate) fn reasons_for(&self, rank: GlobalRank) -> Vec<&Reason> {
        let mut found: Vec<&Reason> =
            self.reasons.iter().filter(|reason| reason.concerns(rank)).collect();
        found.order_by_key(|reason| reason.ranks.is_empty());
        found
    }
}

struct Both<'r> {
    seconds: f64,
    old: &'r NodeReading,
    new: &'r NodeReading,
}

fn grown(old: u64, new: u64) -> f64 {
    new.saturating_sub(old) as f64
}

fn tell(
    found: &mut Vec<Reason>,
    kind: ReasonKind,
    ranks: &[GlobalRank],
    value: f64,
    text: impl FnOnce() -> Text,
) {
    if value >= kind.least() {
        found.push(Reason { kind, ranks: ranks.to_vec(), gpu: None, value, text: text() });
    }
}

impl Both<'_> {
    /// The share of the time for a counter of microseconds.
    fn share(&self, old: u64, new: u64) -> f64 {
        (grown(old, new) / 1e6 / self.seconds).min(1.0)
    }

    fn stalled(&self, of: [Option<Stall>; 2], which: fn(&Stall) -> Option<u64>) -> Option<f64> {
        let [old, new] = of;
        Some(self.share(which(&old?)?, which(&new?)?))
    }

    fn shares(&self) -> BTreeMap<&'static str, f64> {
        let (old, new) = (&self.old.kernel.pressure, &self.new.kernel.pressure);
        let all = [
            ("cpu", [old.cpu, new.cpu]),
            ("io", [old.io, new.io]),
            ("memory", [old.memory, new.memory]),
        ];
        let some = |of| self.stalled(of, |stall| stall.some_us);
        all.into_iter().filter_map(|(name, of)| Some((name, some(of)?))).in_map()
    }

    /// Empty if these are all ranks of the node.
    fn some<'g>(&self, group: &'g GroupReading) -> &'g [GlobalRank] {
        if group.ranks.len() >= self.new.kernel.ranks.len() { &[] } else { &group.ranks }
    }

    /// If several groups limit a rank, only the group that costs most is reported for each set of ranks.
    fn groups(&self, found: &mut Vec<Reason>) {
        let mut all = Vec::new();
        for (folder, new) in &self.new.kernel.groups {
            let Some(old) = self.old.kernel.groups.get(folder) else { continue };
            self.throttled(&mut all, old, new);
            self.memory(&mut all, old, new);
            self.pressed(&mut all, [&old.pressure, &new.pressure], self.some(new), true);
        }
        all.order_by(|one, other| other.value.total_cmp(&one.value));
        for reason in all {
            let same = |known: &Reason| known.kind == reason.kind && known.ranks == reason.ranks;
            if !found.iter().any(same) {
                found.push(reason);
            }
        }
    }

    fn throttled(&self, found: &mut Vec<Reason>, old: &GroupReading, new: &GroupReading) {
        let ranks = self.some(new);
        let (Some(old), Some(new)) = (old.cpu, new.cpu) else { return };
        // The time is a sum over CPUs, so a group with many threads may have waited for more
        // than all of it. In a period that was throttled it waited at most for the period.
        let of_periods = grown(old.throttled, new.throttled) * new.period_us as f64 / 1e6;
        let waited = self.share(old.throttled_us, new.throttled_us);
        let share = waited.min(of_periods / self.seconds);
        let cpus = new.quota_us as f64 / new.period_us.max(1) as f64;
        tell(found, ReasonKind::CpuThrottled, ranks, share, || {
            let share = percent(share);
            text!(
                "the control group was throttled {share} of the time by its CPU limit (cpu.max) of {cpus:.2} CPUs",
                "控制组在 {share} 的时间里因 CPU 上限（cpu.max，{cpus:.2} 个 CPU）被限流"
            )
        });
    }

    fn memory(&self, found: &mut Vec<Reason>, old: &GroupReading, new: &GroupReading) {
        let ranks = self.some(new);
        let (Some(old), Some(new)) = (old.memory, new.memory) else { return };
        let limit = text::lang::bytes(new.limit);
        tell(found, ReasonKind::OomKill, ranks, grown(old.oom_kills, new.oom_kills), || {
            text!(
                "the kernel killed a process for want of memory (limit {limit})",
                "内存不足，内核终止了一个进程（上限 {limit}）"
            )
        });
        // A full page cache hits the limit all the time. Pages that must be read again do not.
        let hit = new.limit_hits > old.limit_hits;
        let faults = grown(old.major_faults, new.major_faults) / self.seconds;
        tell(found, ReasonKind::MemoryLimit, ranks, if hit { faults } else { 0.0 }, || {
            text!(
                "the control group is at its memory limit of {limit} and reads {faults:.0} pages per second back from disk",
                "控制组已达到 {limit} 的内存上限，每秒从磁盘重新读入 {faults:.0} 个内存页"
            )
        });
    }

    /// The pressure on the node, if no group of all ranks shows the same.
    fn pressure(&self, found: &mut Vec<Reason>) {
        let mut node = Vec::new();
        self.pressed(&mut node, [&self.old.kernel.pressure, &self.new.kernel.pressure], &[], false);
        node.retain(|new| {
            !found.iter().any(|known| known.kind == new.kind && known.ranks.is_empty())
        });
        found.append(&mut node);
    }

    fn pressed(
        &self,
        found: &mut Vec<Reason>,
        [old, new]: [&Pressure; 2],
        ranks: &[GlobalRank],
        is_group: bool,
    ) {
        let (place, place_zh) = if is_group {
            ("of the control group", "控制组")
        } else {
            ("of the node", "节点")
        };
        let some = |of| self.stalled(of, |stall| stall.some_us).unwrap_or(0.0);
        let full = |of| self.stalled(of, |stall| stall.full_us).unwrap_or(0.0);
        let memory = [old.memory, new.memory];
        let (share, all) = (some(memory), full(memory));
        tell(found, ReasonKind::MemoryPressure, ranks, share, || {
            let (share, all) = (percent(share), percent(all));
            text!(
                "memory pressure: some tasks {place} stood still {share} of the time for want of memory, all of them {all}",
                "内存压力：{place_zh}有任务在 {share} 的时间里因缺内存停顿，全部任务停顿占 {all}"
            )
        });
        let io = full([old.io, new.io]);
        tell(found, ReasonKind::IoPressure, ranks, io, || {
            let share = percent(io);
            text!(
                "I/O pressure: all tasks {place} waited {share} of the time for disks",
                "I/O 压力：{place_zh}的全部任务在 {share} 的时间里等待磁盘"
            )
        });
        let cpu = some([old.cpu, new.cpu]);
        tell(found, ReasonKind::CpuPressure, ranks, cpu, || {
            let share = percent(cpu);
            text!(
                "CPU pressure: some tasks {place} waited {share} of the time for a CPU",
                "CPU 压力：{place_zh}有任务在 {share} 的时间里等待 CPU"
            )
        });
    }

    fn ranks(&self, found: &mut Vec<Reason>) {
        for new in &self.new.kernel.ranks {
            let process = |of: &RankReading| (of.rank, of.pid, of.start_ticks);
            let same = |old: &&RankReading| process(old) == process(new);
            let Some(old) = self.old.kernel.ranks.iter().find(same) else { continue };
            let (rank, ranks) = (new.rank, [new.rank]);
            let throttled = found
                .iter()
                .any(|reason| reason.kind == ReasonKind::CpuThrottled && reason.concerns(new.rank));
            // Time in which the group was throttled counts as waiting for a CPU.
            if let (Some(before), Some(now), false) =
                (old.run_delay_ns, new.run_delay_ns, throttled)
            {
                let share = self.share(before / 1000, now / 1000);
                tell(found, ReasonKind::CpuWait, &ranks, share, || {
                    let share = percent(share);
                    text!(
                        "rank {rank} was ready to run but had no CPU {share} of the time",
                        "rank {rank} 在 {share} 的时间里可运行但未分到 CPU"
                    )
                });
            }
            let faults = grown(old.major_faults, new.major_faults) / self.seconds;
            tell(found, ReasonKind::MajorFaults, &ranks, faults, || {
                text!(
                    "rank {rank} reads {faults:.0} memory pages per second back from disk",
                    "rank {rank} 每秒从磁盘重新读入 {faults:.0} 个内存页"
                )
            });
        }
    }

    fn network(&self, found: &mut Vec<Reason>) {
        for (name, new) in &self.new.kernel.interfaces {
            let Some(old) = self.old.kernel.interfaces.get(name) else { continue };
            let down = f64::from(u8::from(new.up == Some(false) && old.up == Some(true)));
            tell(found, ReasonKind::InterfaceDown, &[], down, || {
                text!("interface {name} is down", "网络接口 {name} 已断开")
            });
            let lost = grown(old.carrier_lost.unwrap_or(0), new.carrier_lost.unwrap_or(0));
            tell(found, ReasonKind::LinkLost, &[], if down > 0.0 { 0.0 } else { lost }, || {
                text!(
                    "interface {name} lost its link {lost} times",
                    "网络接口 {name} 的链路断开了 {lost} 次"
                )
            });
            let errors = grown(old.errors, new.errors);
            let rate = errors * 60.0 / self.seconds;
            tell(found, ReasonKind::InterfaceErrors, &[], rate, || {
                text!(
                    "interface {name} had {errors} packet errors",
                    "网络接口 {name} 出现 {errors} 个错误包"
                )
            });
            let (dropped, packets) =
                (grown(old.dropped, new.dropped), grown(old.packets, new.packets));
            let share =
                if dropped < FEWEST_DROPS as f64 { 0.0 } else { dropped / packets.max(dropped) };
            tell(found, ReasonKind::InterfaceDrops, &[], share, || {
                text!(
                    "interface {name} dropped {dropped} of {packets} packets",
                    "网络接口 {name} 丢弃了 {packets} 个包中的 {dropped} 个"
                )
            });
        }
        if let (Some(old), Some(new)) = (self.old.kernel.tcp, self.new.kernel.tcp) {
            let (sent, again) = (grown(old.sent, new.sent), grown(old.sent_again, new.sent_again));
            let share = if sent < FEWEST_SEGMENTS as f64 { 0.0 } else { again / sent };
            tell(found, ReasonKind::TcpSentAgain, &[], share, || {
                text!(
                    "TCP sent {again} of {sent} segments again: packets are lost",
                    "TCP 重传了 {sent} 个报文段中的 {again} 个：网络丢包"
                )
            });
        }
    }

    fn hcas(&self, found: &mut Vec<Reason>) {
        for Growth { port, counter, by } in self.new.hcas.since(&self.old.hcas) {
            tell(found, ReasonKind::HcaErrors, &[], by as f64, || {
                text!(
                    "error counter {counter} of HCA {port} rose by {by}",
                    "HCA {port} 的错误计数 {counter} 增加了 {by}"
                )
            });
        }
    }

    fn gpus(&self, found: &mut Vec<Reason>) {
        // GPUs of other jobs do not count. Without visible pids nobody can tell whose they are.
        let known = self.new.gpus.iter().any(|one| !one.ranks.is_empty());
        for new in self.new.gpus.iter().filter(|one| !known || !one.ranks.is_empty()) {
            let old = self.old.gpus.iter().find(|old| old.gpu.index == new.gpu.index);
            let mut told = Vec::new();
            gpu_now(&mut told, new, &self.new.gpus);
            if let Some(old) = old {
                self.gpu_since(&mut told, old, new);
            }
            found.extend(told.into_iter().map(|reason| Reason {
                gpu: Some(new.gpu.index),
                ranks: new.ranks.clone(),
                ..reason
            }));
        }
    }

    fn gpu_since(&self, found: &mut Vec<Reason>, old: &GpuReading, new: &GpuReading) {
        let index = new.gpu.index;
        let (before, now) = (&old.gpu.health, &new.gpu.health);
        let more = |old: Option<u64>, new: Option<u64>| {
            old.zip(new).map_or(0.0, |(old, new)| grown(old, new))
        };
        let ecc = more(before.ecc_volatile, now.ecc_volatile);
        tell(found, ReasonKind::GpuEcc, &[], ecc, || {
            text!(
                "GPU {index} has {ecc} new uncorrected memory errors",
                "GPU {index} 新增 {ecc} 个不可纠正的显存错误"
            )
        });
        let replays = more(before.load.pcie_replays, now.load.pcie_replays);
        tell(found, ReasonKind::GpuPcie, &[], replays * 60.0 / self.seconds, || {
            text!(
                "GPU {index} sent {replays} PCIe packets again",
                "GPU {index} 重传了 {replays} 个 PCIe 数据包"
            )
        });
        let links = more(before.load.nvlink_replays, now.load.nvlink_replays)
            + more(before.load.nvlink_recoveries, now.load.nvlink_recoveries)
            + more(before.load.nvlink_crc_errors, now.load.nvlink_crc_errors);
        tell(found, ReasonKind::GpuNvlink, &[], links * 60.0 / self.seconds, || {
            text!(
                "the NVLinks of GPU {index} had {links} errors",
                "GPU {index} 的 NVLink 出现 {links} 个错误"
            )
        });
        let up = |of: &GpuReading| of.gpu.health.nvlinks.as_ref().map(|links| links.up);
        if let (Some(were), Some(are)) = (up(old), up(new)) {
            let down = f64::from(were.saturating_sub(are));
            tell(found, ReasonKind::GpuNvlinkDown, &[], down, || {
                text!(
                    "{down} NVLinks of GPU {index} went down",
                    "GPU {index} 有 {down} 条 NVLink 断开"
                )
            });
        }
        let silent = f64::from(u8::from(now.late && !before.late));
        tell(found, ReasonKind::GpuSilent, &[], silent, || {
            text!("GPU {index} does not answer NVML any more", "GPU {index} 不再响应 NVML")
        });
    }
}

fn gpu_now(found: &mut Vec<Reason>, one: &GpuReading, all: &[GpuReading]) {
    let (index, health) = (one.gpu.index, &one.gpu.health);
    let events = health.throttle_reasons.unwrap_or(0);
    let set: Vec<_> = THROTTLED.iter().filter(|(bit, _, _)| events & bit != 0).collect();
    let joined = |words: fn(&&(u64, &'static str, &'static str)) -> &'static str| {
        set.iter().map(words).collect::<Vec<_>>().join(", ")
    };
    let (why, why_zh) = (joined(|row| row.1), joined(|row| row.2));
    let (clock, most) = (health.load.sm_clock, health.load.max_sm_clock);
    let mhz = |number: Option<u32>| number.map_or("?".to_owned(), |mhz| mhz.to_string());
    let (runs, of) = (mhz(clock), mhz(most));
    tell(found, ReasonKind::GpuClocks, &[], set.len() as f64, || {
        let heat = health.temperature.map_or(String::new(), |celsius| format!(", {celsius} °C"));
        text!(
            "GPU {index} runs at {runs} of {of} MHz ({why}{heat})",
            "GPU {index} 运行在 {runs} MHz（最高 {of} MHz；{why_zh}{heat}）"
        )
    });
    let fastest = all.iter().filter(|other| other.gpu.name == one.gpu.name);
    let fastest = fastest.filter_map(|other| other.gpu.health.load.sm_clock).max();
    if let (Some(clock), Some(fastest), true, true) =
        (clock, fastest, events & POWER_CAP != 0, set.is_empty())
        && f64::from(clock) < f64::from(fastest) * ReasonKind::GpuPowerCap.least()
    {
        let text = text!(
            "GPU {index} runs at {clock} MHz for its power limit, another one at {fastest} MHz",
            "GPU {index} 受功耗上限限制运行在 {clock} MHz，另一个 GPU 为 {fastest} MHz"
        );
        let value = f64::from(clock) / f64::from(fastest);
        found.push(Reason { kind: ReasonKind::GpuPowerCap, ranks: vec![], gpu: None, value, text });
    }
    // A GPU that no rank uses may belong to anybody.
    if let (Some(pid), false) = (one.strangers.first(), one.ranks.is_empty()) {
        let count = one.strangers.len() as f64;
        tell(found, ReasonKind::GpuShared, &[], count, || {
            text!(
                "another process uses GPU {index} (pid {pid})",
                "另有进程在使用 GPU {index}（pid {pid}）"
            )
        });
    }
}

/// Something abnormal about a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    pub kind: ReasonKind,
    /// The ranks that it concerns; empty: all ranks of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<GlobalRank>,
    /// NVML's index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The value in the unit of [`ReasonKind::least`].
    pub value: f64,
    /// A sentence without a full stop.
    pub text: Text,
}

impl Reason {
    /// Whether it concerns this rank of the node.
    pub fn concerns(&self, rank: GlobalRank) -> bool {
        self.ranks.is_empty() || self.ranks.contains(&rank)
    }
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ReasonKind {
    CpuThrottled,
    CpuWait,
    CpuPressure,
    MemoryPressure,
    MemoryLimit,
    OomKill,
    MajorFaults,
    IoPressure,
    InterfaceDown,
    LinkLost,
    InterfaceErrors,
    InterfaceDrops,
    TcpSentAgain,
    HcaErrors,
    GpuClocks,
    GpuPowerCap,
    GpuShared,
    GpuEcc,
    GpuNvlink,
    GpuNvlinkDown,
    GpuPcie,
    GpuSilent,
}

/// The value from which on something is abnormal. The first rows are shares of the time between the
/// two readings.
const LEAST: &[(ReasonKind, f64)] = &[
    // A rank that is throttled for this share costs the job as much.
    (ReasonKind::CpuThrottled, 0.05),
    // Time of the rank's main thread. On a node whose CPUs are all busy, this is the first sign.
    (ReasonKind::CpuWait, 0.10),
    // Time in which some task stood still: with data loading it is seldom below a fifth on a
    // healthy node.
    (ReasonKind::CpuPressure, 0.50),
    // Time in which some task stood still. A healthy node has almost none.
    (ReasonKind::MemoryPressure, 0.10),
    // Time in which all tasks of the node or of a group stood still: loading data alone stops some
    // of them.
    (ReasonKind::IoPressure, 0.25),
    // Share of TCP segments sent again. The throughput already falls at a tenth of this.
    (ReasonKind::TcpSentAgain, 0.01),
    // Share of the packets received and sent.
    (ReasonKind::InterfaceDrops, 0.001),
    // A clock below this part of the fastest GPU of the same model.
    (ReasonKind::GpuPowerCap, 0.90),
    // Events per second. Starting a program or mapping a data set causes tens for a moment.
    (ReasonKind::MajorFaults, 50.0),
    (ReasonKind::MemoryLimit, 50.0),
    // Events per minute: a healthy link has a few per day.
    (ReasonKind::GpuPcie, 10.0),
    (ReasonKind::GpuNvlink, 10.0),
    (ReasonKind::InterfaceErrors, 10.0),
];

impl ReasonKind {
    /// Whether the reason concerns a link that carries the ranks' messages.
    pub(crate) fn is_of_links(self) -> bool {
        matches!(
            self,
            ReasonKind::InterfaceDown
                | ReasonKind::LinkLost
                | ReasonKind::InterfaceErrors
                | ReasonKind::InterfaceDrops
                | ReasonKind::TcpSentAgain
                | ReasonKind::HcaErrors
                | ReasonKind::GpuNvlink
                | ReasonKind::GpuNvlinkDown
        )
    }

    /// The minimum value that is reported; for events that should never happen, one.
    pub(super) fn least(self) -> f64 {
        LEAST.iter().find(|(kind, _)| *kind == self).map_or(1.0, |(_, least)| *least)
    }
}

/// `37 %`
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
