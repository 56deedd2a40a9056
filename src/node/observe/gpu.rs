//! Finds the GPUs that this container can use, and their faults.
//!
//! Takes the [`Host`] and the allowed ways to run the probe. Gives [`GpuFacts`] with the source that counted the GPUs
//! and every source that was tried before. NVML runs in the probe's process. Must never open a device of a driver that
//! hangs. The GPUs that a job uses or excludes are chosen in `src/plan/devices/choose.rs`.

mod facts;
mod fallback;
mod faults;
mod signs;
mod visible;

use std::time::Duration;

pub use facts::{
    ComputeMode, FabricState, Gpu, GpuFacts, GpuSource, OtherAccelerator, RecoveryAction,
    THROTTLED, VisibleGpu, label,
};
pub use signs::counts;
pub use visible::{unreadable, visible};

use super::{Facts, rdma};
use crate::probe::{self, Answer, NvmlAnswer, NvmlGpu, ProbeError};
use linux::host::Host;
use settings::{Assumed, ProbeMode};
use text::lang::Text;
use text::text;

/// Variable that names another NVML library for this node.
const LIBRARY_VARIABLE: &str = "RANKLAUNCH_NVML_LIBRARY";

/// The file of a capture that holds NVML's answer.
const NVML_ANSWER: &str = "/run/ranklaunch/nvml.json";

/// Time limit for the driver. Without persistence mode the first call initialises every GPU,
/// which takes several seconds for eight; after this limit the driver counts as hung.
pub(super) const DRIVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for the calls about health and use. The GPUs are known even without their answers.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// The GPUs of this node, waiting at most `timeout` for the driver. Blocks the calling thread.
pub fn gpus_within(host: &Host, mode: ProbeMode, timeout: Duration) -> GpuFacts {
    let of_nvidia = signs::of_nvidia(host);
    let mut facts = GpuFacts {
        cuda_visible_devices: host.variable("CUDA_VISIBLE_DEVICES"),
        requested_by: [&*of_nvidia, &*signs::of_platforms(host)].concat(),
        driver_version: faults::kernel_driver_version(host),
        ..GpuFacts::default()
    };
    find(host, mode, timeout, &mut facts);
    for gpu in &mut facts.gpus {
        gpu.numa_node = gpu.pci.as_deref().and_then(|address| rdma::numa_node(host, address));
        gpu.bridges = gpu.pci.as_deref().map(|at| rdma::bridges(host, at)).unwrap_or_default();
        if facts.source != GpuSource::Nvml {
            gpu.health.pcie = gpu.pci.as_deref().map(|at| rdma::link(host, at)).unwrap_or_default();
        }
    }
    let chosen = facts.cuda_visible_devices.as_deref();
    facts.visible = visible(chosen, &facts.gpus);
    // If there is an NVIDIA GPU, or a sign of one, other accelerators and their variables say nothing about this job.
    if facts.gpus.is_empty() && of_nvidia.is_empty() {
        facts.others = signs::others(host);
    }
    // The state of a GPU that the job does not see is irrelevant.
    let used = facts.visible.iter().filter_map(|seen| facts.gpus.get(seen.gpu));
    let faults: Vec<_> = used.flat_map(faults::of_use).collect();
    facts.faults.extend(faults);
    let unreadable = chosen.filter(|_| !facts.visible.is_empty()).and_then(unreadable);
    facts.unreadable_device = unreadable.map(str::to_owned);
    facts
}

impl NvmlGpu {
    /// NVML's current data about the GPUs, within `timeout`; empty if NVML cannot be asked.
    pub fn now(host: &Host, mode: ProbeMode, timeout: Duration) -> Vec<NvmlGpu> {
        match nvml(host, mode, timeout) {
            Some(Ok(answer)) => answer.gpus,
            Some(Err(_)) | None => Vec::new(),
        }
    }
}

impl Facts {
    /// The mechanism that shares these GPUs among programs, so that memory in use is no sign of a leftover: HAMi's own
    /// accounting, the parent of a MIG instance, other clients of an MPS server.
    pub fn gpus_shared_by(&self) -> Option<&'static str> {
        let gpus = &self.gpus;
        let mig = gpus.visible.iter().filter_map(|seen| gpus.gpus.get(seen.gpu)).any(|gpu| gpu.mig);
        let mps = self.environment.get("CUDA_MPS_PIPE_DIRECTORY").is_some_and(|at| !at.is_empty());
        match () {
            () if self.state.hami.is_some() => Some("HAMi"),
            () if mig => Some("MIG"),
            () if mps => Some("MPS"),
            () => None,
        }
    }
}

/// The facts if even the fallbacks did not return: there is a driver, and the driver hangs.
pub(super) fn unanswered(host: &Host, after: Duration) -> GpuFacts {
    let error = ProbeError::TimedOut { after, gone: false };
    GpuFacts {
        cuda_visible_devices: host.variable("CUDA_VISIBLE_DEVICES"),
        requested_by: signs::of_platforms(host),
        faults: faults::of_probe(&error).into_iter().collect(),
        attempts: vec![(GpuSource::Nvml, error.text())],
        ..GpuFacts::default()
    }
}

/// Reads the sources that count GPUs without NVML, and opens no device.
pub(super) fn read_fallbacks(host: &Host) {
    fallback::minors(host);
    let _ = fallback::proc_driver(host);
}

fn find(host: &Host, mode: ProbeMode, timeout: Duration, facts: &mut GpuFacts) {
    let mut hung = false;
    let of_nvml = if is_needless(host, mode, facts) {
        Err(text!(
            "not asked, since no device, module or library of an NVIDIA driver is here",
            "未查询：这里没有 NVIDIA 驱动的设备、内核模块或库"
        ))
    } else {
        match nvml(host, mode, timeout) {
            Some(Ok(answer)) => read_nvml(host, answer, facts),
            None => Err(text!("not queried for a copied root", "对拷贝的根目录不查询")),
            Some(Err(error)) => {
                hung = matches!(error, ProbeError::TimedOut { .. });
                facts.faults.extend(faults::of_probe(&error));
                Err(error.text())
            }
        }
    };
    if take(GpuSource::Nvml, of_nvml, facts) {
        facts.uncounted = uncounted(host, &facts.gpus);
        return;
    }
    let smi_first = mode == ProbeMode::NvidiaSmi;
    if smi_first && take_nvidia_smi(host, mode, timeout, hung, facts) {
        return;
    }
    // Opening a device of a hung driver can hang this process.
    let nodes = if hung {
        Err(text!("not opened, because the driver hangs", "驱动无响应，未打开"))
    } else {
        fallback::device_nodes(host)
    };
    if take(GpuSource::DeviceNodes, nodes, facts) {
        return;
    }
    // Device nodes that exist but do not open belong to another container, but /proc lists them as well.
    if (hung || fallback::minors(host).is_empty())
        && take(GpuSource::ProcDriver, fallback::proc_driver(host), facts)
    {
        return;
    }
    if !smi_first {
        take_nvidia_smi(host, mode, timeout, hung, facts);
    }
}

/// Whether NVML could add nothing that is needed. If GPUs are requested, its explanation of their absence is reported,
/// and a capture keeps its answer.
fn is_needless(host: &Host, mode: ProbeMode, facts: &GpuFacts) -> bool {
    mode == ProbeMode::Auto
        && host.is_live()
        && !host.is_recorded()
        && facts.requested_by.is_empty()
        && library(host).is_none()
        && signs::is_absent(host)
}

fn take(source: GpuSource, found: Result<Vec<Gpu>, Text>, facts: &mut GpuFacts) -> bool {
    match found {
        Ok(gpus) => {
            facts.gpus = gpus;
            facts.source = source;
            true
        }
        Err(why) => {
            facts.attempts.push((source, why));
            false
        }
    }
}

fn take_nvidia_smi(
    host: &Host,
    mode: ProbeMode,
    timeout: Duration,
    hung: bool,
    facts: &mut GpuFacts,
) -> bool {
    let found = if mode == ProbeMode::Off {
        Err(text!("switched off by --probe", "已被 --probe 关闭"))
    } else if hung {
        Err(text!("not run, because the driver hangs", "驱动无响应，未运行"))
    } else if host.is_live() {
        fallback::nvidia_smi(host, timeout).map_err(|failure| {
            facts.faults.extend(faults::of_nvidia_smi(host, &failure));
            failure.text()
        })
    } else {
        Err(text!("not run for a copied root", "对拷贝的根目录不运行"))
    };
    let gpus = found.map(|(gpus, driver)| {
        facts.driver_version = driver.or_else(|| facts.driver_version.take());
        gpus
    });
    take(GpuSource::NvidiaSmi, gpus, facts)
}

/// The NVML library that the user names for this node.
pub fn library(host: &Host) -> Option<String> {
    host.variable(LIBRARY_VARIABLE).filter(|library| !library.is_empty())
}

/// NVML's answer. None for a replayed node, which has no driver, unless the user names a library for it.
fn nvml(host: &Host, mode: ProbeMode, timeout: Duration) -> Option<Result<NvmlAnswer, ProbeError>> {
    let library = library(host);
    let health = HEALTH_TIMEOUT.min(timeout / 2).as_millis().to_string();
    let args = match &library {
        Some(library) => vec!["nvml", &health, library.as_str()],
        None if host.is_live() => vec!["nvml", &health],
        None => {
            let kept = host.read(NVML_ANSWER).ok()?;
            return serde_json::from_str(&kept).ok().map(Ok);
        }
    };
    Some(probe::run(mode, &args, timeout).and_then(|answer| match answer {
        Answer::Nvml(answer) => {
            host.note(NVML_ANSWER, || serde_json::to_vec(&answer).unwrap_or_default());
            Ok(answer)
        }
        Answer::Names(_) | Answer::Usage(_) => {
            Err(ProbeError::Garbled { why: "an answer to another question".to_owned() })
        }
    }))
}

/// The GPUs of NVML's answer, or the reason why it does not count them.
fn read_nvml(host: &Host, answer: NvmlAnswer, facts: &mut GpuFacts) -> Result<Vec<Gpu>, Text> {
    if answer.library.is_none() {
        // The loader's message starts with the name of the library.
        let quote = |(name, why): &(String, String)| {
            if why.starts_with(name.as_str()) { why.clone() } else { format!("{name}: {why}") }
        };
        let tried: Vec<String> = answer.not_loaded.iter().map(quote).collect();
        let tried = tried.join("; ");
        return Err(text!(
            "no NVML library can be loaded ({tried})",
            "无法加载 NVML 库（{tried}）"
        ));
    }
    facts.driver_version = answer.driver_version.clone().or_else(|| facts.driver_version.take());
    facts.cuda_driver_version = answer.cuda_driver_version;
    if let Some(failure) = &answer.failure {
        let expected = !facts.requested_by.is_empty();
        facts.faults.extend(faults::of_node(host, &answer, failure, expected));
        let (call, words) = (&failure.call, &failure.text);
        let code = failure.code.map(|code| format!(", {code}")).unwrap_or_default();
        return Err(Text::same(format!("{call}: {words}{code}")));
    }
    let mut gpus = Vec::new();
    for gpu in answer.gpus {
        let (faults, fabric) = faults::of_gpu(&gpu);
        facts.faults.extend(faults);
        facts.fabric_faults.extend(fabric);
        // An unusable GPU does not count; the fault names it.
        if !faults::is_gone(&gpu) {
            gpus.push(from_nvml(gpu));
        }
    }
    Ok(gpus)
}

/// Minors of GPUs whose device nodes this container may open but which NVML does not count: the
/// driver failed to initialise them. Nodes that the device cgroup refuses belong to another
/// container.
fn uncounted(host: &Host, counted: &[Gpu]) -> Vec<u32> {
    let known: Option<Vec<u32>> = counted.iter().map(|gpu| gpu.minor).collect();
    let Some(known) = known.filter(|known| !known.is_empty()) else { return Vec::new() };
    let others = fallback::minors(host).into_iter().filter(|minor| !known.contains(minor));
    others.filter(|minor| fallback::is_given(host, *minor)).collect()
}

fn from_nvml(gpu: NvmlGpu) -> Gpu {
    Gpu {
        index: gpu.index,
        uuid: gpu.uuid,
        name: gpu.name,
        pci: gpu.pci,
        minor: gpu.minor,
        memory_total: gpu.memory_total,
        memory_used: gpu.memory_used,
        mig: gpu.mig.unwrap_or(false),
        numa_node: None,
        recovery_action: gpu.recovery_action.map(RecoveryAction::of),
        fabric: gpu.fabric.map(FabricState::of),
        fabric_health: gpu.fabric_health,
        bridges: Vec::new(),
        health: gpu.health,
    }
}

/// The assumed GPUs, filtered by this CUDA_VISIBLE_DEVICES.
pub(super) fn assumed(host: &Host, assumed: &Assumed) -> GpuFacts {
    let gpus: Vec<Gpu> = (0..assumed.gpus)
        .map(|index| Gpu {
            index,
            name: assumed.name.clone(),
            memory_total: assumed.memory,
            ..Gpu::default()
        })
        .collect();
    let devices = host.variable("CUDA_VISIBLE_DEVICES");
    GpuFacts {
        visible: visible(devices.as_deref(), &gpus),
        unreadable_device: devices.as_deref().and_then(unreadable).map(str::to_owned),
        cuda_visible_devices: devices,
        gpus,
        source: GpuSource::Assumed,
        ..GpuFacts::default()
    }
}
