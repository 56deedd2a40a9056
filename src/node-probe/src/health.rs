//! Queries NVML for a GPU's health, links and use.
//!
//! These calls do not decide whether a GPU exists, so they must not delay the answer. They run in a separate thread
//! with one deadline. A call that fails, or that this driver lacks, leaves its value unknown with the reason.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlProcessInfo_t, nvmlReturn_t, nvmlUtilization_t,
};

use crate::answer::{
    CallError, GpuProcess, Health, Instances, Load, MigDevice, NvLinks, NvmlGpu, PcieLink,
    ProcessKind, RemappedRows,
};

/// NVML_NVLINK_MAX_LINKS of the newest header; a missing link ends the list.
const MOST_LINKS: u32 = 36;

/// Maximum number of listed processes of one GPU, so that a hook with a wrong count cannot make us allocate too much.
const MOST_PROCESSES: usize = 128;

/// Maximum number of MIG instances, which is larger than that of any GPU.
const MOST_INSTANCES: u32 = 64;

/// NVML_ERROR_INVALID_ARGUMENT, _NOT_SUPPORTED, _INSUFFICIENT_SIZE, _UNKNOWN (nvml.h).
const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const INSUFFICIENT_SIZE: u32 = 7;
const UNKNOWN: u32 = 999;

/// The name of the current call.
type Current = Arc<Mutex<&'static str>>;

/// Fills in [`NvmlGpu::health`] of every GPU that could be opened, waiting at most `timeout` for all of them together.
pub(crate) fn ask(nvml: &'static Nvml, gpus: &mut [NvmlGpu], timeout: Duration) {
    let deadline = Instant::now() + timeout;
    let current: Current = Arc::new(Mutex::new("-"));
    let (sender, answers) = channel();
    let asked: Vec<(u32, bool)> = gpus
        .iter()
        .filter(|gpu| gpu.uuid.is_some() || gpu.pci.is_some())
        .map(|gpu| (gpu.index, gpu.mig == Some(true)))
        .collect();
    let its = Arc::clone(&current);
    let list = asked.clone();
    let started = std::thread::Builder::new().spawn(move || ask_each(nvml, &list, &its, &sender));
    let mut stuck = None;
    for (index, _) in asked {
        let left = deadline.saturating_duration_since(Instant::now());
        let answer = match &started {
            Ok(_) => answers.recv_timeout(left).map_err(|_| {
                let call = *current.lock().unwrap_or_else(PoisonError::into_inner);
                (call, format!("no answer within {timeout:?}"))
            }),
            Err(error) => Err(("pthread_create", error.to_string())),
        };
        let Some(gpu) = gpus.iter_mut().find(|gpu| gpu.index == index) else { continue };
        match answer {
            Ok(health) => gpu.health = health,
            Err((call, text)) => {
                let text = match stuck {
                    None => text,
                    Some(other) => format!("not asked: GPU {other} gave {text}"),
                };
                gpu.health.late = stuck.is_none();
                gpu.health.unknown.push(CallError { call: call.to_owned(), code: None, text });
                stuck = stuck.or(Some(index));
            }
        }
    }
}

fn ask_each(nvml: &Nvml, gpus: &[(u32, bool)], current: &Current, answers: &Sender<Health>) {
    for (index, mig) in gpus {
        let health = match nvml.device_by_index(*index) {
            Ok(device) => ask_one(&device, *mig, current),
            Err(error) => Health {
                unknown: vec![failed("nvmlDeviceGetHandleByIndex_v2", error)],
                ..Health::default()
            },
        };
        if answers.send(health).is_err() {
            return;
        }
    }
}

/// One device and its failed calls.
struct Asking<'a> {
    lib: &'a NvmlLib,
    handle: nvmlDevice_t,
    unknown: Vec<CallError>,
    current: &'a Current,
}

/// The return code of an NVML call by its name; None if this library lacks it.
macro_rules! code {
    ($asking:expr, $name:ident $(, $argument:expr)*) => {{
        $asking.begins(stringify!($name));
        $asking.lib.$name.as_ref().ok().map(|call| {
            // SAFETY: this library gave the handle and keeps it; the other arguments are numbers and pointers to live
            // values of the types that the bindings give to the call.
            unsafe { call($asking.handle $(, $argument)*) }
        })
    }};
}

/// Whether an NVML call succeeded; otherwise records the reason.
macro_rules! asked {
    ($asking:expr, $name:ident $(, $argument:expr)*) => {{
        let code = code!($asking, $name $(, $argument)*);
        $asking.succeeded(stringify!($name), code)
    }};
}

impl Asking<'_> {
    fn begins(&self, call: &'static str) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = call;
    }

    fn succeeded(&mut self, call: &str, code: Option<u32>) -> bool {
        match code {
            Some(0) => return true,
            Some(code) => self.unknown.push(failed(call, NvmlError::from(code))),
            None => self.unknown.push(CallError {
                call: call.to_owned(),
                code: None,
                text: "this driver library has no such call".to_owned(),
            }),
        }
        false
    }
}

/// A number, from a call that fills in one number.
macro_rules! number {
    ($asking:expr, $name:ident $(, $argument:expr)*) => {{
        let mut value = 0;
        asked!($asking, $name $(, $argument)*, &mut value).then_some(value)
    }};
}

fn ask_one(device: &Device<'_>, mig: bool, current: &Current) -> Health {
    let lib = device.nvml().lib();
    // SAFETY: the handle is used only while the device, and so the library, lives.
    let handle = unsafe { device.handle() };
    let mut asking = Asking { lib, handle, unknown: Vec::new(), current };
    let it = &mut asking;
    let (mut ecc, mut ecc_pending) = (0, 0);
    let ecc_known = asked!(it, nvmlDeviceGetEccMode, &mut ecc, &mut ecc_pending);
    // NVML_MEMORY_ERROR_TYPE_UNCORRECTED is 1; volatile counters are 0, aggregate ones 1.
    let counted = ecc_known && ecc == 1;
    let mut health = Health {
        compute_mode: number!(it, nvmlDeviceGetComputeMode),
        persistence: number!(it, nvmlDeviceGetPersistenceMode).map(|state| state == 1),
        virtualization: number!(it, nvmlDeviceGetVirtualizationMode),
        ecc: ecc_known.then_some(ecc == 1),
        ecc_pending: ecc_known.then_some(ecc_pending == 1),
        ecc_volatile: counted.then(|| number!(it, nvmlDeviceGetTotalEccErrors, 1, 0)).flatten(),
        ecc_aggregate: counted.then(|| number!(it, nvmlDeviceGetTotalEccErrors, 1, 1)).flatten(),
        remapped_rows: remapped(it),
        retired_pages_pending: number!(it, nvmlDeviceGetRetiredPagesPendingStatus)
            .map(|state| state == 1),
        throttle_reasons: throttle(it),
        temperature: number!(it, nvmlDeviceGetTemperature, 0),
        pcie: PcieLink {
            width: number!(it, nvmlDeviceGetCurrPcieLinkWidth),
            max_width: number!(it, nvmlDeviceGetMaxPcieLinkWidth),
            generation: number!(it, nvmlDeviceGetCurrPcieLinkGeneration),
            max_generation: number!(it, nvmlDeviceGetMaxPcieLinkGeneration),
        },
        nvlinks: links(it),
        processes: processes(it),
        ..Health::default()
    };
    if mig {
        health.mig_devices = instances(device, it);
    }
    // The load is read last, so that these calls, which old drivers lack, come last in `unknown`.
    let load = load(it);
    health.load = counters(device, it, load);
    health.unknown = asking.unknown;
    health
}

fn remapped(it: &mut Asking<'_>) -> Option<RemappedRows> {
    let (mut correctable, mut uncorrectable, mut pending, mut failure) = (0, 0, 0, 0);
    asked!(
        it,
        nvmlDeviceGetRemappedRows,
        &mut correctable,
        &mut uncorrectable,
        &mut pending,
        &mut failure
    )
    .then_some(RemappedRows {
        correctable,
        uncorrectable,
        pending: pending != 0,
        failed: failure != 0,
    })
}

/// The throttle reasons, by the new name of the call, or by its name in drivers before 535.
fn throttle(it: &mut Asking<'_>) -> Option<u64> {
    let mut reasons = 0;
    if code!(it, nvmlDeviceGetCurrentClocksEventReasons, &mut reasons) == Some(0) {
        return Some(reasons);
    }
    number!(it, nvmlDeviceGetCurrentClocksThrottleReasons)
}

/// NVML_CLOCK_SM.
const SM: u32 = 1;

/// Field numbers of NVML. An NVLink has one counter for each lane and one for all lanes.
const PCIE_REPLAYS: u32 = 94;
const NVLINK_CRC: u32 = 45;
const NVLINK_REPLAYS: u32 = 52;
const NVLINK_RECOVERIES: u32 = 59;

/// The values that change from second to second, read by few calls. Failed calls are not reported, since each second
/// would report the same failure.
pub(crate) fn now(device: &Device<'_>) -> Health {
    // SAFETY: the handle is used only while the device, and so the library, lives.
    let handle = unsafe { device.handle() };
    let (lib, current) = (device.nvml().lib(), Current::default());
    let mut asking = Asking { lib, handle, unknown: Vec::new(), current: &current };
    let it = &mut asking;
    let temperature = number!(it, nvmlDeviceGetTemperature, 0);
    Health { temperature, load: load(it), ..Health::default() }
}

fn load(it: &mut Asking<'_>) -> Load {
    let mut rates = nvmlUtilization_t { gpu: 0, memory: 0 };
    Load {
        utilization: asked!(it, nvmlDeviceGetUtilizationRates, &mut rates).then_some(rates.gpu),
        power: number!(it, nvmlDeviceGetPowerUsage),
        power_limit: number!(it, nvmlDeviceGetEnforcedPowerLimit),
        energy: number!(it, nvmlDeviceGetTotalEnergyConsumption),
        sm_clock: number!(it, nvmlDeviceGetClockInfo, SM),
        max_sm_clock: number!(it, nvmlDeviceGetMaxClockInfo, SM),
        ..Load::default()
    }
}

/// The load with the counters of the links. Fields that a GPU lacks fail one by one; many GPUs lack NVLink.
fn counters(device: &Device<'_>, it: &Asking<'_>, load: Load) -> Load {
    it.begins("nvmlDeviceGetFieldValues");
    let fields = [PCIE_REPLAYS, NVLINK_REPLAYS, NVLINK_RECOVERIES, NVLINK_CRC].map(FieldId);
    let mut values = field_values(device, &fields).into_iter();
    let mut next = || values.next().flatten();
    Load {
        pcie_replays: next(),
        nvlink_replays: next(),
        nvlink_recoveries: next(),
        nvlink_crc_errors: next(),
        ..load
    }
}

/// The values of these fields; None for a field that the driver or the GPU does not know.
pub(crate) fn field_values(device: &Device<'_>, fields: &[FieldId]) -> Vec<Option<u64>> {
    let samples = device.field_values_for(fields).unwrap_or_default().into_iter();
    let values = samples.map(|sample| match sample.ok()?.value.ok()? {
        SampleValue::U32(value) => Some(value.into()),
        SampleValue::U64(value) => Some(value),
        _ => None,
    });
    values.collect()
}

/// None if the GPU has no links.
fn links(it: &mut Asking<'_>) -> Option<NvLinks> {
    let mut links = NvLinks::default();
    for link in 0..MOST_LINKS {
        let mut state = 0;
        match code!(it, nvmlDeviceGetNvLinkState, link, &mut state) {
            Some(0) if state == 1 => links.up += 1,
            Some(0) => links.down.push(link),
            // The link is missing; some drivers leave gaps in the numbers.
            Some(NOT_SUPPORTED | INVALID_ARGUMENT) if link > 0 => {}
            other => {
                it.succeeded("nvmlDeviceGetNvLinkState", other);
                break;
            }
        }
    }
    (links.up > 0 || !links.down.is_empty()).then_some(links)
}

/// Compute and graphics processes in one list; None if neither call works.
fn processes(it: &mut Asking<'_>) -> Option<Vec<GpuProcess>> {
    let mut all: Option<Vec<GpuProcess>> = None;
    // SAFETY: a struct of integers, for which zero is a value.
    let mut room: Vec<nvmlProcessInfo_t> = vec![unsafe { std::mem::zeroed() }; MOST_PROCESSES];
    for kind in [ProcessKind::Compute, ProcessKind::Graphics] {
        let most = u32::try_from(room.len()).unwrap_or(u32::MAX);
        let mut count = most;
        let (name, code) = match kind {
            ProcessKind::Compute => (
                "nvmlDeviceGetComputeRunningProcesses_v3",
                code!(it, nvmlDeviceGetComputeRunningProcesses_v3, &mut count, room.as_mut_ptr()),
            ),
            ProcessKind::Graphics => (
                "nvmlDeviceGetGraphicsRunningProcesses_v3",
                code!(it, nvmlDeviceGetGraphicsRunningProcesses_v3, &mut count, room.as_mut_ptr()),
            ),
        };
        // The list is too short; only the existence of processes matters.
        let listed = if code == Some(INSUFFICIENT_SIZE) {
            0
        } else if it.succeeded(name, code) {
            count.min(most) as usize
        } else {
            continue;
        };
        let all = all.get_or_insert_default();
        all.extend(room.iter().take(listed).map(|process| GpuProcess {
            pid: process.pid,
            kind,
            // NVML_VALUE_NOT_AVAILABLE means unknown, also when truncated.
            memory: Some(process.usedGpuMemory).filter(|bytes| *bytes < u64::MAX >> 1),
        }));
        if code == Some(INSUFFICIENT_SIZE) {
            it.succeeded(name, code);
        }
    }
    all
}

/// The MIG instances that this container may use.
fn instances(device: &Device<'_>, it: &mut Asking<'_>) -> Option<Instances> {
    let most = number!(it, nvmlDeviceGetMaxMigDeviceCount)?;
    let mut instances = Instances { most, devices: Vec::new() };
    for index in 0..most.min(MOST_INSTANCES) {
        it.begins("nvmlDeviceGetMigDeviceHandleByIndex");
        let instance = match device.mig_device_by_index(index) {
            Ok(instance) => instance,
            // No instance at this index.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => continue,
            Err(error) => {
                it.unknown.push(failed("nvmlDeviceGetMigDeviceHandleByIndex", error));
                return None;
            }
        };
        // SAFETY: the handle is used only while the library lives.
        let handle = unsafe { instance.handle() };
        let mut asking = Asking { lib: it.lib, handle, unknown: Vec::new(), current: it.current };
        let one = &mut asking;
        one.begins("nvmlDeviceGetUUID");
        let memory = instance.memory_info().ok();
        instances.devices.push(MigDevice {
            index,
            uuid: instance.uuid().ok(),
            gpu_instance: number!(one, nvmlDeviceGetGpuInstanceId),
            compute_instance: number!(one, nvmlDeviceGetComputeInstanceId),
            memory_total: memory.as_ref().map(|memory| memory.total),
            memory_used: memory.as_ref().map(|memory| memory.used),
        });
        it.unknown.append(&mut asking.unknown);
    }
    Some(instances)
}

/// A failed call for the answer.
pub(crate) fn failed(call: &str, error: NvmlError) -> CallError {
    let text = error.to_string();
    // The conversion gives errors of the wrapper itself the code of an unknown error.
    let is_unknown = matches!(error, NvmlError::Unknown);
    let code = Some(nvmlReturn_t::from(error)).filter(|code| *code != UNKNOWN || is_unknown);
    CallError { call: call.to_owned(), code, text }
}
