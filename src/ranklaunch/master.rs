//! Master address and port, checked from this node: whether node 0 has the address, whether its
//! port is free, and which interface leads to it.

use std::net::{IpAddr, SocketAddr};

use super::collect::last_resort;
use super::context::Context;
use node::observe::Facts;
use plan::Plan;
use preflight::prepare::{self, Wait};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal, Warning};

/// Compares addresses, not names. Warns on a node 0 that lacks the master address, and on any
/// other node that has it.
pub(super) fn misplaced(facts: &Facts, plan: &Plan) -> Option<Warning> {
    let route = facts.network.master.as_ref().filter(|route| !route.addresses.is_empty())?;
    let member = &plan.membership;
    let (node, name) = (member.node_rank, &member.master_addr);
    let list = |addresses: &[IpAddr]| {
        let words: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        words.join(", ")
    };
    let theirs = list(&route.addresses);
    if member.task.is_some() && member.is_master() && !route.local {
        return Some(Warning::new(
            Id::MasterElsewhere,
            text!(
                "task 0 is on this host, but the other tasks look for it at {name} ({theirs}), which is not an address of this host",
                "task 0 位于本机，而其他 task 会到 {name}（{theirs}）寻找它，但这不是本机的地址"
            ),
            text!(
                "set MASTER_ADDR to the host of task 0, or let the first node of the list have it",
                "请将 MASTER_ADDR 设为 task 0 所在的主机，或让列表中的第一个节点运行 task 0"
            ),
        ));
    }
    if member.is_master() && !route.local {
        let interfaces = facts.network.interfaces.iter().filter(|one| !one.loopback);
        let own = interfaces.flat_map(|one| one.addresses.clone());
        // Every interface has a link-local address, and none is used as a master address.
        let is_for_others = |one: &IpAddr| match one {
            IpAddr::V6(one) => !one.is_unicast_link_local(),
            IpAddr::V4(_) => true,
        };
        let own = list(&own.filter(is_for_others).collect::<Vec<_>>());
        return Some(Warning::new(
            Id::MasterElsewhere,
            text!(
                "this is node 0, but the master {name} ({theirs}) is not an address of this host ({own})",
                "本节点是节点 0，但 Master {name}（{theirs}）不是本机的地址（{own}）"
            ),
            text!(
                "check --node-rank: the other nodes look for node 0 at {name}; ignore this if that address is forwarded to this host",
                "请检查 --node-rank：其他节点会到 {name} 寻找节点 0；若该地址会转发到本机则无需处理"
            ),
        ));
    }
    // The plan already warns of loopback names and addresses.
    let said = plan.warnings.iter().any(|warning| warning.id == Id::MasterLocalhost);
    // For other tasks on node 0 the master is their own host.
    (node > 0 && route.local && !said).then(|| {
        Warning::new(Id::MasterLocalhost,
            text!(
                "node {node} looks for node 0 at {name} ({theirs}), which is this node itself",
                "节点 {node} 到 {name}（{theirs}）寻找节点 0，而该地址就是本节点自己"
            ),
            text!(
                "give the name or address of node 0 with --master-addr, or --node-rank 0 if this is node 0",
                "请用 --master-addr 给出节点 0 的名称或地址；若本节点就是节点 0，请用 --node-rank 0"
            ),
        )
    })
}
/// The check `port.free` of node 0, with its severity.
pub(super) fn own_port(context: &Context, port: u16) -> Result<(), Refusal> {
    prepare::check_port(&context.host, port).or_else(|refusal| context.weigh(Id::PortFree, refusal))
}

/// Node 0 checks that its port is free. The others wait until it answers; the connection also
/// shows which local address leads to it.
#[tracing::instrument(name = "wait", skip_all)]
pub(super) async fn wait_for_master(
    context: &Context,
    plan: &Plan,
    facts: &Facts,
    taken: Option<Refusal>,
) -> Result<Option<SocketAddr>, Refusal> {
    let member = &plan.membership;
    if member.members() == 1 || member.elastic.is_some() || !context.host.is_live() {
        return Ok(None);
    }
    if member.is_master() {
        taken.map_or(Ok(()), Err)?;
        own_port(context, member.master_port)?;
        return Ok(None);
    }
    let last = last_resort(context.settings.probe.value);
    let wait = Wait {
        own_addresses: facts
            .network
            .interfaces
            .iter()
            .flat_map(|one| one.addresses.clone())
            .collect(),
        last_resort: Some(&last),
        pace: context.wait_pace(),
        ..Wait::new(&member.master_addr, member.master_port, context.settings.wait_timeout.value)
    };
    let live = context.live();
    let progress = |line: Text| match &live {
        Some(live) => live.show(&line),
        None => context.say(&line),
    };
    let reached = prepare::wait_for_master(&context.host, &wait, progress).await?;
    Ok(Some(reached.local))
}

/// Records the interface that the connection to the master uses. True if the facts named another
/// one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use node::observe::{Interface, MasterRoute};
    use plan::{Scope, fixtures};
    use preflight::decide::{Stage, decide};
    use settings::{Source, Sourced};

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
            error: interface.is_none().then(|| Text::same("no route")),
        });
        facts
    }

    /// The message says "planned again with it" only if the interface changed.
    #[test]
    fn master_connection_proves_the_interface() {
        for (believed, local, proven, changed) in [
            (Some("eth0"), "10.0.0.2:5000", Some("eth0"), false),
            (Some("lo"), "10.0.0.2:5000", Some("eth0"), true),
            (None, "10.0.0.2:5000", Some("eth0"), true),
            (Some("eth0"), "[fd00::2]:5000", Some("net1"), true),
            // An address of no interface, as behind NAT, proves nothing.
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
    fn plan_uses_the_proven_interface() {
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
