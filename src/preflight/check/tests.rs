//! One row per finding: the state of the node, and the result of the check.

use std::net::SocketAddr;

use super::*;
use crate::prepare::WriteProblem;
use linux::cpus::CpuList;
use linux::host::Host;
use node::observe::gpu::FabricState;
use node::observe::{
    ClockState, Compat, Folder, Hami, Leftover, MasterRoute, NonForwardingInit, TimedOut,
    UsedFolder,
};
use plan::fixtures::{facts, flag, rail, settings};
use plan::{Scope, survey};
use settings::Settings;
use settings::contract::Contract;
use settings::{Need, Nproc};
use text::lang::bytes;
use verdict::{Family, Id};

/// A node, its settings and the results of trials, to be changed by a test.
struct Node {
    settings: Settings,
    facts: Facts,
    tried: Tried,
}

impl Node {
    fn new(gpus: u32) -> Node {
        let mut facts = facts(gpus);
        facts.limits.shm_total = Some(256 << 30);
        facts.limits.memory_total = Some(1 << 40);
        Node { settings: settings(&[]), facts, tried: Tried::default() }
    }

    fn two_nodes(mut self, rank: u32) -> Node {
        self.settings.nnodes = Some(flag(2, "--nnodes"));
        self.settings.node_rank = Some(flag(rank, "--node-rank"));
        self.settings.master_addr = Some(flag("10.0.0.1".to_owned(), "--master-addr"));
        self.settings.master_port = Some(flag(29500, "--master-port"));
        self
    }

    fn severity(mut self, id: Id, severity: Severity) -> Node {
        self.settings.severities.insert(id, flag(severity, "--severity"));
        self
    }

    fn checks(&self) -> Vec<Check> {
        let survey = survey(&self.settings, &self.facts, Scope::Alone);
        examine(&CheckInput {
            settings: &self.settings,
            facts: &self.facts,
            survey: &survey,
            tried: &self.tried,
        })
    }

    /// The worst result of the check, and its English text.
    fn of(&self, id: Id) -> Option<(CheckStatus, String)> {
        let checks = self.checks();
        let worst = checks.iter().filter(|check| check.id == id).min_by_key(|c| c.severity)?;
        Some((worst.severity, worst.text.en.clone().into_owned()))
    }
}

/// The only process of an mpirun.
fn one_of_mpirun() -> Contract {
    let pairs = [
        ("OMPI_COMM_WORLD_SIZE", "1"),
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ];
    let environment = pairs.map(|(name, value)| (name.into(), value.into())).into();
    Contract::read(&Host::replayed("/nonexistent", environment), None, None)
}

fn warning(id: Id) -> Warning {
    Warning::new(id, Text::same(format!("{id} happened")), Text::same("do this"))
}

fn folder(free: u64, total: u64) -> Folder {
    let (path, inodes, inodes_free) = ("/logs".into(), 1000, 900);
    Folder { path, device: Some(1), total, free, inodes, inodes_free, problem: None }
}

/// The error of user 1000, who could write no file in the log folder.
fn unwritten(errno: i32) -> WriteProblem {
    let error = std::io::Error::from_raw_os_error(errno);
    WriteProblem { user: 1000, ..WriteProblem::of(std::path::Path::new("/logs"), &error) }
}

#[test]
fn healthy_node_passes_all_checks() {
    let checks = Node::new(8).checks();
    for check in &checks {
        assert!(check.severity >= CheckStatus::Info, "{check:?}");
        assert!(!check.text.zh.is_empty() && !check.text.en.is_empty(), "{check:?}");
    }
    assert_eq!(refusal(&checks), None);
    let known: Vec<Id> = checks.iter().map(|check| check.id).collect();
    for id in Id::checks() {
        // The all-reduce needs `--torch`, the spares need `--spares`, the checks of other nodes need other nodes.
        let asked = [Id::TorchAllreduce, Id::MembershipSpares].contains(&id);
        let alone = !asked && id.family() != Family::Muster;
        assert_eq!(known.contains(&id), alone, "{id}");
    }
}

/// The nodes that the platform starts, beside `--nnodes 2` and its spares.
#[test]
fn started_nodes_are_compared_with_seats_and_spares() {
    for (spares, started) in (0..3_u32).flat_map(|spares| (2..6_u32).map(move |n| (spares, n))) {
        let mut node = Node::new(8).two_nodes(1);
        node.settings.spares = flag(spares, "--spares");
        let pairs = [("PET_NNODES", started.to_string()), ("PET_NODE_RANK", "1".to_owned())];
        let environment = pairs.map(|(name, value)| (name.into(), value.into())).into();
        node.facts.contract =
            Contract::read(&Host::replayed("/nonexistent", environment), None, None);
        let found = node.of(Id::MembershipSpares);
        let expected = match spares {
            0 => None,
            _ if spares + 2 == started => Some(CheckStatus::Ok),
            _ => Some(CheckStatus::Warn),
        };
        assert_eq!(found.as_ref().map(|one| one.0), expected, "{spares} {started} {found:?}");
        let strict = node.severity(Id::MembershipSpares, Severity::Fail);
        let refused = refusal(&strict.checks()).map(|refusal| refusal.id);
        let is_refused = expected == Some(CheckStatus::Warn);
        assert_eq!(refused == Some(Id::MembershipSpares), is_refused, "{spares} {started}");
    }
}

type Change = fn(&mut Node);

fn set_nccl(node: &mut Node, version: &str) {
    if let Some(torch) = &mut node.facts.python.torch {
        torch.nccl = Some(version.into());
    }
}

fn set_compat(node: &mut Node, compat: &str, driver: &str, gpu: &str) {
    node.facts.state.compat = Some(Compat {
        folder: "/usr/local/cuda/compat".into(),
        by: "LD_LIBRARY_PATH".into(),
        driver: Some(compat.into()),
    });
    node.facts.gpus.driver_version = Some(driver.into());
    for one in &mut node.facts.gpus.gpus {
        one.name = Some(gpu.into());
    }
}

/// (id, the fault, level, a part of the text)
const TABLE: &[(Id, Change, CheckStatus, &str)] = &[
    (
        Id::GpuCount,
        |node| node.settings.nproc_per_node = flag(Nproc::Count(16), "--nproc-per-node"),
        CheckStatus::Fail,
        "requests 16",
    ),
    (
        Id::GpuCount,
        |node| {
            node.facts.gpus.visible.truncate(2);
            node.facts.gpus.cuda_visible_devices = Some("0,1".into());
        },
        CheckStatus::Ok,
        "2 of 8",
    ),
    (
        Id::GpuFault,
        |node| node.facts.gpus.faults.push(warning(Id::GpuFaultLost)),
        CheckStatus::Fail,
        "gpu.fault.lost happened",
    ),
    (
        Id::GpuFabric,
        |node| node.facts.gpus.fabric_faults.push(warning(Id::GpuFabric)),
        CheckStatus::Fail,
        "gpu.fabric happened",
    ),
    (
        Id::GpuFabric,
        |node| node.facts.gpus.gpus[3].fabric = Some(FabricState::Ready),
        CheckStatus::Ok,
        "ready",
    ),
    (
        Id::GpuFabric,
        |node| node.facts.gpus.gpus[3].fabric = Some(FabricState::Unsupported),
        CheckStatus::Ok,
        "no NVSwitch",
    ),
    (
        Id::GpuBusy,
        |node| node.facts.gpus.gpus[1].memory_used = Some(40 << 30),
        CheckStatus::Warn,
        "1 (40.0 GiB)",
    ),
    (
        Id::GpuBusy,
        |node| {
            node.facts.gpus.gpus[1].memory_used = Some(40 << 30);
            node.facts.state.hami = Some(Hami::default());
        },
        CheckStatus::Info,
        "with HAMi",
    ),
    (
        Id::HamiLimit,
        |node| {
            let variables = [("CUDA_DEVICE_MEMORY_LIMIT_0".to_owned(), "64k".to_owned())].into();
            node.facts.state.hami = Some(Hami { variables, ..Hami::default() });
        },
        CheckStatus::Warn,
        "64 KiB",
    ),
    (
        Id::HamiLimit,
        |node| {
            let variables = [("CUDA_DEVICE_MEMORY_LIMIT_0".to_owned(), "40000m".to_owned())].into();
            node.facts.state.hami = Some(Hami { variables, ..Hami::default() });
        },
        CheckStatus::Info,
        "hooks CUDA",
    ),
    (Id::ShmSize, |node| node.facts.limits.shm_total = Some(64 << 20), CheckStatus::Warn, "64 MiB"),
    (
        Id::ShmSize,
        |node| node.facts.limits.shm_total = Some(4 << 30),
        CheckStatus::Warn,
        "recommended",
    ),
    (Id::Nofile, |node| node.facts.limits.nofile_hard = 4096, CheckStatus::Warn, "4096"),
    (
        Id::PidsLimit,
        |node| {
            node.facts.limits.pids_max = Some(4096);
            node.facts.limits.pids_current = Some(100);
        },
        CheckStatus::Warn,
        "may need 8000",
    ),
    (
        Id::MemoryLimit,
        |node| node.facts.limits.memory_limit = Some(64 << 30),
        CheckStatus::Warn,
        "64 GiB",
    ),
    (Id::CpuLimit, |node| node.facts.limits.cpus = 4, CheckStatus::Warn, "4 CPUs for 8 ranks"),
    (Id::CpuLimit, |node| node.facts.limits.cpus = 1, CheckStatus::Info, "not known"),
    (
        Id::CpuLimit,
        |node| {
            node.facts.limits.cpus = 1;
            node.facts.limits.allowed = CpuList::read("3");
            node.facts.contract = one_of_mpirun();
        },
        CheckStatus::Warn,
        "(open-mpi) binds this command to CPU 3",
    ),
    (
        Id::DiskLogs,
        |node| node.facts.state.logs = Some(folder(1 << 20, 1 << 30)),
        CheckStatus::Warn,
        "1 MiB",
    ),
    (
        Id::DiskLogs,
        |node| node.facts.state.logs = Some(folder(11 << 30, 1 << 50)),
        CheckStatus::Ok,
        "11 GiB",
    ),
    (
        Id::DiskLogs,
        |node| {
            let inodes_free = 3;
            node.facts.state.logs = Some(Folder { inodes_free, ..folder(1 << 40, 1 << 40) });
        },
        CheckStatus::Warn,
        "3 of 1000 inodes",
    ),
    (
        Id::DiskLogs,
        |node| {
            let problem = Some(Text::same("read-only"));
            node.facts.state.logs = Some(Folder { problem, ..folder(1 << 40, 1 << 40) });
        },
        CheckStatus::Warn,
        "read-only",
    ),
    (
        Id::StorageAlive,
        |node| {
            let source = Text::same("the checkpoint's config.json");
            node.facts.state.late =
                vec![TimedOut { source, path: Some("/x".into()), after_millis: 1500 }];
        },
        CheckStatus::Warn,
        "within 1.5 s: the checkpoint's",
    ),
    (
        Id::SignalsTerm,
        |node| {
            let (name, command) = ("bash".to_owned(), "/bin/bash -c …".to_owned());
            node.facts.state.non_forwarding_init = Some(NonForwardingInit { name, command });
        },
        CheckStatus::Warn,
        "PID 1 is bash (/bin/bash -c …)",
    ),
    (
        Id::ClockSync,
        |node| {
            node.facts.state.clock =
                Some(ClockState { unsynchronised: true, error_micros: 16_000_000 });
        },
        CheckStatus::Warn,
        "not synchronised",
    ),
    (
        Id::ClockSync,
        |node| {
            node.facts.state.clock =
                Some(ClockState { unsynchronised: false, error_micros: 2_500_000 });
        },
        CheckStatus::Warn,
        "2.5 s",
    ),
    (
        Id::EnvNccl,
        |node| {
            node.facts.environment.insert("NCCL_TIMEOUT".into(), "1800".into());
        },
        CheckStatus::Warn,
        "NCCL_TIMEOUT=1800",
    ),
    (
        Id::DiskLogs,
        |node| {
            let code = rustix::io::Errno::NOSPC.raw_os_error();
            node.tried.write = Some(Err(unwritten(code)));
        },
        CheckStatus::Warn,
        "No space left",
    ),
    (
        Id::DiskSpace,
        |node| {
            let used = UsedFolder { by: "HF_HOME".into(), folder: folder(1 << 20, 1 << 30) };
            node.facts.state.folders = vec![used];
        },
        CheckStatus::Warn,
        "HF_HOME: 1 MiB are free",
    ),
    (
        Id::DiskSpace,
        |node| {
            let used = UsedFolder { by: "TMPDIR".into(), folder: folder(1 << 40, 1 << 41) };
            node.facts.state.folders = vec![used];
        },
        CheckStatus::Ok,
        "1 TiB",
    ),
    (
        Id::ShmLeftovers,
        |node| {
            let left = |name: &str| Leftover { name: name.into(), bytes: 3 << 20, uid: 1000 };
            node.facts.state.leftovers = vec![left("nccl-abc"), left("torch_7_1"), left("sem.x")];
        },
        CheckStatus::Warn,
        "3 leftover files of ended processes take 9 MiB in /dev/shm, owner 1000",
    ),
    (Id::StackSize, |node| node.facts.limits.stack_unlimited = true, CheckStatus::Warn, "2 MiB"),
    (
        Id::StackSize,
        |node| {
            node.facts.limits.stack_unlimited = true;
            node.facts.gpus.visible.clear();
        },
        CheckStatus::Info,
        "unlimited",
    ),
    (
        Id::PidsLimit,
        |node| node.facts.limits.nproc_soft = Some(4096),
        CheckStatus::Warn,
        "ulimit -u",
    ),
    (
        Id::MemoryLimit,
        |node| node.facts.limits.address_space = Some(8 << 30),
        CheckStatus::Warn,
        "ulimit -v",
    ),
    (
        Id::MemoryLimit,
        |node| node.facts.limits.overcommit = Some(2),
        CheckStatus::Warn,
        "overcommit_memory=2",
    ),
    (
        Id::MemoryLimit,
        |node| node.facts.limits.overcommit = Some(1),
        CheckStatus::Ok,
        "no cgroup limit",
    ),
    (
        Id::MemoryLimit,
        |node| node.facts.limits.swap_total = Some(8 << 30),
        CheckStatus::Ok,
        "8 GiB of swap",
    ),
    (
        Id::NumaCalls,
        |node| node.facts.state.numa_blocked = Some(true),
        CheckStatus::Info,
        "2.23 to 2.26.4",
    ),
    (
        Id::NumaCalls,
        |node| {
            node.facts.state.numa_blocked = Some(true);
            set_nccl(node, "2.25.1");
        },
        CheckStatus::Warn,
        "NCCL 2.25.1 fails",
    ),
    (
        Id::NumaCalls,
        |node| {
            node.facts.state.numa_blocked = Some(true);
            node.facts.environment.insert("NCCL_CUMEM_HOST_ENABLE".into(), "0".into());
            set_nccl(node, "2.25.1");
        },
        CheckStatus::Info,
        "forbids",
    ),
    (
        Id::CudaCompat,
        |node| set_compat(node, "560.35.03", "570.86.15", "NVIDIA H100"),
        CheckStatus::Warn,
        "560.35.03 is no newer than the driver 570.86.15",
    ),
    (
        Id::CudaCompat,
        |node| set_compat(node, "580.82.07", "570.86.15", "NVIDIA GeForce RTX 4090"),
        CheckStatus::Warn,
        "error 804",
    ),
    (
        Id::CudaCompat,
        |node| set_compat(node, "580.82.07", "570.86.15", "NVIDIA H100"),
        CheckStatus::Info,
        "libcuda 580.82.07",
    ),
    (Id::PythonTorch, |node| node.facts.python.torch = None, CheckStatus::Warn, "no torch"),
    (Id::PythonTorch, |node| node.facts.python.interpreter = None, CheckStatus::Fail, "no python"),
    (
        Id::TorchAllreduce,
        |node| node.tried.torch = Some(Err(Text::same("it hangs"))),
        CheckStatus::Fail,
        "it hangs",
    ),
    (
        Id::TorchAllreduce,
        |node| node.tried.torch = Some(Ok(Text::same("fast"))),
        CheckStatus::Ok,
        "fast",
    ),
];

#[test]
fn each_finding_has_its_severity() {
    for (id, change, level, words) in TABLE {
        let mut node = Node::new(8);
        change(&mut node);
        let (found, text) = node.of(*id).unwrap_or_else(|| panic!("{id}"));
        assert_eq!(found, *level, "{id}: {text}");
        assert!(text.contains(words), "{id}: {text}");
    }
}

#[test]
fn multi_node_findings_have_their_severity() {
    let busy = Refusal::new(Id::PortFree, Text::same("port 29500 is in use"), Text::same("end it"));
    let peer = SocketAddr::from(([10, 0, 0, 1], 29500));
    let reach = Reach { peer, cause: Text::same("refused") };
    let mut node = Node::new(8).two_nodes(0);
    node.tried.port = Some(Err(busy));
    assert_eq!(node.of(Id::PortFree).map(|found| found.0), Some(CheckStatus::Fail));
    let mut node = Node::new(8).two_nodes(1);
    node.tried.reach = Some(Err(reach));
    node.facts.network.master = Some(MasterRoute {
        host: "job-master-0".into(),
        addresses: Vec::new(),
        local: false,
        interface: None,
        error: Some(Text::same("NXDOMAIN")),
    });
    assert_eq!(node.of(Id::MasterReach).map(|found| found.0), Some(CheckStatus::Warn));
    let (level, text) = node.of(Id::MasterResolve).expect("a check");
    assert_eq!(level, CheckStatus::Warn);
    assert!(text.contains("job-master-0") && text.contains("NXDOMAIN"), "{text}");
    let node = node.severity(Id::MasterResolve, Severity::Fail);
    assert_eq!(refusal(&node.checks()).map(|refusal| refusal.verdict), Some(Verdict::MasterName));
}

#[test]
fn required_rdma_raises_port_and_memlock_severity() {
    let mut node = Node::new(8).two_nodes(1);
    node.facts.hcas = vec![rail("mlx5_0", 400.0, false), rail("mlx5_1", 400.0, false)];
    let (level, text) = node.of(Id::RdmaPorts).expect("a check");
    assert_eq!(level, CheckStatus::Warn, "{text}");
    node.settings.rdma = flag(Need::Required, "--rdma");
    let (level, text) = node.of(Id::RdmaPorts).expect("a check");
    assert_eq!(level, CheckStatus::Fail, "{text}");

    let mut node = Node::new(8).two_nodes(1);
    node.facts.hcas = vec![rail("mlx5_0", 400.0, true), rail("mlx5_1", 400.0, true)];
    node.facts.limits.memlock = Some(8 << 20);
    assert_eq!(node.of(Id::Memlock).map(|found| found.0), Some(CheckStatus::Warn));
    node.settings.rdma = flag(Need::Required, "--rdma");
    assert_eq!(node.of(Id::Memlock).map(|found| found.0), Some(CheckStatus::Fail));
    node.facts.limits.ipc_lock = true;
    assert_eq!(node.of(Id::Memlock).map(|found| found.0), Some(CheckStatus::Ok));
}

#[test]
fn configured_severity_overrides_a_finding() {
    let mut node = Node::new(8);
    node.facts.limits.shm_total = Some(64 << 20);
    node.facts.limits.nofile_hard = 1024;
    let node = node.severity(Id::ShmSize, Severity::Fail).severity(Id::Nofile, Severity::Fail);
    let first = refusal(&node.checks()).expect("refused");
    assert_eq!((first.id, first.verdict), (Id::ShmSize, Verdict::Limit));
    let node = node.severity(Id::ShmSize, Severity::Off);
    assert_eq!(node.of(Id::ShmSize), None);
    assert_eq!(refusal(&node.checks()).map(|refusal| refusal.id), Some(Id::Nofile));
    // A rule of thumb never refuses.
    let mut node = Node::new(8).severity(Id::ShmSize, Severity::Fail);
    node.facts.limits.shm_total = Some(4 << 30);
    assert_eq!(node.of(Id::ShmSize).map(|found| found.0), Some(CheckStatus::Warn));
}

#[test]
fn one_rank_needs_no_shared_memory() {
    let mut node = Node::new(8);
    node.facts.limits.shm_total = Some(64 << 20);
    node.settings.nproc_per_node = flag(Nproc::Count(1), "--nproc-per-node");
    assert_eq!(node.of(Id::ShmSize).map(|found| found.0), Some(CheckStatus::Ok));
}

#[test]
fn sizes_are_shown_in_binary_units() {
    for (size, shown) in [(64 << 10, "64 KiB"), (1 << 30, "1 GiB"), (1610612736, "1.5 GiB")] {
        assert_eq!(bytes(size), shown);
    }
}

/// /dev/shm may be the host's, and any user may name a file there and give it any size.
#[test]
fn file_names_cannot_forge_a_line() {
    let mut node = Node::new(8);
    let left = |name: &str| Leftover { name: name.into(), bytes: u64::MAX / 2, uid: 1000 };
    node.facts.state.leftovers =
        vec![left("nccl-a\nrefused"), left("torch_\u{1b}[31m"), left("sem.x")];
    let (_, text) = node.of(Id::ShmLeftovers).expect("a check");
    assert!(text.contains(r"nccl-a\nrefused") && !text.contains(char::is_control), "{text}");
}

/// A user who raises the cgroup's limit must not run into the next limit at the following start.
#[test]
fn memory_limit_does_not_hide_kernel_limits() {
    let mut node = Node::new(8);
    node.facts.limits.memory_limit = Some(64 << 30);
    node.facts.limits.address_space = Some(8 << 30);
    node.facts.limits.overcommit = Some(2);
    let checks = node.checks();
    let of_memory = checks.iter().filter(|check| check.id == Id::MemoryLimit);
    let texts: Vec<&str> = of_memory.map(|check| &*check.text.en).collect();
    for part in ["64 GiB of memory", "ulimit -v", "overcommit_memory=2"] {
        assert!(texts.iter().any(|text| text.contains(part)), "{part}: {texts:?}");
    }
}

#[test]
fn failed_write_hint_depends_on_errno() {
    for (code, hint) in [
        (rustix::io::Errno::ROFS.raw_os_error(), "read-only"),
        (rustix::io::Errno::NOSPC.raw_os_error(), "delete old runs"),
        (rustix::io::Errno::DQUOT.raw_os_error(), "quota"),
        (rustix::io::Errno::ACCESS.raw_os_error(), "user 1000"),
        (rustix::io::Errno::IO.raw_os_error(), "--log-dir"),
    ] {
        let mut node = Node::new(8);
        node.tried.write = Some(Err(unwritten(code)));
        let checks = node.checks();
        let logs = checks.iter().find(|check| check.id == Id::DiskLogs).expect("the check");
        assert_eq!(logs.severity, CheckStatus::Warn);
        assert!(logs.hint.en.contains(hint), "{code}: {}", logs.hint.en);
    }
}

#[test]
fn gpudirect_matters_between_nodes_with_gpus_and_hcas() {
    let mut node = Node::new(8).two_nodes(1);
    assert_eq!(node.of(Id::RdmaGpudirect).map(|found| found.0), Some(CheckStatus::Ok));
    node.facts.hcas = vec![rail("mlx5_0", 400.0, true)];
    let (level, text) = node.of(Id::RdmaGpudirect).expect("a check");
    assert_eq!(level, CheckStatus::Warn);
    assert!(text.contains("nvidia_peermem"), "{text}");
    node.facts.state.gpudirect = Some("dma-buf".into());
    assert_eq!(node.of(Id::RdmaGpudirect), Some((CheckStatus::Ok, "by dma-buf".into())));
    node.facts.state.gpudirect = None;
    node.facts.hcas = vec![rail("mlx5_0", 400.0, false)];
    assert_eq!(node.of(Id::RdmaGpudirect).map(|found| found.0), Some(CheckStatus::Ok));
}

#[test]
fn proxy_must_exempt_the_master_and_stays_masked() {
    let mut node = Node::new(8).two_nodes(1);
    let proxy = "http://user:hunter2@proxy:3128".to_owned();
    node.facts.environment.insert("HTTPS_PROXY".into(), proxy.clone());
    let (level, text) = node.of(Id::EnvProxy).expect("a check");
    assert_eq!(level, CheckStatus::Warn);
    assert!(text.contains("HTTPS_PROXY") && text.contains("10.0.0.1"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
    node.facts.environment.insert("no_proxy".into(), "10.0.0.0/8".into());
    assert_eq!(node.of(Id::EnvProxy).map(|found| found.0), Some(CheckStatus::Ok));
    let mut alone = Node::new(8);
    alone.facts.environment.insert("http_proxy".into(), proxy);
    assert_eq!(alone.of(Id::EnvProxy).map(|found| found.0), Some(CheckStatus::Ok));
}

/// TMPDIR and the caches are usually on one disk.
#[test]
fn full_file_system_is_one_finding() {
    let used = |by: &str, path: &str, device: Option<u64>, free: u64| {
        let folder = Folder { path: path.into(), device, ..folder(free, 1 << 40) };
        UsedFolder { by: by.to_owned(), folder }
    };
    let said = |folders: Vec<UsedFolder>| {
        let mut node = Node::new(1);
        node.facts.state.folders = folders;
        let checks = node.checks().into_iter().filter(|check| check.id == Id::DiskSpace);
        checks.map(|check| (check.text, check.hint)).collect::<Vec<_>>()
    };
    let found = said(vec![
        used("TMPDIR", "/tmp", Some(1), 2 << 30),
        used("XDG_CACHE_HOME", "/root/.cache", Some(1), 1 << 30),
        used("HF_HOME", "/data", Some(2), 1 << 39),
        used("TRITON_CACHE_DIR", "/root/.triton", Some(1), 2 << 30),
    ]);
    let [(text, hint)] = found.as_slice() else { panic!("one finding: {found:?}") };
    assert_eq!(
        text.en,
        "TMPDIR, XDG_CACHE_HOME, TRITON_CACHE_DIR: 1 GiB are free in /tmp, /root/.cache, /root/.triton"
    );
    assert!(text.zh.starts_with("TMPDIR、XDG_CACHE_HOME、TRITON_CACHE_DIR：/tmp、"), "{}", text.zh);
    assert!(hint.en.contains("with TMPDIR, XDG_CACHE_HOME, TRITON_CACHE_DIR"), "{}", hint.en);
    for (one, other) in [(Some(1), Some(2)), (None, None)] {
        let apart = vec![used("TMPDIR", "/tmp", one, 7), used("HF_HOME", "/data", other, 7)];
        assert_eq!(said(apart).len(), 2, "{one:?} {other:?}");
    }
}
