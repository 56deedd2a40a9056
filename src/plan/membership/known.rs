//! Known values of a job: its numbers with their sources, whether it is nested, its platform, and the
//! requested number of processes per node.
//!
//! A number that a platform sets by itself (PROC_PER_NODE of KubeBrain) is the capacity of a node, not
//! a request of the user, so it is only an upper bound.

use super::claims::{self, refuse};
use node::observe::GpuFacts;
use settings::contract::{Contract, Evidence, Field};
use settings::{Device, Nproc, Settings, Source};
use text::text;
use verdict::{Id, Refusal};

/// A number and its source.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) value: u32,
    /// `--nnodes` or `PET_NNODES=2`; `default`.
    pub(super) source: String,
    pub(super) by: By,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Setting,
    /// A variable that counts only nodes.
    Platform,
    /// `--standalone` of torchrun.
    Standalone,
    WorldSize,
    /// Nothing gave it.
    Default,
}

impl Known {
    /// Whether this node is separate from the platform's job, so that its rank and master there
    /// do not apply.
    pub(super) fn is_apart(&self) -> bool {
        self.value == 1 && matches!(self.by, By::Setting | By::Standalone)
    }
}

/// Whether this is meant to run inside a rank of another launcher.
pub(super) fn is_nested(settings: &Settings, contract: &Contract) -> bool {
    settings.nested && contract.inside_torchrun.is_some()
}

pub(super) fn platform(contract: &Contract) -> String {
    if contract.platform.is_empty() { "none".to_owned() } else { contract.platform.clone() }
}

/// Upper limit, larger than the GPUs or cores of any node.
const MOST: u32 = 4096;

/// The request for processes per node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskedNproc {
    /// As many as the layout and the node allow.
    Auto,
    /// One per GPU; an error without a GPU.
    Gpus,
    /// CPU workers.
    Cpu,
    /// Exactly so many, and the source.
    Count { n: u32, source: String },
}

/// The request. Flag, environment and profile win over the platform's variable.
pub fn asked_nproc(settings: &Settings, contract: &Contract) -> Result<AskedNproc, Refusal> {
    let setting = &settings.nproc_per_node;
    if is_nested(settings, contract) && setting.source == Source::Default {
        // The platform's number is for the outer job.
        return Ok(AskedNproc::Auto);
    }
    let device = &settings.device;
    match (setting.value, device.value) {
        (Nproc::Gpu, Device::Cpu) | (Nproc::Cpu, Device::Gpu) => {
            let (nproc, other) = (&setting.source, &device.source);
            return Err(Refusal::new(
                Id::SettingsNprocPerNode,
                text!(
                    "{nproc} and {other} ask for different devices, gpu and cpu",
                    "{nproc} 与 {other} 分别要求 gpu 和 cpu，互相矛盾"
                ),
                text!("remove one of them", "请去掉其中之一"),
            ));
        }
        _ => {}
    }
    match setting.value {
        Nproc::Count(n) => return Ok(AskedNproc::Count { n, source: setting.source.to_string() }),
        Nproc::Gpu => return Ok(AskedNproc::Gpus),
        Nproc::Cpu => return Ok(AskedNproc::Cpu),
        Nproc::Auto if setting.source != Source::Default => return Ok(AskedNproc::Auto),
        Nproc::Auto => {}
    }
    claims::first(contract, Field::Nproc).map_or(Ok(AskedNproc::Auto), |found| read(&found))
}

fn read(found: &Evidence) -> Result<AskedNproc, Refusal> {
    let claim = &found.claim;
    let value = claim.value.trim().to_ascii_lowercase();
    match value.as_str() {
        // PyTorchJob 1.7 and later sets `auto` by default, on CPU nodes too.
        "auto" => Ok(AskedNproc::Auto),
        "gpu" => Ok(AskedNproc::Gpus),
        "cpu" => Ok(AskedNproc::Cpu),
        _ => match value.parse::<u32>() {
            Ok(n) if (1..=MOST).contains(&n) => {
                Ok(AskedNproc::Count { n, source: claim.to_string() })
            }
            _ => Err(refuse(
                Id::MembershipNproc,
                text!(
                    "{claim} is neither a whole number from 1 to {MOST} nor auto, gpu or cpu",
                    "{claim} 既不是 1 到 {MOST} 之间的整数，也不是 auto、gpu 或 cpu"
                ),
                text!(
                    "correct it in the job's definition, or override it with --nproc-per-node auto|N",
                    "请在任务定义中改正，或用 --nproc-per-node auto|N 覆盖"
                ),
            )),
        },
    }
}

/// The capacity of a node by the platform's variable: processes and the variable. An upper bound
/// for `auto`, never a request; None if it cannot be parsed.
pub fn offered_nproc(contract: &Contract) -> Option<(u32, String)> {
    claims::spoken(contract, Field::Offered).iter().find_map(|found| {
        let n = found.claim.value.trim().parse::<u32>().ok()?;
        (1..=MOST).contains(&n).then(|| (n, found.claim.to_string()))
    })
}

/// Processes of a node, and the source.
#[derive(Debug, Clone)]
pub(super) struct Processes {
    pub(super) count: u32,
    pub(super) source: String,
}

/// The number from settings and platform.
pub(super) fn stated_processes(settings: &Settings, contract: &Contract) -> Option<Processes> {
    let (count, source) = match asked_nproc(settings, contract) {
        Ok(AskedNproc::Count { n, source }) => (n, source),
        _ => offered_nproc(contract)?,
    };
    Some(Processes { count, source })
}

/// The number from settings and platform, else one per visible GPU.
pub(super) fn processes(
    settings: &Settings,
    contract: &Contract,
    gpus: &GpuFacts,
) -> Option<Processes> {
    stated_processes(settings, contract).or_else(|| {
        let count = u32::try_from(gpus.visible.len()).ok().filter(|count| *count > 0)?;
        Some(Processes { count, source: "GPU".to_owned() })
    })
}
