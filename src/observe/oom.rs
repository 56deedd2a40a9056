//! Counts the kills of the kernel's out-of-memory killer in this container.
//!
//! Takes the [`Host`]; gives the counters of our memory cgroups, and later their growth. A kill
//! is counted in the group of the victim before the victim gets its SIGKILL (mm/oom_kill.c,
//! `__oom_kill_process`), so the count is there when the process ends.

use std::sync::OnceLock;

use crate::cgroups::{Groups, NO_LIMIT};
use crate::host::Host;

/// Kills by the kernel since a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OomKills {
    /// Processes of this container that were killed, at least 1.
    pub processes: u64,
    /// The limit that was hit, in bytes. None if it is not a limit of this container: the node
    /// itself, or an outer group, had no memory left.
    pub limit: Option<u64>,
    /// The peak use of the group whose limit was hit, in bytes (memory.peak since Linux 5.19,
    /// memory.max_usage_in_bytes).
    pub peak: Option<u64>,
}

/// The counters at the start, and their growth at the first failure.
#[derive(Debug)]
pub(crate) struct OomWatch {
    before: Vec<Counters>,
    first: OnceLock<Option<OomKills>>,
}

/// Of one group, innermost first.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    kills: u64,
    /// How often the group's own limit was hit.
    hits: u64,
}

impl OomWatch {
    pub(crate) fn begin(host: &Host) -> OomWatch {
        let before = groups(host).iter().map(|group| group.counters(host)).collect();
        OomWatch { before, first: OnceLock::new() }
    }

    /// Keeps the current growth on the first call. Kills after the first failure are not its
    /// cause.
    pub(crate) fn note(&self, host: &Host) {
        self.first.get_or_init(|| self.since(host));
    }

    /// Whether the kernel would count a kill.
    pub(crate) fn counts(&self) -> bool {
        !self.before.is_empty()
    }

    /// The kept growth, or else the current one.
    pub(crate) fn kills(&self, host: &Host) -> Option<OomKills> {
        self.first.get().copied().unwrap_or_else(|| self.since(host))
    }

    fn since(&self, host: &Host) -> Option<OomKills> {
        let groups = groups(host);
        let rose: Vec<Counters> = groups
            .iter()
            .zip(&self.before)
            .map(|(group, before)| {
                let now = group.counters(host);
                Counters {
                    kills: now.kills.saturating_sub(before.kills),
                    hits: now.hits.saturating_sub(before.hits),
                }
            })
            .collect();
        // Outer groups also count the kills of inner ones (version 2), and without a namespace
        // those of other containers.
        let processes = rose.iter().map(|counters| counters.kills).find(|kills| *kills > 0)?;
        let hit = groups.iter().zip(&rose).find(|(_, counters)| counters.hits > 0);
        let hit = hit.and_then(|(group, _)| Some((group, group.limit(host)?)));
        Some(OomKills {
            processes,
            limit: hit.map(|(_, limit)| limit),
            peak: hit.and_then(|(group, _)| group.peak(host)),
        })
    }
}

/// A folder of the memory controller, with the file names of its version.
struct Group {
    folder: String,
    unified: bool,
}

fn groups(host: &Host) -> Vec<Group> {
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

impl Group {
    fn read(&self, host: &Host, file: &str) -> String {
        host.read(format!("{}/{file}", self.folder)).unwrap_or_default()
    }

    fn number(&self, host: &Host, file: &str) -> Option<u64> {
        self.read(host, file).trim().parse().ok()
    }

    fn counters(&self, host: &Host) -> Counters {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        let text = self.read(host, file);
        let counter = |name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        let hits = if self.unified {
            counter("oom ")
        } else {
            self.number(host, "memory.failcnt").unwrap_or(0)
        };
        Counters { kills: counter("oom_kill "), hits }
    }

    fn limit(&self, host: &Host) -> Option<u64> {
        let file = if self.unified { "memory.max" } else { "memory.limit_in_bytes" };
        self.number(host, file).filter(|bytes| *bytes < NO_LIMIT)
    }

    fn peak(&self, host: &Host) -> Option<u64> {
        let file = if self.unified { "memory.peak" } else { "memory.max_usage_in_bytes" };
        self.number(host, file)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    /// Path and text.
    type Files = &'static [(&'static str, &'static str)];

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (file, text) in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
    }

    fn after(before: &[(&str, &str)], then: &[(&str, &str)]) -> Option<OomKills> {
        let root = tempfile::tempdir().expect("a folder");
        write(root.path(), before);
        let host = Host::replayed(root.path(), BTreeMap::new());
        let watch = OomWatch::begin(&host);
        assert!(watch.counts());
        assert_eq!(watch.kills(&host), None, "nothing has happened yet");
        write(root.path(), then);
        watch.kills(&host)
    }

    const UNIFIED: Files = &[
        ("proc/self/cgroup", "0::/pod/box\n"),
        (
            "sys/fs/cgroup/pod/box/memory.events",
            "low 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n",
        ),
        ("sys/fs/cgroup/pod/box/memory.max", "67108864\n"),
        ("sys/fs/cgroup/pod/box/memory.peak", "67100672\n"),
        ("sys/fs/cgroup/pod/memory.events", "oom 1\noom_kill 4\n"),
        ("sys/fs/cgroup/pod/memory.max", "134217728\n"),
        ("sys/fs/cgroup/pod/memory.peak", "134217728\n"),
    ];

    #[test]
    fn the_limit_that_was_hit_is_named() {
        let rows: [(Files, Option<OomKills>); 4] = [
            (
                &[
                    ("sys/fs/cgroup/pod/box/memory.events", "oom 2\noom_kill 3\n"),
                    ("sys/fs/cgroup/pod/memory.events", "oom 2\noom_kill 6\n"),
                ],
                Some(OomKills { processes: 2, limit: Some(64 << 20), peak: Some(67100672) }),
            ),
            // The limit of the pod of this container.
            (
                &[
                    ("sys/fs/cgroup/pod/box/memory.events", "oom 1\noom_kill 2\n"),
                    ("sys/fs/cgroup/pod/memory.events", "oom 2\noom_kill 5\n"),
                ],
                Some(OomKills { processes: 1, limit: Some(128 << 20), peak: Some(128 << 20) }),
            ),
            // Of the node, since no group of ours was at its limit.
            (
                &[
                    ("sys/fs/cgroup/pod/box/memory.events", "oom 1\noom_kill 2\n"),
                    ("sys/fs/cgroup/pod/memory.events", "oom 1\noom_kill 5\n"),
                ],
                Some(OomKills { processes: 1, limit: None, peak: None }),
            ),
            // At the limit, but enough memory could be reclaimed.
            (&[("sys/fs/cgroup/pod/box/memory.events", "oom 9\noom_kill 1\n")], None),
        ];
        for (then, expected) in rows {
            assert_eq!(after(UNIFIED, then), expected, "{then:?}");
        }
    }

    #[test]
    fn the_first_version_says_it_in_other_words() {
        let before = [
            ("proc/self/cgroup", "4:memory:/docker/abc\n0::/\n"),
            // Below the container's mount the top is its own group.
            (
                "sys/fs/cgroup/memory/memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
            ),
            ("sys/fs/cgroup/memory/memory.failcnt", "0\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "67108864\n"),
            ("sys/fs/cgroup/memory/memory.max_usage_in_bytes", "67108864\n"),
        ];
        let then = [
            (
                "sys/fs/cgroup/memory/memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            ),
            ("sys/fs/cgroup/memory/memory.failcnt", "12\n"),
        ];
        let expected = OomKills { processes: 1, limit: Some(64 << 20), peak: Some(64 << 20) };
        assert_eq!(after(&before, &then), Some(expected));
    }

    #[test]
    fn what_the_stop_itself_causes_is_no_cause() {
        let root = tempfile::tempdir().expect("a folder");
        write(root.path(), UNIFIED);
        let host = Host::replayed(root.path(), BTreeMap::new());
        let watch = OomWatch::begin(&host);
        watch.note(&host);
        write(root.path(), &[("sys/fs/cgroup/pod/box/memory.events", "oom 2\noom_kill 2\n")]);
        watch.note(&host);
        assert_eq!(watch.kills(&host), None);
    }
}
