//! NVML: finds the library, initialises it, and queries each GPU.
//!
//! Each call may fail separately. A lost GPU must not hide the seven healthy GPUs, and a missing call in an old driver
//! must not hide the GPU.

use std::ffi::{CStr, CString, OsStr};
use std::mem::size_of;
use std::path::Path;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{
    Device, Nvml, cuda_driver_version_major as major, cuda_driver_version_minor as minor,
};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfoV_t, nvmlMemory_t, nvmlReturn_t,
};

use crate::answer::{CallError, LIBRARIES, NvmlAnswer, NvmlGpu};
use crate::health::{self, failed};

/// Variable that names another library for this node; the launcher forwards it.
const LIBRARY_VARIABLE: &str = "RANKLAUNCH_NVML_LIBRARY";

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`, which the bindings do not name.
const RECOVERY_ACTION: FieldId = FieldId(230);

/// Maximum number of GPUs, which is larger than that of any node; a larger count is invalid.
const MOST_GPUS: u32 = 256;

/// Queries the node and each GPU. `timeout` is the time limit for all calls about health and use together.
pub(crate) fn ask(library: Option<&str>, timeout: Duration) -> NvmlAnswer {
    let mut answer = NvmlAnswer::default();
    if let Some(nvml) = open(library, &mut answer) {
        ask_node(nvml, &mut answer);
        health::ask(nvml, &mut answer.gpus, timeout);
    }
    answer
}

/// The driver library, initialised; None if that failed, with the reason in `answer`.
pub(crate) fn open(library: Option<&str>, answer: &mut NvmlAnswer) -> Option<&'static Nvml> {
    let named = library
        .map(str::to_owned)
        .or_else(|| std::env::var(LIBRARY_VARIABLE).ok())
        .filter(|name| !name.is_empty());
    let candidates: Vec<&str> = match &named {
        Some(name) => vec![name.as_str()],
        None => LIBRARIES.to_vec(),
    };
    let (loaded, file) = load(&candidates, &mut answer.not_loaded)?;
    answer.library = Some(file);
    // nvmlShutdown can hang on a faulty node, so the process ends without calling it.
    match Nvml::builder().lib_path(OsStr::new(loaded)).init() {
        Ok(nvml) => Some(Box::leak(Box::new(nvml))),
        Err(error) => {
            answer.failure = Some(failed("nvmlInit_v2", error));
            None
        }
    }
}

/// Opens the first usable library and keeps it open. Gives its name and the file behind it, whose suffix is the
/// driver's version.
fn load<'a>(
    candidates: &[&'a str],
    not_loaded: &mut Vec<(String, String)>,
) -> Option<(&'a str, String)> {
    for candidate in candidates {
        if candidate.starts_with('/') && !Path::new(candidate).exists() {
            // The loader's "no such file" is not reported for the known places. It is reported for a place that the
            // user named.
            if candidates.len() == 1 {
                not_loaded.push(((*candidate).to_owned(), "no such file".to_owned()));
            }
            continue;
        }
        let Ok(name) = CString::new(*candidate) else { continue };
        // SAFETY: the name is NUL-terminated; this process exists to run the library's constructors.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
        if handle.is_null() {
            not_loaded.push(((*candidate).to_owned(), loader_error()));
            continue;
        }
        return Some((candidate, file_behind(handle).unwrap_or_else(|| (*candidate).to_owned())));
    }
    None
}

fn loader_error() -> String {
    // SAFETY: dlerror gives null or a string that lives until the next dl call.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return "unknown loader error".to_owned();
    }
    // SAFETY: not null, see above.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

/// The loaded file with links resolved, found by the address of a symbol in it.
fn file_behind(handle: *mut libc::c_void) -> Option<String> {
    // SAFETY: a live handle and a literal name; dladdr only looks the address up.
    let name = unsafe {
        let symbol = libc::dlsym(handle, c"nvmlInit_v2".as_ptr());
        if symbol.is_null() {
            return None;
        }
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(symbol, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned()
    };
    let resolved = std::fs::canonicalize(&name);
    Some(resolved.map_or(name, |path| path.to_string_lossy().into_owned()))
}

fn ask_node(nvml: &Nvml, answer: &mut NvmlAnswer) {
    answer.driver_version =
        keep("nvmlSystemGetDriverVersion", nvml.sys_driver_version(), &mut answer.errors);
    answer.cuda_driver_version = keep(
        "nvmlSystemGetCudaDriverVersion_v2",
        nvml.sys_cuda_driver_version(),
        &mut answer.errors,
    )
    .and_then(|number| Some((major(number).try_into().ok()?, minor(number).try_into().ok()?)));
    match nvml.device_count() {
        Ok(count) => {
            answer.gpus = (0..count.min(MOST_GPUS)).map(|index| ask_gpu(nvml, index)).collect();
        }
        Err(error) => answer.failure = Some(failed("nvmlDeviceGetCount_v2", error)),
    }
}

fn ask_gpu(nvml: &Nvml, index: u32) -> NvmlGpu {
    let mut gpu = NvmlGpu { index, ..NvmlGpu::default() };
    let errors = &mut gpu.errors;
    let Some(device) = keep("nvmlDeviceGetHandleByIndex_v2", nvml.device_by_index(index), errors)
    else {
        return gpu;
    };
    gpu.uuid = keep("nvmlDeviceGetUUID", device.uuid(), errors);
    gpu.name = keep("nvmlDeviceGetName", device.name(), errors);
    gpu.pci = keep("nvmlDeviceGetPciInfo_v3", device.pci_info(), errors)
        .map(|pci| format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device));
    gpu.minor = keep("nvmlDeviceGetMinorNumber", device.minor_number(), errors);
    if let Some((total, used)) = memory(&device, errors) {
        gpu.memory_total = Some(total);
        gpu.memory_used = Some(used);
    }
    gpu.mig = keep("nvmlDeviceGetMigMode", device.mig_mode(), errors).map(|mode| mode.current == 1);
    // Drivers before 570 do not know the field.
    gpu.recovery_action = health::field_values(&device, &[RECOVERY_ACTION]).pop().flatten();
    if let Some((state, status, health)) = fabric(&device) {
        gpu.fabric = Some((state, status));
        gpu.fabric_health = health;
    }
    gpu
}

/// The current state of the GPU at this address (`0000:18:00.0`), read by cheap calls.
pub(crate) fn now(nvml: &Nvml, pci: &str) -> NvmlGpu {
    let mut gpu = NvmlGpu { pci: Some(pci.to_owned()), ..NvmlGpu::default() };
    // The GPU is looked up by its address each time, since its handle becomes invalid when the GPU is reset.
    let Ok(device) = nvml.device_by_pci_bus_id(pci) else { return gpu };
    if let Some((total, used)) = memory(&device, &mut Vec::new()) {
        (gpu.memory_total, gpu.memory_used) = (Some(total), Some(used));
    }
    gpu.health = health::now(&device);
    gpu
}

/// (total, used) in bytes. Version 2 of the call separates the driver's reserve from the memory of processes; version
/// 1, the only version before driver 510, counts the reserve as used.
fn memory(device: &Device<'_>, errors: &mut Vec<CallError>) -> Option<(u64, u64)> {
    let second = match device.memory_info() {
        Ok(info) => return Some((info.total, info.used)),
        Err(error) => error,
    };
    let first = ask_raw(device, |lib, handle| {
        let call = lib.nvmlDeviceGetMemoryInfo.as_ref().ok()?;
        let mut info = nvmlMemory_t { total: 0, free: 0, used: 0 };
        // SAFETY: the handle is live, `info` is the struct that the call fills.
        let code = unsafe { call(handle, &mut info) };
        Some((code, (info.total, info.used)))
    });
    if first.is_none() {
        errors.push(failed("nvmlDeviceGetMemoryInfo_v2", second));
    }
    first
}

/// (state, status, health) by the versioned call, or by the call of drivers before 550.
fn fabric(device: &Device<'_>) -> Option<(u32, u32, Option<u32>)> {
    let versioned = ask_raw(device, |lib, handle| {
        let call = lib.nvmlDeviceGetGpuFabricInfoV.as_ref().ok()?;
        // SAFETY: a struct of integers, for which zero is a value.
        let mut info: nvmlGpuFabricInfoV_t = unsafe { std::mem::zeroed() };
        // NVML_STRUCT_VERSION(GpuFabricInfo, 2)
        info.version = u32::try_from(size_of::<nvmlGpuFabricInfoV_t>()).ok()? | (2 << 24);
        // SAFETY: the handle is live, and the struct contains its own version.
        let code = unsafe { call(handle, &mut info) };
        Some((code, (u32::from(info.state), info.status, Some(info.healthMask))))
    });
    versioned.or_else(|| {
        ask_raw(device, |lib, handle| {
            let call = lib.nvmlDeviceGetGpuFabricInfo.as_ref().ok()?;
            // SAFETY: a struct of integers, for which zero is a value.
            let mut info: nvmlGpuFabricInfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: the handle is live, `info` is the struct that the call fills.
            let code = unsafe { call(handle, &mut info) };
            Some((code, (u32::from(info.state), info.status, None)))
        })
    })
}

/// The value of a call that the wrapper lacks, if the call exists and returns success.
fn ask_raw<T>(
    device: &Device<'_>,
    call: impl FnOnce(&nvml_wrapper_sys::bindings::NvmlLib, nvmlDevice_t) -> Option<(nvmlReturn_t, T)>,
) -> Option<T> {
    // SAFETY: the handle is used only while the device, and so the library, lives.
    let handle = unsafe { device.handle() };
    call(device.nvml().lib(), handle).and_then(|(code, value)| (code == 0).then_some(value))
}

fn keep<T>(call: &str, result: Result<T, NvmlError>, errors: &mut Vec<CallError>) -> Option<T> {
    result.map_err(|error| errors.push(failed(call, error))).ok()
}
