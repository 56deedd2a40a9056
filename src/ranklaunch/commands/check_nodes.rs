//! `ranklaunch check` on several nodes of one job: they hold a muster as for a launch, measure
//! the links between them, and all report the same findings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::output;
use crate::collect;
use crate::muster_config;
use crate::summary::{interface, summary};
use linux::host::Host;
use muster::{
    Assembly, Config, Joined, Loss, MeasureEndpoint, MeasureTarget, NodeSummary, Purpose,
};
use node::observe::Facts;
use plan::Plan;
use preflight::check::Nodes;
use report::closing;
use settings::{Need, Settings, Source};
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal, Verdict};

/// Default time that nodes wait for each other. It is short, since a check of one node should
/// not take the half hour of a launch.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether this node meets the others. A capture covers one node, and a replayed node cannot be
/// met, unless the user asks for it.
pub(super) fn is_wanted(host: &Host, settings: &Settings, plan: Option<&Plan>) -> bool {
    let there = host.is_live() && !host.is_recorded();
    let there = there || settings.muster.value == Need::Required;
    let member = plan.map(|plan| &plan.membership);
    there
        && member.is_some_and(|member| muster_config::is_wanted(settings, member).unwrap_or(false))
}

/// Meets the other nodes. `failed` is the first failed check of this node.
pub(super) async fn meet(
    host: &Arc<Host>,
    settings: &Settings,
    facts: &Facts,
    plan: &Plan,
    failed: Option<Refusal>,
) -> Nodes {
    let met = try_to_meet(host, settings, facts, plan, failed).await;
    met.unwrap_or_else(|refusal| Nodes::Refused(Box::new(refusal)))
}

async fn try_to_meet(
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
    let config = Config { purpose: Purpose::Check, wait_timeout: timeout, ..config };
    let lang = settings.lang;
    let mut say = |line: Text| output::say(&closing::line(&line, lang));
    if config.secret.is_none() {
        say(text!(
            "the connections between the nodes are not encrypted; set RANKLAUNCH_SECRET to encrypt them",
            "节点间的连接未加密；设置 RANKLAUNCH_SECRET 可加密"
        ));
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
    let own = NodeSummary { endpoint: Some(Box::new(endpoint.clone())), ..own };
    if member.is_master() {
        preflight::prepare::raise_limits();
        return Ok(match muster::gather(&config, own, &mut say).await? {
            Assembly::All(gathered) => {
                Nodes::Found(Box::new(gathered.measure(endpoint, target).await))
            }
            Assembly::Alone(why) => Nodes::Alone(why),
        });
    }
    let last = collect::last_resort(settings.probe.value);
    let joined = muster::join(host, &config, &own, Some(&last), &mut say).await?;
    let session = match joined {
        Joined::Measure(session) => session,
        Joined::Alone(why) => return Ok(Nodes::Alone(why)),
        // This node 0 came to launch, not to check.
        Joined::Offer(_) => return Err(lost(&config, Loss::Died)),
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
