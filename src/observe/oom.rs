//! Counts the kills of the kernel's out-of-memory killer in this container.
//!
//! Takes the [`Host`]; gives the counters of our memory cgroups, and later their growth. A kill
//! is counted in the group of the victim before the victim gets its SIGKILL (mm/oom_kill.c,
//! `__oom_kill_process`), so the count is there when the process ends.

use std::sync::OnceLock;

use crate::cgroups::{Groups, NO_LIMIT};
use crate::host::Host;
use crate::observe::kernel_log::OomConstraint;

/// Kills by the kernel since a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OomKills {
    /// Processes of this container that were killed, at least 1.
    pub processes: u64,
    pub place: OomPlace,
}

/// Whose memory was exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OomPlace {
    /// A limit of this container, in bytes, and the peak use of its group (memory.peak since Linux
    /// 5.19, memory.max_usage_in_bytes).
    Limit { limit: u64, peak: Option<u64> },
    /// The kernel's log says that it was the limit of a control group, none of those seen here.
    OuterLimit,
    /// The kernel's log says that it was the node itself.
    Node,
    /// Neither the counters nor the log show it: the node, or an outer group such as the pod's.
    Open,
}

impl OomKills {
    /// Completed by the kernel's log, which knows it for certain. The counters of version 1 also
    /// rise when a cache fills the limit, and none shows the groups outside of a container.
    pub(crate) fn told(self, constraint: Option<OomConstraint>) -> OomKills {
        let place = match (constraint, self.place) {
            (Some(OomConstraint::Node), _) => OomPlace::Node,
            (Some(OomConstraint::Group), OomPlace::Open) => OomPlace::OuterLimit,
            (_, place) => place,
        };
        OomKills { place, ..self }
    }
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
    /// How often the group's own limit was hit; in version 1 only whether it grew means something.
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
        let place = hit.and_then(|(group, _)| group.limit(host)).unwrap_or(OomPlace::Open);
        Some(OomKills { processes, place })
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
            // Where the limit of memory and swap is the same, that one fails, and newer kernels
            // (seen with 6.18) count neither failure: then the peak is what reaches the limit.
            let failures = ["memory.failcnt", "memory.memsw.failcnt"].into_iter();
            let failures = failures.filter_map(|file| self.number(host, file)).sum::<u64>();
            failures + u64::from(self.limits(host).any(|(limit, peak)| is_at(limit, peak)))
        };
        Counters { kills: counter("oom_kill "), hits }
    }

    /// The limits, each with the peak of its use, that of memory first.
    fn limits(&self, host: &Host) -> impl Iterator<Item = (u64, Option<u64>)> {
        let files: &[_] = match self.unified {
            true => &[("memory.max", "memory.peak")],
            false => &[
                ("memory.limit_in_bytes", "memory.max_usage_in_bytes"),
                ("memory.memsw.limit_in_bytes", "memory.memsw.max_usage_in_bytes"),
            ],
        };
        files.iter().filter_map(|(limit, peak)| {
            let limit = self.number(host, limit).filter(|bytes| *bytes < NO_LIMIT)?;
            Some((limit, self.number(host, peak)))
        })
    }

    /// The limit that was reached; where no peak shows which, the first.
    fn limit(&self, host: &Host) -> Option<OomPlace> {
        let reached = self.limits(host).find(|(limit, peak)| is_at(*limit, *peak));
        let (limit, peak) = reached.or_else(|| self.limits(host).next())?;
        Some(OomPlace::Limit { limit, peak })
    }
}

/// Whether a use reached its limit. The charge that fails is not in the peak: up to eight pages
/// (PAGE_ALLOC_COSTLY_ORDER), of up to 64 KiB.
fn is_at(limit: u64, peak: Option<u64>) -> bool {
    const NEAR: u64 = 1 << 20;
    peak.is_some_and(|peak| peak.saturating_add(NEAR) > limit)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    /// Path and text.
    type Files = &'static [(&'static str, &'static str)];

    fn limit(processes: u64, limit: u64, peak: u64) -> OomKills {
        OomKills { processes, place: OomPlace::Limit { limit, peak: Some(peak) } }
    }

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
                Some(limit(2, 64 << 20, 67100672)),
            ),
            // The limit of the pod of this container.
            (
                &[
                    ("sys/fs/cgroup/pod/box/memory.events", "oom 1\noom_kill 2\n"),
                    ("sys/fs/cgroup/pod/memory.events", "oom 2\noom_kill 5\n"),
                ],
                Some(limit(1, 128 << 20, 128 << 20)),
            ),
            // Of the node or of an outer group, since none of ours was at its limit.
            (
                &[
                    ("sys/fs/cgroup/pod/box/memory.events", "oom 1\noom_kill 2\n"),
                    ("sys/fs/cgroup/pod/memory.events", "oom 1\noom_kill 5\n"),
                ],
                Some(OomKills { processes: 1, place: OomPlace::Open }),
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
        assert_eq!(after(&before, &then), Some(limit(1, 64 << 20, 64 << 20)));
    }

    /// One group of version 1: (peak before, peak after, what else changed) with a limit of 64 MiB of
    /// memory and of memory and swap.
    #[test]
    fn a_peak_at_the_limit_shows_it_in_version_1() {
        const TOP: &str = "sys/fs/cgroup/memory";
        let of = |before: u64, then: u64, memsw: u64, failures: &str| {
            let files = |kills: u32, peak: u64, failures: &str| {
                let limit = (64_u64 << 20).to_string();
                vec![
                    ("memory.oom_control", format!("under_oom 0\noom_kill {kills}\n")),
                    ("memory.failcnt", "0".to_owned()),
                    ("memory.limit_in_bytes", limit),
                    ("memory.max_usage_in_bytes", (peak << 20).to_string()),
                    ("memory.memsw.failcnt", failures.to_owned()),
                    ("memory.memsw.limit_in_bytes", (memsw << 20).to_string()),
                    ("memory.memsw.max_usage_in_bytes", (peak << 20).to_string()),
                ]
            };
            let root = tempfile::tempdir().expect("a folder");
            let put = |files: Vec<(&str, String)>| {
                for (name, text) in files {
                    write(root.path(), &[(&format!("{TOP}/{name}"), &text)]);
                }
            };
            write(root.path(), &[("proc/self/cgroup", "4:memory:/docker/abc\n0::/\n")]);
            put(files(0, before, "0"));
            let host = Host::replayed(root.path(), BTreeMap::new());
            let watch = OomWatch::begin(&host);
            put(files(1, then, failures));
            watch.kills(&host).map(|kills| kills.place)
        };
        let at_limit =
            |peak: u64| Some(OomPlace::Limit { limit: 64 << 20, peak: Some(peak << 20) });
        // As docker run --memory 64m --memory-swap 64m leaves it with Linux 6.18.
        assert_eq!(of(20, 64, 64, "0"), at_limit(64));
        // Older kernels count the failures of memory and swap.
        assert_eq!(of(20, 40, 64, "3"), at_limit(40));
        // The peak was there before: a cache filled it, or an earlier job.
        assert_eq!(of(64, 64, 128, "0"), Some(OomPlace::Open));
        assert_eq!(of(20, 40, 128, "0"), Some(OomPlace::Open));
    }

    #[test]
    fn the_log_of_the_kernel_decides_what_counters_leave_open() {
        let (at_limit, open) = (limit(1, 1, 1), OomKills { processes: 1, place: OomPlace::Open });
        let place = |kills: OomKills, said| kills.told(said).place;
        assert_eq!(place(at_limit, Some(OomConstraint::Node)), OomPlace::Node);
        assert_eq!(place(at_limit, Some(OomConstraint::Group)), at_limit.place);
        assert_eq!(place(open, Some(OomConstraint::Group)), OomPlace::OuterLimit);
        assert_eq!(place(open, None), OomPlace::Open);
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
