//! Counts the kills of the kernel's out-of-memory killer in this container, and tells which processes survived them.
//!
//! Takes the [`Host`], the processes that can be victims, and regular looks at the counters; gives an [`OomAccount`] of
//! a failure. A kill is counted in the group of the victim, in version 2 also in all groups around it, before the
//! victim gets its SIGKILL (mm/oom_kill.c, `__oom_kill_process`). So only our own group shows kills of our processes,
//! and a process that still runs after a count was not the victim. Never says who sent a SIGKILL: that is decided by
//! the report.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::kernel_log::{LoggedKills, OomConstraint};
use linux::cgroups::{self, Groups};
use linux::host::Host;

/// Interval between two looks. A look reads one file of the kernel.
const PACE: Duration = Duration::from_millis(500);
/// Time after a kill until the processes are checked. It is longer than the kernel needs between count and signal, both
/// within one spinlock.
const SOON: Duration = Duration::from_millis(100);

/// The process that ended by a SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspect {
    /// A rank or a command, by its pid, if the pid is known.
    Process(Option<i32>),
    /// The shim of a process with this pid.
    ShimOf(Option<i32>),
    Engine,
}

/// The counters at the start, and their growth at the first failure.
#[derive(Debug)]
pub struct OomWatch {
    /// The control groups with their counters at the start, innermost first.
    groups: Vec<(Counters, Group)>,
    looked: Mutex<Looked>,
    first: OnceLock<Noted>,
}

/// The findings of the looks. Counts are the kernel's own, which began with the group.
#[derive(Debug, Clone, Default)]
struct Looked {
    count: u64,
    /// Time at which a look first found the last kill.
    rose: Option<Instant>,
    /// Processes with the count that each has survived.
    living: BTreeMap<i32, u64>,
    engine: Option<i32>,
    /// Processes that were killed in a group other than ours, with the path of that group.
    killed_in: BTreeMap<i32, String>,
}

/// The growth of the counters up to a moment.
#[derive(Debug, Clone)]
struct Noted {
    at: Instant,
    count: u64,
    /// Time at which a look found the last kill; None if no look found one.
    rose: Option<Instant>,
    kills: Option<OomKills>,
    /// Kills of processes that had left our group.
    elsewhere: BTreeMap<i32, OomKills>,
    /// Limit of each group, innermost first.
    limits: Vec<Option<OomPlace>>,
}

/// The result of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// The count that the caller has survived.
    pub outlived: u64,
    /// Time until the next look.
    pub next: Duration,
}

/// The kernel's counts and log up to the first failure, and the processes that survived.
#[derive(Debug, Clone)]
pub struct OomAccount {
    /// Whether the kernel counts kills on this node, so that a count of 0 is proof.
    pub counts: bool,
    noted: Noted,
    looked: Looked,
    logged: LoggedKills,
}

impl OomWatch {
    pub fn begin(host: &Host) -> OomWatch {
        let counted = |group: Group| (group.counters(host), group);
        let groups: Vec<_> = groups(host).into_iter().map(counted).collect();
        let count = groups.first().map_or(0, |(own, _)| own.kills);
        let looked = Mutex::new(Looked { count, ..Looked::default() });
        OomWatch { groups, looked, first: OnceLock::new() }
    }

    fn looked(&self) -> MutexGuard<'_, Looked> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a rank or a command has started.
    pub fn began(&self, pid: i32) {
        let mut looked = self.looked();
        let count = looked.count;
        looked.living.insert(pid, count);
    }

    pub fn began_engine(&self, pid: i32) {
        self.began(pid);
        self.looked().engine = Some(pid);
    }

    /// Records that a process was killed in this group, which is not ours, and has not ended yet.
    pub fn killed_in(&self, pid: i32, group: &str) {
        self.looked().killed_in.insert(pid, group.to_owned());
    }

    /// Reads the count, and after a kill checks which processes still run. None: the kernel counts nothing here.
    pub fn look(&self, host: &Host) -> Option<Look> {
        let (_, own) = self.groups.first()?;
        let now = own.kills(host);
        let mut looked = self.looked();
        // A kill that the previous look counted has reached its victim by now.
        let outlived = std::mem::replace(&mut looked.count, now);
        if now > outlived {
            looked.rose = Some(Instant::now());
        }
        // The pid of a rank that has failed may belong to another process by now.
        if self.first.get().is_none() {
            let behind = looked.living.iter_mut().filter(|(_, count)| **count < outlived);
            for (pid, count) in behind {
                if host.process(*pid).lives_on() {
                    *count = outlived;
                }
            }
        }
        Some(Look { outlived, next: if now > outlived { SOON } else { PACE } })
    }

    /// Keeps the current growth on the first call. Kills after the first failure are not its cause.
    pub fn note(&self, host: &Host) {
        self.first.get_or_init(|| self.noted(host));
    }

    /// The kept growth, or the current growth if none is kept, together with the kernel's log.
    pub fn account(&self, host: &Host, logged: LoggedKills) -> OomAccount {
        let noted = self.first.get().cloned().unwrap_or_else(|| self.noted(host));
        OomAccount { counts: !self.groups.is_empty(), noted, looked: self.looked().clone(), logged }
    }

    fn noted(&self, host: &Host) -> Noted {
        let now: Vec<Counters> =
            self.groups.iter().map(|(_, group)| group.counters(host)).collect();
        let rose =
            self.groups.iter().zip(&now).map(|((before, group), now)| (group, now.since(before)));
        let rose: Vec<(&Group, Counters)> = rose.collect();
        let processes = rose.first().map_or(0, |(_, own)| own.kills);
        let count = now.first().map_or(0, |own| own.kills);
        let looked = self.looked();
        Noted {
            at: Instant::now(),
            count,
            rose: looked.rose.filter(|_| looked.count == count),
            kills: (processes > 0).then(|| OomKills { processes, place: reached(host, &rose) }),
            elsewhere: looked
                .killed_in
                .iter()
                .filter_map(|(pid, path)| Some((*pid, elsewhere(host, path, &rose)?)))
                .collect(),
            limits: rose.iter().map(|(group, _)| group.limit(host)).collect(),
        }
    }
}

impl OomAccount {
    /// An account of the kills in which no process is known to have survived.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn of(kills: Option<OomKills>, counts: bool) -> OomAccount {
        let count = kills.map_or(0, |kills| kills.processes);
        let noted = Noted {
            at: Instant::now(),
            count,
            rose: None,
            kills,
            elsewhere: BTreeMap::new(),
            limits: Vec::new(),
        };
        let (looked, logged) = (Looked::default(), LoggedKills::default());
        OomAccount { counts, noted, looked, logged }
    }

    /// The account in which these processes survived all kills; the first of them is the engine.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn outlived_by(mut self, pids: &[i32], ago: Option<Duration>) -> OomAccount {
        self.noted.rose = ago.and_then(|ago| self.noted.at.checked_sub(ago));
        self.looked.living = pids.iter().map(|pid| (*pid, self.noted.count)).collect();
        self.looked.engine = pids.first().copied();
        self
    }

    /// The kills. The place is that of the kill of this process, or else of the last kill.
    ///
    /// The kernel's log knows the place for certain. The counters of version 1 also rise when a cache fills the limit,
    /// and no counter shows the groups outside of a container.
    pub fn kills(&self, pid: Option<i32>) -> Option<OomKills> {
        let Noted { kills, limits, .. } = &self.noted;
        let constraint = self.logged.constraint(pid);
        if let Some(kills) = self.elsewhere(pid) {
            let of_node = constraint == Some(OomConstraint::Node);
            return Some(if of_node { OomKills { place: OomPlace::Node, ..kills } } else { kills });
        }
        let kills = (*kills)?;
        let seen = |level: usize| limits.get(level).copied().flatten();
        let place = match (constraint, kills.place) {
            (Some(OomConstraint::Node), _) => OomPlace::Node,
            (Some(OomConstraint::Around(level)), _) => seen(level).unwrap_or(OomPlace::OuterLimit),
            (Some(OomConstraint::Inside), _) => OomPlace::InnerLimit,
            (Some(OomConstraint::Unknown), OomPlace::Open) => OomPlace::OuterLimit,
            (_, place) => place,
        };
        Some(OomKills { place, ..kills })
    }

    /// Whether the kernel killed the suspect, as far as known: the log names its pid; or a kill was counted that the
    /// suspect is not known to have survived and for which no other process is named.
    pub fn was_killed(&self, suspect: Suspect) -> bool {
        if let Suspect::Process(pid) = suspect
            && self.elsewhere(pid).is_some()
        {
            return true;
        }
        let Noted { count, kills: Some(kills), .. } = &self.noted else { return false };
        let pid = match suspect {
            Suspect::Process(pid) | Suspect::ShimOf(pid) => pid,
            Suspect::Engine => self.looked.engine,
        };
        // A shim ends its rank when it ends, so both live equally long; only the pid of the shim differs.
        let named = pid.filter(|_| !matches!(suspect, Suspect::ShimOf(_)));
        let outlived = pid.and_then(|pid| self.looked.living.get(&pid));
        match named.and_then(|pid| self.logged.names(pid, kills.processes)) {
            Some(named) => named,
            None => outlived.is_none_or(|outlived| count > outlived),
        }
    }

    /// The kills of the group in which this process was killed, if that group was not ours.
    fn elsewhere(&self, pid: Option<i32>) -> Option<OomKills> {
        self.noted.elsewhere.get(&pid?).copied()
    }

    /// Time between the last kill and the failure, if a look came between them.
    pub fn since_last(&self) -> Option<Duration> {
        self.noted.at.checked_duration_since(self.noted.rose?)
    }

    /// Whether no kill was counted after this count.
    pub fn is_outlived_by(&self, outlived: u64) -> bool {
        self.noted.count <= outlived
    }
}

/// Kills by the kernel since a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OomKills {
    /// Processes of this container that were killed, at least 1.
    pub processes: u64,
    pub place: OomPlace,
}

/// The limit or node whose memory was exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OomPlace {
    /// A limit of this container, in bytes, and the peak use of its group if the peak shows that the limit was reached
    /// (memory.peak since Linux 5.19, memory.max_usage_in_bytes).
    Limit { limit: u64, peak: Option<u64> },
    /// The limit of a control group inside this container, such as a group that a rank made for itself.
    InnerLimit,
    /// The kernel's log names the limit of a control group, but none of the groups seen here.
    OuterLimit,
    /// The kernel's log says that the node itself ran out of memory.
    Node,
    /// Neither the counters nor the log show the place: the node, or an outer group such as the pod's.
    Open,
}

/// The counters of one group.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    /// Kills of processes in the group; in version 2 also of processes in groups inside it.
    pub kills: u64,
    /// Number of times that the group's own limit was hit; in version 1 a cache may have hit it.
    hits: u64,
    /// Number of times that a limit of the group or of a group inside it was hit; version 2 only.
    hits_inside: u64,
    /// Whether `hits` counts only the group itself (memory.events.local, since Linux 5.2; and version 1).
    is_local: bool,
}

impl Counters {
    fn since(self, before: &Counters) -> Counters {
        Counters {
            kills: self.kills.saturating_sub(before.kills),
            hits: self.hits.saturating_sub(before.hits),
            hits_inside: self.hits_inside.saturating_sub(before.hits_inside),
            is_local: self.is_local,
        }
    }
}

/// A folder of the memory controller, with the file names of its version.
#[derive(Debug)]
struct Group {
    folder: String,
    unified: bool,
}

/// The group that counts a kill of this process, then the groups around it.
fn groups(host: &Host) -> Vec<Group> {
    let found = Groups::of_this_process(host);
    let of = |folders: &[String], unified: bool, file: &str| -> Vec<Group> {
        folders
            .iter()
            // Kernels before 4.13 do not count kills in version 1.
            .filter(|folder| cgroups::counter(host, folder, file, "oom_kill").is_some())
            .map(|folder| Group { folder: folder.clone(), unified })
            .collect()
    };
    let unified = of(&found.unified, true, "memory.events");
    if unified.is_empty() { of(&found.memory, false, "memory.oom_control") } else { unified }
}

/// The place whose limit was reached when our own group counted a kill. `rose`: each group with its growth, innermost
/// first.
fn reached(host: &Host, rose: &[(&Group, Counters)]) -> OomPlace {
    let hit = rose.iter().enumerate().find_map(|(level, (group, counters))| {
        let limit = group.limit(host).filter(|_| counters.hits > 0)?;
        // If the count covers a whole subtree, a group beside ours may have raised it.
        let proven = level == 0 || counters.is_local || group.may_be_at_limit(host);
        proven.then_some(limit)
    });
    let unified = rose.first().is_some_and(|(own, _)| own.unified);
    hit.or_else(|| match rose.first() {
        Some((own, counters)) if own.unified && counters.hits_inside > 0 => {
            Some(OomPlace::InnerLimit)
        }
        _ => None,
    })
    // Newer kernels (seen with 6.18) count no failure in version 1, and a peak may come from an earlier job in this
    // container. The container's limit is reported even so: nothing shows that the node ran out of memory.
    .or_else(|| {
        let mut at_limit = rose.iter().filter(|(group, _)| !unified && group.is_at_limit(host));
        at_limit.next().and_then(|(group, _)| group.limit(host))
    })
    .unwrap_or(OomPlace::Open)
}

/// The kills in the group of version 2 with this path, which one of our processes had entered. None: the group lies in
/// our own group, which counts the kills; or nothing was counted in it.
///
/// Its earlier counts are unknown, so a group around it must have counted a kill since.
fn elsewhere(host: &Host, path: &str, rose: &[(&Group, Counters)]) -> Option<OomKills> {
    let group = Group { folder: Groups::unified_folder(path)?, unified: true };
    let around = |(other, _): &&(&Group, Counters)| {
        let rest = group.folder.strip_prefix(&other.folder);
        other.unified && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let level = rose.iter().position(|one| around(&one))?;
    let (_, shared) = rose.get(level).filter(|_| level > 0)?;
    let counters = group.counters(host);
    let processes = counters.kills.min(shared.kills);
    let place = group.limit(host).filter(|_| counters.hits > 0).unwrap_or(OomPlace::Open);
    (processes > 0).then_some(OomKills { processes, place })
}

impl Group {
    /// The number of kills only.
    fn kills(&self, host: &Host) -> u64 {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        cgroups::counter(host, &self.folder, file, "oom_kill").unwrap_or(0)
    }

    fn counters(&self, host: &Host) -> Counters {
        let kills = self.kills(host);
        if self.unified {
            let hits = |file: &str| cgroups::counter(host, &self.folder, file, "oom");
            let (local, inside) = (hits("memory.events.local"), hits("memory.events").unwrap_or(0));
            let hits = local.unwrap_or(inside);
            return Counters { kills, hits, hits_inside: inside, is_local: local.is_some() };
        }
        // If the limit of memory and that of memory with swap are the same, the latter fails.
        let failures = ["memory.failcnt", "memory.memsw.failcnt"].into_iter();
        let hits = failures.filter_map(|file| cgroups::number(host, &self.folder, file)).sum();
        Counters { kills, hits, hits_inside: 0, is_local: true }
    }

    /// The limits, each with the peak of its use; the limit of memory comes first.
    fn limits(&self, host: &Host) -> impl Iterator<Item = (u64, Option<u64>)> {
        let files: &[_] = match self.unified {
            true => &[("memory.max", "memory.peak")],
            false => &[
                ("memory.limit_in_bytes", "memory.max_usage_in_bytes"),
                ("memory.memsw.limit_in_bytes", "memory.memsw.max_usage_in_bytes"),
            ],
        };
        files.iter().filter_map(|(limit, peak)| {
            let limit = cgroups::limit(host, &self.folder, limit)?;
            Some((limit, cgroups::number(host, &self.folder, peak)))
        })
    }

    /// The limit that was reached, with the peak that shows it; if no peak shows which limit, the first limit.
    fn limit(&self, host: &Host) -> Option<OomPlace> {
        let reached = self.limits(host).find(|(limit, peak)| is_at(*limit, *peak));
        let first = || self.limits(host).next().map(|(limit, _)| (limit, None));
        let (limit, peak) = reached.or_else(first)?;
        Some(OomPlace::Limit { limit, peak })
    }

    fn is_at_limit(&self, host: &Host) -> bool {
        self.limits(host).any(|(limit, peak)| is_at(limit, peak))
    }

    /// Whether the group is at its limit, or no peak can be read.
    fn may_be_at_limit(&self, host: &Host) -> bool {
        self.limits(host).any(|(limit, peak)| peak.is_none() || is_at(limit, peak))
    }
}

/// Whether a use reached its limit. The peak does not include the charge that fails: up to eight pages
/// (PAGE_ALLOC_COSTLY_ORDER), of up to 64 KiB.
fn is_at(limit: u64, peak: Option<u64>) -> bool {
    const NEAR: u64 = 1 << 20;
    peak.is_some_and(|peak| peak.saturating_add(NEAR) > limit)
}
