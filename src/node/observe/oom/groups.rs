//! The counters and limits of a memory control group, in the files of both versions.

use linux::cgroups::Groups;
use linux::host::Host;

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
pub(super) struct Counters {
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
    pub(super) fn since(self, before: &Counters) -> Counters {
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
pub(super) struct Group {
    folder: String,
    unified: bool,
}

/// The group that counts a kill of this process, then the groups around it.
pub(super) fn groups(host: &Host) -> Vec<Group> {
    let found = Groups::of_this_process(host);
    let of = |folders: &[String], unified: bool, file: &str| -> Vec<Group> {
        folders
            .iter()
            // Kernels before 4.13 do not count kills in version 1.
            .filter(|folder| {
                let text = host.read(format!("{folder}/{file}")).unwrap_or_default();
                text.lines().any(|line| line.starts_with("oom_kill "))
            })
            .map(|folder| Group { folder: folder.clone(), unified })
            .collect()
    };
    let unified = of(&found.unified, true, "memory.events");
    if unified.is_empty() { of(&found.memory, false, "memory.oom_control") } else { unified }
}

/// The place whose limit was reached when our own group counted a kill. `rose`: each group with its growth, innermost
/// first.
pub(super) fn reached(host: &Host, rose: &[(&Group, Counters)]) -> OomPlace {
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
pub(super) fn elsewhere(host: &Host, path: &str, rose: &[(&Group, Counters)]) -> Option<OomKills> {
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
    fn read(&self, host: &Host, file: &str) -> String {
        host.read(format!("{}/{file}", self.folder)).unwrap_or_default()
    }

    fn number(&self, host: &Host, file: &str) -> Option<u64> {
        self.read(host, file).trim().parse().ok()
    }

    /// The number of kills only.
    pub(super) fn kills(&self, host: &Host) -> u64 {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        counter(&self.read(host, file), "oom_kill ").unwrap_or(0)
    }

    pub(super) fn counters(&self, host: &Host) -> Counters {
        let kills = self.kills(host);
        if self.unified {
            let hits = |file: &str| counter(&self.read(host, file), "oom ");
            let (local, inside) = (hits("memory.events.local"), hits("memory.events").unwrap_or(0));
            let hits = local.unwrap_or(inside);
            return Counters { kills, hits, hits_inside: inside, is_local: local.is_some() };
        }
        // If the limit of memory and that of memory with swap are the same, the latter fails.
        let failures = ["memory.failcnt", "memory.memsw.failcnt"].into_iter();
        let hits = failures.filter_map(|file| self.number(host, file)).sum();
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
            let limit = self.number(host, limit).filter(|bytes| *bytes < Groups::NO_LIMIT)?;
            Some((limit, self.number(host, peak)))
        })
    }

    /// The limit that was reached, with the peak that shows it; if no peak shows which limit, the first limit.
    pub(super) fn limit(&self, host: &Host) -> Option<OomPlace> {
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

fn counter(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// Whether a use reached its limit. The peak does not include the charge that fails: up to eight pages
/// (PAGE_ALLOC_COSTLY_ORDER), of up to 64 KiB.
fn is_at(limit: u64, peak: Option<u64>) -> bool {
    const NEAR: u64 = 1 << 20;
    peak.is_some_and(|peak| peak.saturating_add(NEAR) > limit)
}
