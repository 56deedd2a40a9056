//! The trials of `check`: the all-reduce of `--torch`, a separate launch that proves that ranks can communicate, and a
//! file that is written in a folder.
//!
//! Takes python, devices and the number of ranks, or a folder; gives one line for the report, or the reason of the
//! failure. Starts this executable again and waits for it within a deadline.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use linux::host::Host;
use linux::own_executable;
use linux::signal;
use linux::sys::{self, Pid, Signal};
use node::observe::PythonFacts;
use plan::Plan;
use settings::contract::Contract;
use text::lang::{self, Text};
use text::text;
use verdict::outcome::End;

/// Time limit of the all-reduce: importing torch from a cold disk, and NCCL's start.
const ALL_REDUCE: Duration = Duration::from_secs(180);

/// Time from TERM to KILL for that launch.
const STOP: Duration = Duration::from_secs(15);

const PROGRAM: &str = include_str!("../check/allreduce.py");

/// Runs two ranks on the CPU, or the plan's ranks on the GPUs, in an ordinary launch.
pub fn all_reduce(host: &Host, python: &PythonFacts, plan: Option<&Plan>) -> Result<Text, Text> {
    let Some(python) = &python.interpreter else {
        return Err(text!("no python to run torch with", "没有可运行 torch 的 Python"));
    };
    let on_gpus = plan.is_some_and(|plan| plan.gpus.iter().any(|gpu| gpu.selected));
    let (device, backend) = if on_gpus { ("gpu", "nccl") } else { ("cpu", "gloo") };
    let ranks = match plan {
        Some(plan) if on_gpus => plan.nproc_per_node,
        _ => 2,
    };
    let problem = |error: io::Error| {
        let Text { en, zh } = lang::cause(&error);
        text!("the all-reduce cannot be started: {en}", "无法启动 all-reduce：{zh}")
    };
    let named = tempfile::Builder::new().prefix("ranklaunch-check-").tempdir();
    let scratch = named.map_err(problem)?;
    let at = |name: &str| scratch.path().join(name);
    fs::write(at("allreduce.py"), PROGRAM).map_err(problem)?;
    let mut command = Command::new(own_executable::path().map_err(problem)?);
    command
        .args(["run", "--engine", "direct", "--nnodes", "1", "--node-rank", "0"])
        .args(["--master-addr", "127.0.0.1", "--layout", "none", "--stale", "off"])
        .args(["--muster", "off", "--console", "all", "--console-prefix", "none"])
        .args(["--device", device, "--nproc-per-node", &ranks.to_string(), "--log-dir"])
        .arg(at("logs"))
        .arg("--termination-log")
        .arg(at("verdict"))
        .arg("--python")
        .arg(python)
        .arg("--")
        .arg(at("allreduce.py"))
        .arg(backend)
        .current_dir(scratch.path())
        .env_clear()
        .envs(host.environment())
        .stdin(Stdio::null())
        .stdout(File::create(at("out")).map_err(problem)?)
        .stderr(File::create(at("err")).map_err(problem)?);
    // The trial is a single-node job.
    for name in Contract::known_variables() {
        command.env_remove(name);
    }
    for name in host.environment().keys().filter_map(|name| name.to_str()) {
        if name.starts_with("RANKLAUNCH_") && !KEPT.contains(&name) {
            command.env_remove(name);
        }
    }
    let mut child = command.spawn().map_err(problem)?;
    let ended = wait(&mut child, ALL_REDUCE);
    let read =
        |name: &str| String::from_utf8_lossy(&fs::read(at(name)).unwrap_or_default()).into_owned();
    let (out, err) = (read("out"), read("err"));
    let said = out.lines().find_map(|line| line.strip_prefix("allreduce "));
    match (ended, said) {
        (Some(0), Some(said)) => {
            let words: Vec<&str> = said.split(' ').collect();
            let [backend, world, millis, speed] = words.as_slice() else {
                return Err(text!("unexpected answer: {said}", "意外的输出：{said}"));
            };
            Ok(text!(
                "{world} ranks, {backend}: {millis} ms, {speed} GB/s",
                "{world} 个进程，{backend}：{millis} ms，{speed} GB/s"
            ))
        }
        (None, _) => {
            let seconds = ALL_REDUCE.as_secs();
            Err(text!(
                "the all-reduce of {ranks} ranks ({backend}) did not end within {seconds} s",
                "{ranks} 个进程的 all-reduce（{backend}）未在 {seconds} 秒内结束"
            ))
        }
        (Some(code), _) => {
            let last: Vec<&str> = err.lines().filter(|line| !line.trim().is_empty()).collect();
            let cause = last
                .iter()
                .rev()
                .find(|line| line.contains("Error") || line.contains("refused"))
                .or(last.last())
                .copied()
                .unwrap_or_default()
                .trim();
            Err(text!(
                "the all-reduce of {ranks} ranks ({backend}) ended with code {code}: {cause}",
                "{ranks} 个进程的 all-reduce（{backend}）以退出码 {code} 结束：{cause}"
            ))
        }
    }
}

/// Our variables about reading the node, which are kept.
const KEPT: &[&str] = &["RANKLAUNCH_NVML_LIBRARY", "RANKLAUNCH_PROBE"];

/// The exit code; None if it had to be stopped. The launcher ends its ranks itself.
fn wait(child: &mut Child, timeout: Duration) -> Option<i32> {
    if let Some(code) = ended_within(child, timeout) {
        return Some(code);
    }
    if let Ok(pid) = i32::try_from(child.id()) {
        sys::send(pid, Signal::TERM.as_raw());
    }
    if ended_within(child, STOP).is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    None
}

fn ended_within(child: &mut Child, timeout: Duration) -> Option<i32> {
    let deadline = Instant::now() + timeout;
    let handle = signal::handle(Pid::from_child(child)).ok().flatten();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return End::of(status).map(End::shell_code);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        signal::wait_for_end(handle.as_ref(), left);
    }
}

/// The reason why no file could be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteProblem {
    /// The folder that was tried: the folder itself or its nearest existing parent.
    pub folder: PathBuf,
    /// The errno; None if the error does not come from the kernel.
    pub code: Option<i32>,
    /// The error as text, if it has no errno.
    #[serde(default)]
    pub text: String,
    /// Our effective user.
    pub user: u32,
}

impl WriteProblem {
    pub fn of(folder: &Path, error: &io::Error) -> WriteProblem {
        let user = rustix::process::geteuid().as_raw();
        let (code, text) = (error.raw_os_error(), error.to_string());
        // It travels as JSON, in which a path is UTF-8.
        let folder = folder.to_string_lossy().into_owned().into();
        WriteProblem { folder, code, text, user }
    }

    /// The error of the write.
    pub fn error(&self) -> io::Error {
        // Captures of 0.1 have 0 if there is no errno.
        match self.code.filter(|code| *code != 0) {
            Some(code) => io::Error::from_raw_os_error(code),
            None if self.text.is_empty() => io::Error::other("the system gave no reason"),
            None => io::Error::other(self.text.clone()),
        }
    }
}

/// Creates a file, syncs a byte to the disk and removes the file, in `folder` or its nearest
/// existing parent. Gives that folder. Hangs if its mount is dead.
///
/// # Errors
/// The kernel's error, by which permissions, a read-only mount and a full disk are
/// distinguished.
pub fn try_write(folder: &Path) -> Result<PathBuf, WriteProblem> {
    let existing = folder.ancestors().find(|part| part.exists()).unwrap_or(Path::new("/"));
    // Nodes that share the folder may have equal pids, so the name is random.
    let file = linux::random::hex::<8>().map(|name| existing.join(format!(".ranklaunch-{name}")));
    match file.and_then(|file| write(&file)) {
        Ok(()) => Ok(existing.to_owned()),
        Err(error) => Err(WriteProblem::of(existing, &error)),
    }
}

fn write(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    // A full disk or quota may show only at the sync.
    let written = file.write_all(b"\n").and_then(|()| file.sync_all());
    drop(file);
    let removed = fs::remove_file(path);
    written.and(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_without_errno_keeps_its_text() {
        let again = |problem: &WriteProblem| {
            let text = serde_json::to_string(problem).expect("JSON");
            serde_json::from_str::<WriteProblem>(&text).expect("the same").error().to_string()
        };
        let of = |error: io::Error| WriteProblem::of(Path::new("/logs"), &error);
        let full = || io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        assert_eq!(again(&of(full())), full().to_string());
        assert_eq!(again(&of(io::Error::other("getrandom: refused"))), "getrandom: refused");
        let earlier = r#"{"folder":"/logs","code":0,"user":1000}"#;
        let earlier: WriteProblem = serde_json::from_str(earlier).expect("an earlier capture");
        assert!(!earlier.error().to_string().contains("Success"), "{}", earlier.error());
    }
}
