//! Signs of accelerators: evidence that this node should have GPUs, that it has no NVIDIA driver, and that it has
//! accelerators of other vendors. This program can name these, but can neither count nor assign them.
//!
//! Takes the [`Host`]; gives each variable with its value, and each file. [`of_nvidia`] gives evidence that only NVIDIA's
//! GPUs leave; the counts and lists of platforms ([`of_platforms`]) may mean any vendor's GPUs. A display (/dev/dri) is not
//! evidence.

use super::visible::names_a_gpu;
use crate::observe::OtherAccelerator;
use crate::probe::LIBRARIES;
use linux::host::Host;
use settings::contract::Field;
use text::lang::Text;
use text::order::Ordered;

/// Whether a variable's value asks for GPUs.
type Asks = fn(&Host, &str) -> bool;

const OF_NVIDIA: &[(&str, Asks)] = &[
    // `all` and `void` come from images and prove nothing; a UUID proves an allocation.
    ("NVIDIA_VISIBLE_DEVICES", |_, value| {
        value.split(',').any(|item| item.starts_with("GPU-") || item.starts_with("MIG-"))
    }),
    ("CUDA_VISIBLE_DEVICES", |_, value| names_a_gpu(value)),
];

/// Variables without a row in the contract, or whose row does not count GPUs.
const OF_PLATFORMS: &[(&str, Asks)] = &[
    ("PET_NPROC_PER_NODE", |_, value| value.trim() == "gpu"),
    ("SLURM_JOB_GPUS", |_, value| lists(value)),
    ("SLURM_STEP_GPUS", |_, value| lists(value)),
    ("SLURM_GPUS", |_, value| counts(value)),
    ("SLURM_GPUS_PER_NODE", |_, value| counts(value)),
    ("SLURM_GPUS_PER_TASK", |_, value| counts(value)),
    ("_CONDOR_AssignedGPUs", |_, value| lists(value)),
    // Torque names the file in every job; the file is empty in a job without GPUs.
    ("PBS_GPUFILE", |host, path| host.read(path).is_ok_and(|text| lists(&text))),
    // On agents without GPUs the slots are CPUs.
    ("DET_SLOT_IDS", |host, value| {
        lists(value) && host.variable("DET_SLOT_TYPE").is_none_or(|kind| kind != "cpu")
    }),
    ("GPU_NUM_PER_NODE", |_, value| counts(value)),
    ("RUNPOD_GPU_COUNT", |_, value| counts(value)),
    ("DSTACK_GPUS_NUM", |_, value| counts(value)),
];

/// Evidence of NVIDIA GPUs: variables, the driver's control device, and a GPU on the PCI bus.
pub(super) fn of_nvidia(host: &Host) -> Vec<String> {
    let mut found = set(host, OF_NVIDIA.iter().copied());
    if host.exists("/dev/nvidiactl") {
        found.push("/dev/nvidiactl".to_owned());
    }
    // Of class 3D or VGA controller; NVSwitches are bridges, class 0x0680.
    let gpu: &[(&str, &[&str])] = &[("class", &["0x0302", "0x0300"]), ("vendor", &["0x10de"])];
    if let Some(address) = pci_function(host, gpu) {
        found.push(format!("/sys/bus/pci/devices/{address}"));
    }
    found
}

/// The counts of the contract, whether or not their platform is proven, and the variables of schedulers.
pub(super) fn of_platforms(host: &Host) -> Vec<String> {
    let counted = Field::GpuCount.variables();
    let mut found = set(host, counted.map(|name| (name, (|_, value| counts(value)) as Asks)));
    found.extend(set(host, OF_PLATFORMS.iter().copied()));
    found
}

fn set(host: &Host, variables: impl IntoIterator<Item = (&'static str, Asks)>) -> Vec<String> {
    let of = |(name, asks): (&str, Asks)| {
        let value = host.variable(name).filter(|value| asks(host, value))?;
        Some(format!("{name}={}", value.trim()))
    };
    variables.into_iter().filter_map(of).collect()
}

/// Whether a value is a positive count: `8`, or Slurm's `a100:4`.
pub fn counts(value: &str) -> bool {
    let count = |one: &str| one.rsplit(':').next().and_then(|count| count.trim().parse().ok());
    value.split(',').filter_map(count).any(|count: u32| count > 0)
}

/// Whether a value lists devices: `0,1`, `[0,1]`, `CUDA0`, `node-gpu0`.
fn lists(value: &str) -> bool {
    value.bytes().any(|byte| byte.is_ascii_digit())
}

/// The first PCI function of which each of these files begins with one of its texts.
fn pci_function(host: &Host, wanted: &[(&str, &[&str])]) -> Option<String> {
    const FUNCTIONS: &str = "/sys/bus/pci/devices";
    let is = |address: &str, (file, starts): &(&str, &[&str])| {
        host.read(format!("{FUNCTIONS}/{address}/{file}"))
            .is_ok_and(|text| starts.iter().any(|start| text.starts_with(start)))
    };
    let all = host.list(FUNCTIONS);
    all.into_iter().find(|address| wanted.iter().all(|one| is(address, one)))
}

/// Beginnings of names in /dev: the driver's own, the paravirtual GPU of WSL, the GPUs of Tegra.
const DEVICES: [&str; 4] = ["nvidia", "dxg", "nvhost", "nvmap"];
const FOLDERS: [&str; 3] = ["/proc/driver/nvidia", "/sys/module/nvidia", "/sys/module/nvgpu"];
/// Folders in which the loader looks without its cache.
const USUAL: [&str; 6] = [
    "/lib",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib",
    "/usr/local/lib",
];

/// Whether the kernel shows no driver and the loader would not find its library. In doubt the answer is false.
pub(super) fn is_absent(host: &Host) -> bool {
    let is_device = |name: &String| DEVICES.iter().any(|start| name.starts_with(start));
    !host.list("/dev").iter().any(is_device)
        && !FOLDERS.iter().any(|folder| host.exists(folder))
        && !has_library(host)
}

fn has_library(host: &Host) -> bool {
    let [name, known @ ..] = LIBRARIES else { return true };
    let named = host.variable("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<&str> = named.split(':').filter(|_| !named.is_empty()).collect();
    // A relative folder depends on the folder in which the job starts, so it is not followed.
    folders.iter().any(|folder| !folder.starts_with('/'))
        || known.iter().any(|path| host.exists(path))
        || folders.into_iter().chain(USUAL).any(|at| host.exists(format!("{at}/{name}")))
        || host.read("/etc/ld.so.cache").is_ok_and(|cache| cache.contains(name))
}

/// The signs by which the accelerators of a vendor are recognised.
#[derive(Debug)]
struct Vendor {
    /// Name in English and Chinese.
    name: (&'static str, &'static str),
    files: &'static [Files],
    /// Variables that select devices, or a variable with its only value. Values such as `all` and `void` come from
    /// images.
    variables: &'static [&'static str],
}

/// Device files of an accelerator.
#[derive(Debug, Clone, Copy)]
enum Files {
    /// `/dev/NAMEn` or `/dev/NAME.n`.
    Numbered(&'static str),
    /// This file in /dev.
    One(&'static str),
    /// /dev/kfd with a node that has compute units; the driver lists CPUs as nodes too
    /// (drivers/gpu/drm/amd/amdkfd/kfd_topology.c, simd_count).
    Kfd,
    /// /dev/accel/accelN of this PCI vendor. The folder also has the NPUs of laptops.
    Accel(&'static str),
    /// A numbered file of this name in a folder of /dev, if the node has a TPU.
    Tpu(&'static str, &'static str),
}

/// PCI ids of TPUs (jax/_src/hardware_utils.py); Google's network cards have the same vendor.
const TPU: &[&str] = &["0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"];

const VENDORS: &[Vendor] = &[
    Vendor {
        name: ("Ascend NPUs", "昇腾 NPU"),
        files: &[Files::Numbered("davinci")],
        variables: &["ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "NPU_VISIBLE_DEVICES"],
    },
    Vendor {
        name: ("AMD or Hygon GPUs", "AMD 或海光 GPU"),
        files: &[Files::Kfd],
        variables: &["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"],
    },
    Vendor {
        name: ("Cambricon MLUs", "寒武纪 MLU"),
        files: &[Files::Numbered("cambricon_dev")],
        variables: &["MLU_VISIBLE_DEVICES", "CAMBRICON_VISIBLE_DEVICES"],
    },
    Vendor {
        name: ("Moore Threads GPUs", "摩尔线程 GPU"),
        files: &[Files::Numbered("mtgpu")],
        variables: &["MUSA_VISIBLE_DEVICES", "MTHREADS_VISIBLE_DEVICES"],
    },
    Vendor {
        name: ("MetaX GPUs", "沐曦 GPU"),
        files: &[Files::One("mxcd")],
        variables: &["MACA_VISIBLE_DEVICES"],
    },
    Vendor {
        name: ("Iluvatar GPUs", "天数智芯 GPU"),
        files: &[Files::Numbered("iluvatar")],
        variables: &["IX_VISIBLE_DEVICES"],
    },
    Vendor {
        name: ("Kunlunxin XPUs", "昆仑芯 XPU"),
        files: &[Files::Numbered("xpu")],
        variables: &["XPU_VISIBLE_DEVICES"],
    },
    Vendor {
        name: ("Enflame GCUs", "燧原 GCU"),
        files: &[Files::Numbered("gcu")],
        variables: &["TOPS_VISIBLE_DEVICES", "GCU_VISIBLE_DEVICES"],
    },
    Vendor {
        name: ("Intel Gaudi accelerators", "Intel Gaudi 加速器"),
        files: &[Files::Numbered("hl"), Files::Accel("0x1da3")],
        variables: &["HABANA_VISIBLE_MODULES", "HABANA_VISIBLE_DEVICES"],
    },
    // Their device files are the same as those of any Intel display.
    Vendor {
        name: ("Intel GPUs", "Intel GPU"),
        files: &[],
        variables: &["ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "PJRT_DEVICE=XPU"],
    },
    Vendor {
        name: ("AWS Neuron devices", "AWS Neuron 加速器"),
        files: &[Files::Numbered("neuron")],
        variables: &["NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "PJRT_DEVICE=NEURON"],
    },
    Vendor {
        name: ("TPUs", "TPU"),
        files: &[Files::Tpu("/dev", "accel"), Files::Tpu("/dev/vfio", "")],
        variables: &[
            "TPU_VISIBLE_CHIPS",
            "TPU_VISIBLE_DEVICES",
            "TPU_ACCELERATOR_TYPE",
            "PJRT_DEVICE=TPU",
        ],
    },
    Vendor {
        name: ("Tecorigin SDAA cards", "太初元碁 SDAA 加速卡"),
        files: &[],
        variables: &["SDAA_VISIBLE_DEVICES"],
    },
    Vendor {
        name: ("Rebellions NPUs", "Rebellions NPU"),
        files: &[],
        variables: &["RBLN_DEVICES", "RBLN_VISIBLE_DEVICES"],
    },
];

/// The vendors for which there is evidence.
pub(super) fn others(host: &Host) -> Vec<OtherAccelerator> {
    let dev = host.list("/dev");
    let of = |vendor: &Vendor| {
        let files = vendor.files.iter().filter_map(|files| files.found(host, &dev));
        let variables = vendor.variables.iter().filter_map(|variable| {
            let (name, only) = variable
                .split_once('=')
                .map_or((*variable, None), |(name, value)| (name, Some(value)));
            let asks =
                |value: &String| only.map_or_else(|| lists_devices(value), |only| value == only);
            host.variable(name).filter(asks).map(|value| format!("{name}={value}"))
        });
        let evidence: Vec<String> = files.chain(variables).collect();
        let (en, zh) = vendor.name;
        (!evidence.is_empty()).then(|| OtherAccelerator { vendor: Text::new(en, zh), evidence })
    };
    let mut found: Vec<OtherAccelerator> = VENDORS.iter().filter_map(of).collect();
    found.extend(of_unknown(host));
    found
}

/// Evidence of a vendor that the table lacks: a list of devices in a variable with the name that all vendors use, such
/// as `PPU_VISIBLE_DEVICES=0,1`. A longer name that only contains such a name does not count
/// (`RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES=1`).
fn of_unknown(host: &Host) -> Option<OtherAccelerator> {
    let is_list = |name: &str| {
        let vendor = name.strip_suffix("_VISIBLE_DEVICES");
        vendor.is_some_and(|vendor| !vendor.contains('_') && !["CUDA", "NVIDIA"].contains(&vendor))
            && VENDORS.iter().all(|vendor| !vendor.variables.contains(&name))
    };
    let names = host.environment().keys().filter_map(|name| name.to_str());
    let of = |name| {
        Some(format!("{name}={}", host.variable(name).filter(|value| lists_devices(value))?))
    };
    let evidence: Vec<String> = names.filter(|name| is_list(name)).filter_map(of).collect();
    let vendor = Text::new("accelerators of another vendor", "其他厂商的加速器");
    (!evidence.is_empty()).then_some(OtherAccelerator { vendor, evidence })
}

/// Whether a value lists devices: an element has a number that is not negative, as in `0,1`, `0-3`, `Ascend910-0`,
/// `GPU-8f3a…`.
fn lists_devices(value: &str) -> bool {
    let names = |element: &str| {
        !element.starts_with('-') && element.bytes().any(|byte| byte.is_ascii_digit())
    };
    value.split(',').map(str::trim).any(names)
}

impl Files {
    /// The first of these files as evidence, with their number.
    fn found(self, host: &Host, dev: &[String]) -> Option<String> {
        match self {
            Files::Numbered(name) => counted("/dev", numbered(dev, name)),
            Files::One(name) => dev.iter().any(|one| one == name).then(|| format!("/dev/{name}")),
            Files::Kfd => {
                const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";
                let computes = |node: &String| {
                    let text = host.read(format!("{NODES}/{node}/properties")).unwrap_or_default();
                    let count = text.lines().find_map(|line| line.strip_prefix("simd_count "));
                    count.is_some_and(|count| count.trim() != "0")
                };
                let is_there = dev.iter().any(|one| one == "kfd");
                let gpus = host.list(NODES).iter().filter(|node| computes(node)).count();
                (is_there && gpus > 0).then(|| format!("/dev/kfd × {gpus}"))
            }
            Files::Accel(vendor) => {
                let is_theirs = |name: &String| {
                    let file = format!("/sys/class/accel/{name}/device/vendor");
                    host.read(file).is_ok_and(|text| text.trim() == vendor)
                };
                let all = numbered(&host.list("/dev/accel"), "accel");
                counted("/dev/accel", all.into_iter().filter(is_theirs).collect())
            }
            Files::Tpu(folder, name) => {
                let found = counted(folder, numbered(&host.list(folder), name))?;
                pci_function(host, &[("vendor", &["0x1ae0"]), ("device", TPU)]).map(|_| found)
            }
        }
    }
}

/// The names that consist of `name`, an optional dot and a number.
fn numbered(names: &[String], name: &str) -> Vec<String> {
    let is_one = |one: &&String| {
        let rest = one.strip_prefix(name).map(|rest| rest.strip_prefix('.').unwrap_or(rest));
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut found: Vec<String> = names.iter().filter(is_one).cloned().collect();
    found.order_by_key(|name| (name.len(), name.clone()));
    found
}

/// Evidence such as `/dev/davinci0` or `/dev/davinci0 × 8`.
fn counted(folder: &str, names: Vec<String>) -> Option<String> {
    let first = names.first()?;
    Some(match names.len() {
        1 => format!("{folder}/{first}"),
        count => format!("{folder}/{first} × {count}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &str) -> Vec<String> {
        let pairs = pairs.split_whitespace().filter_map(|pair| pair.split_once('='));
        let environment = pairs.map(|(name, value)| (name.into(), value.into())).collect();
        let (root, _) = Host::of_files(&[
            ("var/spool/gpus", "node-gpu0\nnode-gpu1\n"),
            ("var/spool/nogpus", ""),
        ]);
        let host = Host::replayed(root.path(), environment);
        [of_nvidia(&host), of_platforms(&host)].concat()
    }

    #[test]
    fn allocated_gpus_are_asked_for() {
        for pair in [
            "SLURM_GPUS_ON_NODE=4",
            "SLURM_GPUS_PER_NODE=a100:4",
            "SLURM_JOB_GPUS=0,1",
            "SLURM_STEP_GPUS=0",
            "_CONDOR_AssignedGPUs=CUDA0",
            "PBS_GPUFILE=/var/spool/gpus",
            "DET_SLOT_IDS=[0,1]",
            "RUNPOD_GPU_COUNT=1",
            "PET_NPROC_PER_NODE=gpu",
            "CUDA_VISIBLE_DEVICES=0,1",
        ] {
            assert_eq!(asked(pair), [pair]);
        }
        for name in Field::GpuCount.variables() {
            assert_eq!(asked(&format!("{name}=8")), [format!("{name}=8")]);
            assert_eq!(asked(&format!("{name}=0")), [""; 0]);
        }
    }

    #[test]
    fn allocations_without_gpus_ask_for_none() {
        for pairs in [
            "SLURM_GPUS_PER_NODE=a100:0 SLURM_JOB_GPUS= SLURM_GPUS_ON_NODE=",
            "SLURM_CPUS_ON_NODE=8 SLURM_NTASKS=8",
            "PBS_GPUFILE=/var/spool/nogpus",
            "PBS_GPUFILE=/var/spool/missing",
            "DET_SLOT_IDS=[]",
            "DET_SLOT_IDS=[0] DET_SLOT_TYPE=cpu",
            "PET_NPROC_PER_NODE=8 NVIDIA_VISIBLE_DEVICES=all CUDA_VISIBLE_DEVICES=-1",
        ] {
            assert_eq!(asked(pairs), [""; 0], "{pairs}");
        }
    }

    #[test]
    fn every_sign_of_a_driver_is_seen() {
        let absent = |files: &[(&str, &str)]| {
            let (_root, host) = Host::of_files(files);
            is_absent(&host)
        };
        let plain = [("dev/null", ""), ("etc/ld.so.cache", "libc.so.6"), ("sys/module/loop/x", "")];
        assert!(absent(&plain) && absent(&[]));
        let of_loader = ["usr/lib/libnvidia-ml.so.1", "lib64/libnvidia-ml.so.1"];
        let of_kernel = [
            "dev/nvidiactl",
            "dev/nvidia0",
            "dev/nvidia-caps/x",
            "dev/dxg",
            "dev/nvhost-gpu",
            "dev/nvmap",
            "proc/driver/nvidia/version",
            "sys/module/nvidia/version",
            "sys/module/nvgpu/x",
        ];
        let known = LIBRARIES.iter().skip(1).map(|path| path.trim_start_matches('/'));
        for sign in of_loader.into_iter().chain(of_kernel).chain(known) {
            assert!(!absent(&[plain[0], (sign, "")]), "{sign}");
        }
        assert!(!absent(&[(
            "etc/ld.so.cache",
            "\0libnvidia-ml.so.1\0/opt/lib/libnvidia-ml.so.1\0"
        )]));
    }
}
