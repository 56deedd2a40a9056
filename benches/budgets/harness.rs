//! What the measurements share: the executable, a clean environment, medians,
//! the process tree, and the table of results.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// How long anything may take before the run is given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn ranklaunch() -> &'static str {
    env!("CARGO_BIN_EXE_ranklaunch")
}

/// A python that has torch; `make bench` names it.
pub(crate) fn python() -> PathBuf {
    std::env::var_os("RANKLAUNCH_TEST_PYTHON")
        .map(PathBuf::from)
        .filter(|python| python.exists())
        .expect("no python with torch: run `make bench`, or set RANKLAUNCH_TEST_PYTHON")
}

/// `program` without a platform's variables, in `folder`, silent.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>, folder: &Path) -> Command {
    const PLATFORM: &[&str] = &[
        "WORLD_SIZE",
        "RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "LOCAL_RANK",
        "NODE_RANK",
        "CUDA_VISIBLE_DEVICES",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "OMP_NUM_THREADS",
    ];
    let mut command = Command::new(program);
    for name in PLATFORM {
        command.env_remove(name);
    }
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RANKLAUNCH_") {
            command.env_remove(name);
        }
    }
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// `ranklaunch run` with the engine that starts ranks itself, on CPUs.
pub(crate) fn direct(nproc: u32, folder: &Path) -> Command {
    let mut command = command(ranklaunch(), folder);
    command.args(["run", "--engine", "direct", "--device", "cpu", "--stale", "off"]);
    command.args(["--nproc-per-node", &nproc.to_string()]).arg("--python").arg(python());
    command
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

/// Waits until `ready` gives something.
pub(crate) fn wait_until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "gave up waiting: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
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
        let pid = nix::unistd::Pid::from_raw(self.pid());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// Pid and command name of everything below `root`, `root` left out.
pub(crate) fn descendants(root: i32) -> Vec<(i32, String)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((head, tail)) = stat.rsplit_once(')') else { continue };
        let Some((_, name)) = head.split_once('(') else { continue };
        let Some(parent) = tail.split_ascii_whitespace().nth(1) else { continue };
        all.push((pid, parent.parse().unwrap_or(0), name.to_owned()));
    }
    let mut found: Vec<(i32, String)> = Vec::new();
    let mut above = vec![root];
    while let Some(parent) = above.pop() {
        for (pid, _, name) in all.iter().filter(|(_, of, _)| *of == parent) {
            found.push((*pid, name.clone()));
            above.push(*pid);
        }
    }
    found
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

    /// What could not be measured here, and why.
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
