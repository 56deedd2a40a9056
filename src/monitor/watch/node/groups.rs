//! Counters of the ranks' control groups, of both versions.

use std::collections::BTreeMap;

use serde::Serialize;

use super::kernel::Pressure;
use linux::cgroups::Groups;
use linux::host::Host;
use text::rank::GlobalRank;

/// A group that holds ranks, and its limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct GroupReading {
    pub ranks: Vec<GlobalRank>,
    /// None without a limit of CPU time.
    pub cpu: Option<CpuTime>,
    /// None without a limit of memory.
    pub memory: Option<GroupMemory>,
    pub pressure: Pressure,
}

/// A quota of CPU time and how often it was used up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct CpuTime {
    pub quota_us: u64,
    pub period_us: u64,
    /// Periods in which the quota was used up.
    pub throttled: u64,
    /// Summed over the CPUs on which the group waited.
    pub throttled_us: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct GroupMemory {
    /// The limit in bytes.
    pub limit: u64,
    /// Number of times that memory had to be reclaimed because of the limit.
    pub limit_hits: u64,
    pub oom_kills: u64,
    pub major_faults: u64,
}

/// Groups by folder: the groups of the ranks, and all groups that contain these.
pub(super) fn groups(host: &Host, ranks: &[(GlobalRank, i32)]) -> BTreeMap<String, GroupReading> {
    let mut groups: BTreeMap<String, GroupReading> = BTreeMap::new();
    for (rank, pid) in ranks {
        let of = Groups::of(host, *pid);
        for folder in of.unified.into_iter().chain(of.cpu).chain(of.memory) {
            let group = groups.entry(folder).or_insert_with_key(|folder| read(host, folder));
            if group.ranks.last() != Some(rank) {
                group.ranks.push(*rank);
            }
        }
    }
    groups.retain(|_, group| {
        group.cpu.is_some() || group.memory.is_some() || group.pressure != Pressure::default()
    });
    groups
}

fn read(host: &Host, folder: &str) -> GroupReading {
    let text = |file: &str| host.read(format!("{folder}/{file}")).ok();
    GroupReading {
        ranks: Vec::new(),
        cpu: cpu(&text),
        memory: memory(&text),
        pressure: Pressure::of_group(host, folder),
    }
}

fn cpu(text: &impl Fn(&str) -> Option<String>) -> Option<CpuTime> {
    let number = |file: &str| text(file)?.trim().parse().ok();
    // `max 100000` and −1 mean no limit.
    let (quota_us, period_us) = match text("cpu.max") {
        Some(both) => {
            let (quota, period) = both.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
        None => (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?),
    };
    let stat = text("cpu.stat")?;
    // Version 1 counts nanoseconds.
    let throttled_us =
        of(&stat, "throttled_usec").or_else(|| of(&stat, "throttled_time").map(|ns| ns / 1000))?;
    Some(CpuTime { quota_us, period_us, throttled: of(&stat, "nr_throttled")?, throttled_us })
}

fn memory(text: &impl Fn(&str) -> Option<String>) -> Option<GroupMemory> {
    let limit = text("memory.max").or_else(|| text("memory.limit_in_bytes"))?;
    let limit = limit.trim().parse().ok().filter(|bytes| *bytes < Groups::NO_LIMIT)?;
    let (stat, events) = (text("memory.stat")?, text("memory.events"));
    let (limit_hits, oom_kills) = match &events {
        Some(events) => (of(events, "max"), of(events, "oom_kill")),
        None => (
            text("memory.failcnt").and_then(|text| text.trim().parse().ok()),
            text("memory.oom_control").and_then(|text| of(&text, "oom_kill")),
        ),
    };
    Some(GroupMemory {
        limit,
        limit_hits: limit_hits.unwrap_or(0),
        oom_kills: oom_kills.unwrap_or(0),
        major_faults: of(&stat, "total_pgmajfault").or_else(|| of(&stat, "pgmajfault"))?,
    })
}

/// The number of a line `name number`.
fn of(text: &str, name: &str) -> Option<u64> {
    let mut rows = text.lines().filter_map(|line| line.split_once(' '));
    rows.find(|(of, _)| *of == name)?.1.trim().parse().ok()
}
