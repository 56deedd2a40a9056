//! The evidence that this node should have GPUs.
//!
//! Takes the [`Host`]; gives each variable with its value, and each file. [`of_nvidia`] gives evidence that only
//! NVIDIA's GPUs leave; the counts and lists of platforms ([`of_platforms`]) may mean any vendor's GPUs.

use super::hidden;
use linux::host::Host;
use settings::contract::Field;

/// Whether a variable's value asks for GPUs.
type Asks = fn(&Host, &str) -> bool;

const OF_NVIDIA: &[(&str, Asks)] = &[
    // `all` and `void` come from images and prove nothing; a UUID proves an allocation.
    ("NVIDIA_VISIBLE_DEVICES", |_, value| {
        value.split(',').any(|item| item.starts_with("GPU-") || item.starts_with("MIG-"))
    }),
    ("CUDA_VISIBLE_DEVICES", |_, value| hidden::names_a_gpu(value)),
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
    if let Some(address) = nvidia_pci_gpu(host) {
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

/// A PCI function of vendor NVIDIA and class 3D or VGA controller (NVSwitches are bridges, class 0x0680).
fn nvidia_pci_gpu(host: &Host) -> Option<String> {
    let is = |address: &str, file: &str, start: &[&str]| {
        host.read(format!("/sys/bus/pci/devices/{address}/{file}"))
            .is_ok_and(|text| start.iter().any(|start| text.starts_with(start)))
    };
    host.list("/sys/bus/pci/devices").into_iter().find(|address| {
        is(address, "class", &["0x0302", "0x0300"]) && is(address, "vendor", &["0x10de"])
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
}
