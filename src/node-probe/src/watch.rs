//! Stays in the driver beside a job: reports critical Xids by itself, and the state of the GPUs on request.
//!
//! A request is a byte on the socket on which the lines are written. A separate thread answers requests, so that neither
//! thread waits for the other in a driver that hangs. The driver wakes the other thread at an Xid; without an event it
//! wakes up every few seconds, only to check whether anybody still reads. Each failure is reported once.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeXidCriticalError,
};

use crate::answer::{CallError, NvmlAnswer, WatchLine};
use crate::health::failed;
use crate::nvml;

/// Watches these GPUs (`0000:18:00.0`) until nobody reads `socket`.
pub(crate) fn watch(library: Option<&str>, gpus: &[&str], socket: i32) {
    let mut opened = NvmlAnswer::default();
    let Some(nvml) = nvml::open(library, &mut opened) else {
        let error = opened.failure.unwrap_or_else(|| CallError {
            call: "dlopen".to_owned(),
            code: None,
            text: format!("{:?}", opened.not_loaded),
        });
        write(socket, &WatchLine::Failed { pci: None, error });
        return;
    };
    let asked: Vec<String> = gpus.iter().map(|pci| (*pci).to_owned()).collect();
    let answers = std::thread::Builder::new().spawn(move || answer(nvml, &asked, socket));
    report_xids(nvml, gpus, |line| match line {
        Some(line) => write(socket, line),
        None => is_read(socket),
    });
    // A driver that cannot report Xids still answers requests.
    if let Ok(answers) = answers
        && is_read(socket)
    {
        let _ = answers.join();
    }
}

/// Answers each request until the launcher closes the socket.
fn answer(nvml: &Nvml, gpus: &[String], socket: i32) {
    while is_asked(socket) {
        let now = gpus.iter().map(|pci| nvml::now(nvml, pci)).collect();
        if !write(socket, &WatchLine::Gpus(now)) {
            return;
        }
    }
}

/// Waits for a request; false if there will be none. Requests that came in the meantime count as one.
fn is_asked(socket: i32) -> bool {
    let mut questions = [0_u8; 64];
    loop {
        // SAFETY: pointer and length belong to one live array.
        let read = unsafe { libc::read(socket, questions.as_mut_ptr().cast(), questions.len()) };
        let error = std::io::Error::last_os_error();
        if read >= 0 || error.kind() != std::io::ErrorKind::Interrupted {
            return read > 0;
        }
    }
}

/// Writes a whole line; false if nobody reads it.
fn write(socket: i32, line: &WatchLine) -> bool {
    static ONE: Mutex<()> = Mutex::new(());
    let bytes = serde_json::to_vec(line).map(|bytes| [&bytes[..], b"\n"].concat());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    bytes.is_ok_and(|bytes| write_all(socket, &bytes))
}

/// Maximum time that the driver may sleep without an event, in milliseconds.
const SLEEP: u32 = 5000;

/// Minimum time for a return of the driver without an event, and for each [`BURST`] events. A storm of Xids, or a call
/// that fails at once, must not take CPU time from a rank.
const PAUSE: Duration = Duration::from_secs(1);
const BURST: u32 = 64;

/// Time after which the same Xid of a GPU is reported again.
const AGAIN: Duration = Duration::from_secs(10);

/// Maximum number of different lines, more than GPUs produce; further lines of a driver that returns nonsense are
/// dropped.
const MOST_LINES: usize = 4096;

/// Reports events until `say` returns false, or the driver cannot report any. `say` is called with None if nothing
/// happened, to ask whether there is still a reader. `gpus`: PCI addresses, such as `0000:18:00.0`.
fn report_xids(nvml: &Nvml, gpus: &[&str], mut say: impl FnMut(Option<&WatchLine>) -> bool) {
    let set = match create(nvml.lib()) {
        Ok(set) => set,
        Err(error) => {
            say(Some(&failure(None, "nvmlEventSetCreate", error)));
            return;
        }
    };
    let mut watched: Vec<(nvmlDevice_t, &str)> = Vec::new();
    for pci in gpus {
        match register(nvml, set, pci) {
            Ok(device) => watched.push((device, pci)),
            Err((call, error)) => {
                if !say(Some(&failure(Some(pci), call, error))) {
                    return;
                }
            }
        }
    }
    let count = u32::try_from(watched.len()).unwrap_or(u32::MAX);
    if count > 0 && say(Some(&WatchLine::Watching(count))) {
        wait(nvml.lib(), set, &watched, say);
    }
}

fn wait(
    lib: &NvmlLib,
    set: nvmlEventSet_t,
    watched: &[(nvmlDevice_t, &str)],
    mut say: impl FnMut(Option<&WatchLine>) -> bool,
) {
    let mut said: HashMap<String, Instant> = HashMap::new();
    let (mut burst, mut began) = (0, Instant::now());
    loop {
        let event = next(lib, set);
        let (is_failed, is_missing) =
            (event.is_err(), matches!(event, Err(NvmlError::FailedToLoadSymbol(_))));
        let (line, again) = match event {
            Ok(event) if event.eventType & u64::from(nvmlEventTypeXidCriticalError) != 0 => {
                // The driver is not asked for the address, since a lost GPU does not answer.
                let gpu = watched.iter().find(|(device, _)| *device == event.device);
                let pci = gpu.map(|(_, pci)| (*pci).to_owned());
                (Some(WatchLine::Xid { pci, number: event.eventData }), Some(AGAIN))
            }
            Ok(_) | Err(NvmlError::Timeout) => (None, None),
            Err(error) => (Some(failure(None, "nvmlEventSetWait_v2", error)), None),
        };
        let now = Instant::now();
        let line = line.filter(|line| {
            let key = format!("{line:?}");
            let is_new = match said.get(&key) {
                Some(at) => again.is_some_and(|again| now.duration_since(*at) >= again),
                None => said.len() < MOST_LINES,
            };
            if is_new {
                said.insert(key, now);
            }
            is_new
        });
        if !say(line.as_ref()) || is_missing {
            return;
        }
        burst += 1;
        if is_failed || burst >= BURST {
            std::thread::sleep(PAUSE.saturating_sub(began.elapsed()));
            burst = 0;
        }
        if burst == 0 || began.elapsed() >= PAUSE {
            (burst, began) = (0, Instant::now());
        }
    }
}

fn create(lib: &NvmlLib) -> Result<nvmlEventSet_t, NvmlError> {
    let call = nvml_sym(lib.nvmlEventSetCreate.as_ref())?;
    let mut set: nvmlEventSet_t = std::ptr::null_mut();
    // SAFETY: the library is initialised and never unloaded, `set` lives.
    nvml_try(unsafe { call(&mut set) })?;
    Ok(set)
}

/// Registers a GPU with the set, which reports its events from now on. Gives the handle of the GPU, or the call that
/// failed. The GPU is looked up by its address, since a search through all GPUs would wake those that the job does not
/// use.
fn register(
    nvml: &Nvml,
    set: nvmlEventSet_t,
    pci: &str,
) -> Result<nvmlDevice_t, (&'static str, NvmlError)> {
    let lib = nvml.lib();
    let handle = || {
        let call = nvml_sym(lib.nvmlDeviceGetHandleByPciBusId_v2.as_ref())?;
        let address = CString::new(pci)?;
        let mut device: nvmlDevice_t = std::ptr::null_mut();
        // SAFETY: a NUL-terminated string and a live place for the handle.
        nvml_try(unsafe { call(address.as_ptr(), &mut device) })?;
        Ok(device)
    };
    let device = handle().map_err(|error| ("nvmlDeviceGetHandleByPciBusId_v2", error))?;
    let register = || {
        let call = nvml_sym(lib.nvmlDeviceRegisterEvents.as_ref())?;
        // SAFETY: both handles are the library's own and live as long as the process.
        nvml_try(unsafe { call(device, nvmlEventTypeXidCriticalError.into(), set) })
    };
    register().map_err(|error| ("nvmlDeviceRegisterEvents", error))?;
    Ok(device)
}

fn next(lib: &NvmlLib, set: nvmlEventSet_t) -> Result<nvmlEventData_t, NvmlError> {
    let call = nvml_sym(lib.nvmlEventSetWait_v2.as_ref())?;
    // SAFETY: numbers and a handle that is only compared, for which zero is a value.
    let mut data: nvmlEventData_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is the library's own, `data` is the struct that the call fills.
    nvml_try(unsafe { call(set, &mut data, SLEEP) })?;
    Ok(data)
}

fn failure(pci: Option<&str>, call: &str, error: NvmlError) -> WatchLine {
    WatchLine::Failed { pci: pci.map(str::to_owned), error: failed(call, error) }
}

/// Whether the pipe still has a reader.
fn is_read(out: i32) -> bool {
    let mut polled = libc::pollfd { fd: out, events: 0, revents: 0 };
    // SAFETY: one live struct; the call does not wait.
    unsafe { libc::poll(&mut polled, 1, 0) };
    polled.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) == 0
}

/// Writes all bytes; false if nobody reads them any more.
pub(crate) fn write_all(descriptor: i32, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: pointer and length belong to one live slice.
        let written = unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(written) {
            Ok(0) => return false,
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {
            }
            Err(_) => return false,
        }
    }
    true
}
