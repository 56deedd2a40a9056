//! The types of [`Facts`]: plain data, written to reports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::gpu::GpuFacts;
use checkpoint::RankFiles;
use linux::cpus::CpuList;
use settings::contract::Contract;
use text::lang::Text;
use text::text;
use verdict::Warning;

/// All facts that were read on one node.
#[derive(Debug, Clone, Serialize)]
pub struct Facts {
    pub hostname: String,
    pub contract: Contract,
    pub gpus: GpuFacts,
    pub network: NetworkFacts,
    pub hcas: Vec<Hca>,
    pub limits: Limits,
    pub python: PythonFacts,
    /// Heads from the checkpoint's config.json, with the path of that file.
    pub checkpoint_heads: Option<(u32, PathBuf)>,
    /// The checkpoints below the folder of the settings; None: they name none.
    pub checkpoints: Option<CheckpointFacts>,
    /// Variables of the container that affect the launch (NCCL_*, TORCH_*, OMP_NUM_THREADS, CUDA_*…).
    pub environment: BTreeMap<String, String>,
    pub state: HostFacts,
}

/// The checkpoints below one folder.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CheckpointFacts {
    /// Newest first; the newest only, where there are many.
    pub found: Vec<SeenCheckpoint>,
    /// Why the folder cannot be read.
    pub unread: Option<Text>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SeenCheckpoint {
    pub path: PathBuf,
    pub step: Option<u64>,
    /// Words for what it lacks; empty: it is whole.
    pub missing: Vec<Text>,
    /// The files of ranks, where nothing else is missing; None: it has none, or no node can go on from a share of it.
    pub ranks: Option<RankFiles>,
    /// Identity of the checkpoint on all nodes, wherever the folder is mounted.
    pub digest: u64,
    /// Time of the last write.
    pub modified: SystemTime,
}

impl SeenCheckpoint {
    /// The name of its file or folder.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned()
    }

    /// Its name, and the first part that it lacks.
    pub fn lack(&self) -> Text {
        let name = self.name();
        match self.missing.first() {
            Some(Text { en, zh }) => text!("{name} ({en})", "{name}（{zh}）"),
            None => Text::same(name),
        }
    }
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct NetworkFacts {
    pub interfaces: Vec<Interface>,
    /// The route to the master; None on a single node or if no address is known.
    pub master: Option<MasterRoute>,
    /// Interface of the default route, IPv4 first.
    pub default_interface: Option<String>,
    /// Interfaces below the default interface: members of a bond or bridge, the device of a VLAN.
    pub default_lower: Vec<String>,
    /// Addresses of our own host name.
    pub hostname_addresses: Vec<IpAddr>,
    /// NCCL settings that already exist: environment, then NCCL_CONF_FILE, ~/.nccl.conf, /etc/nccl.conf.
    pub nccl: Vec<NcclSetting>,
}

impl NetworkFacts {
    /// The node's own names and addresses, including the master's if it is this node.
    pub fn own_names(&self, hostname: &str) -> Vec<String> {
        let addresses = self.interfaces.iter().flat_map(|interface| &interface.addresses);
        let addresses = addresses.chain(&self.hostname_addresses).map(ToString::to_string);
        let master = self.master.iter().filter(|master| master.local);
        let names = master.map(|master| master.host.clone());
        std::iter::once(hostname.to_owned()).chain(names).chain(addresses).collect()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    pub running: bool,
    pub loopback: bool,
    /// MTU in bytes (/sys/class/net/NAME/mtu).
    pub mtu: Option<u32>,
    /// Rate in Mb/s from the driver; None for wireless and virtual interfaces, and 10000 for every veth.
    pub megabits: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MasterRoute {
    pub host: String,
    pub addresses: Vec<IpAddr>,
    /// Whether the address belongs to this node.
    pub local: bool,
    /// Interface of the kernel's route to the master.
    pub interface: Option<String>,
    /// The reason why there is no address or route.
    pub error: Option<Text>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NcclSetting {
    pub name: String,
    pub value: String,
    /// `environment`, or the file that contains the setting.
    pub source: String,
}

/// An RDMA device of /sys/class/infiniband.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Hca {
    /// `mlx5_0`
    pub name: String,
    pub pci: Option<String>,
    pub numa_node: Option<u32>,
    /// Whether this process can open the uverbs node read-write.
    pub openable: bool,
    pub ports: Vec<HcaPort>,
    /// PCI address of the physical function, for a virtual function.
    pub physical: Option<String>,
    /// The device's network interfaces in this network namespace.
    pub netdevs: Vec<String>,
    /// Whether the device is a bond of two ports (`mlx5_bond_0`), or one of its interfaces is in a bond.
    pub bond: bool,
    /// For RoCE: whether every v2 GID that belongs to this namespace is an IPv6 address.
    pub ipv6_only: bool,
    /// As in [`Gpu::bridges`](super::gpu::Gpu::bridges).
    pub bridges: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HcaPort {
    /// 1-based port number.
    pub number: u32,
    pub active: bool,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
    pub gigabits: Option<f64>,
    /// For Ethernet: whether a RoCE v2, non-link-local GID can be read in this network namespace.
    pub roce_v2_gid: bool,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Limits {
    /// Total bytes of /dev/shm. None if it is not mounted.
    pub shm_total: Option<u64>,
    pub shm_free: Option<u64>,
    /// Hard limit of locked memory in bytes; None is unlimited.
    pub memlock: Option<u64>,
    pub nofile_hard: u64,
    /// CPUs that this container may use: the smaller of affinity and cgroup quota.
    pub cpus: u32,
    /// cgroup memory limit in bytes; None is unlimited.
    pub memory_limit: Option<u64>,
    pub nofile_soft: u64,
    /// CAP_IPC_LOCK is effective, so the limit of locked memory does not apply.
    pub ipc_lock: bool,
    /// Tightest pids.max of our cgroups; None is unlimited.
    pub pids_max: Option<u64>,
    /// pids.current of the same cgroup.
    pub pids_current: Option<u64>,
    /// MemTotal in bytes.
    pub memory_total: Option<u64>,
    /// Whether the soft limit of the stack is unlimited.
    pub stack_unlimited: bool,
    /// Soft limit of this user's processes and threads; None is unlimited, or lifted by a capability.
    pub nproc_soft: Option<u64>,
    /// Limit of the address space in bytes (`ulimit -v`); None is unlimited.
    pub address_space: Option<u64>,
    /// vm.overcommit_memory: 0 heuristic, 1 always, 2 never.
    pub overcommit: Option<u8>,
    /// SwapTotal in bytes.
    pub swap_total: Option<u64>,
    /// The CPUs that this process may run on; empty when unknown.
    pub allowed: CpuList,
    /// The machine's CPUs by NUMA node; nodes without CPUs (CXL memory) are left out.
    pub numa: BTreeMap<u32, CpuList>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct PythonFacts {
    pub interpreter: Option<PathBuf>,
    /// The source of the interpreter (`--python`, `conda environment tiny-vae`, `PATH`).
    pub found_by: String,
    /// The reason why there is no interpreter, with the places that were searched.
    pub problem: Option<Text>,
    /// `3.11`
    pub version: Option<String>,
    pub torch: Option<Torch>,
    /// Variables that activating the environment sets (PATH, CONDA_PREFIX, VIRTUAL_ENV).
    pub activation: BTreeMap<String, String>,
    /// Modules of the engine that the interpreter reported as missing.
    pub absent: Vec<String>,
    /// Other interpreters whose files include all modules of the engine; searched only if modules are missing.
    pub elsewhere: Vec<PathBuf>,
    /// The configuration that accelerate will read, if it is the engine.
    pub accelerate: Option<AccelerateConfig>,
    /// Warnings about environments: an environment that is gone, or that could not be activated completely.
    pub warnings: Vec<Warning>,
    /// The engine's command line; None if no file shows it.
    pub engine_cli: Option<EngineCli>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Torch {
    /// `2.15.0+cu130`
    pub version: String,
    /// `13.0`; None in a CPU build.
    pub cuda: Option<String>,
    /// `2.26.2`: the version of the NCCL package that a CUDA build depends on; None if NCCL is compiled in.
    pub nccl: Option<String>,
    pub path: PathBuf,
}

/// Further facts that can make a job fail on this node.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HostFacts {
    /// The log folder, the first of the candidates.
    pub logs: Option<Folder>,
    /// Other folders in which a job writes: TMPDIR and the caches of its libraries.
    pub folders: Vec<UsedFolder>,
    /// Files in /dev/shm that no running process uses.
    pub leftovers: Vec<Leftover>,
    /// A libcuda of CUDA's forward compatibility that is found before the driver's.
    pub compat: Option<Compat>,
    /// The way by which NCCL can let an HCA read GPU memory; None if there is no way.
    pub gpudirect: Option<String>,
    /// Whether a seccomp profile forbids the NUMA calls; None if the kernel has no such calls.
    pub numa_blocked: Option<bool>,
    pub clock: Option<ClockState>,
    /// Signs of a GPU virtualiser; None if there are no signs.
    pub hami: Option<Hami>,
    /// Sources that did not answer in time.
    pub late: Vec<TimedOut>,
    /// Variables of NCCL that name a missing file, or a file in a missing folder.
    pub absent: Vec<String>,
    /// The file that the ranks run, if the program names one.
    pub script: Option<Script>,
    /// Configuration files that the engine's arguments may name.
    pub engine_files: Vec<NamedFile>,
    /// PID 1, if it does not forward SIGTERM to us.
    #[serde(rename = "deaf_shell")]
    pub non_forwarding_init: Option<NonForwardingInit>,
}

/// The script as its reader would find it, starting from the ranks' working folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// The path as given.
    pub path: PathBuf,
    /// The folder against which a relative path is resolved.
    pub from: PathBuf,
    /// Whether there is a file or a folder; true if access is denied.
    pub exists: bool,
    /// The first 16 hex digits of the content's BLAKE2s; None for a folder or more than 16 MiB.
    pub digest: Option<String>,
    /// The fault that the script's reader finds in its first line.
    pub fault: Option<FirstLineFault>,
}

/// A fault in the first line, because of which a file does not start, or not as its author intends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstLineFault {
    /// The kernel takes the carriage return before the line feed as a part of this line (`#!…`).
    KernelReads(String),
    /// This shell takes the carriage return as a part of each line.
    ShellReads(String),
    /// The interpreter does not exist.
    NoInterpreter(PathBuf),
}

/// A file that an argument names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFile {
    /// The path as given.
    pub path: PathBuf,
    /// The folder against which a relative path is resolved.
    pub from: PathBuf,
    /// Whether the file exists; true if access is denied.
    pub exists: bool,
}

/// A shell that runs a script as PID 1 without a handler for SIGTERM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NonForwardingInit {
    /// `bash`
    pub name: String,
    /// The command line of the shell, shortened, with secrets masked.
    pub command: String,
}

/// The file system below a folder that may not exist yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folder {
    pub path: PathBuf,
    /// The file system (st_dev); None if it is not known.
    pub device: Option<u64>,
    /// Bytes (statvfs f_blocks and f_bavail × f_frsize).
    pub total: u64,
    pub free: u64,
    /// Inodes; total is 0 on file systems that create them as needed.
    pub inodes: u64,
    pub inodes_free: u64,
    /// The reason why nothing can be written there.
    pub problem: Option<Text>,
}

/// State of the kernel's clock from adjtimex(2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockState {
    /// Whether the kernel's clock is unsynchronised (STA_UNSYNC).
    pub unsynchronised: bool,
    /// The largest error that the time service estimates.
    pub error_micros: u64,
}

/// Signs of HAMi, which hooks CUDA and NVML by a preloaded library and limits the memory and cores of each GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Hami {
    /// The source that preloads HAMi's library: `/etc/ld.so.preload` or `LD_PRELOAD`.
    pub preloaded_by: Option<String>,
    /// HAMi's variables that are set, by name.
    pub variables: BTreeMap<String, String>,
    /// Whether HAMi is switched off by CUDA_DISABLE_CONTROL=true.
    pub disabled: bool,
}

/// A source of facts that did not answer in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TimedOut {
    /// Name of the source.
    pub source: Text,
    /// The path at which the source hangs, if known.
    pub path: Option<PathBuf>,
    pub after_millis: u64,
}

/// A folder in which a library writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UsedFolder {
    /// The variable that sets the folder, or could set it (`TMPDIR`, `HF_HOME`).
    pub by: String,
    pub folder: Folder,
}

/// A file of /dev/shm that a process left behind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    pub name: String,
    pub bytes: u64,
    /// User id of the owner.
    pub uid: u32,
}

/// The libcuda of a `cuda-compat` package.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Compat {
    pub folder: PathBuf,
    /// The source that puts the folder first in the search: `LD_LIBRARY_PATH`, or a file of /etc/ld.so.conf.d.
    pub by: String,
    /// The driver version with which it was built, `560.35.03`.
    pub driver: Option<String>,
}

/// The command line of the installed engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EngineCli {
    /// Path of the source file.
    pub path: PathBuf,
    /// Such as `accelerate 1.15.0`; only the name if the version is unknown.
    pub package: String,
    /// Flag names without leading hyphens and with underscores: `--num_machines` is `num_machines`.
    pub flags: BTreeSet<String>,
}

impl EngineCli {
    /// Whether argparse accepts this flag. argparse also accepts the beginning of a flag's name.
    pub fn knows(&self, flag: &str) -> bool {
        let name = flag.trim_start_matches('-').replace('-', "_");
        self.flags.iter().any(|known| known.starts_with(&name))
    }
}

/// A configuration file of accelerate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AccelerateConfig {
    pub path: PathBuf,
    /// Whether the engine's arguments name the file; otherwise it is accelerate's default.
    pub given: bool,
    /// `NO`, `MULTI_GPU`, `FSDP`, `DEEPSPEED`…
    pub distributed_type: Option<String>,
    pub use_cpu: bool,
}

impl AccelerateConfig {
    /// `'NO'` in the spelling of the file; `(none)` if the file has no type.
    pub fn mode(&self) -> String {
        self.distributed_type
            .as_ref()
            .map_or_else(|| "(none)".to_owned(), |mode| format!("'{mode}'"))
    }

    /// Whether `accelerate launch` starts one process in this mode, regardless of
    /// --num_processes (its `simple_launcher`).
    pub fn starts_one_process(&self) -> bool {
        matches!(self.distributed_type.as_deref(), Some("NO" | "MULTI_CPU"))
    }

    /// The hint for a mode that starts one process.
    pub fn cure(&self) -> Text {
        let (path, mode) = (self.path.display(), self.mode());
        text!(
            "use MULTI_GPU (on CPUs as well), FSDP or DEEPSPEED in place of distributed_type: {mode} in {path}, or ask for one process with --nnodes 1 --nproc-per-node 1",
            "请将 {path} 中的 distributed_type: {mode} 改为 MULTI_GPU（CPU 上同样适用）、FSDP 或 DEEPSPEED，或用 --nnodes 1 --nproc-per-node 1 只要求一个进程"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_may_be_shortened_or_use_underscores() {
        let flags = ["num_machines", "no_python"].map(str::to_owned).into();
        let cli = EngineCli { path: PathBuf::new(), package: "accelerate".to_owned(), flags };
        for (flag, known) in [
            ("--num_machines", true),
            ("--num-mach", true),
            ("--no-python", true),
            ("--log_dir", false),
        ] {
            assert_eq!(cli.knows(flag), known, "{flag}");
        }
    }
}
