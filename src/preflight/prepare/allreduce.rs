//! The all-reduce of `check --torch`: a separate launch that proves that ranks can communicate.
//!
//! Takes python, devices and the number of ranks; gives one line for the report, or the reason
//! of the failure. Starts this executable again and waits for it within a deadline.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
    let problem = |error: std::io::Error| {
        let Text { en, zh } = lang::cause(&error);
        text!("the all-reduce cannot be started: {en}", "无法启动 all-reduce：{zh}")
    };
    let named = tempfile::Builder::new().prefix("ranklaunch-check-").tempdir();
    let scratch = named.map_err(problem)?;
    let at = |name: &str| scratch.path().join(name);
    std::fs::write(at("allreduce.py"), PROGRAM).map_err(problem)?;
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
    let read = |name: &str| {
        String::from_utf8_lossy(&std::fs::read(at(name)).unwrap_or_default()).into_owned()
    };
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
