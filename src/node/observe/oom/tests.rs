//! Tests with readings of control groups before and after kills, and with the victims that they show.

use std::collections::BTreeMap;
use std::path::Path;

use tempfile::TempDir;

use super::*;

/// Path and text of each file.
type Files = &'static [(&'static str, &'static str)];

fn limit(processes: u64, limit: u64, peak: Option<u64>) -> OomKills {
    OomKills { processes, place: OomPlace::Limit { limit, peak } }
}

fn open(processes: u64) -> OomKills {
    OomKills { processes, place: OomPlace::Open }
}

fn write(root: &Path, files: &[(impl AsRef<Path>, impl AsRef<[u8]>)]) {
    for (file, text) in files {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
}

fn node(files: &[(&str, &str)]) -> (TempDir, Host) {
    let root = tempfile::tempdir().expect("a folder");
    write(root.path(), files);
    let host = Host::replayed(root.path(), BTreeMap::new());
    (root, host)
}

fn kills(watch: &OomWatch, host: &Host) -> Option<OomKills> {
    watch.account(host, LoggedKills::default()).kills(None)
}

fn after(before: &[(&str, &str)], then: &[(&str, &str)]) -> Option<OomKills> {
    let (root, host) = node(before);
    let watch = OomWatch::begin(&host);
    assert!(watch.account(&host, LoggedKills::default()).counts);
    assert_eq!(kills(&watch, &host), None, "nothing has happened yet");
    write(root.path(), then);
    kills(&watch, &host)
}

const UNIFIED: Files = &[
    ("proc/self/cgroup", "0::/pod/box\n"),
    ("sys/fs/cgroup/pod/box/memory.events", "low 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n"),
    ("sys/fs/cgroup/pod/box/memory.max", "67108864\n"),
    ("sys/fs/cgroup/pod/box/memory.peak", "67100672\n"),
    ("sys/fs/cgroup/pod/memory.events", "oom 1\noom_kill 4\n"),
    ("sys/fs/cgroup/pod/memory.max", "134217728\n"),
    ("sys/fs/cgroup/pod/memory.peak", "134217728\n"),
];

#[test]
fn kill_names_the_limit_that_was_hit() {
    let rows: [(Files, Option<OomKills>); 6] = [
        (
            &[
                ("sys/fs/cgroup/pod/box/memory.events", "oom 2\noom_kill 3\n"),
                ("sys/fs/cgroup/pod/memory.events", "oom 2\noom_kill 6\n"),
            ],
            Some(limit(2, 64 << 20, Some(67100672))),
        ),
        // The limit of this container's pod was hit.
        (
            &[
                ("sys/fs/cgroup/pod/box/memory.events", "oom 1\noom_kill 2\n"),
                ("sys/fs/cgroup/pod/memory.events", "oom 2\noom_kill 5\n"),
            ],
            Some(limit(1, 128 << 20, Some(128 << 20))),
        ),
        // The node or an outer group ran out of memory, since none of our groups was at its limit.
        (
            &[
                ("sys/fs/cgroup/pod/box/memory.events", "oom 1\noom_kill 2\n"),
                ("sys/fs/cgroup/pod/memory.events", "oom 1\noom_kill 5\n"),
            ],
            Some(open(1)),
        ),
        // A container beside ours reached its own limit as well; the pod is far from its limit.
        (
            &[
                ("sys/fs/cgroup/pod/box/memory.events", "oom 1\noom_kill 2\n"),
                ("sys/fs/cgroup/pod/memory.events", "oom 2\noom_kill 6\n"),
                ("sys/fs/cgroup/pod/memory.max", "500000000000\n"),
            ],
            Some(open(1)),
        ),
        // Only a container beside ours lost processes.
        (&[("sys/fs/cgroup/pod/memory.events", "oom 2\noom_kill 5\n")], None),
        // The group is at its limit, but enough memory could be reclaimed.
        (&[("sys/fs/cgroup/pod/box/memory.events", "oom 9\noom_kill 1\n")], None),
    ];
    for (then, expected) in rows {
        assert_eq!(after(UNIFIED, then), expected, "{then:?}");
    }
}

/// A group of version 2.
#[derive(Default)]
struct Modelled {
    limit: Option<u64>,
    peak: u64,
    oom: [u64; 2],
    kills: u64,
}

/// The groups of a node: the slice; in the slice our group and a group beside it; inside our group another one.
const SLICE: usize = 0;
const OURS: usize = 1;
const BESIDE: usize = 2;
const INSIDE: usize = 3;
const PATHS: [&str; 4] = ["s", "s/ours", "s/beside", "s/ours/in"];
const AROUND: [&[usize]; 4] = [&[SLICE], &[OURS, SLICE], &[BESIDE, SLICE], &[INSIDE, OURS, SLICE]];

impl Modelled {
    fn files(&self, path: &str, has_local: bool) -> Vec<(String, String)> {
        let at = |file: &str| format!("sys/fs/cgroup/{path}/{file}");
        let [oom, local] = self.oom;
        let kills = self.kills;
        let events = format!("low 0\nhigh 0\nmax 0\noom {oom}\noom_kill {kills}\n");
        let limit = self.limit.map_or("max\n".to_owned(), |limit| format!("{limit}\n"));
        let mut files = vec![
            (at("memory.events"), events),
            (at("memory.max"), limit),
            (at("memory.peak"), format!("{}\n", self.peak)),
        ];
        if has_local {
            files.push((at("memory.events.local"), format!("oom {local}\noom_kill 0\n")));
        }
        files
    }
}

/// All orders of up to two kills: (group of the victim, group whose limit was reached; None: the node). The kernel
/// counts both in the group itself and in each group around it (memcg_memory_event).
#[test]
fn only_own_kills_and_reached_limits_count() {
    const EVENTS: [(usize, Option<usize>); 9] = [
        (OURS, Some(OURS)),
        (OURS, Some(SLICE)),
        (OURS, None),
        (INSIDE, Some(INSIDE)),
        (INSIDE, None),
        (BESIDE, Some(BESIDE)),
        (BESIDE, Some(SLICE)),
        (BESIDE, None),
        (INSIDE, Some(OURS)),
    ];
    let is_ours = |victim: usize| AROUND[victim].contains(&OURS);
    for first in EVENTS {
        for second in EVENTS.map(Some).into_iter().chain([None]) {
            for has_local in [true, false] {
                let limits = [900 << 20, 100 << 20, 300 << 20, 50 << 20];
                let mut groups = limits.map(|limit| Modelled {
                    limit: Some(limit),
                    peak: limit / 2,
                    ..Modelled::default()
                });
                let (root, host) = node(&[("proc/self/cgroup", "0::/s/ours\n")]);
                let put = |groups: &[Modelled]| {
                    for (group, path) in groups.iter().zip(PATHS) {
                        write(root.path(), &group.files(path, has_local));
                    }
                };
                put(&groups);
                let watch = OomWatch::begin(&host);
                let events = [Some(first), second];
                for (victim, limited) in events.into_iter().flatten() {
                    AROUND[victim].iter().for_each(|group| groups[*group].kills += 1);
                    let Some(limited) = limited else { continue };
                    groups[limited].peak = limits[limited];
                    groups[limited].oom[1] += 1;
                    AROUND[limited].iter().for_each(|group| groups[*group].oom[0] += 1);
                }
                put(&groups);
                let row = format!("{first:?} {second:?} {has_local}");
                let ours = || events.into_iter().flatten().filter(|(victim, _)| is_ours(*victim));
                let found = kills(&watch, &host);
                let processes = u64::try_from(ours().count()).expect("few");
                assert_eq!(found.map_or(0, |kills| kills.processes), processes, "{row}");
                let Some(OomKills { place, .. }) = found else { continue };
                if let OomPlace::Limit { limit, peak } = place {
                    assert!(peak.is_none_or(|peak| peak + (1 << 20) > limit), "{row}: {place:?}");
                }
                // The place of a single kill of ours is certain if each group's own limit hits are counted.
                let (mut of_ours, known) = (ours(), second.is_none() && has_local);
                if let (true, Some((_, limited))) = (known, of_ours.next()) {
                    let expected = match limited {
                        Some(INSIDE) => OomPlace::InnerLimit,
                        Some(group) => {
                            OomPlace::Limit { limit: limits[group], peak: Some(limits[group]) }
                        }
                        None => OomPlace::Open,
                    };
                    assert_eq!(place, expected, "{row}");
                }
            }
        }
    }
}

#[test]
fn cgroup_v1_kill_names_the_limit() {
    let before = [
        ("proc/self/cgroup", "4:memory:/docker/abc\n0::/\n"),
        // Below the container's mount, the top folder is the container's own group.
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
    assert_eq!(after(&before, &then), Some(limit(1, 64 << 20, Some(64 << 20))));
}

/// One group of version 1 with this peak (MiB), a memory limit of 64 MiB, a limit `memsw` (MiB) of memory and swap, and
/// these failures.
fn first_version(kills: u32, peak: u64, memsw: u64, failures: &str) -> Vec<(String, String)> {
    let limit = (64_u64 << 20).to_string();
    [
        ("memory.oom_control", format!("under_oom 0\noom_kill {kills}\n")),
        ("memory.failcnt", "0".to_owned()),
        ("memory.limit_in_bytes", limit),
        ("memory.max_usage_in_bytes", (peak << 20).to_string()),
        ("memory.memsw.failcnt", failures.to_owned()),
        ("memory.memsw.limit_in_bytes", (memsw << 20).to_string()),
        ("memory.memsw.max_usage_in_bytes", (peak << 20).to_string()),
    ]
    .map(|(name, text)| (format!("sys/fs/cgroup/memory/{name}"), text))
    .into()
}

const FIRST_VERSION: Files = &[("proc/self/cgroup", "4:memory:/docker/abc\n0::/\n")];

#[test]
fn cgroup_v1_peak_shows_the_reached_limit() {
    let of = |before: u64, then: u64, memsw: u64, failures: &str| {
        let (root, host) = node(FIRST_VERSION);
        write(root.path(), &first_version(0, before, memsw, "0"));
        let watch = OomWatch::begin(&host);
        write(root.path(), &first_version(1, then, memsw, failures));
        kills(&watch, &host)
    };
    let at_limit = Some(limit(1, 64 << 20, Some(64 << 20)));
    // Linux 6.18 leaves these values after docker run --memory 64m --memory-swap 64m.
    assert_eq!(of(20, 64, 64, "0"), at_limit);
    // Older kernels count the failures of memory and swap. A peak that does not show the limit is not reported.
    assert_eq!(of(20, 40, 64, "3"), Some(limit(1, 64 << 20, None)));
    // The peak was there before: from an earlier job, an earlier attempt, or a cache.
    assert_eq!(of(64, 64, 64, "0"), at_limit);
    assert_eq!(of(64, 64, 128, "0"), at_limit);
    assert_eq!(of(20, 40, 128, "0"), Some(open(1)));
}

/// (evidence of the counters, line of the log, resulting report)
#[test]
fn kernel_log_decides_if_counters_are_ambiguous() {
    let line = |limited: &str| {
        format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={limited},task_memcg=/docker/abc,task=perl,pid=7,uid=0"
        )
    };
    let node_line = "oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/docker/abc,task=perl,pid=7,uid=0";
    let by_limit = |peak| OomPlace::Limit { limit: 64 << 20, peak };
    for (peak, logged, place) in [
        (64, None, by_limit(Some(64 << 20))),
        (64, Some(node_line.to_owned()), OomPlace::Node),
        (64, Some(line("/docker")), OomPlace::OuterLimit),
        (40, None, OomPlace::Open),
        (40, Some(node_line.to_owned()), OomPlace::Node),
        (40, Some(line("/docker/abc")), by_limit(None)),
        (40, Some(line("/docker/abc/in")), OomPlace::InnerLimit),
        (40, Some(line("/docker")), OomPlace::OuterLimit),
        (40, Some(line("/elsewhere")), OomPlace::OuterLimit),
    ] {
        for pids_are_ours in [true, false] {
            let (root, host) = node(FIRST_VERSION);
            write(root.path(), &first_version(0, peak, 128, "0"));
            let watch = OomWatch::begin(&host);
            write(root.path(), &first_version(1, peak, 128, "0"));
            let mut said = LoggedKills::new(pids_are_ours);
            logged.iter().for_each(|line| said.read(line, &["/docker/abc".to_owned()]));
            let found = watch.account(&host, said).kills(Some(7)).map(|kills| kills.place);
            assert_eq!(found, Some(place), "{peak} {logged:?}");
        }
    }
}

#[test]
fn kills_after_the_first_failure_are_ignored() {
    let (root, host) = node(UNIFIED);
    let watch = OomWatch::begin(&host);
    watch.note(&host);
    write(root.path(), &[("sys/fs/cgroup/pod/box/memory.events", "oom 2\noom_kill 2\n")]);
    watch.note(&host);
    assert_eq!(kills(&watch, &host), None);
}

/// A process in the form of /proc: pending signals, state and flags.
fn process(root: &Path, pid: i32, pending: u64, state: char, flags: u32) {
    let status = format!("Name:\tpython3\nSigPnd:\t{pending:016x}\nShdPnd:\t{:016x}\n", 0);
    let fields = "0 -1 0 0 0 0 0 0 0 0 20 0 1 0 500 0 0";
    let fields = fields.replacen("-1", &format!("-1 {flags}"), 1);
    let stat = format!("{pid} (python3) {state} 1 1 1 {fields}\n");
    write(root, &[(format!("proc/{pid}/status"), status), (format!("proc/{pid}/stat"), stat)]);
}

fn counted(root: &Path, kills: u32) {
    let events = format!("oom {kills}\noom_kill {kills}\n");
    write(root, &[("sys/fs/cgroup/pod/box/memory.events", events)]);
}

const RANK: i32 = 50;
const ENGINE: i32 = 40;

fn who_was_killed(account: &OomAccount) -> Vec<Suspect> {
    let all = [Suspect::Process(Some(RANK)), Suspect::ShimOf(Some(RANK)), Suspect::Engine];
    all.into_iter().filter(|suspect| account.was_killed(*suspect)).collect()
}

/// States of the rank after the kernel has killed a process, and whether the rank was the victim.
#[test]
fn process_running_after_a_kill_survived_it() {
    const KILL: u64 = 1 << 8;
    for (pending, state, flags, lives) in [
        (0, 'S', 0x0040_0000, true),
        (0, 'R', 0x0040_0100, true),
        (1 << 14, 'T', 0, true),
        (KILL, 'D', 0x0040_0000, false),
        (0, 'R', 0x0040_0404, false),
        (0, 'R', 0x0040_0004, false),
        (0, 'Z', 0x0040_0000, false),
    ] {
        let (root, host) = node(UNIFIED);
        let watch = OomWatch::begin(&host);
        process(root.path(), ENGINE, 0, 'S', 0);
        process(root.path(), RANK, 0, 'S', 0);
        watch.began_engine(ENGINE);
        watch.began(RANK);
        assert_eq!(watch.look(&host), Some(Look { outlived: 1, next: PACE }));
        counted(root.path(), 2);
        process(root.path(), RANK, pending, state, flags);
        // The look that finds the kill may be faster than the signal.
        assert_eq!(watch.look(&host), Some(Look { outlived: 1, next: SOON }));
        let rank_too = who_was_killed(&watch.account(&host, LoggedKills::default()));
        assert_eq!(rank_too.len(), 3, "nobody is known to have outlived it");
        assert_eq!(watch.look(&host), Some(Look { outlived: 2, next: PACE }));
        watch.note(&host);
        let account = watch.account(&host, LoggedKills::default());
        let rank = [Suspect::Process(Some(RANK)), Suspect::ShimOf(Some(RANK))];
        let killed: &[Suspect] = if lives { &[] } else { &rank };
        assert_eq!(who_was_killed(&account), killed, "{pending:x} {state} {flags:x}");
        assert!(account.since_last().is_some());
        assert!(account.is_outlived_by(2) && !account.is_outlived_by(1));
    }
}

#[test]
fn kill_after_the_last_look_suspects_everyone() {
    let (root, host) = node(UNIFIED);
    let watch = OomWatch::begin(&host);
    process(root.path(), RANK, 0, 'S', 0);
    watch.began(RANK);
    counted(root.path(), 2);
    assert_eq!((watch.look(&host), watch.look(&host)).1.map(|look| look.outlived), Some(2));
    counted(root.path(), 3);
    watch.note(&host);
    // A new process has the pid of the rank.
    assert_eq!((watch.look(&host), watch.look(&host)).1.map(|look| look.outlived), Some(3));
    let account = watch.account(&host, LoggedKills::default());
    assert!(account.was_killed(Suspect::Process(Some(RANK))));
    assert!(account.was_killed(Suspect::Process(None)));
    assert_eq!(account.since_last(), None);
    // A rank that starts later was not a possible victim.
    watch.began(RANK);
    let account = watch.account(&host, LoggedKills::default());
    assert!(!account.was_killed(Suspect::Process(Some(RANK))));
}

/// The log reports even kills since the last look; it does not know the pid of a shim.
#[test]
fn pid_in_the_log_outweighs_the_time() {
    let line = |pid: i32| {
        format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/pod/box,task_memcg=/pod/box,task=perl,pid={pid},uid=0"
        )
    };
    for (pids, killed) in [(&[71][..], false), (&[RANK], true), (&[71, RANK], true), (&[], true)] {
        let (root, host) = node(UNIFIED);
        let watch = OomWatch::begin(&host);
        watch.began(RANK);
        counted(root.path(), 1 + u32::try_from(pids.len().max(1)).expect("few"));
        watch.note(&host);
        let mut logged = LoggedKills::new(true);
        pids.iter().for_each(|pid| logged.read(&line(*pid), &["/pod/box".to_owned()]));
        let account = watch.account(&host, logged);
        assert_eq!(account.was_killed(Suspect::Process(Some(RANK))), killed, "{pids:?}");
        assert!(account.was_killed(Suspect::ShimOf(Some(RANK))));
    }
}

#[test]
fn nobody_was_killed_without_a_counter() {
    let (_root, host) = node(&[("proc/self/cgroup", "0::/\n")]);
    let watch = OomWatch::begin(&host);
    assert_eq!(watch.look(&host), None);
    let account = watch.account(&host, LoggedKills::default());
    assert!(!account.counts && who_was_killed(&account).is_empty());
    assert_eq!(account.kills(None), None);
}

/// A rank has left our group: (kills there before and after, kills around both, resulting report).
#[test]
fn kills_in_an_entered_group_count_for_rank() {
    const EVENTS: &str = "sys/fs/cgroup/pod/sub/memory.events";
    for (entered, inside, around, killed) in [
        ("/pod/sub", 1, 1, true),
        ("/pod/sub", 0, 1, false),
        // All kills happened before our job.
        ("/pod/sub", 3, 0, false),
        ("/pod/box/in", 1, 1, false),
        ("/other", 1, 1, false),
        ("/../../other", 1, 1, false),
        ("/pod/gone (deleted)", 1, 1, false),
    ] {
        let (root, host) = node(UNIFIED);
        let watch = OomWatch::begin(&host);
        watch.began(RANK);
        let slice = 4 + around;
        write(
            root.path(),
            &[
                (EVENTS, format!("oom {inside}\noom_kill {inside}\n")),
                ("sys/fs/cgroup/pod/sub/memory.max", "33554432\n".to_owned()),
                ("sys/fs/cgroup/pod/memory.events", format!("oom 1\noom_kill {slice}\n")),
            ],
        );
        watch.killed_in(RANK, entered);
        watch.note(&host);
        let account = watch.account(&host, LoggedKills::default());
        let found = (account.kills(Some(RANK)), account.was_killed(Suspect::Process(Some(RANK))));
        assert_eq!(found, (killed.then_some(limit(1, 32 << 20, None)), killed), "{entered}");
        assert_eq!(account.kills(None), None, "no other is meant");
    }
}
