//! The control groups of a process: the folders in which their limits and counters are.
//!
//! Takes the [`Host`] and a pid; gives paths, of both versions of cgroups. Reads no limit.

use std::path::{Component, Path};

use crate::host::Host;

const CGROUP: &str = "/sys/fs/cgroup";

/// The folders of a process's cgroups, innermost first, outermost last.
///
/// The limits of all ancestors apply as well. Without a cgroup namespace the path in /proc is
/// that of the host and does not exist below the container's mount, whose top is then our own
/// group. So missing folders are skipped.
#[derive(Debug, Default, PartialEq)]
pub struct Groups {
    pub unified: Vec<String>,
    pub cpu: Vec<String>,
    pub memory: Vec<String>,
    pub pids: Vec<String>,
}

impl Groups {
    /// In cgroup v1 the kernel writes "no limit" as the largest multiple of a page.
    pub const NO_LIMIT: u64 = 1 << 60;

    pub fn of_this_process(host: &Host) -> Groups {
        Groups::of_file(host, "/proc/self/cgroup")
    }

    /// Empty if the process has ended.
    pub fn of(host: &Host, pid: i32) -> Groups {
        Groups::of_file(host, &format!("/proc/{pid}/cgroup"))
    }

    /// The folder of the group of version 2 that has this path in /proc. None: outside of our cgroup namespace.
    pub fn unified_folder(path: &str) -> Option<String> {
        let inside = !Path::new(path).components().any(|part| part == Component::ParentDir);
        folders(CGROUP, path).into_iter().next().filter(|_| inside)
    }

    fn of_file(host: &Host, file: &str) -> Groups {
        let mut groups = Groups::default();
        let text = host.read(file).unwrap_or_default();
        for (controllers, path) in memberships(&text) {
            if controllers.is_empty() {
                groups.unified = folders(CGROUP, path);
                // Hybrid systems mount the unified hierarchy in addition.
                groups.unified.extend(folders(&format!("{CGROUP}/unified"), path));
                continue;
            }
            for controller in controllers.split(',') {
                let at = |name: &str| folders(&format!("{CGROUP}/{name}"), path);
                match controller {
                    // The controller is mounted under the whole list, or under a link of its own name.
                    "cpu" => groups.cpu = [at(controllers), at("cpu")].concat(),
                    "memory" => groups.memory = at("memory"),
                    "pids" => groups.pids = at("pids"),
                    _ => {}
                }
            }
        }
        groups
    }
}

/// The controllers and the path of each group in a file of /proc; version 2 has no controllers there.
pub fn memberships(text: &str) -> impl Iterator<Item = (&str, &str)> {
    // hierarchy-ID:controller-list:path (cgroups(7))
    text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'))
}

/// A number in a file of a group.
pub fn number(host: &Host, folder: &str, file: &str) -> Option<u64> {
    host.read(format!("{folder}/{file}")).ok()?.trim().parse().ok()
}

/// A limit in bytes; None if there is none.
pub fn limit(host: &Host, folder: &str, file: &str) -> Option<u64> {
    number(host, folder, file).filter(|bytes| *bytes < Groups::NO_LIMIT)
}

/// The value of a line `NAME VALUE` in a file of a group.
pub fn counter(host: &Host, folder: &str, file: &str, name: &str) -> Option<u64> {
    let text = host.read(format!("{folder}/{file}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
}

/// `/a/b` below `mount`: mount/a/b, mount/a, mount. A path with `..` is outside of our cgroup
/// namespace and cannot be read.
fn folders(mount: &str, path: &str) -> Vec<String> {
    let path = Path::new(path);
    if path.components().any(|part| part == Component::ParentDir) {
        return vec![mount.to_owned()];
    }
    path.ancestors()
        .map(|part| {
            let part = part.to_string_lossy();
            format!("{mount}/{}", part.trim_start_matches('/')).trim_end_matches('/').to_owned()
        })
        .collect()
}

impl Groups {
    /// Whole CPUs of the tightest quota, at least 1. Rounded down, since one thread more than
    /// the quota allows costs more than it gains.
    pub fn cpu_quota(&self, host: &Host) -> Option<u32> {
        let unified = self.unified.iter().filter_map(|folder| {
            let text = host.read(format!("{folder}/cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            whole_cpus(quota, period)
        });
        let first = self.cpu.iter().filter_map(|folder| {
            let read = |file: &str| host.read(format!("{folder}/{file}")).ok();
            whole_cpus(read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim())
        });
        unified.chain(first).min()
    }

    /// The group with the least room for processes and threads: (limit, current).
    pub fn pids(&self, host: &Host) -> Option<(u64, Option<u64>)> {
        let all = self.unified.iter().chain(&self.pids);
        let found = all.filter_map(|folder| {
            Some((number(host, folder, "pids.max")?, number(host, folder, "pids.current")))
        });
        found.min_by_key(|(most, now)| most.saturating_sub(now.unwrap_or(0)))
    }

    /// Bytes of the tightest limit.
    pub fn memory_limit(&self, host: &Host) -> Option<u64> {
        let of = |folders: &[String], file| {
            folders.iter().filter_map(|folder| limit(host, folder, file)).min()
        };
        let both = [of(&self.unified, "memory.max"), of(&self.memory, "memory.limit_in_bytes")];
        both.into_iter().flatten().min()
    }

    /// Bytes in use and the limit of the tightest group, without page cache that can be dropped at once, as the kubelet
    /// counts. None without a limit.
    pub fn memory_in_use(&self, host: &Host) -> Option<(u64, u64)> {
        let look = |folders: &[String], [used, most, cache]: [&str; 3]| {
            let of = |folder: &String| {
                let most = limit(host, folder, most)?;
                let cache = counter(host, folder, "memory.stat", cache).unwrap_or(0);
                Some((number(host, folder, used)?.saturating_sub(cache), most))
            };
            folders.iter().filter_map(of).min_by_key(|(_, most)| *most)
        };
        look(&self.unified, ["memory.current", "memory.max", "inactive_file"]).or_else(|| {
            let files = ["memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"];
            look(&self.memory, files)
        })
    }
}

/// `max` and -1 are no limit.
fn whole_cpus(quota: &str, period: &str) -> Option<u32> {
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.trim().parse().ok()?);
    u32::try_from(quota.checked_div(period)?.max(1)).ok()
}
