//! Counters of the kernel: for the whole node, for the control groups of the ranks, for single processes.

use std::collections::BTreeMap;

use serde::Serialize;

use linux::cgroups::Groups;
use linux::host::Host;
use text::order::InOrder;
use text::rank::GlobalRank;

/// Microseconds since boot in which tasks stood still for want of a resource
/// (Documentation/accounting/psi.rst).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Stall {
    /// Time in which at least one task stood still.
    pub some_us: Option<u64>,
    /// Time in which all tasks with work stood still.
    pub full_us: Option<u64>,
}

/// None if the kernel does not count it: before Linux 4.20, or with psi=0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Pressure {
    pub cpu: Option<Stall>,
    pub io: Option<Stall>,
    pub memory: Option<Stall>,
}

impl Pressure {
    pub(super) fn of_node(host: &Host) -> Pressure {
        Pressure::of(host, |what| format!("/proc/pressure/{what}"))
    }

    pub(super) fn of_group(host: &Host, folder: &str) -> Pressure {
        Pressure::of(host, |what| format!("{folder}/{what}.pressure"))
    }

    fn of(host: &Host, file: impl Fn(&str) -> String) -> Pressure {
        let read = |what| stall(&host.read(file(what)).ok()?);
        Pressure { cpu: read("cpu"), io: read("io"), memory: read("memory") }
    }
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=18254`, then a line `full …`.
fn stall(text: &str) -> Option<Stall> {
    let total = |name: &str| {
        let line = text.lines().find(|line| line.split(' ').next() == Some(name))?;
        line.split(' ').find_map(|word| word.strip_prefix("total="))?.trim().parse().ok()
    };
    let stall = Stall { some_us: total("some"), full_us: total("full") };
    (stall != Stall::default()).then_some(stall)
}

/// A rank's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct RankReading {
    pub rank: GlobalRank,
    pub pid: i32,
    /// Together with the pid it identifies the process.
    pub start_ticks: u64,
    /// Pages that had to be read from a disk, of all its threads.
    pub major_faults: u64,
    /// Nanoseconds in which its main thread, which enters the collectives, was ready to run but
    /// had no CPU. None without CONFIG_SCHED_INFO.
    pub run_delay_ns: Option<u64>,
}

impl RankReading {
    /// None if the process has ended.
    pub(super) fn of(host: &Host, rank: GlobalRank, pid: i32) -> Option<RankReading> {
        let stat = host.read(format!("/proc/{pid}/stat")).ok()?;
        // The comm may hold anything, so the fields count from its last parenthesis: field 3 of
        // proc_pid_stat(5) is the first here.
        let (_, rest) = stat.rsplit_once(')')?;
        let field = |number: usize| -> Option<u64> {
            rest.split_ascii_whitespace().nth(number - 3)?.parse().ok()
        };
        let schedstat = host.read(format!("/proc/{pid}/schedstat"));
        let run_delay_ns =
            schedstat.ok().and_then(|text| text.split_ascii_whitespace().nth(1)?.parse().ok());
        let (major_faults, start_ticks) = (field(12)?, field(22)?);
        Some(RankReading { rank, pid, start_ticks, major_faults, run_delay_ns })
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct InterfaceReading {
    /// Received and sent.
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
    /// Number of times that the link was lost.
    pub carrier_lost: Option<u64>,
    /// None for an interface that does not report its state, such as a tunnel.
    pub up: Option<bool>,
}

/// Maximum number of interfaces that are read; a node with many pods has hundreds.
const MOST_INTERFACES: usize = 64;

/// The interfaces of this network namespace, without loopback and the ports of bridges, whose
/// drops are those of other containers.
pub(super) fn interfaces(host: &Host) -> BTreeMap<String, InterfaceReading> {
    let table = host.read("/proc/net/dev").unwrap_or_default();
    let rows = table.lines().filter_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        let name = name.trim();
        if name == "lo" || name.contains(['/', '.']) {
            return None;
        }
        let numbers: Vec<u64> =
            numbers.split_ascii_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
        // bytes packets errs drop fifo frame compressed multicast, received then sent.
        let both = |at: usize| Some(numbers.get(at)?.saturating_add(*numbers.get(at + 8)?));
        let at = format!("/sys/class/net/{name}");
        if host.exists(format!("{at}/brport")) {
            return None;
        }
        let text = |file: &str| host.read(format!("{at}/{file}")).ok();
        let row = InterfaceReading {
            packets: both(1)?,
            errors: both(2)?,
            dropped: both(3)?,
            carrier_lost: text("carrier_down_count").and_then(|text| text.trim().parse().ok()),
            up: match text("operstate").as_deref().map(str::trim) {
                Some("up") => Some(true),
                Some("down" | "lowerlayerdown") => Some(false),
                _ => None,
            },
        };
        Some((name.to_owned(), row))
    });
    rows.take(MOST_INTERFACES).in_map()
}

/// Segments of TCP in this network namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct TcpReading {
    pub sent: u64,
    pub sent_again: u64,
}

/// Two lines of /proc/net/snmp: the names, then the numbers.
pub(super) fn tcp(host: &Host) -> Option<TcpReading> {
    let text = host.read("/proc/net/snmp").ok()?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let names: Vec<&str> = lines.next()?.split_ascii_whitespace().collect();
    let numbers: Vec<&str> = lines.next()?.split_ascii_whitespace().collect();
    let value = |name: &str| {
        let at = names.iter().position(|one| *one == name)?;
        numbers.get(at)?.parse().ok()
    };
    Some(TcpReading { sent: value("OutSegs")?, sent_again: value("RetransSegs")? })
}

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
