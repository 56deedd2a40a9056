//! `ranklaunch check`: reads the facts, tries a few things within a time limit, and judges both.
//!
//! Owns the order: facts, plan, trials, judgement, report. The checks are in [`preflight::check`],
//! their display in [`report::check_view`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;

use super::check_nodes;
use super::output::{
    block_on, choose, fail, print, refuse, say_unused_profile, show, terminal_width, unwritten,
};
use crate::collect;
use crate::context::remap;
use crate::notify_peers;
use crate::open::{Opened, open};
use crate::stale;
use linux::deadline::with_deadline_async;
use linux::host::Host;
use linux::own_executable;
use muster::LinkReport;
use muster::net;
use node::observe::{self, Deadlines, Facts};
use plan::{Plan, Scope};
use preflight::check::{Nodes, Reach, Tried};
use preflight::decide::{Decided, Stage, decide};
use preflight::prepare::{self, WriteProblem};
use report::{check_view, closing};
use settings::Settings;
use settings::cli;
use text::lang;
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

/// Time limit for one connection to the master. A lost first packet is sent again after 1 s.
const CONNECT: Duration = Duration::from_secs(3);

/// All data that a report needs.
struct Examined {
    facts: Facts,
    decided: Decided,
    /// None without other nodes.
    found: Option<Box<LinkReport>>,
}

pub(crate) fn check(asked: &cli::Check) -> i32 {
    let Opened { host, settings, .. } = match open(&asked.options) {
        Ok(opened) => opened,
        Err((refusal, lang)) => return refuse(&refusal, lang),
    };
    choose(settings.color.value);
    let (lang, exits) = (settings.lang, settings.exit_codes.clone());
    say_unused_profile(&settings, lang);
    match examine(asked, host, settings) {
        Ok(examined) => {
            let Examined { facts, decided, found } = examined;
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
                    let failure = unwritten(named(&file), &error);
                    return fail(&failure, failure.verdict.code(), lang);
                }
            }
            code
        }
        Err(refusal) => refuse(&refusal, lang),
    }
}

fn examine(asked: &cli::Check, host: Host, settings: Settings) -> Result<Examined, Refusal> {
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
        let with_nodes = check_nodes::is_wanted(&host, &settings, plan);
        let mut tried = attempts(&host, plan, &facts, deadlines, with_nodes).await;
        beside_stale(&host, &settings, plan, &facts, &mut tried).await;
        (facts, decided, tried)
    })?;
    if let (Some(folder), Some(recorder)) = (&capture, recorder) {
        observe::read_for_replay(&host);
        host.keep(TRIED, &tried);
        recorder.write(folder).map_err(|error| unwritten(named(folder), &error))?;
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
    Ok(Examined { facts, decided, found })
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
    if !check_nodes::is_wanted(host, settings, Some(plan)) {
        return Ok(());
    }
    if matches!(tried.port, Some(Err(_))) {
        tried.nodes = Some(Nodes::Alone(text!(
            "the port for the other nodes is in use",
            "供其他节点连接的端口已被占用"
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

fn named(path: &Path) -> Text {
    Text::same(path.display().to_string())
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
            Err(error) => lang::cause(&error),
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
