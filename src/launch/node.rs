//! Everything before the first process, once the node was looked at: plan, clear, meet the master.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use time::macros::format_description;

use super::Scene;
use super::excuse;
use super::look::{last_resort, log_candidates, observe};
use super::restart::Restarts;
use super::shared::Together;
use super::stale::{self, Duty};
use super::together::{self, Met};
use crate::check;
use crate::decide::{Decided, Stage, decide};
use crate::logs::Candidate;
use crate::observe::{self, Contract, Facts};
use crate::plan::{self, Plan, RunIdentity, Scope};
use crate::prepare::{self, Wait};
use crate::random;
use crate::report::{closing, start};
use crate::settings::{MusterMode, Settings, StaleMode};
use crate::supervise;
use crate::text;
use crate::verdict::{Id, Refusal, Severity};

/// How long a fabric that is being set up is waited for, and how often it is asked.
const FABRIC: Duration = Duration::from_secs(30);
const FABRIC_PAUSE: Duration = Duration::from_secs(1);

/// A node that may start.
pub(super) struct Ready {
    pub(super) plan: Plan,
    pub(super) identity: RunIdentity,
    pub(super) log_candidates: Vec<Candidate>,
    /// The only rank keeps our stdin, stdout and stderr.
    pub(super) interactive: bool,
    /// Ourselves, as engines start the shim.
    pub(super) executable: PathBuf,
    /// The tie to the other nodes, where they hold a muster.
    pub(super) together: Option<Box<Together>>,
    /// 0, unless this node takes part in a later attempt of the job.
    pub(super) attempt: u32,
    /// What is to be ended now that the nodes have agreed.
    pub(super) stale: Option<Duty>,
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
        excuse::planned(scene, &facts, refusal).await;
    }
    let Alone { mut plan, interactive, mut stale, port } = alone?;
    let log_candidates = log_candidates(&scene.host, &scene.settings);

    match together::meet(scene, &mut facts, &plan, next, port.as_ref()).await? {
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
                stale,
            });
        }
        Met::Alone => {
            if let Some(duty) = &mut stale
                && duty.request.mode == StaleMode::Force
            {
                // The others go on by themselves, so nobody has agreed.
                duty.request.mode = StaleMode::Kill;
            }
        }
    }
    // What is about to be ended may hold memory of the GPUs still.
    let stage = if stale.is_some() { Stage::BeforeClearing } else { Stage::BeforeStart };
    let planned_again =
        |facts: &Facts| decide(&scene.settings, facts, Scope::WithoutMuster).plan(stage);
    if plan.membership.members() > 1 && scene.settings.muster.value != MusterMode::Off {
        // Some choices are others, such as the id of a c10d rendezvous.
        let before = std::mem::take(&mut plan.warnings);
        plan = planned_again(&facts)?;
        // What is lost with the muster, such as restarts, is said before the launch.
        for warning in plan.warnings.iter().filter(|warning| !before.contains(warning)) {
            scene.console.say(&closing::warning(warning, scene.lang()));
        }
    }
    if let Some(local) = meet_master(scene, &plan, &facts, port).await?
        && prove_route(&mut facts, local)
    {
        plan = planned_again(&facts)?;
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
        stale,
    })
}

/// What this node would do by itself.
struct Alone {
    plan: Plan,
    interactive: bool,
    /// What is to be ended once the nodes have agreed.
    stale: Option<Duty>,
    /// Whoever holds this node's master port stays: the refusal, with who it is.
    port: Option<Refusal>,
}

/// The plan without the remark on a log folder in which nothing can be written: the choice
/// of the folder says so, with the one that is taken instead. Whoever names the check hears
/// of it anyway.
fn without_log_folder(plan: &Plan, scene: &Scene, facts: &Facts) -> Plan {
    const ID: Id = Id::DiskLogs;
    let mut plan = plan.clone();
    let unusable = facts.state.logs.as_ref().is_some_and(|folder| folder.problem.is_some());
    if unusable && !scene.settings.severities.contains_key(&ID) {
        plan.warnings.retain(|warning| warning.id != ID);
    }
    plan
}

/// What this node would do by itself. The first time it also looks for what is in the way: one
/// node alone ends it at once, one of several once they have agreed.
async fn plan_alone(scene: &Scene, facts: &mut Facts, first: bool) -> Result<Alone, Refusal> {
    let decided = decide(&scene.settings, facts, Scope::Alone);
    let mut plan = decided.plan(Stage::BeforeClearing)?;
    plan.runnable()?;
    let interactive = interactive(&scene.settings, &plan)?;
    if !first {
        decided.plan(Stage::BeforeStart)?;
        has_room(scene, &plan)?;
        return Ok(Alone { plan, interactive, stale: None, port: None });
    }
    let shown = without_log_folder(&plan, scene, facts);
    scene.console.say(&match plan.membership.acts_for_node() {
        true => start::block(&shown, &scene.settings),
        false => start::line(&shown, &scene.settings),
    });
    if interactive {
        scene.say(&text!(
            "the rank has the terminal: its output is not captured (< /dev/null turns this off)",
            "该 rank 直接使用终端：其输出不会写入日志（用 < /dev/null 可关闭此模式）"
        ));
    }
    let survey = stale::survey(&scene.host, &scene.settings, &plan, facts).await?;
    let port = survey.obstacle(&scene.host, &scene.settings);
    if plan.membership.acts_for_node() {
        survey.say(scene, port.as_ref());
    }
    if !survey.frees_gpus()
        && let Some(refusal) = decided.refusal(Stage::BeforeStart)
    {
        return Err(survey.named(refusal));
    }
    has_room(scene, &plan)?;
    if plan.membership.members() > 1 {
        survey.free_port(scene).await?;
        let acts = plan.membership.acts_for_node();
        let duty = || Duty { request: survey.request.clone(), acts };
        let stale = survey.ended().next().is_some().then(duty);
        return Ok(Alone { plan, interactive, stale, port });
    }
    if let Some((now, decided)) = stale::clear(scene, &survey.request).await? {
        *facts = now;
        plan = decided.plan(Stage::BeforeStart)?;
    }
    Ok(Alone { plan, interactive, stale: None, port: None })
}

/// What a launch from here would come to.
pub(super) struct Outlook {
    /// The plan, also one that is refused, as far as it can be made.
    pub(super) plan: Option<Plan>,
    /// What `run` would say first.
    pub(super) refusal: Option<Refusal>,
}

impl Outlook {
    pub(super) fn refused(refusal: Refusal) -> Outlook {
        Outlook { plan: None, refusal: Some(refusal) }
    }
}

/// For `plan`: the plan and what stands in its way, all that `run` looks at before it
/// touches the node included.
pub(super) fn outlook(settings: &Settings, decided: &Decided) -> Outlook {
    let plan = decided.outline();
    let mut refusal = decided.refusal(Stage::BeforeClearing);
    // Whether this machine could start it says nothing about a node that is assumed.
    if let (Some(plan), None, None) = (&plan, &refusal, &settings.assumed) {
        let ready = match settings.host_root {
            Some(_) => plan.has_program(),
            None => plan.runnable(),
        };
        refusal = ready.and_then(|()| interactive(settings, plan)).err();
    }
    Outlook { plan, refusal }
}

/// Files and threads for this many ranks, as far as they can be had at all.
fn has_room(scene: &Scene, plan: &Plan) -> Result<(), Refusal> {
    let Err(refusal) = prepare::has_room(plan.programs_here()) else { return Ok(()) };
    match plan::severity(&scene.settings, refusal.id, Severity::Fail) {
        Severity::Fail => return Err(refusal),
        Severity::Warn => scene.say(&refusal.text),
        Severity::Off => {}
    }
    Ok(())
}

/// Whether the rank is left the terminal: on request, or because a person sits
/// there and has only one.
fn interactive(settings: &Settings, plan: &Plan) -> Result<bool, Refusal> {
    let nproc = plan.programs_here();
    if settings.interactive && nproc > 1 {
        let source = plan.decision("nproc_per_node").map(|decision| decision.source.clone());
        let source = source.unwrap_or_default();
        return Err(Refusal::new(
            Id::InteractiveNproc,
            text!(
                "--interactive leaves the terminal to one rank, but nproc_per_node is {nproc} \
                 [{source}]",
                "--interactive 只能把终端交给一个 rank，但 nproc_per_node 为 {nproc} [{source}]"
            ),
            text!("add --nproc-per-node 1", "请加上 --nproc-per-node 1"),
        ));
    }
    let alone = plan.membership.members() == 1 && plan.nproc_per_node == 1;
    Ok(settings.interactive || (alone && supervise::at_terminal()))
}

fn executable() -> Result<PathBuf, Refusal> {
    std::env::current_exe().map_err(|error| {
        Refusal::new(
            Id::SelfPath,
            text!(
                "cannot find the path of this executable (/proc/self/exe): {error}",
                "无法确定本程序的路径（/proc/self/exe）：{error}"
            ),
            text!("mount /proc in the container", "请在容器中挂载 /proc"),
        )
    })
}

/// The check `port.free` of node 0, of the severity that it has.
pub(super) fn own_port(scene: &Scene, port: u16) -> Result<(), Refusal> {
    let Err(refusal) = prepare::check_port(&scene.host, port) else { return Ok(()) };
    match plan::severity(&scene.settings, Id::PortFree, Severity::Fail) {
        Severity::Fail => return Err(refusal),
        Severity::Warn => scene.say(&refusal.text),
        Severity::Off => {}
    }
    Ok(())
}

/// The fabric manager registers GPUs for some seconds after a node's start;
/// waiting for it counts as any other waiting does (--wait-timeout).
async fn wait_for_fabric(scene: &Scene, facts: &mut Facts) {
    if plan::severity(&scene.settings, Id::GpuFabric, Severity::Fail) != Severity::Fail {
        return;
    }
    let most = FABRIC.min(scene.settings.wait_timeout.value);
    let deadline = tokio::time::Instant::now() + most;
    let mut said = false;
    while check::fabric_is_pending(facts) && tokio::time::Instant::now() < deadline {
        if !said {
            said = true;
            let seconds = most.as_secs();
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

/// Node 0 makes sure that its port is free; the others wait until it answers,
/// which also proves which of our addresses talks to it.
#[tracing::instrument(name = "wait", skip_all)]
async fn meet_master(
    scene: &Scene,
    plan: &Plan,
    facts: &Facts,
    taken: Option<Refusal>,
) -> Result<Option<SocketAddr>, Refusal> {
    let member = &plan.membership;
    if member.members() == 1 || member.elastic.is_some() || !scene.host.is_live() {
        return Ok(None);
    }
    if member.is_master() {
        taken.map_or(Ok(()), Err)?;
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
    random::fill(&mut random).map_err(|error| Refusal::internal(&error.to_string()))?;
    let now = OffsetDateTime::now_utc();
    let timestamp = now
        .format(format_description!("[year][month][day]-[hour][minute][second]"))
        .map_err(|error| Refusal::internal(&error.to_string()))?;
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
            Id::PortNone,
            text!("no free port on this node: {error}", "本节点没有空闲端口：{error}"),
            text!("name one with --master-port", "请用 --master-port 指定端口"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{Interface, MasterRoute};
    use crate::plan::fixtures;
    use crate::settings::{Source, Sourced};

    fn facts(interface: Option<&str>) -> Facts {
        let one = |name: &str, address: &str| Interface {
            name: name.to_owned(),
            addresses: vec![address.parse().expect("an address")],
            running: true,
            loopback: name == "lo",
            mtu: None,
            megabits: None,
        };
        let mut facts = fixtures::facts(2);
        facts.network.interfaces =
            vec![one("lo", "127.0.0.1"), one("eth0", "10.0.0.2"), one("net1", "fd00::2")];
        facts.network.master = Some(MasterRoute {
            host: "m".to_owned(),
            addresses: Vec::new(),
            local: false,
            interface: interface.map(str::to_owned),
            error: interface.is_none().then(|| "no route".to_owned()),
        });
        facts
    }

    /// "planned again with it" is said where this is true, and only there.
    #[test]
    fn the_connection_to_the_master_proves_the_interface() {
        for (believed, local, proven, changed) in [
            (Some("eth0"), "10.0.0.2:5000", Some("eth0"), false),
            (Some("lo"), "10.0.0.2:5000", Some("eth0"), true),
            (None, "10.0.0.2:5000", Some("eth0"), true),
            (Some("eth0"), "[fd00::2]:5000", Some("net1"), true),
            // An address of no interface, as behind a translation, proves nothing.
            (Some("eth0"), "10.9.9.9:5000", Some("eth0"), false),
            (None, "10.9.9.9:5000", None, false),
        ] {
            let mut facts = facts(believed);
            let local = local.parse().expect("an address");
            assert_eq!(prove_route(&mut facts, local), changed, "{believed:?} {local}");
            let master = facts.network.master.expect("it stays");
            assert_eq!(master.interface.as_deref(), proven, "{believed:?} {local}");
            assert_eq!(master.error.is_none(), proven.is_some(), "what was proven is no error");
        }
        let mut alone = facts(None);
        alone.network.master = None;
        assert!(!prove_route(&mut alone, "10.0.0.2:1".parse().expect("an address")));
        assert_eq!(alone.network.master, None);
    }

    #[test]
    fn the_plan_takes_the_proven_interface() {
        let mut settings = fixtures::settings(&[]);
        let by_flag = |name: &str| Source::Flag(name.to_owned());
        settings.nnodes = Some(Sourced::new(2, by_flag("--nnodes")));
        settings.node_rank = Some(Sourced::new(1, by_flag("--node-rank")));
        settings.master_addr = Some(Sourced::new("m".to_owned(), by_flag("--master-addr")));
        let mut facts = facts(Some("eth0"));
        let named = |facts: &Facts| {
            let decided = decide(&settings, facts, Scope::WithoutMuster);
            decided.plan(Stage::BeforeStart).expect("a plan").network.socket_ifname
        };
        assert_eq!(named(&facts).as_deref(), Some("eth0"));
        assert!(prove_route(&mut facts, "[fd00::2]:5000".parse().expect("an address")));
        assert_eq!(named(&facts).as_deref(), Some("net1"));
    }
}
