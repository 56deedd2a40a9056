//! Everything before the first process: observe, plan, clear, meet the master.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use time::macros::format_description;

use super::Scene;
use super::shared::Together;
use super::together::{self, Met};
use crate::check::{self, Check, Evidence, Tried};
use crate::clear::{self, Request};
use crate::host::Host;
use crate::lang::Text;
use crate::logs;
use crate::muster::Restarts;
use crate::names;
use crate::observe::{self, Contract, Facts, GpuFacts, Late, LogFolder, NodeState, PythonFacts};
use crate::plan::{self, Plan, RunIdentity};
use crate::prepare::{self, Wait};
use crate::probe::{self, Answer};
use crate::report::start;
use crate::settings::{Device, Engine, MusterMode, ProbeMode, Program, Settings, StaleMode};
use crate::supervise;
use crate::text;
use crate::verdict::{Refusal, Severity, Verdict, Warning};

/// How long the facts may wait for the master's name; one that resolves later is
/// waited for in a phase of its own.
const NAME: Duration = Duration::from_secs(2);

/// How long the driver may take to give the memory of ended processes back.
const DRAIN: Duration = Duration::from_secs(30);
/// How long a fabric that is being set up is waited for, and how often it is asked.
const FABRIC: Duration = Duration::from_secs(30);
const FABRIC_PAUSE: Duration = Duration::from_secs(1);

const DRAIN_PAUSE: Duration = Duration::from_millis(250);

/// A node that may start.
pub(super) struct Ready {
    pub(super) plan: Plan,
    pub(super) identity: RunIdentity,
    pub(super) log_candidates: Vec<PathBuf>,
    /// The only rank keeps our stdin, stdout and stderr.
    pub(super) interactive: bool,
    /// Ourselves, as engines start the shim.
    pub(super) executable: PathBuf,
    /// The tie to the other nodes, where they hold a muster.
    pub(super) together: Option<Box<Together>>,
    /// 0, unless this node takes part in a later attempt of the job.
    pub(super) attempt: u32,
}

/// What a further attempt of all nodes takes from the one before.
pub(super) struct Next {
    pub(super) attempt: u32,
    pub(super) identity: RunIdentity,
    pub(super) restarts: Restarts,
}

/// The phases before the start, in order; `next` where an attempt went before.
pub(super) async fn prepare(scene: &Scene, next: Option<&Next>) -> Result<Ready, Refusal> {
    let executable = executable()?;
    let mut facts = observe(&scene.host, &scene.settings).await;
    wait_for_fabric(scene, &mut facts).await;
    let alone = plan_alone(scene, &mut facts, next.is_none()).await;
    if let Err(refusal) = &alone {
        together::excuse(scene, &facts, refusal).await;
    }
    let (mut plan, interactive) = alone?;
    let log_candidates = log_candidates(&scene.host, &scene.settings);

    match together::meet(scene, &mut facts, &plan, next).await? {
        Met::Agreed { plan, identity, together } => {
            let attempt = together.attempt;
            let together = Some(together);
            return Ok(Ready {
                plan: *plan,
                identity,
                log_candidates,
                interactive,
                executable,
                together,
                attempt,
            });
        }
        Met::Alone => {}
    }
    // Without a muster some choices are others, such as the id of a c10d rendezvous.
    let mut settings = Settings::clone(&scene.settings);
    settings.muster.value = MusterMode::Off;
    if plan.membership.nnodes > 1 {
        plan = planned(&settings, &facts, Stage::BeforeStart)?;
    }
    if let Some(local) = meet_master(scene, &plan, &facts).await?
        && prove_route(&mut facts, local)
    {
        plan = planned(&settings, &facts, Stage::BeforeStart)?;
        let interface = plan.network.socket_ifname.clone().unwrap_or_default();
        scene.say(&text!(
            "the connection to the master goes through {interface}: planned again with it",
            "到 Master 的连接经过 {interface}：已据此重新规划"
        ));
    }
    let identity = identity(&plan, &facts.contract)?;
    Ok(Ready {
        plan,
        identity,
        log_candidates,
        interactive,
        executable,
        together: None,
        attempt: 0,
    })
}

/// What this node would do by itself; the first time it also clears what is in the way.
async fn plan_alone(
    scene: &Scene,
    facts: &mut Facts,
    first: bool,
) -> Result<(Plan, bool), Refusal> {
    let mut plan = planned(&scene.settings, facts, Stage::BeforeClearing)?;
    plan.runnable()?;
    let interactive = interactive(&scene.settings, &plan)?;
    if first {
        scene.console.say(&start::block(&plan, &scene.settings));
        if interactive {
            scene.say(&text!(
                "the rank has the terminal: its output is not captured (< /dev/null turns this off)",
                "该 rank 直接使用终端：其输出不会写入日志（用 < /dev/null 可关闭此模式）"
            ));
        }
        if clear_stale(scene, &plan, facts).await? {
            (*facts, plan) = drained(scene).await?;
        }
    }
    planned(&scene.settings, facts, Stage::BeforeStart)?;
    Ok((plan, interactive))
}

/// Whether the rank is left the terminal: on request, or because a person sits
/// there and has only one.
fn interactive(settings: &Settings, plan: &Plan) -> Result<bool, Refusal> {
    let nproc = match plan.engine {
        // One process per node, whatever it starts itself.
        Engine::Command => 1,
        _ => plan.nproc_per_node,
    };
    if settings.interactive && nproc > 1 {
        let source = plan.decision("nproc_per_node").map(|decision| decision.source.clone());
        let source = source.unwrap_or_default();
        return Err(Refusal::new(
            Verdict::Usage,
            "interactive.nproc",
            text!(
                "--interactive leaves the terminal to one rank, but nproc_per_node is {nproc} \
                 [{source}]",
                "--interactive 只能把终端交给一个 rank，但 nproc_per_node 为 {nproc} [{source}]"
            ),
            text!("add --nproc-per-node 1", "请加上 --nproc-per-node 1"),
        ));
    }
    let alone = plan.membership.nnodes == 1 && plan.nproc_per_node == 1;
    Ok(settings.interactive || (alone && supervise::at_terminal()))
}

fn executable() -> Result<PathBuf, Refusal> {
    std::env::current_exe().map_err(|error| {
        Refusal::new(
            Verdict::Internal,
            "self.path",
            text!(
                "cannot find the path of this executable (/proc/self/exe): {error}",
                "无法确定本程序的路径（/proc/self/exe）：{error}"
            ),
            text!("mount /proc in the container", "请在容器中挂载 /proc"),
        )
    })
}

/// How long the sources of facts may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// NVML, and nvidia-smi after it.
    pub(super) driver: Duration,
    /// Anything that may lie on a mount of its own.
    pub(super) files: Duration,
    pub(super) name: Duration,
}

impl Patience {
    pub(super) const LAUNCH: Patience = Patience {
        driver: observe::gpu::DRIVER_PATIENCE,
        // A cold conda environment on a busy file server takes seconds, a dead one for ever.
        files: Duration::from_secs(30),
        name: NAME,
    };

    /// No source may take longer than `most`.
    pub(super) fn at_most(self, most: Duration) -> Patience {
        Patience {
            driver: self.driver.min(most),
            files: self.files.min(most),
            name: self.name.min(most),
        }
    }
}

/// All facts, with the patience of a launch.
pub(super) async fn observe(host: &Arc<Host>, settings: &Arc<Settings>) -> Facts {
    observe_within(host, settings, Patience::LAUNCH).await
}

/// A blocking read in a thread of its own, which is left behind when it is late.
struct Reading<T> {
    source: Text,
    patience: Duration,
    started: tokio::time::Instant,
    task: tokio::task::JoinHandle<T>,
}

fn read<T: Send + 'static>(
    source: Text,
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Reading<T> {
    let started = tokio::time::Instant::now();
    Reading { source, patience, started, task: tokio::task::spawn_blocking(work) }
}

impl<T> Reading<T> {
    /// None when it is late, which is noted, or broke down.
    async fn answer(self, late: &mut Vec<Late>) -> Option<T> {
        match tokio::time::timeout_at(self.started + self.patience, self.task).await {
            Ok(answer) => answer.ok(),
            Err(_) => {
                let after_millis = u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX);
                late.push(Late { source: self.source, after_millis });
                None
            }
        }
    }
}

/// All facts; independent sources side by side, each with its own deadline.
pub(super) async fn observe_within(
    host: &Arc<Host>,
    settings: &Arc<Settings>,
    patience: Patience,
) -> Facts {
    let Patience { driver, files, name: for_name } = patience;
    let contract = observe::contract(host);
    let both = || (Arc::clone(host), Arc::clone(settings));
    // Ranks on CPUs need no driver's answer, which costs half of a quick start;
    // device nodes are still listed.
    let mode = match settings.device.value {
        Device::Cpu => ProbeMode::Off,
        Device::Auto | Device::Gpu => settings.probe.value,
    };
    // The probe keeps the driver's deadline itself; this one is for device nodes that hang too.
    let (its, _) = both();
    let gpus = read(
        text!("GPU driver and device nodes", "GPU 驱动与设备节点"),
        driver + Duration::from_secs(2),
        move || observe::gpu::gpus_within(&its, mode, driver),
    );
    let (its, ours) = both();
    let python = read(text!("python and torch", "Python 与 torch"), files, move || {
        observe::python(&its, &ours)
    });
    let (its, ours) = both();
    let heads = read(
        text!("the checkpoint's config.json", "权重目录的 config.json"),
        files,
        move || observe::checkpoint_heads(&its, &ours),
    );
    let (its, _) = both();
    let hcas = read(text!("RDMA devices", "RDMA 设备"), files, move || observe::rdma::hcas(&its));
    let (its, _) = both();
    let limits = read(text!("limits and cgroups", "资源限制与 cgroup"), files, move || {
        observe::limits::limits(&its)
    });
    let (its, _) = both();
    let nccl = read(text!("NCCL's configuration files", "NCCL 配置文件"), files, move || {
        let all = observe::network::nccl_settings(&its);
        let absent = observe::network::absent_files(&its, &all);
        (all, absent)
    });
    let (its, ours) = both();
    let logs = read(text!("the folder for logs", "日志目录"), files, move || {
        let candidates = log_candidates(&its, &ours);
        observe::state::log_folder(&its, candidates.first()?)
    });
    let (its, _) = both();
    let marks = read(text!("marks of HAMi", "HAMi 标记"), files, move || {
        (observe::state::hami(&its), observe::state::clock(&its))
    });

    let master = master_name(settings, &contract);
    let addresses = match &master {
        Some(name) => {
            let last = last_resort(mode);
            let found = names::resolve(host, name, for_name, Some(&last)).await;
            Some(found.map_err(|error| error.to_string()))
        }
        None => None,
    };
    let mut network = observe::network::links(host, master.as_deref().zip(addresses));

    let mut late = Vec::new();
    // A reader that broke down knows nothing; the fallbacks of `plan` then speak.
    let mut absent = Vec::new();
    if let Some(found) = nccl.answer(&mut late).await {
        (network.nccl, absent) = found;
    }
    let limits = limits.answer(&mut late).await.unwrap_or_default();
    let hcas = hcas.answer(&mut late).await.unwrap_or_default();
    let (hami, clock) = marks.answer(&mut late).await.unwrap_or_default();
    let log_folder = logs.answer(&mut late).await;
    let log_folder = log_folder.unwrap_or_else(|| {
        let path = log_candidates(host, settings).into_iter().next()?;
        Some(LogFolder { path, problem: Some("no answer".to_owned()), ..LogFolder::default() })
    });
    let python = python.answer(&mut late).await.unwrap_or_else(|| PythonFacts {
        problem: Some(text!(
            "the search for python did not come to an end; a folder of PATH or of the environment is on a mount that does not answer",
            "查找 Python 未能结束；PATH 或环境所在目录的挂载点无应答"
        )),
        ..PythonFacts::default()
    });
    let checkpoint_heads = heads.answer(&mut late).await.flatten();
    let gpus = match gpus.answer(&mut late).await {
        Some(gpus) => gpus,
        None => observe::gpu::unanswered(host, driver),
    };
    Facts {
        hostname: nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned(),
        contract,
        gpus,
        network,
        hcas,
        limits,
        python,
        checkpoint_heads,
        environment: observe::environment(host),
        state: NodeState { logs: log_folder, clock, hami, late, absent },
    }
}

/// Where the run's files may go, the best first.
fn log_candidates(host: &Host, settings: &Settings) -> Vec<PathBuf> {
    let flag = settings.log_dir.as_ref().map(|dir| dir.value.as_path());
    let tmpdir = host.variable("TMPDIR");
    logs::default_candidates(flag, tmpdir.as_deref().map(AsRef::as_ref))
}

/// The master's name, where there is another node to talk to.
///
/// A claim may be a node list or an endpoint (`n[03-04]`, `host:port`), so the
/// membership reads it. GPUs, not counted yet, only matter where WORLD_SIZE
/// counts processes; then the claim's own text has to do.
fn master_name(settings: &Settings, contract: &Contract) -> Option<String> {
    let unknown = GpuFacts::default();
    let (mut decisions, mut warnings) = (Vec::new(), Vec::new());
    match plan::membership(settings, contract, &unknown, &mut decisions, &mut warnings) {
        Ok(member) => (member.nnodes > 1).then_some(member.master_addr),
        Err(_) => {
            let claimed = contract.master_addr.as_ref().map(|claim| &claim.value);
            let name = settings.master_addr.as_ref().map(|name| &name.value).or(claimed)?;
            (!name.is_empty() && name != "None").then(|| name.clone())
        }
    }
}

/// getaddrinfo in the probe, for names that only the C library's plugins know.
pub(super) fn last_resort(
    mode: ProbeMode,
) -> impl Fn(&str, Duration) -> Result<Vec<IpAddr>, String> {
    move |name, patience| {
        let answer =
            probe::run(mode, &["resolve", name], patience).map_err(|error| error.to_string())?;
        match answer {
            Answer::Names(names) if !names.addresses.is_empty() => Ok(names.addresses),
            Answer::Names(names) => Err(names.error.map_or_else(String::new, |(_, words)| words)),
            _ => Err("the probe answered something else".to_owned()),
        }
    }
}

/// True when something was ended.
async fn clear_stale(scene: &Scene, plan: &Plan, facts: &Facts) -> Result<bool, Refusal> {
    let request = request(&scene.settings, plan, facts);
    if request.mode == StaleMode::Off || !scene.host.is_live() {
        return Ok(false);
    }
    let (host, console, lang) = (Arc::clone(&scene.host), scene.console.clone(), scene.lang());
    let cleared = tokio::task::spawn_blocking(move || {
        clear::clear(&host, &request, &mut |line: Text| {
            console.say(&crate::report::closing::line(&line, lang));
        })
    });
    match cleared.await {
        Ok(report) => Ok(!report?.ended.is_empty()),
        Err(error) => Err(internal(&error.to_string())),
    }
}

/// After something was ended: facts and plan anew, once the driver has given the
/// memory of the chosen GPUs back, which takes it seconds.
async fn drained(scene: &Scene) -> Result<(Facts, Plan), Refusal> {
    let deadline = tokio::time::Instant::now() + DRAIN;
    loop {
        let facts = observe(&scene.host, &scene.settings).await;
        let plan = planned(&scene.settings, &facts, Stage::BeforeClearing)?;
        if busy(&plan).is_none() || tokio::time::Instant::now() >= deadline {
            return Ok((facts, plan));
        }
        tokio::time::sleep(DRAIN_PAUSE).await;
    }
}

fn busy(plan: &Plan) -> Option<&Warning> {
    plan.warnings.iter().find(|warning| warning.id == "gpu.busy")
}

/// The check `port.free` of node 0, of the severity that it has.
pub(super) fn own_port(scene: &Scene, port: u16) -> Result<(), Refusal> {
    let Err(refusal) = prepare::check_port(&scene.host, port) else { return Ok(()) };
    match plan::severity(&scene.settings, "port.free", Severity::Fail) {
        Severity::Fail => return Err(refusal),
        Severity::Warn => scene.say(&refusal.text),
        Severity::Off => {}
    }
    Ok(())
}

/// When a launch is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Memory that a stale process holds is not held against the node.
    BeforeClearing,
    BeforeStart,
}

/// The plan, unless it or a check refuses; the checks' warnings stand in it.
pub(super) fn planned(settings: &Settings, facts: &Facts, stage: Stage) -> Result<Plan, Refusal> {
    planned_with(settings, facts, None, stage)
}

/// [`planned`] where the least that another node can carry is known.
pub(super) fn planned_with(
    settings: &Settings,
    facts: &Facts,
    fewest: Option<u32>,
    stage: Stage,
) -> Result<Plan, Refusal> {
    let survey = plan::survey_with(settings, facts, fewest);
    let mut plan = survey.plan.clone()?;
    let tried = Tried::default();
    let checks = check::examine(&Evidence { settings, facts, survey: &survey, tried: &tried });
    let counts = |check: &&Check| stage == Stage::BeforeStart || check.id != "gpu.busy";
    if let Some(refusal) = check::refusal(checks.iter().filter(counts)) {
        return Err(refusal);
    }
    plan.warnings.extend(check::warnings(&checks));
    Ok(plan)
}

/// The fabric manager registers GPUs for some seconds after a node's start.
async fn wait_for_fabric(scene: &Scene, facts: &mut Facts) {
    if plan::severity(&scene.settings, "gpu.fabric", Severity::Fail) != Severity::Fail {
        return;
    }
    let deadline = tokio::time::Instant::now() + FABRIC;
    let mut said = false;
    while check::fabric_is_pending(facts) && tokio::time::Instant::now() < deadline {
        if !said {
            said = true;
            let seconds = FABRIC.as_secs();
            scene.say(&text!(
                "the NVSwitch fabric is not ready yet: waiting for it, at most {seconds} s",
                "NVSwitch 互联尚未就绪：等待中，最多 {seconds} 秒"
            ));
        }
        tokio::time::sleep(FABRIC_PAUSE).await;
        let (host, mode) = (Arc::clone(&scene.host), scene.settings.probe.value);
        let again = tokio::task::spawn_blocking(move || observe::gpu::gpus(&host, mode));
        if let Ok(gpus) = again.await {
            facts.gpus = gpus;
        }
    }
}

/// What an earlier run of this job would look like.
pub(super) fn request(settings: &Settings, plan: &Plan, facts: &Facts) -> Request {
    let mut request = Request::new(settings.stale.value);
    match &plan.program {
        Program::Script { path, .. } => {
            request.script = std::path::absolute(path).ok();
        }
        Program::Module { name, .. } => request.module = Some(name.clone()),
        Program::Command { .. } => {}
    }
    request.gpu_minors = plan
        .gpus
        .iter()
        .filter(|gpu| gpu.selected)
        .filter_map(|gpu| facts.gpus.gpus.iter().find(|seen| seen.index == gpu.index)?.minor)
        .collect();
    let member = &plan.membership;
    request.master_port =
        (member.is_master() && !member.master_port_free).then_some(member.master_port);
    request
}

/// Node 0 makes sure that its port is free; the others wait until it answers,
/// which also proves which of our addresses talks to it.
async fn meet_master(
    scene: &Scene,
    plan: &Plan,
    facts: &Facts,
) -> Result<Option<SocketAddr>, Refusal> {
    let member = &plan.membership;
    if member.nnodes == 1 || member.elastic.is_some() || !scene.host.is_live() {
        return Ok(None);
    }
    if member.is_master() {
        own_port(scene, member.master_port)?;
        return Ok(None);
    }
    let last = last_resort(scene.settings.probe.value);
    let wait = Wait {
        own_addresses: facts
            .network
            .interfaces
            .iter()
            .flat_map(|one| one.addresses.clone())
            .collect(),
        last_resort: Some(&last),
        ..Wait::new(&member.master_addr, member.master_port, scene.settings.wait_timeout.value)
    };
    let reached = prepare::wait_for_master(&scene.host, &wait, |line| scene.say(&line)).await?;
    Ok(Some(reached.local))
}

/// Notes which interface the connection to the master really uses; true when
/// the facts said otherwise.
pub(super) fn prove_route(facts: &mut Facts, local: SocketAddr) -> bool {
    let proven = facts
        .network
        .interfaces
        .iter()
        .find(|interface| interface.addresses.contains(&local.ip()))
        .map(|interface| interface.name.clone());
    match (&mut facts.network.master, proven) {
        (Some(master), Some(proven)) if master.interface.as_deref() != Some(&proven) => {
            master.interface = Some(proven);
            master.error = None;
            true
        }
        _ => false,
    }
}

/// `<job>-<UTC time>-<4 hex>`; alike on all nodes only where the platform names
/// the job, until nodes agree on one.
pub(super) fn identity(plan: &Plan, contract: &Contract) -> Result<RunIdentity, Refusal> {
    let mut random = [0u8; 2];
    getrandom::fill(&mut random).map_err(|error| internal(&format!("getrandom: {error}")))?;
    let now = OffsetDateTime::now_utc();
    let timestamp = now
        .format(format_description!("[year][month][day]-[hour][minute][second]"))
        .map_err(|error| internal(&error.to_string()))?;
    let job = contract.job_id.as_ref().map_or("run", |claim| claim.value.as_str());
    let job: String = job
        .chars()
        .take(48)
        .map(|letter| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' })
        .collect();
    let [high, low] = random;
    Ok(RunIdentity {
        run_id: format!("{job}-{timestamp}-{high:02x}{low:02x}"),
        timestamp,
        master_port: plan.membership.master_port,
    })
}

/// One node alone takes a port that is free right now; with several the port is agreed.
pub(super) fn port_for_attempt(ready: &Ready) -> Result<u16, Refusal> {
    if !ready.plan.membership.master_port_free {
        return Ok(ready.plan.membership.master_port);
    }
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let address = ready.plan.membership.master_addr.parse().unwrap_or(loopback);
    prepare::free_port(address).or_else(|_| prepare::free_port(loopback)).map_err(|error| {
        Refusal::new(
            Verdict::PortInUse,
            "port.none",
            text!("no free port on this node: {error}", "本节点没有空闲端口：{error}"),
            text!("name one with --master-port", "请用 --master-port 指定端口"),
        )
    })
}

fn internal(what: &str) -> Refusal {
    Refusal::new(
        Verdict::Internal,
        "internal",
        text!("internal error: {what}", "内部错误：{what}"),
        text!("please report this", "请报告此问题"),
    )
}
