//! `ranklaunch check`: facts, a few bounded attempts, and the verdict on them.
//!
//! Owns the order: facts, plan, attempts, judgement, report. What is judged lies
//! in [`crate::check`], how it is shown in [`crate::report::check_view`].

use std::fs::File;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::commands::{block_on, fail, print, refuse, show, unwritten};
use super::look::{self, Patience};
use super::{check_nodes, excuse, open, remap, stale};
use crate::check::{Nodes, Reach, Tried};
use crate::cli;
use crate::deadline::with_deadline_async;
use crate::decide::{Decided, Stage, decide};
use crate::host::Host;
use crate::lang;
use crate::lang::Text;
use crate::muster::LinkReport;
use crate::observe::{self, Facts};
use crate::plan::{Plan, Scope};
use crate::prepare::{self, WriteProblem};
use crate::report::{check_view, closing, nodes_view};
use crate::settings::Settings;
use crate::signal;
use crate::supervise::End;
use crate::sys::{self, Pid, Signal};
use crate::text;
use crate::verdict::{Id, Refusal};

/// What one connection to the master may take; a lost first packet is sent again after 1 s.
const CONNECT: Duration = Duration::from_secs(3);

/// What the all-reduce may take: importing torch from a cold disk, and NCCL's start.
const ALL_REDUCE: Duration = Duration::from_secs(180);

/// How long a launch that was told to stop may take before it is killed.
const STOP: Duration = Duration::from_secs(15);

const PROGRAM: &str = include_str!("../check/allreduce.py");

/// Everything that a report needs.
struct Examined {
    facts: Facts,
    decided: Decided,
    /// Where there are other nodes.
    found: Option<Box<LinkReport>>,
}

pub(super) fn check(asked: &cli::Check) -> i32 {
    let (host, settings) = match open(&asked.options) {
        Ok(opened) => opened,
        Err((refusal, lang)) => return refuse(&refusal, lang),
    };
    let (lang, exits) = (settings.lang, settings.exit_codes.clone());
    match examine(asked, host, settings) {
        Ok(examined) => {
            let Examined { facts, decided, found } = examined;
            let (checks, plan) = (decided.checks(), decided.survey().plan());
            let shim = std::env::current_exe().unwrap_or_else(|_| "ranklaunch".into());
            let failed = decided.refusal(Stage::BeforeStart);
            let code = failed.as_ref().map_or(0, |refusal| remap(&exits, refusal.verdict.code()));
            let verdict = check_view::Verdict { refusal: failed.as_ref(), exit_code: code };
            let mut report = check_view::json(&facts, checks, plan, verdict, lang, &shim);
            if let (Some(found), Value::Object(report)) = (&found, &mut report) {
                for (key, value) in nodes_view::json(found, lang) {
                    report.insert(key.to_owned(), value);
                }
            }
            let report = format!("{report:#}\n");
            match asked.format {
                cli::ReportFormat::Json => print(&report),
                cli::ReportFormat::Text => {
                    if let Some(refusal) = &failed {
                        show(&closing::would_be_refused(refusal, code, lang));
                    }
                    if let Some(found) = &found {
                        show(&nodes_view::text(found, lang));
                    }
                    let shown = check_view::Shown { all: asked.all, colour: has_colour() };
                    show(&check_view::text(checks, plan, lang, shown));
                }
            }
            let capture = asked.capture.as_ref().map(|folder| Path::new(folder).join("check.json"));
            for file in asked.report.as_ref().map(PathBuf::from).into_iter().chain(capture) {
                if let Err(error) = std::fs::write(&file, &report) {
                    let failure = unwritten(named(&file), &error);
                    return fail(&failure, failure.verdict.code(), lang);
                }
            }
            code
        }
        Err(refusal) => refuse(&refusal, lang),
    }
}

/// On a terminal that was not asked to stay plain (no-color.org).
fn has_colour() -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !plain && std::io::stdout().is_terminal()
}

fn examine(asked: &cli::Check, host: Host, settings: Settings) -> Result<Examined, Refusal> {
    let patience = Patience::of(&settings);
    let capture = asked.capture.as_ref().map(PathBuf::from);
    if let Some(folder) = &capture {
        is_new(folder)?;
    }
    let (host, recorder) = match capture {
        Some(_) => {
            let (host, recorder) = host.recorded();
            (host, Some(recorder))
        }
        None => (host, None),
    };
    let (host, settings) = (Arc::new(host), Arc::new(settings));
    let (facts, mut decided, mut tried) = block_on(async {
        let facts = look::observe_within(&host, &settings, patience).await;
        let decided = decide(&settings, &facts, Scope::Alone);
        let plan = decided.survey().outline();
        let together = check_nodes::is_wanted(&host, &settings, plan);
        let mut tried = attempts(&host, plan, &facts, patience, together).await;
        beside_stale(&host, &settings, plan, &facts, &mut tried).await;
        (facts, decided, tried)
    })?;
    if let (Some(folder), Some(recorder)) = (&capture, recorder) {
        observe::read_for_replay(&host);
        host.keep(TRIED, &tried);
        recorder.write(folder).map_err(|error| unwritten(named(folder), &error))?;
    }
    if asked.torch && host.is_live() {
        tried.torch = Some(all_reduce(&host, &facts, decided.survey().outline()));
    }
    decided.tried(&settings, &facts, &tried);
    meet_others(&host, &settings, &facts, &decided, &mut tried)?;
    decided.tried(&settings, &facts, &tried);
    let found = match tried.nodes {
        Some(Nodes::Found(found)) => Some(found),
        _ => None,
    };
    Ok(Examined { facts, decided, found })
}

/// After everything that this node can say alone: the others hear of its first failure.
fn meet_others(
    host: &Arc<Host>,
    settings: &Settings,
    facts: &Facts,
    decided: &Decided,
    tried: &mut Tried,
) -> Result<(), Refusal> {
    let failed = decided.refusal(Stage::BeforeStart);
    let Some(plan) = decided.survey().outline() else {
        if let Some(refusal) = &failed {
            block_on(excuse::examined(host, settings, facts, refusal))?;
        }
        return Ok(());
    };
    if !check_nodes::is_wanted(host, settings, Some(plan)) {
        return Ok(());
    }
    if matches!(tried.port, Some(Err(_))) {
        tried.nodes = Some(Nodes::Alone(text!(
            "the port on which the others would come is taken",
            "其他节点要连接的端口已被占用"
        )));
        return Ok(());
    }
    let nodes = block_on(check_nodes::meet(host, settings, facts, plan, failed))?;
    if let (Nodes::Found(_), Some(master)) = (&nodes, &facts.network.master)
        && !plan.membership.is_master()
        && let Some(address) = master.addresses.first()
    {
        tried.reach = Some(Ok(SocketAddr::new(*address, plan.membership.master_port)));
    }
    tried.nodes = Some(nodes);
    Ok(())
}

/// A capture is never mixed with what is there already.
fn is_new(folder: &Path) -> Result<(), Refusal> {
    let empty = match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    if empty {
        return Ok(());
    }
    let shown = folder.display();
    Err(Refusal::new(
        Id::CaptureFolder,
        text!("--capture {shown} is not an empty folder", "--capture {shown} 不是空目录"),
        text!("name a folder that does not exist yet", "请指定一个尚不存在的目录"),
    ))
}

fn named(path: &Path) -> Text {
    Text::same(path.display().to_string())
}

/// Where a capture keeps what was tried.
const TRIED: &str = "tried";

/// Whether a file can be written where the logs will go; None where that hangs, which
/// the facts say already.
async fn written(facts: &Facts, patience: Patience) -> Option<Result<PathBuf, WriteProblem>> {
    let folder = facts.state.logs.as_ref()?.path.clone();
    with_deadline_async(patience.files, move || prepare::try_write(&folder)).await
}

/// What can be tried without waiting: a file in the folder for logs, the port on node 0, one connection elsewhere.
async fn attempts(
    host: &Host,
    plan: Option<&Plan>,
    facts: &Facts,
    patience: Patience,
    together: bool,
) -> Tried {
    if !host.is_live() {
        return host.answer(TRIED, Tried::default).unwrap_or_default();
    }
    let mut tried = Tried { write: written(facts, patience).await, ..Tried::default() };
    let Some(member) = plan.map(|plan| &plan.membership) else { return tried };
    if member.nnodes == 1 || member.elastic.is_some() {
        return tried;
    }
    let port = member.master_port;
    if member.is_master() {
        tried.port = Some(prepare::check_port(host, port).map(|()| port));
    } else if together {
        // Meeting node 0 says more than one attempt, which may come too early.
    } else if let Some(master) = &facts.network.master {
        let deadline = tokio::time::Instant::now() + CONNECT.min(patience.files);
        for address in &master.addresses {
            let peer = SocketAddr::new(*address, port);
            let attempt = tokio::net::TcpStream::connect(peer);
            let cause = match tokio::time::timeout_at(deadline, attempt).await {
                Ok(Ok(_)) => {
                    tried.reach = Some(Ok(peer));
                    return tried;
                }
                Ok(Err(error)) => lang::cause(&error),
                Err(_) => text!("no answer", "无应答"),
            };
            tried.reach.get_or_insert(Err(Reach { peer, cause }));
        }
    }
    tried
}

/// What run would end is not in its way, and what it would leave alone is named as run names it.
async fn beside_stale(
    host: &Arc<Host>,
    settings: &Settings,
    plan: Option<&Plan>,
    facts: &Facts,
    tried: &mut Tried,
) {
    let Some(plan) = plan.filter(|_| host.is_live()) else { return };
    let Ok(stale) = stale::survey(host, settings, plan, facts).await else { return };
    tried.gpus_freed = stale.frees_gpus();
    if let Some(Err(_)) = tried.port {
        match stale.port(host) {
            stale::Port::Freed(why) => tried.port_freed = Some(why),
            stale::Port::Taken(refusal) => tried.port = Some(Err(refusal)),
            stale::Port::Free => {}
        }
    }
}

/// Two ranks on the CPU, or the plan's on the GPUs, through a launch like any other.
fn all_reduce(host: &Host, facts: &Facts, plan: Option<&Plan>) -> Result<Text, Text> {
    let Some(python) = &facts.python.interpreter else {
        return Err(text!("no python to run torch with", "没有可运行 torch 的 Python"));
    };
    let on_gpus = plan.is_some_and(|plan| plan.gpus.iter().any(|gpu| gpu.selected));
    let (device, backend) = if on_gpus { ("gpu", "nccl") } else { ("cpu", "gloo") };
    let ranks = match plan {
        Some(plan) if on_gpus => plan.nproc_per_node,
        _ => 2,
    };
    let problem = |error: std::io::Error| {
        text!("the all-reduce cannot be started: {error}", "无法启动 all-reduce：{error}")
    };
    let named = tempfile::Builder::new().prefix("ranklaunch-check-").tempdir();
    let scratch = named.map_err(problem)?;
    let at = |name: &str| scratch.path().join(name);
    std::fs::write(at("allreduce.py"), PROGRAM).map_err(problem)?;
    let mut command = Command::new(std::env::current_exe().map_err(problem)?);
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
    // The job of several nodes is not what is tried here.
    for name in observe::known_variables() {
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

/// Variables of ours that say how the node is looked at, not what is launched.
const KEPT: &[&str] = &["RANKLAUNCH_NVML_LIBRARY", "RANKLAUNCH_PROBE"];

/// The exit code; None when it had to be stopped. The launcher takes its ranks with it.
fn wait(child: &mut Child, patience: Duration) -> Option<i32> {
    if let Some(code) = ended_within(child, patience) {
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

fn ended_within(child: &mut Child, patience: Duration) -> Option<i32> {
    let deadline = Instant::now() + patience;
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
