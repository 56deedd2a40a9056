//! Shared by the integration tests: starts the real executable, waits for conditions, and finds
//! leftover processes.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test that called it")]

pub mod alive;
pub mod chance;
pub mod cloud;
pub mod cluster;
pub mod docker;
mod ended;
pub mod fake_nvml;
pub mod hung_mount;
pub mod inside;
mod launcher;
pub mod node;
mod place;
mod ports;
mod programs;
pub mod pty;
pub mod reference;
pub mod report;
mod running;
mod skipped;
pub mod slow_mount;
pub mod snapshot;
pub mod tmux;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

pub use alive::{Process, alive};
pub use ended::Ended;
pub use launcher::{Launcher, without_platform};
pub use place::{PLACES, Place};
pub use ports::free_port;
pub use programs::{
    built, cached_python, compiled, copy_program, executable, misbehave, modules, program, python,
    root, run_tool, write_program,
};
pub use running::{Role, Running};
pub use skipped::skipped;

/// Time limit of every wait. Starts of torch on a busy machine take a minute.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// The variable by which a test recognises its own processes.
const TOKEN: &str = "JOB_TEST_TOKEN";

/// Waits until `ready` gives a value; panics with `what` after TIMEOUT.
pub fn wait_until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "gave up waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Living processes whose environment or command line holds `token`.
pub fn processes_of(token: &str) -> Vec<Process> {
    alive(token, None)
}

pub fn kill(pid: i32) {
    send(pid, Signal::SIGKILL);
}

pub fn send(pid: i32, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
}

/// `run --engine ENGINE --device cpu --nproc-per-node N` and the options of most tests.
pub fn run_args(engine: &str, nproc: u32) -> Vec<OsString> {
    let mut args: Vec<OsString> = ["run", "--engine", engine, "--device", "cpu", "--stale", "off"]
        .into_iter()
        .map(OsString::from)
        .collect();
    args.extend(["--nproc-per-node".into(), nproc.to_string().into()]);
    args.extend(["--python".into(), python().into_os_string()]);
    args
}
