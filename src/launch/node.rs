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
use crate::clear::{self, Request};
use crate::host::Host;
use crate::lang::Text;
use crate::logs;
use crate::muster::Restarts;
use crate::names;
use crate::observe::{self, Contract, Facts, GpuFacts};
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
    let planned = plan_alone(scene, &mut facts, next.is_none()).await;
    if let Err(refusal) = &planned {
        together::excuse(scene, &facts, refusal).await;
    }
    let (mut plan, interactive) = planned?;
    let flag = scene.settings.log_dir.as_ref().map(|dir| dir.value.as_path());
    let tmpdir = scene.host.variable("TMPDIR");
    let log_candidates = logs::default_candidates(flag, tmpdir.as_deref().map(AsRef::as_ref));

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
        plan = plan::plan(&settings, &facts)?;
    }
    if let Some(local) = meet_master(scene, &plan, &facts).await?
        && prove_route(&mut facts, local)
    {
        plan = plan::plan(&settings, &facts)?;
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
    let mut plan = plan::plan(&scene.settings, facts)?;
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
    refuse_busy(&scene.settings, &plan)?;
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

/// All facts; independent sources side by side, each with its own deadline.
pub(super) async fn observe(host: &Arc<Host>, settings: &Arc<Settings>) -> Facts {
    let contract = observe::contract(host);
    // Ranks on CPUs need no driver's answer, which costs half of a quick start;
    // device nodes are still listed.
    let mode = match settings.device.value {
        Device::Cpu => ProbeMode::Off,
        Device::Auto | Device::Gpu => settings.probe.value,
    };
    let gpu_host = Arc::clone(host);
    let gpus = tokio::task::spawn_blocking(move || observe::gpu::gpus(&gpu_host, mode));
    let (file_host, file_settings) = (Arc::clone(host), Arc::clone(settings));
    let files = tokio::task::spawn_blocking(move || {
        (
            observe::python(&file_host, &file_settings),
            observe::checkpoint_heads(&file_host, &file_settings),
            observe::rdma::hcas(&file_host),
            observe::limits::limits(&file_host),
        )
    });
    let master = master_name(settings, &contract);
    let addresses = match &master {
        Some(name) => {
            let last = last_resort(settings.probe.value);
            let found = names::resolve(host, name, NAME, Some(&last)).await;
            Some(found.map_err(|error| error.to_string()))
        }
        None => None,
    };
    let network = observe::network::network(host, master.as_deref().zip(addresses));
    // A reader that panicked knows nothing; the fallbacks of `plan` then speak.
    let gpus = gpus.await.unwrap_or_default();
    let (python, checkpoint_heads, hcas, limits) = files.await.unwrap_or_default();
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
    }
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
        let plan = plan::plan(&scene.settings, &facts)?;
        if busy(&plan).is_none() || tokio::time::Instant::now() >= deadline {
            return Ok((facts, plan));
        }
        tokio::time::sleep(DRAIN_PAUSE).await;
    }
}

fn busy(plan: &Plan) -> Option<&Warning> {
    plan.warnings.iter().find(|warning| warning.id == "gpu.busy")
}

/// GPU memory that is still held, where the user made that a failure.
fn refuse_busy(settings: &Settings, plan: &Plan) -> Result<(), Refusal> {
    match busy(plan) {
        Some(held) if plan::severity(settings, "gpu.busy", Severity::Warn) == Severity::Fail => {
            Err(Refusal::new(Verdict::Stale, "gpu.busy", held.text.clone(), held.hint.clone()))
        }
        _ => Ok(()),
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
        prepare::check_port(&scene.host, member.master_port)?;
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
