//! The types of [`Facts`]. All of them are plain data that can travel to another node.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

mod engine;
mod host;

pub use engine::{AccelerateConfig, EngineCli};
pub use host::{
    ClockState, Compat, FirstLineFault, Folder, Hami, HostFacts, Leftover, NamedFile,
    NonForwardingInit, Script, TimedOut, UsedFolder,
};

use super::gpu::{FabricState, RecoveryAction};
use crate::probe::Health;
use linux::cpus::CpuList;
use settings::contract::Contract;
use text::lang::Text;
use verdict::Warning;

/// All facts that were read on one node.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// Variables of the container that affect the launch (NCCL_*, TORCH_*, OMP_NUM_THREADS, CUDA_*…).
    pub environment: BTreeMap<String, String>,
    #[serde(default)]
    pub state: HostFacts,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GpuFacts {
    /// Every GPU that this container can use, in NVML (PCI) order, before CUDA_VISIBLE_DEVICES.
    pub gpus: Vec<Gpu>,
    /// The GPUs in CUDA_VISIBLE_DEVICES, in its order.
    pub visible: Vec<VisibleGpu>,
    /// Value of CUDA_VISIBLE_DEVICES, if set.
    pub cuda_visible_devices: Option<String>,
    /// The first element of CUDA_VISIBLE_DEVICES that names no device in a form that CUDA documents (`0-3`).
    #[serde(default)]
    pub unreadable_device: Option<String>,
    /// Minors N of existing /dev/nvidiaN that NVML does not count.
    #[serde(default)]
    pub uncounted: Vec<u32>,
    pub source: GpuSource,
    /// Each source that was tried before `source`, with its answer.
    pub attempts: Vec<(GpuSource, Text)>,
    /// Evidence that this node should have GPUs (`GPU_COUNT=8`, `/dev/nvidiactl`); empty if there is no evidence.
    pub requested_by: Vec<String>,
    /// Other vendors' accelerators, read only if there is no NVIDIA GPU.
    #[serde(default)]
    pub others: Vec<OtherAccelerator>,
    /// Driver states that make GPUs unusable (lost, mismatch, NVML hung…).
    pub faults: Vec<Warning>,
    /// NVSwitch fabric states with which CUDA fails with error 802.
    #[serde(default)]
    pub fabric_faults: Vec<Warning>,
    pub driver_version: Option<String>,
    /// CUDA version that the driver supports, (major, minor).
    pub cuda_driver_version: Option<(u32, u32)>,
}

/// Evidence of another vendor's accelerators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherAccelerator {
    pub vendor: Text,
    /// Device files and variables: `/dev/davinci0 × 8`, `HIP_VISIBLE_DEVICES=0,1`.
    pub evidence: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuSource {
    Nvml,
    /// `/dev/nvidia[0-9]+` that can be opened.
    DeviceNodes,
    /// `/proc/driver/nvidia/gpus`.
    ProcDriver,
    NvidiaSmi,
    /// Assumed rather than found: `plan --assume`.
    Assumed,
    #[default]
    None,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML index, 0-based.
    pub index: u32,
    pub uuid: Option<String>,
    pub name: Option<String>,
    /// `0000:18:00.0`, lower case, four-digit domain.
    pub pci: Option<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Bytes.
    pub memory_total: Option<u64>,
    /// Bytes, without the driver's reserve.
    pub memory_used: Option<u64>,
    pub mig: bool,
    /// NUMA node of the GPU. None: unknown (-1 in sysfs, or no entry).
    pub numa_node: Option<u32>,
    /// The recovery action that the driver requests. None if the driver lacks the call.
    #[serde(default)]
    pub recovery_action: Option<RecoveryAction>,
    /// State of the GPU's NVSwitch fabric. None if the driver lacks the call.
    #[serde(default)]
    pub fabric: Option<FabricState>,
    /// Two bits each, as in [`crate::probe::NvmlGpu::fabric_health`].
    #[serde(default)]
    pub fabric_health: Option<u32>,
    /// From NVML; without NVML only the PCI link, from sysfs.
    #[serde(default)]
    pub health: Health,
    /// The PCI host bridge (`pci0000:17`) and every bridge between it and the GPU.
    #[serde(default)]
    pub bridges: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VisibleGpu {
    /// Position in [`GpuFacts::gpus`].
    pub gpu: usize,
    /// The element of CUDA_VISIBLE_DEVICES that selects the GPU, or its index.
    pub token: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NetworkFacts {
    pub interfaces: Vec<Interface>,
    /// The route to the master; None on a single node or if no address is known.
    pub master: Option<MasterRoute>,
    /// Interface of the default route, IPv4 first.
    pub default_interface: Option<String>,
    /// Interfaces below the default interface: members of a bond or bridge, the device of a VLAN.
    #[serde(default)]
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
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Rate in Mb/s from the driver; None for wireless and virtual interfaces, and 10000 for every veth.
    #[serde(default)]
    pub megabits: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcclSetting {
    pub name: String,
    pub value: String,
    /// `environment`, or the file that contains the setting.
    pub source: String,
}

/// An RDMA device of /sys/class/infiniband.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Hca {
    /// `mlx5_0`
    pub name: String,
    pub pci: Option<String>,
    pub numa_node: Option<u32>,
    /// Whether this process can open the uverbs node read-write.
    pub openable: bool,
    pub ports: Vec<HcaPort>,
    /// PCI address of the physical function, for a virtual function.
    #[serde(default)]
    pub physical: Option<String>,
    /// The device's network interfaces in this network namespace.
    #[serde(default)]
    pub netdevs: Vec<String>,
    /// Whether the device is a bond of two ports (`mlx5_bond_0`), or one of its interfaces is in a bond.
    #[serde(default)]
    pub bond: bool,
    /// For RoCE: whether every v2 GID that belongs to this namespace is an IPv6 address.
    #[serde(default)]
    pub ipv6_only: bool,
    /// As in [`Gpu::bridges`].
    #[serde(default)]
    pub bridges: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
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
    #[serde(default)]
    pub nofile_soft: u64,
    /// CAP_IPC_LOCK is effective, so the limit of locked memory does not apply.
    #[serde(default)]
    pub ipc_lock: bool,
    /// Tightest pids.max of our cgroups; None is unlimited.
    #[serde(default)]
    pub pids_max: Option<u64>,
    /// pids.current of the same cgroup.
    #[serde(default)]
    pub pids_current: Option<u64>,
    /// MemTotal in bytes.
    #[serde(default)]
    pub memory_total: Option<u64>,
    /// Whether the soft limit of the stack is unlimited.
    #[serde(default)]
    pub stack_unlimited: bool,
    /// Soft limit of this user's processes and threads; None is unlimited, or lifted by a capability.
    #[serde(default)]
    pub nproc_soft: Option<u64>,
    /// Limit of the address space in bytes (`ulimit -v`); None is unlimited.
    #[serde(default)]
    pub address_space: Option<u64>,
    /// vm.overcommit_memory: 0 heuristic, 1 always, 2 never.
    #[serde(default)]
    pub overcommit: Option<u8>,
    /// SwapTotal in bytes.
    #[serde(default)]
    pub swap_total: Option<u64>,
    /// The CPUs that this process may run on; empty when unknown.
    #[serde(default)]
    pub allowed: CpuList,
    /// The machine's CPUs by NUMA node; nodes without CPUs (CXL memory) are left out.
    #[serde(default)]
    pub numa: BTreeMap<u32, CpuList>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
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
    #[serde(default)]
    pub absent: Vec<String>,
    /// Other interpreters whose files include all modules of the engine; searched only if modules are missing.
    #[serde(default)]
    pub elsewhere: Vec<PathBuf>,
    /// The configuration that accelerate will read, if it is the engine.
    #[serde(default)]
    pub accelerate: Option<AccelerateConfig>,
    /// Warnings about environments: an environment that is gone, or that could not be activated completely.
    #[serde(default)]
    pub warnings: Vec<Warning>,
    /// The engine's command line; None if no file shows it.
    #[serde(default)]
    pub engine_cli: Option<EngineCli>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Torch {
    /// `2.15.0+cu130`
    pub version: String,
    /// `13.0`; None in a CPU build.
    pub cuda: Option<String>,
    /// `2.26.2`: the version of the NCCL package that a CUDA build depends on; None if NCCL is compiled in.
    #[serde(default)]
    pub nccl: Option<String>,
    pub path: PathBuf,
}
