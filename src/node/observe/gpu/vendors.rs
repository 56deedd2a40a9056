//! Accelerators of other vendors. This program can name them, but can neither count nor assign them.
//!
//! Takes the [`Host`]; gives each vendor of the table for which this node shows evidence: device files, or a variable
//! that lists devices. A display (/dev/dri) is not evidence.

use crate::observe::OtherAccelerator;
use linux::host::Host;
use text::lang::Text;

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
    /// A numbered file in a folder of /dev, if the node has a PCI function of this vendor with one of these device ids.
    WithPci {
        folder: &'static str,
        name: &'static str,
        vendor: &'static str,
        ids: &'static [&'static str],
    },
}

/// PCI ids of TPUs (jax/_src/hardware_utils.py); Google's network cards have the same vendor.
const TPU: &[&str] = &["0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"];

const fn tpu(folder: &'static str, name: &'static str) -> Files {
    Files::WithPci { folder, name, vendor: "0x1ae0", ids: TPU }
}

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
        files: &[tpu("/dev", "accel"), tpu("/dev/vfio", "")],
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
            Files::WithPci { folder, name, vendor, ids } => {
                let found = counted(folder, numbered(&host.list(folder), name))?;
                has_pci(host, vendor, ids).then_some(found)
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
    found.sort_by_key(|name| (name.len(), name.clone()));
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

fn has_pci(host: &Host, vendor: &str, ids: &[&str]) -> bool {
    const FUNCTIONS: &str = "/sys/bus/pci/devices";
    let text = |address: &str, file: &str| {
        host.read(format!("{FUNCTIONS}/{address}/{file}")).unwrap_or_default()
    };
    host.list(FUNCTIONS).iter().any(|address| {
        text(address, "vendor").trim() == vendor && ids.contains(&text(address, "device").trim())
    })
}
