//! Stays in the driver beside a job: reports critical Xids by itself, and the state of the GPUs on request.
//!
//! A request is a byte on the socket on which the lines are written. A separate thread answers requests, so that
//! neither thread waits for the other in a driver that hangs.

use std::sync::{Mutex, PoisonError};

use nvml_wrapper::Nvml;

use crate::answer::{CallError, NvmlAnswer, WatchLine};
use crate::pipe::{is_read, write_all};
use crate::{nvml, xids};

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
    xids::watch(nvml, gpus, |line| match line {
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
