//! Reads the limits of the container: shared memory, limits of the process, CPUs, memory.
//!
//! Takes the [`Host`]; gives [`Limits`]. For a replayed node the values come from its files or are unknown.

use std::collections::BTreeMap;

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::Limits;
use linux::cgroups::Groups;
use linux::cpus::CpuList;
use linux::host::Host;
use text::order::InOrder;

/// Values that system calls give for this process.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Asked {
    shm_total: Option<u64>,
    shm_free: Option<u64>,
    memlock: Option<u64>,
    nofile_soft: u64,
    nofile_hard: u64,
    stack_unlimited: bool,
    nproc_soft: Option<u64>,
    address_space: Option<u64>,
    allowed_cpus: u32,
}

pub(super) fn limits(host: &Host) -> Limits {
    let asked = host.answer("limits", ask).unwrap_or_else(|| of_files(host));
    let groups = Groups::of_this_process(host);
    let allowed = asked.allowed_cpus.max(1);
    let capabilities = capabilities(host);
    let has = |bits: u64| capabilities & bits != 0;
    let memory = host.read("/proc/meminfo").unwrap_or_default();
    let (pids_max, pids_current) = groups.pids(host).unzip();
    Limits {
        shm_total: asked.shm_total,
        shm_free: asked.shm_free,
        memlock: asked.memlock,
        nofile_hard: asked.nofile_hard,
        cpus: groups.cpu_quota(host).map_or(allowed, |quota| quota.min(allowed)),
        memory_limit: groups.memory_limit(host),
        nofile_soft: asked.nofile_soft,
        ipc_lock: has(IPC_LOCK),
        pids_max,
        pids_current: pids_current.flatten(),
        memory_total: of_meminfo(&memory, "MemTotal:"),
        stack_unlimited: asked.stack_unlimited,
        // The kernel's copy_process() exempts both capabilities from the limit.
        nproc_soft: asked.nproc_soft.filter(|_| !has(SYS_ADMIN | SYS_RESOURCE)),
        address_space: asked.address_space,
        overcommit: host
            .read("/proc/sys/vm/overcommit_memory")
            .ok()
            .and_then(|text| text.trim().parse().ok()),
        swap_total: of_meminfo(&memory, "SwapTotal:"),
        allowed: affinity(host),
        numa: numa(host),
    }
}

fn ask() -> Asked {
    let stat = rustix::fs::statvfs("/dev/shm").ok();
    let bytes = |blocks: u64, size: u64| blocks.checked_mul(size);
    let files = getrlimit(Resource::Nofile);
    Asked {
        shm_total: stat.as_ref().and_then(|stat| bytes(stat.f_blocks, stat.f_frsize)),
        shm_free: stat.as_ref().and_then(|stat| bytes(stat.f_bavail, stat.f_frsize)),
        memlock: getrlimit(Resource::Memlock).maximum,
        nofile_soft: files.current.unwrap_or(u64::MAX),
        nofile_hard: files.maximum.unwrap_or(u64::MAX),
        stack_unlimited: getrlimit(Resource::Stack).current.is_none(),
        nproc_soft: getrlimit(Resource::Nproc).current,
        address_space: getrlimit(Resource::As).current,
        allowed_cpus: rustix::thread::sched_getaffinity(None).map_or(0, |set| set.count()),
    }
}

/// Files to capture for a replay; on a running node system calls give these values.
pub(super) const REPLAYED: &[&str] =
    &["/proc/self/limits", "/proc/self/status", "/proc/self/mountinfo"];

/// linux/capability.h, as bits.
const IPC_LOCK: u64 = 1 << 14;
const SYS_ADMIN: u64 = 1 << 21;
const SYS_RESOURCE: u64 = 1 << 24;

/// Effective capabilities as bits.
fn capabilities(host: &Host) -> u64 {
    let status = host.read("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

impl Limits {
    /// Bytes in use and the limit of the tightest memory cgroup, in the kubelet's way of counting: without page cache that
    /// can be dropped at once. None if there is no limit.
    pub fn memory_in_use(host: &Host) -> Option<(u64, u64)> {
        Groups::of_this_process(host).memory_in_use(host)
    }

    /// Bytes that programs can use without swapping, as the kernel estimates.
    pub fn memory_available(host: &Host) -> Option<u64> {
        of_meminfo(&host.read("/proc/meminfo").ok()?, "MemAvailable:")
    }
}

/// The value in bytes of a line of proc_meminfo(5), such as `MemTotal:       65835152 kB`.
fn of_meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `Cpus_allowed_list` of our main thread, which is limited by a cpuset as well.
fn affinity(host: &Host) -> CpuList {
    let status = host.read("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(CpuList::read).unwrap_or_default()
}

/// The CPUs of each NUMA node. /sys shows the whole machine even in a container.
fn numa(host: &Host) -> BTreeMap<u32, CpuList> {
    const NODES: &str = "/sys/devices/system/node";
    host.list(NODES)
        .into_iter()
        .filter_map(|name| {
            let node = name.strip_prefix("node")?.parse().ok()?;
            let cpus = CpuList::read(&host.read(format!("{NODES}/{name}/cpulist")).ok()?);
            (!cpus.is_empty()).then_some((node, cpus))
        })
        .in_map()
}

/// The size of the tmpfs on /dev/shm, from the mount option `size=65536k` (proc_pid_mountinfo(5)). Without the option
/// the size is half of the memory.
fn shm_of_mount(mounts: &str) -> Option<u64> {
    let line = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/dev/shm"))?;
    let options = line.rsplit(' ').next()?;
    let size = options.split(',').find_map(|option| option.strip_prefix("size="))?;
    size.strip_suffix('k')?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The values for a replayed node, from its files. An unlimited or unknown number of open files becomes the largest
/// number.
fn of_files(host: &Host) -> Asked {
    let text = host.read("/proc/self/limits").unwrap_or_default();
    // `Max locked memory         8388608              8388608              bytes`
    let word = |name: &str, column: usize| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_whitespace().nth(column)
    };
    let limit = |name: &str, column: usize| word(name, column)?.parse::<u64>().ok();
    let files = |column| limit("Max open files", column).unwrap_or(u64::MAX);
    let status = host.read("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let online = || host.read("/sys/devices/system/cpu/online").ok();
    Asked {
        shm_total: shm_of_mount(&host.read("/proc/self/mountinfo").unwrap_or_default()),
        shm_free: None,
        memlock: limit("Max locked memory", 1),
        nofile_soft: files(0),
        nofile_hard: files(1),
        stack_unlimited: word("Max stack size", 0) == Some("unlimited"),
        nproc_soft: limit("Max processes", 0),
        address_space: limit("Max address space", 0),
        allowed_cpus: mask.map(str::to_owned).or_else(online).map_or(0, |text| in_list(&text)),
    }
}

/// Number of members of a kernel list such as `0-3,8,10-11`.
fn in_list(text: &str) -> u32 {
    text.trim()
        .split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_meminfo_is_read_in_bytes() {
        let available = |text| of_meminfo(text, "MemAvailable:");
        let text = "MemTotal:  10 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(available(text), Some(2 << 20));
        assert_eq!(available("MemFree: 1 kB\n"), None);
        assert_eq!(available("MemAvailable: x kB\n"), None);
    }

    #[test]
    fn the_tightest_limit_of_all_ancestors_holds() {
        let (_root, host) = Host::of_files(&[
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("sys/devices/system/cpu/online", "0-63\n"),
            ("sys/fs/cgroup/pod/box/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/pod/cpu.max", "850000 100000\n"),
            ("sys/fs/cgroup/pod/box/memory.max", "68719476736\n"),
            ("sys/fs/cgroup/pod/memory.max", "max\n"),
            ("sys/fs/cgroup/memory.max", "137438953472\n"),
        ]);
        let limits = limits(&host);
        assert_eq!((limits.cpus, limits.memory_limit), (8, Some(64 << 30)));
    }

    #[test]
    fn cgroup_v1_is_read_at_the_mounts_top() {
        let (_root, host) = Host::of_files(&[
            (
                "proc/self/cgroup",
                "5:memory:/kubepods/pod1\n4:cpu,cpuacct:/kubepods/pod1\n1:name=systemd:/x\n",
            ),
            ("sys/devices/system/cpu/online", "0-3,8\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
            (
                "proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max open files            1024                 524288               files\n\
                 Max locked memory         65536                8388608              bytes\n",
            ),
        ]);
        let limits = limits(&host);
        assert_eq!((limits.cpus, limits.memory_limit), (1, Some(1 << 30)));
        assert_eq!((limits.memlock, limits.nofile_hard), (Some(8388608), 524288));
        assert_eq!(limits.nofile_soft, 1024);
    }

    #[test]
    fn no_limit_is_none() {
        let (_root, host) = Host::of_files(&[
            ("proc/self/cgroup", "2:cpu:/\n3:memory:/\n0::/../other\n"),
            ("sys/devices/system/cpu/online", "0-3,8\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            (
                "proc/self/limits",
                "Max locked memory         unlimited            unlimited            bytes\n",
            ),
        ]);
        let limits = limits(&host);
        assert_eq!((limits.cpus, limits.memory_limit, limits.memlock), (5, None, None));
    }

    #[test]
    fn replayed_limits_are_read_from_files() {
        let (_root, host) = Host::of_files(&[
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("sys/fs/cgroup/pod/box/pids.max", "max\n"),
            ("sys/fs/cgroup/pod/pids.max", "4096\n"),
            ("sys/fs/cgroup/pod/pids.current", "17\n"),
            ("sys/devices/system/cpu/online", "0-63\n"),
            (
                "proc/self/status",
                "Name:\tx\nCapEff:\t0000000000004000\nCpus_allowed_list:\t0-3,8\n",
            ),
            ("proc/meminfo", "MemTotal:       65835152 kB\nMemFree: 1 kB\n"),
            (
                "proc/self/mountinfo",
                "23 28 0:22 / /dev rw,nosuid - devtmpfs udev rw,size=4k\n\
                 25 23 0:24 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs shm rw,size=65536k\n",
            ),
        ]);
        let limits = limits(&host);
        assert_eq!((limits.pids_max, limits.pids_current), (Some(4096), Some(17)));
        assert_eq!((limits.ipc_lock, limits.cpus), (true, 5));
        assert_eq!(limits.memory_total, Some(65835152 * 1024));
        assert_eq!(limits.shm_total, Some(64 << 20));
        assert_eq!(shm_of_mount(""), None);
    }

    #[test]
    fn numa_nodes_are_those_that_have_cpus() {
        let (_root, host) = Host::of_files(&[
            ("proc/self/status", "Cpus_allowed:\tff\nCpus_allowed_list:\t0-3,64-67\n"),
            ("sys/devices/system/node/node0/cpulist", "0-31,64-95\n"),
            ("sys/devices/system/node/node1/cpulist", "32-63,96-127\n"),
            ("sys/devices/system/node/node2/cpulist", "\n"),
            ("sys/devices/system/node/has_cpu", "0-1\n"),
        ]);
        let limits = limits(&host);
        assert_eq!(limits.allowed.to_string(), "0-3,64-67");
        let nodes: Vec<_> =
            limits.numa.iter().map(|(node, cpus)| (*node, cpus.to_string())).collect();
        assert_eq!(nodes, [(0, "0-31,64-95".to_owned()), (1, "32-63,96-127".to_owned())]);
    }

    #[test]
    fn this_node_has_cpus_and_files() {
        let limits = limits(&Host::live());
        assert!(limits.cpus >= 1 && limits.nofile_hard > 0);
        assert!(!limits.allowed.is_empty());
    }
}
