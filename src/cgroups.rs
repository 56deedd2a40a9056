//! The control groups of a process: the folders in which their limits and counters are.
//!
//! Takes the [`Host`] and a pid; gives paths, of both versions of cgroups. Reads no limit.

use std::path::{Component, Path};

use crate::host::Host;

const CGROUP: &str = "/sys/fs/cgroup";

/// In cgroup v1 the kernel writes "no limit" as the largest multiple of a page.
pub(crate) const NO_LIMIT: u64 = 1 << 60;

/// The folders of a process's cgroups, innermost first, outermost last.
///
/// The limits of all ancestors apply as well. Without a cgroup namespace the path in /proc is
/// that of the host and does not exist below the container's mount, whose top is then our own
/// group. So missing folders are skipped.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Groups {
    pub(crate) unified: Vec<String>,
    pub(crate) cpu: Vec<String>,
    pub(crate) memory: Vec<String>,
    pub(crate) pids: Vec<String>,
}

impl Groups {
    pub(crate) fn of_this_process(host: &Host) -> Groups {
        Groups::of_file(host, "/proc/self/cgroup")
    }

    /// Empty if the process has ended.
    pub(crate) fn of(host: &Host, pid: i32) -> Groups {
        Groups::of_file(host, &format!("/proc/{pid}/cgroup"))
    }

    fn of_file(host: &Host, file: &str) -> Groups {
        let mut groups = Groups::default();
        let text = host.read(file).unwrap_or_default();
        for line in text.lines() {
            // hierarchy-ID:controller-list:path (cgroups(7))
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if controllers.is_empty() {
                groups.unified = folders(CGROUP, path);
                // Hybrid systems mount the unified hierarchy in addition.
                groups.unified.extend(folders(&format!("{CGROUP}/unified"), path));
                continue;
            }
            for controller in controllers.split(',') {
                let at = |name: &str| folders(&format!("{CGROUP}/{name}"), path);
                match controller {
                    // Mounted under the whole list, or under a link of its own name.
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

/// The group of a process in version 2, as /proc names it. Of a zombie that is the group in which it
/// ended; version 1 forgets that (proc_cgroup_show).
pub(crate) fn unified_path(host: &Host, pid: i32) -> Option<String> {
    let text = host.read(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The folder of a group of version 2 that /proc names so. None: outside of our cgroup namespace.
pub(crate) fn unified_folder(path: &str) -> Option<String> {
    let inside = !Path::new(path).components().any(|part| part == Component::ParentDir);
    folders(CGROUP, path).into_iter().next().filter(|_| inside)
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
