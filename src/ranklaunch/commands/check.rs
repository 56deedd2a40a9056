//! `ranklaunch check`: reads the facts, tries a few things within a time limit, and judges both.
//!
//! Owns the order: facts, plan, trials, judgement, report. The checks are in [`preflight::check`],
//! their display in [`report::check_view`]. Several nodes of one job hold a muster as for a launch, measure
//! the links between them, and all report the same findings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;

use super::output;
use super::output::{
    Refused, block_on, choose, fail, print, say_unused_profile, show, terminal_width,
    unwritten_file,
};
use crate::context::remap;
use crate::muster_config::{interface, summary};
use crate::open::{Opened, open};
use crate::{collect, muster_config, notify_peers, stale};
use linux::deadline::with_deadline_async;
use linux::host::Host;
use linux::own_executable;
use muster::{
    Assembly, Config, Joined, LinkReport, Loss, MeasureEndpoint, MeasureTarget, NodeSummary,
    Purpose, Seating, net,
};
use node::observe::{self, Deadlines, Facts};
use plan::{Plan, Scope};
use preflight::check::{Nodes, Reach, Tried};
use preflight::decide::{Decided, Stage, decide};
use preflight::prepare::{self, WriteProblem};
use report::{check_view, closing};
use settings::{Need, Settings, Source, cli};
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal, Verdict};

/// Time limit for one connection to the master. A lost first packet is sent again after 1 s.
const CONNECT: Duration = Duration::from_secs(3);

pub(crate) fn check(asked: &cli::Check) -> Result<i32, Refused> {
    let Opened { host, settings, .. } = open(&asked.options)?;
    choose(settings.color.value);
    let (lang, exits) = (settings.lang, settings.exit_codes.clone());
    say_unused_profile(&settings, lang);
    let in_its_language = |refusal| Refused { refusal, lang: Some(lang) };
    let (facts, decided, found) = examine(asked, host, settings).map_err(in_its_language)?;
    let (checks, plan) = (decided.checks(), decided.survey().plan());
    let shim = own_executable::path().unwrap_or_else(|_| "ranklaunch".into());
    let failed = decided.refusal(Stage::BeforeStart);
    let code = failed.as_ref().map_or(0, |refusal| remap(&exits, refusal.verdict.code()));
    let verdict = check_view::OverallResult { refusal: failed.as_ref(), exit_code: code };
    let mut report = check_view::json(&facts, checks, plan, verdict, lang, &shim);
    if let (Some(found), Value::Object(report)) = (&found, &mut report) {
        for (key, value) in check_view::nodes_json(found, lang) {
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
                show(&check_view::nodes_text(found, lang));
            }
            let shown = check_view::Shown { all: asked.all, width: terminal_width() };
            show(&check_view::text(checks, plan, lang, shown));
        }
    }
    let capture = asked.capture.as_ref().map(|folder| Path::new(folder).join("check.json"));
    for file in asked.report.as_ref().map(PathBuf::from).into_iter().chain(capture) {
        if let Err(error) = std::fs::write(&file, &report) {
            let failure = unwritten_file(&file, &error);
            return Ok(fail(&failure, failure.verdict.code(), lang));
        }
    }
    Ok(code)
}

/// The facts, the decision by them, and the links between the nodes; None without other nodes.
fn examine(
    asked: &cli::Check,
    host: Host,
    settings: Settings,
) -> Result<(Facts, Decided, Option<Box<LinkReport>>), Refusal> {
    let deadlines = Deadlines::of(&settings);
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
        let facts = collect::observe_within(&host, &settings, deadlines).await;
        let decided = decide(&settings, &facts, Scope::Alone);
        let plan = decided.survey().outline();
        let with_nodes = meets_others(&host, &settings, plan);
        let mut tried = attempts(&host, plan, &facts, deadlines, with_nodes).await;
        beside_stale(&host, &settings, plan, &facts, &mut tried).await;
        (facts, decided, tried)
    })?;
    if let (Some(folder), Some(recorder)) = (&capture, recorder) {
        observe::read_for_replay(&host);
        host.keep(TRIED, &tried);
        recorder.write(folder).map_err(|error| unwritten_file(folder, &error))?;
    }
    if asked.torch && host.is_live() {
        tried.torch = Some(prepare::all_reduce(&host, &facts.python, decided.survey().outline()));
    }
    decided.tried(&settings, &facts, &tried);
    meet_others(&host, &settings, &facts, &decided, &mut tried)?;
    decided.tried(&settings, &facts, &tried);
    let found = match tried.nodes {
        Some(Nodes::Found(found)) => Some(found),
        _ => None,
    };
    Ok((facts, decided, found))
}

/// Runs after all checks of this node, since its first failure is sent to the other nodes.
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
            block_on(notify_peers::examined(host, settings, facts, refusal))?;
        }
        return Ok(());
    };
    if !meets_others(host, settings, Some(plan)) {
        return Ok(());
    }
    if matches!(tried.port, Some(Err(_))) {
        tried.nodes = Some(Nodes::Alone(text!(
            "the port for the other nodes is in use",
            "供其他节点连接的端口已被占用"
        )));
        return Ok(());
    }
    let met = block_on(meet(host, settings, facts, plan, failed))?;
    let nodes = met.unwrap_or_else(|refusal| Nodes::Refused(Box::new(refusal)));
    if let (Nodes::Found(_), Some(master)) = (&nodes, &facts.network.master)
        && !plan.membership.is_master()
        && let Some(address) = master.addresses.first()
    {
        tried.reach = Some(Ok(SocketAddr::new(*address, plan.membership.master_port)));
    }
    tried.nodes = Some(nodes);
    Ok(())
}

/// A capture is never mixed with existing files.
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

/// The file of a capture that holds the results of the trials.
const TRIED: &str = "tried";

/// Whether a file can be written in the log folder. None if that hangs, which the facts already
/// report.
async fn written(facts: &Facts, deadlines: Deadlines) -> Option<Result<PathBuf, WriteProblem>> {
    let folder = facts.state.logs.as_ref()?.path.clone();
    with_deadline_async(deadlines.files, move || prepare::try_write(&folder)).await
}

/// Runs the trials that need no wait: a file in the log folder, the port on node 0, one connection
/// to the master on other nodes.
async fn attempts(
    host: &Host,
    plan: Option<&Plan>,
    facts: &Facts,
    deadlines: Deadlines,
    with_nodes: bool,
) -> Tried {
    if !host.is_live() {
        return host.answer(TRIED, Tried::default).unwrap_or_default();
    }
    let mut tried = Tried { write: written(facts, deadlines).await, ..Tried::default() };
    let Some(member) = plan.map(|plan| &plan.membership) else { return tried };
    if member.nnodes == 1 || member.elastic.is_some() {
        return tried;
    }
    let port = member.master_port;
    if member.is_master() {
        tried.port = Some(prepare::check_port(host, port).map(|()| port));
    } else if with_nodes {
        // A meeting with node 0 proves more than one connection, which may come too early.
    } else if let Some(master) = &facts.network.master {
        let peers = master.addresses.iter().map(|address| SocketAddr::new(*address, port));
        tried.reach = reach(peers, CONNECT.min(deadlines.files)).await;
    }
    tried
}

/// An address that answers, else the reason why the first one does not. All are tried at once: an
/// address behind a route that leads nowhere must not use up the time of the others.
async fn reach(
    peers: impl Iterator<Item = SocketAddr>,
    limit: Duration,
) -> Option<Result<SocketAddr, Reach>> {
    let mut dialed = JoinSet::new();
    for (place, peer) in peers.enumerate() {
        dialed.spawn(async move { (place, peer, net::connect(peer, limit).await) });
    }
    // The time limit is our own, not the kernel's.
    let is_own_limit = |error: &std::io::Error| {
        error.kind() == std::io::ErrorKind::TimedOut && error.raw_os_error().is_none()
    };
    let mut first: Option<(usize, Reach)> = None;
    while let Some(Ok((place, peer, answer))) = dialed.join_next().await {
        let cause = match answer {
            Ok(_) => return Some(Ok(peer)),
            Err(error) if is_own_limit(&error) => text!("no answer", "无应答"),
            Err(error) => cause(&error),
        };
        if first.as_ref().is_none_or(|(earlier, _)| place < *earlier) {
            first = Some((place, Reach { peer, cause }));
        }
    }
    first.map(|(_, reach)| Err(reach))
}

/// Processes that `run` would end are no failure here; processes that it would leave alone are named
/// as `run` names them.
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
            stale::PortState::Freed(why) => tried.port_freed = Some(why),
            stale::PortState::Taken(refusal) => tried.port = Some(Err(refusal)),
            stale::PortState::Free => {}
        }
    }
}

/// Default time that nodes wait for each other. It is short, since a check of one node should
/// not take the half hour of a launch.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether this node meets the others. A capture covers one node, and a replayed node cannot be
/// met, unless the user asks for it.
pub(super) fn meets_others(host: &Host, settings: &Settings, plan: Option<&Plan>) -> bool {
    let there = host.is_live() && !host.is_recorded();
    let there = there || settings.muster.value == Need::Required;
    let member = plan.map(|plan| &plan.membership);
    there
        && member.is_some_and(|member| muster_config::is_wanted(settings, member).unwrap_or(false))
}

/// Meets the other nodes. `failed` is the first failed check of this node.
async fn meet(
    host: &Arc<Host>,
    settings: &Settings,
    facts: &Facts,
    plan: &Plan,
    failed: Option<Refusal>,
) -> Result<Nodes, Refusal> {
    let member = &plan.membership;
    let config = muster_config::config(host, settings, &facts.contract, member, true)?;
    let timeout = match settings.wait_timeout.source {
        Source::Default => config.wait_timeout.min(DEFAULT_TIMEOUT),
        _ => config.wait_timeout,
    };
    // Spares are checked like all others.
    let (all, purpose, wait_timeout) = (config.all(), Purpose::Check, timeout);
    let config =
        Config { purpose, wait_timeout, nnodes: all, seating: Seating::default(), ..config };
    let lang = settings.lang;
    let mut say = |line: Text| output::say(&closing::line(&line, lang));
    if config.secret.is_none() {
        say(muster_config::not_encrypted());
    }
    let (target, address) = target(plan).await?;
    let link = interface(facts, plan);
    let endpoint = MeasureEndpoint {
        address: Some(address),
        interface: plan.network.socket_ifname.clone(),
        megabits: link.and_then(|link| link.megabits),
        failed,
    };
    let own = summary(settings, facts, plan)?;
    let endpoint_of_own = Some(Box::new(endpoint.clone()));
    let own = NodeSummary { endpoint: endpoint_of_own, nnodes: all, spares: 0, ..own };
    if member.is_master() {
        prepare::raise_limits();
        return Ok(match muster::gather(&config, own, &mut say).await? {
            Assembly::All(gathered) => {
                Nodes::Found(Box::new(gathered.measure(endpoint, target).await))
            }
            Assembly::Alone(why) => Nodes::Alone(why),
            // Only a job that runs has another leader.
            Assembly::Elsewhere(_) => return Err(lost(&config, Loss::Cut)),
        });
    }
    let last = collect::last_resort(settings.probe.value);
    let joined = muster::join(host, &config, &own, Some(&last), &mut say).await?;
    let session = match joined {
        Joined::Measure(session) => session,
        Joined::Alone(why) => return Ok(Nodes::Alone(why)),
        // This node 0 came to launch, not to check.
        Joined::Offer(_) | Joined::Parked(_) | Joined::Elsewhere(..) | Joined::Look => {
            return Err(lost(&config, Loss::Died));
        }
    };
    let found = session.follow(target).await.map_err(|loss| lost(&config, loss))?;
    Ok(Nodes::Found(Box::new(found)))
}

/// Listens on the interface that the ranks use, or on all interfaces if it is not known.
async fn target(plan: &Plan) -> Result<(MeasureTarget, SocketAddr), Refusal> {
    let anywhere: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    let mut problem = Text::same("");
    for address in plan.network.local_addr.into_iter().chain(anywhere) {
        match MeasureTarget::open(address).await {
            Ok(target) => {
                let port = target.port();
                return Ok((target, SocketAddr::new(address, port)));
            }
            Err(error) => problem = cause(&error).about(address),
        }
    }
    let Text { en, zh } = problem;
    Err(Refusal::with(
        Verdict::PortInUse,
        Id::LinkReach,
        text!("no port to measure links on: {en}", "没有可用于测量链路的端口：{zh}"),
        text!("see the limits of this container", "请检查该容器的限制"),
    ))
}

fn lost(config: &Config, loss: Loss) -> Refusal {
    let master = &config.master_addr;
    let text = match loss {
        Loss::Died | Loss::Cut => text!(
            "node 0 ({master}) disconnected while the nodes were examined",
            "检查各节点时，节点 0（{master}）断开连接"
        ),
        Loss::Silent => text!(
            "no message came from node 0 ({master}) while the nodes were examined",
            "检查各节点时未再收到节点 0（{master}）的消息"
        ),
    };
    Refusal::new(
        Id::NodesArrive,
        text,
        text!("look at node 0's own report", "请查看节点 0 自己的报告"),
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::fd::OwnedFd;

    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

    use super::*;

    /// A listener whose queue is full, so that the kernel drops connection attempts. Also gives the
    /// objects that must live as long.
    fn silent() -> (SocketAddr, OwnedFd, Vec<TcpStream>) {
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("bound");
        listen(&listener, 0).expect("listening");
        let name = getsockname(&listener).expect("a name");
        let peer: SocketAddr = name.try_into().expect("an address");
        let short = Duration::from_millis(300);
        let mut queue = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&peer, short) {
            queue.push(stream);
        }
        (peer, listener, queue)
    }

    #[tokio::test]
    async fn silent_address_does_not_hide_another() {
        let (silent, _listener, _queue) = silent();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let live = listener.local_addr().expect("an address");
        let limit = Duration::from_secs(1);
        let reached = |peers: Vec<SocketAddr>| reach(peers.into_iter(), limit);
        assert_eq!(reached(vec![silent, live]).await.and_then(Result::ok), Some(live));
        let failed = reached(vec![silent]).await.and_then(Result::err).expect("why");
        assert_eq!((failed.peer, &*failed.cause.en), (silent, "no answer"));
        drop(listener);
        let failed = reached(vec![live, silent]).await.and_then(Result::err).expect("why");
        assert_eq!(failed.peer, live, "{}", failed.cause.en);
        assert!(reached(Vec::new()).await.is_none());
    }
}
