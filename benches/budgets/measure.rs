//! Tools of the measurements beyond the tests' harness: silent commands, medians, and the table
//! of results.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use harness::{executable, python, run_args, send, without_platform};
use nix::sys::signal::Signal;

/// `program` without a platform's variables, in `folder`, silent.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    without_platform(&mut command);
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// `ranklaunch run` with the engine that starts ranks itself, on CPUs.
pub(crate) fn direct(nproc: u32, folder: &Path) -> Command {
    direct_of(&executable(), nproc, folder)
}

/// The same of another executable.
pub(crate) fn direct_of(executable: &Path, nproc: u32, folder: &Path) -> Command {
    let mut command = command(executable, folder);
    command.args(run_args("direct", nproc));
    command
}

/// An executable of an earlier commit, to compare with in the same run: `BEFORE=FILE`.
pub(crate) fn before() -> Option<PathBuf> {
    let before = std::env::var_os("RANKLAUNCH_BEFORE").filter(|path| !path.is_empty())?;
    let path = PathBuf::from(before);
    assert!(path.is_file(), "RANKLAUNCH_BEFORE names no file: {}", path.display());
    Some(path)
}

/// Real torchrun.
pub(crate) fn torchrun(nproc: u32, folder: &Path) -> Command {
    let mut command = command(python(), folder);
    command.args(["-m", "torch.distributed.run", "--nproc-per-node", &nproc.to_string()]);
    command.args(["--master-port", "0"]);
    command
}

/// Nanoseconds of the clock that all processes share.
pub(crate) fn now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos()
}

pub(crate) fn millis(from: u128, to: u128) -> f64 {
    to.saturating_sub(from) as f64 / 1e6
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A process that is ended with its whole tree's own means (TERM) when dropped.
#[derive(Debug)]
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a pid")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            send(self.pid(), Signal::SIGTERM);
        }
        let _ = self.0.wait();
    }
}

/// The results, printed as they come.
#[derive(Debug, Default)]
pub(crate) struct Table {
    missed: Vec<String>,
}

impl Table {
    pub(crate) fn new() -> Table {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_ascii_whitespace().next().unwrap_or("?");
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        println!("load {load} on {cpus} CPUs: above 1, times are worse than on a quiet machine");
        println!("{:<42} {:>12} {:>34} {:>8}  budget", "what", "ranklaunch", "rival", "ratio");
        Table::default()
    }

    /// One figure beside its rival's; `ratio` is ours to theirs.
    pub(crate) fn row(&mut self, what: &str, ours: &str, rival: &str, ratio: f64, budget: Budget) {
        let verdict = match &budget {
            Budget::Within(words, true) => format!("{words}: ok"),
            Budget::Within(words, false) => {
                self.missed.push(what.to_owned());
                format!("{words}: OVER")
            }
            Budget::None => "-".to_owned(),
        };
        println!("{what:<42} {ours:>12} {rival:>34} {ratio:>8.3}  {verdict}");
    }

    /// Prints a measurement that this machine cannot make, with the reason.
    pub(crate) fn left_out(&self, what: &str, why: &str) {
        println!("{what:<42} not measured: {why}");
    }

    pub(crate) fn verdict(&self) -> i32 {
        if self.missed.is_empty() {
            return 0;
        }
        println!("over budget: {}", self.missed.join(", "));
        1
    }
}

/// The design's limit in words, and whether it was kept.
#[derive(Debug)]
pub(crate) enum Budget {
    Within(&'static str, bool),
    /// For information.
    None,
}
