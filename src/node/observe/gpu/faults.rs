//! Driver states that make GPUs unusable, each as one finding with its remedy.
//!
//! Takes NVML's return codes and the probe's own failures; gives `gpu.fault.…` warnings. `plan`
//! decides whether a fault refuses the launch.

use super::facts::{label, of_nvml};
use super::fallback::SmiError;
use super::{ComputeMode, FabricState, RecoveryAction};
use crate::observe::Gpu;
use crate::probe::{CallError, NvmlAnswer, NvmlGpu, ProbeError};
use linux::host::Host;
use text::lang::Text;
use text::text;
use verdict::{Id, Warning};

/// NVML return codes (nvml.h) that describe the driver's state.
pub(super) mod code {
    pub(crate) const DRIVER_NOT_LOADED: u32 = 9;
    pub(crate) const GPU_IS_LOST: u32 = 15;
    pub(crate) const RESET_REQUIRED: u32 = 16;
    pub(crate) const OPERATING_SYSTEM: u32 = 17;
    pub(crate) const VERSION_MISMATCH: u32 = 18;
    pub(crate) const UNKNOWN: u32 = 999;
}

/// The fault behind a failed call that made all of NVML unusable.
///
/// `expected`: there is other evidence of a GPU. Without such evidence "no driver" is the normal state of a CPU node
/// whose image has the library.
pub(super) fn of_node(
    host: &Host,
    answer: &NvmlAnswer,
    failure: &CallError,
    expected: bool,
) -> Option<Warning> {
    let CallError { call, text: words, .. } = failure;
    let code = failure.code?;
    match code {
        code::VERSION_MISMATCH => {
            Some(mismatch(host, answer.library.as_deref().unwrap_or("libnvidia-ml.so.1")))
        }
        code::GPU_IS_LOST | code::RESET_REQUIRED => Some(of_code(code, "NVML", "NVML", failure)?),
        code::DRIVER_NOT_LOADED if expected => Some(Warning::new(
            Id::GpuFaultDriver,
            text!(
                "the NVIDIA driver is not loaded, or this container may not open its devices \
                 ({call}: code {code}, {words})",
                "NVIDIA 驱动未加载，或此容器无权打开其设备（{call}：代码 {code}，{words}）"
            ),
            text!(
                "load the driver on the host, or start the container with its GPUs \
                 (--gpus, nvidia.com/gpu); --device cpu runs without",
                "请在宿主机上加载驱动，或为容器分配 GPU（--gpus、nvidia.com/gpu）；--device cpu 可不使用 GPU 运行"
            ),
        )),
        code::OPERATING_SYSTEM | code::UNKNOWN if expected => Some(Warning::new(
            Id::GpuFaultAccess,
            text!(
                "NVML cannot reach the driver ({call}: code {code}, {words}); in a running \
                 container this is what a systemctl daemon-reload on the host leaves behind",
                "NVML 无法访问驱动（{call}：代码 {code}，{words}）；在运行中的容器里，宿主机执行 systemctl daemon-reload 后就会如此"
            ),
            text!(
                "recreate the container; a restart inside it does not help",
                "请重建容器；在容器内重启无济于事"
            ),
        )),
        _ => None,
    }
}

/// The faults of one GPU, from its failed calls and from the driver's recovery action; and that of its fabric.
pub(super) fn of_gpu(gpu: &NvmlGpu) -> (Vec<Warning>, Option<Warning>) {
    let Text { en, zh } = of_nvml(gpu);
    let mut faults: Vec<Warning> = Vec::new();
    for error in errors(gpu) {
        let fault = error.code.and_then(|code| of_code(code, &en, &zh, error));
        // All calls about a lost GPU fail, but they show only one fault.
        if let Some(fault) = fault
            && !faults.iter().any(|before| before.id == fault.id)
        {
            faults.push(fault);
        }
    }
    let fabric = gpu.fabric.and_then(|state| fabric(&en, &zh, FabricState::of(state)));
    // With the action to drain peer links (3) the GPU still computes; with the other actions it does not.
    let wanted = match gpu.recovery_action.map(RecoveryAction::of) {
        Some(RecoveryAction::Reset) => Some(("a GPU reset", "重置 GPU")),
        Some(RecoveryAction::Reboot) => Some(("a reboot of the node", "重启节点")),
        Some(RecoveryAction::DrainAndReset) => Some(("to be drained and reset", "排空并重置")),
        _ => None,
    };
    if let Some((wanted, wanted_zh)) = wanted
        && faults.is_empty()
        && fabric.is_none()
    {
        faults.push(Warning::new(
            Id::GpuFaultRecovery,
            text!("{en}: the driver asks for {wanted}", "{zh}：驱动要求{wanted_zh}"),
            text!(
                "take the node out of service and do what the driver asks (nvidia-smi -q shows it)",
                "请将该节点下线并按驱动的要求处理（nvidia-smi -q 可查看）"
            ),
        ));
    }
    (faults, fabric)
}

/// The failed calls, without the calls about health unless these show that the GPU is lost. For a lost GPU the driver
/// still answers some calls from its cache (UUID, name).
fn errors(gpu: &NvmlGpu) -> impl Iterator<Item = &CallError> {
    let gone =
        |error: &&CallError| matches!(error.code, Some(code::GPU_IS_LOST | code::RESET_REQUIRED));
    // A sandbox also answers "unknown error" for calls that it does not pass on. Only for the three calls in `TELLING`
    // the error means that the GPU does not work.
    let tells = |error: &&CallError| {
        error.code != Some(code::UNKNOWN) || TELLING.contains(&error.call.as_str())
    };
    gpu.errors.iter().filter(tells).chain(gpu.health.unknown.iter().filter(gone))
}

/// Calls that every working GPU answers.
const TELLING: &[&str] =
    &["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo_v2"];

/// Whether a GPU is unusable, judged by its failed calls.
pub(super) fn is_gone(gpu: &NvmlGpu) -> bool {
    errors(gpu).filter_map(|error| error.code).any(is_unusable)
}

/// States in which NVML answers normally but no job should start on this GPU.
pub(super) fn of_use(gpu: &Gpu) -> Vec<Warning> {
    let Text { en, zh } = label(gpu);
    let health = &gpu.health;
    let mut faults = Vec::new();
    if health.remapped_rows.is_some_and(|rows| rows.failed) {
        faults.push(Warning::new(
            Id::GpuFaultRemap,
            text!(
                "{en}: a memory row could not be remapped (row remapping failure: yes, allowed: no)",
                "{zh}：有显存行重映射失败（row remapping failure：是，应为否）"
            ),
            text!(
                "the GPU must be replaced: take the node out of service, or leave the GPU out by CUDA_VISIBLE_DEVICES",
                "该 GPU 需要更换：请将节点下线，或用 CUDA_VISIBLE_DEVICES 排除该 GPU"
            ),
        ));
    }
    if health.compute_mode.and_then(ComputeMode::of) == Some(ComputeMode::Prohibited) {
        faults.push(Warning::new(
            Id::GpuFaultProhibited,
            text!(
                "{en}: compute mode PROHIBITED (2), so no CUDA program may use it; DEFAULT (0) is expected",
                "{zh}：计算模式为 PROHIBITED（2），任何 CUDA 程序都不能使用；应为 DEFAULT（0）"
            ),
            text!(
                "nvidia-smi -c DEFAULT on the host, or leave this GPU out by CUDA_VISIBLE_DEVICES",
                "在宿主机上执行 nvidia-smi -c DEFAULT，或用 CUDA_VISIBLE_DEVICES 排除该 GPU"
            ),
        ));
    }
    faults
}

/// The fault of a GPU behind NVSwitches that the fabric manager has not registered. Every program then fails with CUDA
/// error 802, even with a single GPU, although nvidia-smi lists the GPU.
fn fabric(en: &str, zh: &str, state: FabricState) -> Option<Warning> {
    let (how, how_zh) = match state {
        FabricState::NotStarted => ("has not started".to_owned(), "尚未开始".to_owned()),
        FabricState::InProgress => ("is still in progress".to_owned(), "仍在进行".to_owned()),
        FabricState::Failed { code } => {
            (format!("failed with code {code}"), format!("失败，代码 {code}"))
        }
        FabricState::Unsupported | FabricState::Ready | FabricState::Unknown { .. } => return None,
    };
    Some(Warning::new(
        Id::GpuFabric,
        text!(
            "{en}: its registration with the NVSwitch fabric {how}, so CUDA gives error 802",
            "{zh}：向 NVSwitch Fabric 的注册{how_zh}，CUDA 会报错误 802"
        ),
        text!(
            "check nvidia-fabricmanager on the host, whose version must be the driver's",
            "请检查宿主机上的 nvidia-fabricmanager，其版本须与驱动一致"
        ),
    ))
}

/// Whether the code of a call means that the GPU is unusable.
fn is_unusable(code: u32) -> bool {
    matches!(code, code::GPU_IS_LOST | code::RESET_REQUIRED | code::UNKNOWN)
}

fn of_code(code: u32, en: &str, zh: &str, error: &CallError) -> Option<Warning> {
    let CallError { call, text: words, .. } = error;
    match code {
        code::GPU_IS_LOST => Some(Warning::new(
            Id::GpuFaultLost,
            text!(
                "{en} has fallen off the bus ({call}: code {code}, {words})",
                "{zh}已从总线上掉线（{call}：代码 {code}，{words}）"
            ),
            text!(
                "reboot or replace the node; dmesg on the host shows Xid 79",
                "请重启或更换节点；宿主机的 dmesg 中可见 Xid 79"
            ),
        )),
        code::RESET_REQUIRED => Some(Warning::new(
            Id::GpuFaultResetRequired,
            text!(
                "{en} needs a reset before it can be used ({call}: code {code}, {words})",
                "{zh}需要重置后才能使用（{call}：代码 {code}，{words}）"
            ),
            text!(
                "reset it on the host (nvidia-smi --gpu-reset -i N with no process on it), or reboot",
                "请在宿主机上重置（确认无进程占用后执行 nvidia-smi --gpu-reset -i N），或重启节点"
            ),
        )),
        code::UNKNOWN => Some(Warning::new(
            Id::GpuFaultUnknown,
            text!(
                "{en} gives an unknown error ({call}: code {code})",
                "{zh}返回未知错误（{call}：代码 {code}）"
            ),
            text!(
                "look for Xid lines in the host's dmesg; recreate the container or reboot the node",
                "请查看宿主机 dmesg 中的 Xid 记录；重建容器或重启节点"
            ),
        )),
        _ => None,
    }
}

/// The fault that nvidia-smi reports, if NVML itself could not be used. Exit code 15 is a lost
/// GPU; a version mismatch has its own message.
pub(super) fn of_nvidia_smi(host: &Host, failure: &SmiError) -> Option<Warning> {
    let SmiError::Failed(error) = failure else { return None };
    match error {
        ProbeError::TimedOut { .. } => {
            let Text { en, zh } = error.text();
            Some(hung("nvidia-smi", &en, &zh))
        }
        ProbeError::Silent { noise, .. } if noise.contains("version mismatch") => {
            Some(mismatch(host, "libnvidia-ml.so.1"))
        }
        ProbeError::Silent { code: 15, noise } => {
            let code = Some(code::GPU_IS_LOST);
            let error = CallError { call: "nvidia-smi".to_owned(), code, text: noise.clone() };
            of_code(code::GPU_IS_LOST, "a GPU", "有 GPU", &error)
        }
        _ => None,
    }
}

fn mismatch(host: &Host, library: &str) -> Warning {
    let kernel = kernel_driver_version(host).unwrap_or_else(|| "?".to_owned());
    let version = library.rsplit_once(".so.").map_or("?", |(_, version)| version);
    // The `1` of a symbolic link is not a version.
    let (is, is_zh) = if version.contains('.') {
        (format!("is version {version}"), format!("的版本为 {version}"))
    } else {
        ("is of another version".to_owned(), "的版本与之不同".to_owned())
    };
    Warning::new(
        Id::GpuFaultMismatch,
        text!(
            "the driver library {library} {is} and the kernel driver is {kernel}",
            "驱动库 {library} {is_zh}，而内核驱动的版本为 {kernel}"
        ),
        text!(
            "recreate the container if the host's driver was upgraded under it; remove \
             libnvidia-ml from the image if the image ships its own",
            "若宿主机驱动在容器运行期间升级过，请重建容器；若镜像自带 libnvidia-ml，请将其移除"
        ),
    )
}

/// The version in /proc/driver/nvidia/version, whose first line is
/// `NVRM version: NVIDIA UNIX … Kernel Module [for x86_64]  570.86.15  …`.
pub(super) fn kernel_driver_version(host: &Host) -> Option<String> {
    let text = host.read("/proc/driver/nvidia/version").ok()?;
    let is_version = |word: &&str| {
        word.contains('.')
            && word
                .split('.')
                .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

fn hung(who: &str, en: &str, zh: &str) -> Warning {
    Warning::new(
        Id::GpuFaultHung,
        text!("{who} hangs: {en}", "{who} 无响应：{zh}"),
        text!(
            "reboot the node: processes in state D on /dev/nvidia* hold the driver; \
             --probe off skips NVML",
            "请重启节点：处于 D 状态且占用 /dev/nvidia* 的进程卡住了驱动；--probe off 可跳过 NVML"
        ),
    )
}

/// The fault that a missing answer of the probe shows, if it is a fault of the driver.
pub(super) fn of_probe(error: &ProbeError) -> Option<Warning> {
    match error {
        ProbeError::TimedOut { .. } => {
            let Text { en, zh } = error.text();
            Some(hung("NVML", &en, &zh))
        }
        ProbeError::Crashed { signal, noise } => Some(Warning::new(
            Id::GpuFaultCrash,
            text!(
                "the driver library crashed with signal {signal} {noise}",
                "驱动库因信号 {signal} 崩溃 {noise}"
            ),
            text!(
                "run nvidia-smi: if it crashes too, the driver installation is damaged; \
                 --probe off skips NVML",
                "请运行 nvidia-smi：若同样崩溃，则驱动安装已损坏；--probe off 可跳过 NVML"
            ),
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn kernel_driver_version_is_found_in_both_forms() {
        for (text, version) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\nGCC version:  gcc version 11.3.0\n",
                Some("535.54.03"),
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder)\n",
                Some("570.86.15"),
            ),
            ("", None),
        ] {
            let root = tempfile::tempdir().expect("a folder");
            let folder = root.path().join("proc/driver/nvidia");
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join("version"), text).expect("a file");
            let host = Host::replayed(root.path(), BTreeMap::new());
            assert_eq!(kernel_driver_version(&host).as_deref(), version);
        }
    }
}
