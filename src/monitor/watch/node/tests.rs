//! A copied node with faults, and the node of the test: limits of CPU time and memory in groups of
//! its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use harness::fake_nvml::FakeNvml;
use harness::skipped;
use serde_json::json;

use super::reason::{Reason, ReasonKind};
use super::{NodeReader, NodeReading, NodeSources, Parts};
use linux::host::Host;
use node::observe::Counters;
use node::probe::NvmlGpu;
use settings::ProbeMode;
use text::rank::GlobalRank;

const SOON: Duration = Duration::from_secs(30);

struct Copied(tempfile::TempDir, Instant);

impl Copied {
    fn new() -> Copied {
        let node = Copied(tempfile::tempdir().expect("a folder"), Instant::now());
        for (file, text) in [
            ("proc/7/stat", stat(7, 10)),
            ("proc/8/stat", stat(8, 10)),
            ("proc/7/schedstat", "100 1000000000 5\n".to_owned()),
            ("proc/8/schedstat", "100 1000000000 5\n".to_owned()),
            ("proc/7/cgroup", "0::/job/a\n".to_owned()),
            ("proc/8/cgroup", "0::/job/b\n".to_owned()),
            ("proc/pressure/memory", pressure(0, 0)),
            ("proc/pressure/io", pressure(0, 0)),
            ("sys/fs/cgroup/job/a/cpu.max", "50000 100000\n".to_owned()),
            ("sys/fs/cgroup/job/a/cpu.stat", throttled(0, 0)),
            ("sys/fs/cgroup/job/cpu.max", "max 100000\n".to_owned()),
            ("sys/fs/cgroup/job/memory.max", "1073741824\n".to_owned()),
            ("sys/fs/cgroup/job/memory.stat", "anon 5\npgmajfault 100\n".to_owned()),
            ("sys/fs/cgroup/job/memory.events", "low 0\nmax 7\noom_kill 0\n".to_owned()),
            ("proc/net/dev", interface(1000, 0, 0)),
            ("sys/class/net/eth0/operstate", "up\n".to_owned()),
            ("sys/class/net/eth0/carrier_down_count", "1\n".to_owned()),
            ("proc/net/snmp", tcp(1000, 5)),
            ("sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "1\n".to_owned()),
        ] {
            node.write(file, &text);
        }
        node
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }

    fn host(&self, more: &[(&str, &Path)]) -> Host {
        let more = more.iter().map(|(name, path)| ((*name).into(), path.as_os_str().to_owned()));
        Host::replayed(self.0.path(), more.collect())
    }

    /// A reading of the present files, `seconds` after the first one.
    fn reading(&self, host: &Host, seconds: u64) -> NodeReading {
        let ranks = [(GlobalRank(0), 7), (GlobalRank(1), 8)];
        let mut reading = reader(host).read(&ranks, Parts::All, SOON);
        assert_eq!(reading.late, [""; 0]);
        reading.at = self.1 + Duration::from_secs(seconds);
        reading
    }
}

fn reader(host: &Host) -> NodeReader {
    let ports = vec!["mlx5_0:1".to_owned()];
    NodeReader::new(NodeSources {
        host: Arc::new(host.clone()),
        hcas: Arc::new(move |host| Counters::read(host, &ports)),
        gpus: Arc::new(|host, timeout| NvmlGpu::now(host, ProbeMode::Auto, timeout)),
    })
}

fn stat(pid: i32, faults: u64) -> String {
    format!("{pid} (a) b) S 1 1 1 0 -1 4194560 500 0 {faults} 0 30 5 0 0 20 0 9 0 4711 1 1\n")
}

fn pressure(some: u64, full: u64) -> String {
    let row = |name, total| format!("{name} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
    row("some", some) + &row("full", full)
}

fn throttled(periods: u64, us: u64) -> String {
    format!("usage_usec 9\nnr_periods 100\nnr_throttled {periods}\nthrottled_usec {us}\n")
}

fn interface(packets: u64, errors: u64, dropped: u64) -> String {
    format!(
        "Inter-|   Receive  |  Transmit\n face |bytes |bytes\n    lo: 1 1 99 99 0 0 0 0 1 1 0 0 0 0 0 0\n  \
         eth0: 1 {packets} {errors} {dropped} 0 0 0 0 1 0 0 0 0 0 0 0\n"
    )
}

fn tcp(sent: u64, again: u64) -> String {
    format!("Ip: A\nIp: 1\nTcp: RtoMin OutSegs RetransSegs\nTcp: 200 {sent} {again}\n")
}

/// Kind, ranks and English text of all reasons, as another node reads them.
fn told(before: &NodeReading, now: &NodeReading) -> Vec<(ReasonKind, Vec<u32>, String)> {
    let change = now.since(before);
    let sent = serde_json::to_vec(change.reasons()).expect("JSON");
    let reasons: Vec<Reason> = serde_json::from_slice(&sent).expect("reasons");
    for (sent, read) in change.reasons().iter().zip(&reasons) {
        assert_eq!((sent.gpu, &sent.text), (read.gpu, &read.text));
    }
    reasons
        .iter()
        .map(|one| {
            (one.kind, one.ranks.iter().map(|rank| rank.0).collect(), one.text.en.to_string())
        })
        .collect()
}

#[test]
fn idle_node_has_no_reasons() {
    let node = Copied::new();
    let host = node.host(&[]);
    let (before, now) = (node.reading(&host, 0), node.reading(&host, 10));
    assert_eq!(told(&before, &now), []);
    assert_eq!(before.groups.len(), 2, "{:?}", before.groups);
}

#[test]
fn changed_counters_yield_reasons_for_the_affected_ranks() {
    use ReasonKind as Kind;
    let cases: &[(&str, String, Kind, &[u32], &str)] = &[
        (
            "sys/fs/cgroup/job/a/cpu.stat",
            throttled(80, 3_700_000),
            Kind::CpuThrottled,
            &[0],
            "the control group was throttled 37 % of the time by its CPU limit (cpu.max) of 0.50 CPUs",
        ),
        (
            // Four CPUs waited in parallel: the wait is limited to the length of the periods.
            "sys/fs/cgroup/job/a/cpu.stat",
            throttled(20, 30_000_000),
            Kind::CpuThrottled,
            &[0],
            "the control group was throttled 20 % of the time by its CPU limit (cpu.max) of 0.50 CPUs",
        ),
        (
            "proc/8/schedstat",
            "100 5300000000 5\n".to_owned(),
            Kind::CpuWait,
            &[1],
            "rank 1 was ready to run but had no CPU 43 % of the time",
        ),
        (
            "proc/8/stat",
            stat(8, 1210),
            Kind::MajorFaults,
            &[1],
            "rank 1 reads 120 memory pages per second back from disk",
        ),
        (
            "proc/pressure/memory",
            pressure(5_000_000, 4_000_000),
            Kind::MemoryPressure,
            &[],
            "memory pressure: some tasks of the node stood still 50 % of the time for want of memory, all of them 40 %",
        ),
        (
            "proc/pressure/io",
            pressure(9_000_000, 3_000_000),
            Kind::IoPressure,
            &[],
            "I/O pressure: all tasks of the node waited 30 % of the time for disks",
        ),
        ("sys/fs/cgroup/job/b/memory.pressure", pressure(0, 0), Kind::MemoryPressure, &[], ""),
        (
            "sys/fs/cgroup/job/memory.events",
            "low 0\nmax 9\noom_kill 1\n".to_owned(),
            Kind::OomKill,
            &[],
            "the kernel killed a process for want of memory (limit 1 GiB)",
        ),
        (
            "proc/net/dev",
            interface(1000, 20, 0),
            Kind::InterfaceErrors,
            &[],
            "interface eth0 had 20 packet errors",
        ),
        (
            "proc/net/dev",
            interface(51_000, 0, 500),
            Kind::InterfaceDrops,
            &[],
            "interface eth0 dropped 500 of 50000 packets",
        ),
        (
            "sys/class/net/eth0/operstate",
            "down\n".to_owned(),
            Kind::InterfaceDown,
            &[],
            "interface eth0 is down",
        ),
        (
            "sys/class/net/eth0/carrier_down_count",
            "3\n".to_owned(),
            Kind::LinkLost,
            &[],
            "interface eth0 lost its link 2 times",
        ),
        (
            "proc/net/snmp",
            tcp(6000, 305),
            Kind::TcpSentAgain,
            &[],
            "TCP sent 300 of 5000 segments again: packets are lost",
        ),
        (
            "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed",
            "3\n".to_owned(),
            Kind::HcaErrors,
            &[],
            "error counter link_downed of HCA mlx5_0:1 rose by 2",
        ),
    ];
    for (file, after, kind, ranks, text) in cases {
        let node = Copied::new();
        let host = node.host(&[]);
        let before = node.reading(&host, 0);
        node.write(file, after);
        let now = node.reading(&host, 10);
        let expected: &[(ReasonKind, Vec<u32>, String)] =
            if text.is_empty() { &[] } else { &[(*kind, ranks.to_vec(), (*text).to_owned())] };
        assert_eq!(told(&before, &now), expected, "{file}");
    }
}

#[test]
fn memory_limit_counts_only_with_major_page_faults() {
    let node = Copied::new();
    let host = node.host(&[]);
    let before = node.reading(&host, 0);
    node.write("sys/fs/cgroup/job/memory.events", "low 0\nmax 9000\noom_kill 0\n");
    let cached = node.reading(&host, 10);
    assert_eq!(told(&before, &cached), [], "a full page cache");
    node.write("sys/fs/cgroup/job/memory.stat", "pgmajfault 3100\n");
    let thrashing = node.reading(&host, 10);
    let expected = "the control group is at its memory limit of 1 GiB and reads 300 pages per second back from disk";
    assert_eq!(told(&before, &thrashing), [(ReasonKind::MemoryLimit, vec![], expected.to_owned())]);
}

#[test]
fn reused_rank_pid_yields_no_reasons() {
    let node = Copied::new();
    let host = node.host(&[]);
    let before = node.reading(&host, 0);
    node.write("proc/8/stat", &stat(8, 9000).replace(" 4711 ", " 4712 "));
    assert_eq!(told(&before, &node.reading(&host, 10)), []);
}

#[test]
fn malformed_files_yield_a_reading_without_reasons() {
    for text in
        ["", "\n", "some total=x\nfull\n", "Tcp: a\nTcp:\n", "a:\n:\neth0: 1 2", "1 (x", "max"]
    {
        let node = Copied::new();
        let host = node.host(&[]);
        let before = node.reading(&host, 0);
        for file in [
            "proc/7/stat",
            "proc/7/schedstat",
            "proc/7/cgroup",
            "proc/pressure/memory",
            "sys/fs/cgroup/job/a/cpu.max",
            "sys/fs/cgroup/job/memory.stat",
            "proc/net/dev",
            "proc/net/snmp",
        ] {
            node.write(file, text);
        }
        assert_eq!(told(&before, &node.reading(&host, 10)), [], "{text:?}");
    }
}

#[test]
fn unhealthy_gpu_yields_a_reason() {
    let nvml = FakeNvml::new(&[("GPUS", "2"), ("BAD", "1")]);
    let node = Copied::new();
    let library = nvml.library();
    let host = node.host(&[("RANKLAUNCH_NVML_LIBRARY", &library)]);
    let before = node.reading(&host, 0);
    assert_eq!(before.gpus.len(), 2);
    assert_eq!(told(&before, &node.reading(&host, 10)), []);
    for (settings, kind, text) in [
        (
            ("MODE", "throttle"),
            ReasonKind::GpuClocks,
            "GPU 1 runs at 510 of 1980 MHz (hardware slowdown, too hot, slowed down by the hardware, 34 °C)",
        ),
        (("MODE", "ecc"), ReasonKind::GpuEcc, "GPU 1 has 2 new uncorrected memory errors"),
        (("MODE", "nvlink-down"), ReasonKind::GpuNvlinkDown, "1 NVLinks of GPU 1 went down"),
        (("REPLAYS", "900"), ReasonKind::GpuPcie, "GPU 1 sent 900 PCIe packets again"),
    ] {
        nvml.play(&[("GPUS", "2"), ("BAD", "1"), settings]);
        let now = node.reading(&host, 10);
        let found = told(&before, &now);
        let is = |(of, _, said): &&(_, _, String)| *of == kind && said == text;
        assert!(found.iter().any(|one| is(&one)), "{found:?}");
        assert_eq!(now.since(&before).reasons()[0].gpu, Some(1));
    }
}

#[test]
fn driver_lacking_calls_yields_no_reasons() {
    let node = Copied::new();
    for nvml in [
        FakeNvml::new(&[("MODE", "not-supported")]),
        FakeNvml::new(&[("MODE", "no-permission")]),
        FakeNvml::of_old_driver(&[]),
        FakeNvml::damaged(),
    ] {
        let library = nvml.library();
        let host = node.host(&[("RANKLAUNCH_NVML_LIBRARY", &library)]);
        assert_eq!(told(&node.reading(&host, 0), &node.reading(&host, 10)), []);
    }
}

#[test]
fn foreign_process_on_a_rank_gpu_is_named() {
    let nvml = FakeNvml::new(&[]);
    let library = nvml.library();
    let node = Copied::new();
    let host = node.host(&[("RANKLAUNCH_NVML_LIBRARY", &library)]);
    node.write("proc/1/stat", "1 (init) S 0 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0\n");
    node.write("proc/99/stat", "99 (x) S 1 99 99 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0\n");
    node.write("proc/70/stat", "70 (w) S 7 99 99 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0\n");
    // A child of rank 0; a stranger alone; a pid of another namespace.
    for pid in ["70", "99", "12345"] {
        nvml.play(&[("PIDS", pid)]);
        let reading = node.reading(&host, 0);
        assert_eq!(told(&reading, &node.reading(&host, 10)), [], "{pid}");
    }
    let mut shared = node.reading(&host, 10);
    shared.gpus[0].ranks = vec![GlobalRank(0)];
    shared.gpus[0].strangers = vec![99];
    let expected = "another process uses GPU 0 (pid 99)".to_owned();
    assert_eq!(told(&shared, &shared), [(ReasonKind::GpuShared, vec![0], expected)]);
}

#[test]
fn hung_part_is_reported_late_and_asked_once() {
    let (stop, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(std::sync::Mutex::new(wait));
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let reader = NodeReader::new(NodeSources {
        host: Arc::new(Host::live()),
        hcas: Arc::new(|_| Counters::default()),
        gpus: Arc::new(move |_, _| {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let _ = wait.lock().expect("one").recv();
            Vec::new()
        }),
    });
    let own = [(GlobalRank(0), i32::try_from(std::process::id()).expect("a pid"))];
    for _ in 0..3 {
        let began = Instant::now();
        let reading = reader.read(&own, Parts::All, Duration::from_millis(200));
        assert!(began.elapsed() < SOON);
        assert_eq!((reading.late, reading.ranks.len()), (vec!["gpus"], 1));
    }
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 1);
    drop(stop);
}

#[test]
fn reading_and_change_serialize_as_evidence() {
    let node = Copied::new();
    let host = node.host(&[]);
    let before = node.reading(&host, 0);
    node.write("sys/fs/cgroup/job/a/cpu.stat", &throttled(80, 3_700_000));
    let now = node.reading(&host, 10);
    let reading = serde_json::to_value(&now).expect("JSON");
    assert_eq!(reading["groups"]["/sys/fs/cgroup/job/a"]["cpu"]["throttled"], json!(80));
    let change = serde_json::to_value(now.since(&before)).expect("JSON");
    assert_eq!(change["reasons"][0]["kind"], json!("cpu_throttled"));
    assert_eq!(change["reasons"][0]["ranks"], json!([0]));
    let of = |rank| now.since(&before).reasons_for(GlobalRank(rank)).len();
    assert_eq!((of(0), of(1)), (1, 0));
    assert!(change["reasons"][0]["text"]["zh"].as_str().is_some_and(|zh| zh.contains("限流")));
}

/// A control group of the test; removed with its processes.
struct Group {
    folder: PathBuf,
    child: Option<Child>,
}

impl Group {
    /// A group with a controller; None if the test may not create one.
    fn new(controller: &str, limits: [(&str, &str); 2]) -> Option<Group> {
        let name = format!("ranklaunch-{controller}-{}", std::process::id());
        for (top, (file, value)) in
            [format!("/sys/fs/cgroup/{controller}"), "/sys/fs/cgroup".to_owned()].iter().zip(limits)
        {
            let folder = Path::new(top).join(&name);
            let _ = std::fs::remove_dir(&folder);
            if std::fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Group { folder, child: None };
            if std::fs::write(group.folder.join(file), value).is_ok() {
                return Some(group);
            }
        }
        skipped(format!("no control group of {controller} can be made"));
        None
    }

    /// Runs a shell command in the group.
    fn run(&mut self, command: &str) -> i32 {
        let procs = self.folder.join("cgroup.procs").display().to_string();
        let child = Command::new("sh")
            .args(["-c", &format!("echo $$ >{procs} && {command}")])
            .stdout(Stdio::null())
            .spawn()
            .expect("a shell");
        let pid = i32::try_from(child.id()).expect("a pid");
        self.child = Some(child);
        let name = self.folder.file_name().expect("a name").to_string_lossy().into_owned();
        let until = Instant::now() + SOON;
        let groups = || std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        while !groups().contains(&name) {
            assert!(Instant::now() < until, "{}", groups());
            std::thread::sleep(Duration::from_millis(10));
        }
        pid
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let until = Instant::now() + SOON;
        while std::fs::remove_dir(&self.folder).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Reads again until a reason of this kind appears.
fn found(pid: i32, kind: ReasonKind) -> Option<(String, f64)> {
    let reader = reader(&Host::live());
    let ranks = [(GlobalRank(3), pid)];
    let before = reader.read(&ranks, Parts::Kernel, SOON);
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(600));
        let change = reader.read(&ranks, Parts::Kernel, SOON).since(&before);
        if let Some(reason) = change.reasons().iter().find(|reason| reason.kind == kind) {
            return Some((reason.text.en.to_string(), reason.value));
        }
    }
    None
}

#[test]
fn cpu_throttling_is_detected_in_a_real_cgroup() {
    let limits = [("cpu.cfs_quota_us", "20000"), ("cpu.max", "20000 100000")];
    let Some(mut group) = Group::new("cpu", limits) else { return };
    let pid = group.run("while :; do :; done");
    let (text, share) = found(pid, ReasonKind::CpuThrottled).expect("a reason");
    assert!(text.contains("(cpu.max) of 0.20 CPUs"), "{text}");
    assert!((0.05..=1.0).contains(&share), "{share}");
}

#[test]
fn memory_limit_is_detected_in_a_real_cgroup() {
    let limit = (24 << 20).to_string();
    let limits = [("memory.limit_in_bytes", limit.as_str()), ("memory.max", limit.as_str())];
    let Some(mut group) = Group::new("memory", limits) else { return };
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).expect("a file");
    file.as_file().set_len(96 << 20).expect("a size");
    let path = file.path().display();
    let fill = Command::new("dd")
        .args(["if=/dev/urandom", "bs=1M", "count=96", "conv=notrunc,fsync"])
        .arg(format!("of={path}"))
        .output()
        .expect("dd");
    assert!(fill.status.success());
    // A program whose mapped file has no room is read again page by page.
    let program = format!(
        "exec python3 -c \"import mmap,os,random
with open('{path}','rb') as f:
    os.posix_fadvise(f.fileno(),0,0,os.POSIX_FADV_DONTNEED)
    m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ)
m.madvise(mmap.MADV_RANDOM)
while 1: m[random.randrange(len(m))]\""
    );
    let pid = group.run(&program);
    let (text, faults) = found(pid, ReasonKind::MajorFaults).expect("a reason");
    assert!(text.starts_with("rank 3 reads ") && faults >= 50.0, "{text}");
    let (text, _) = found(pid, ReasonKind::MemoryLimit).expect("a reason");
    assert!(text.contains("memory limit of 24 MiB"), "{text}");
}

#[test]
fn sleeping_rank_has_no_reasons_of_its_own() {
    let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
    let pid = i32::try_from(child.id()).expect("a pid");
    let reader = reader(&Host::live());
    let ranks = [(GlobalRank(0), pid), (GlobalRank(1), pid)];
    let before = reader.read(&ranks, Parts::Kernel, SOON);
    std::thread::sleep(Duration::from_secs(1));
    let change = reader.read(&ranks, Parts::Kernel, SOON).since(&before);
    let _ = child.kill();
    let _ = child.wait();
    let own: Vec<_> = change.reasons().iter().filter(|one| !one.ranks.is_empty()).collect();
    assert!(own.is_empty(), "{own:?}");
}
