//! Whether the job has a muster, how this node takes part in it, and the master as seen from this node: whether node 0
//! has the address, whether its port is free, and which interface leads to it.
//!
//! Takes settings, facts, contract and plan; gives the muster's [`Config`] and the [`NodeSummary`] that
//! this node sends.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use super::collect::last_resort;
use super::context::Context;
use linux::host::Host;
use linux::pace::Pace;
use muster::{
    Config, MemberKind, Memory, NodeSummary, Purpose, Seat, Seating, Secret, Share, Tally, Without,
};
use node::observe::{self, Facts, Interface, Limits, RankFiles};
use plan::{AskedNproc, Hardware, Membership, Plan};
use preflight::prepare::{self, Wait};
use settings::contract::{Contract, Field};
use settings::{Need, Program, Settings};
use text::lang::Text;
use text::mask::mask_args;
use text::order::InOrder;
use text::text;
use verdict::{Id, Refusal, Warning};

/// Maximum number of ranges of ranks that a summary names: a frame has room for some thousand.
const RANGES: usize = 512;

/// Whether this job has a muster.
///
/// # Errors
/// When a muster is required but impossible.
pub(super) fn is_wanted(settings: &Settings, member: &Membership) -> Result<bool, Refusal> {
    let mode = settings.muster.value;
    if mode == Need::Off || member.members() < 2 {
        return Ok(false);
    }
    if member.elastic.is_none() {
        return Ok(true);
    }
    if mode == Need::Auto {
        return Ok(false);
    }
    let source = &settings.muster.source;
    Err(Refusal::new(
        Id::MusterElastic,
        text!(
            "{source}: the nodes of an elastic job change, so they cannot agree on one plan",
            "{source}：弹性任务的节点会变化，因此无法协商出统一的计划"
        ),
        text!("--muster auto starts the job without a muster", "使用 --muster auto 可跳过集结启动"),
    ))
}

/// Platforms that start one command on all nodes. If node 0 holds no muster there, that process
/// does not belong to this job. On other platforms a person or one template per role starts each
/// node, and may start one without ranklaunch.
const ONE_COMMAND: &[&str] = &[
    "slurm",
    "open-mpi",
    "mvapich",
    "pmi",
    "pmix",
    "azure-ml",
    "beaker",
    "flux",
    "htcondor",
    "vertex-ai",
    "sagemaker",
    "skypilot",
    "kubeflow-trainer-v2",
    "kubernetes-indexed-job",
];

/// Reaction to a node without ranklaunch. `first`: this is the first attempt of the job.
fn without(settings: &Settings, contract: &Contract, unit: MemberKind, first: bool) -> Without {
    let one = unit == MemberKind::Task
        || contract.evidence.iter().any(|found| ONE_COMMAND.contains(&found.platform.as_str()));
    match settings.muster.value {
        // All nodes agreed on the previous attempt, so all have ranklaunch.
        _ if !first => Without::Wait,
        Need::Required => Without::Refuse,
        _ if one => Without::Wait,
        _ => Without::Follow,
    }
}

/// The remark of a node that has no secret.
pub(super) fn not_encrypted() -> Text {
    text!(
        "the connections between the nodes are not encrypted; set RANKLAUNCH_SECRET to encrypt them",
        "节点间的连接未加密；设置 RANKLAUNCH_SECRET 可加密"
    )
}

/// The part of this node in the muster. `first`: this is the first attempt of the job.
///
/// # Errors
/// When the secret cannot be read or is too short.
pub(super) fn config(
    host: &Arc<Host>,
    settings: &Settings,
    contract: &Contract,
    member: &Membership,
    first: bool,
) -> Result<Config, Refusal> {
    let mut ids = contract.evidence.iter().filter(|found| found.field == Field::JobId);
    let job = ids.find(|found| !found.claim.is_blank()).map(|found| match &found.beside {
        Some(step) if !step.is_blank() => format!("{}.{}", found.claim.value, step.value),
        _ => found.claim.value.clone(),
    });
    let secret = Secret::read(host)?;
    let host = Arc::clone(host);
    let unit = if member.task.is_some() { MemberKind::Task } else { MemberKind::Node };
    let list = plan::listed(settings).filter(|_| unit == MemberKind::Node);
    let hosts = list.map(|list| list.value.clone()).unwrap_or_default();
    Ok(Config {
        purpose: Purpose::Run,
        unit,
        node: member.member(),
        leader: 0,
        at: None,
        succession: None,
        nnodes: member.members(),
        seating: Seating { spares: member.spares, ..Seating::default() },
        remembered: BTreeMap::new(),
        hosts,
        job,
        master_addr: member.master_addr.clone(),
        port: settings.muster_port.as_ref().map_or(member.master_port, |port| port.value),
        wait_timeout: settings.wait_timeout.value,
        pace: Pace::STANDARD,
        live: None,
        peer_timeout: muster::PEER_TIMEOUT,
        secret,
        without: without(settings, contract, unit, first),
        grace: settings.grace.value,
        is_world_size: member.nnodes_by_world_size,
        memory: Arc::new(move || {
            let (used, limit) = Limits::memory_in_use(&host)?;
            Some(Memory { used, limit })
        }),
    })
}

/// Settings that name devices of one node, so they may differ between nodes.
const OF_ONE_NODE: &[&str] = &["NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_FILE"];

/// The summary of this node.
pub(super) fn summary(
    settings: &Settings,
    facts: &Facts,
    plan: &Plan,
) -> Result<NodeSummary, Refusal> {
    let (most, exact) = match plan.membership.task {
        // A task starts one process; its launcher fixed that.
        Some(_) => (1, None),
        None => capacity(settings, facts)?,
    };
    let first_port = plan.network.hcas.first().and_then(|name| name.split(':').next());
    let link_layer = facts
        .hcas
        .iter()
        .find(|hca| Some(hca.name.as_str()) == first_port)
        .and_then(|hca| hca.ports.first())
        .map(|port| port.link_layer.clone());
    Ok(NodeSummary {
        node: plan.membership.member(),
        nnodes: plan.membership.members(),
        spares: plan.membership.spares,
        held: None,
        machine: None,
        remembered: None,
        hostname: facts.hostname.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: plan.engine,
        rule: plan.layout.rule,
        heads: plan.layout.heads,
        most,
        exact,
        gpus: u32::try_from(facts.gpus.visible.len()).unwrap_or(u32::MAX),
        device: Some(match plan.gpus.iter().any(|gpu| gpu.selected) {
            true => Hardware::Gpus,
            false => Hardware::Cpus,
        }),
        torch: plan.torch_version.clone(),
        driver: facts.gpus.driver_version.clone(),
        script: facts.state.script.as_ref().and_then(|script| script.digest.clone()),
        nccl: nccl_digest(facts),
        rails: u32::try_from(plan.network.hcas.len()).unwrap_or(u32::MAX),
        link_layer,
        clock_offset: 0,
        mtu: interface(facts, plan).and_then(|interface| interface.mtu),
        rates: rates(facts, plan),
        endpoint: None,
        seat: plan
            .membership
            .task
            .as_ref()
            .map(|_| Seat { node: plan.membership.node_rank, nnodes: plan.membership.nnodes }),
        warnings: plan.warnings.iter().map(Warning::key).collect(),
        alive: None,
        last: None,
        attempt: 0,
        command: command(settings),
        tally: Tally::default(),
        checkpoints: whole(facts),
        shares: shares(facts),
    })
}

/// The same summary with the checkpoints that this node sees now.
pub(super) fn with_checkpoints(summary: NodeSummary, facts: &Facts) -> NodeSummary {
    NodeSummary { checkpoints: whole(facts), shares: shares(facts), ..summary }
}

/// The whole checkpoints that this node sees; None: it looks for none.
fn whole(facts: &Facts) -> Option<Vec<u64>> {
    let found = &facts.checkpoints.as_ref()?.found;
    Some(found.iter().filter(|one| one.missing.is_empty()).map(|one| one.digest).collect())
}

/// The files of ranks in the checkpoints that this node sees. Empty if none has any.
fn shares(facts: &Facts) -> Vec<Share> {
    let found = facts.checkpoints.iter().flat_map(|seen| &seen.found);
    let usable = found.filter(|one| one.missing.is_empty() || one.ranks.is_some());
    let mut left = RANGES;
    let shares: Vec<Share> = usable
        .filter_map(|one| {
            let RankFiles { here, missing } = one.ranks.clone().unwrap_or_default();
            let (of, count) = (one.digest, here.len() + missing.len());
            let share = Share { of, here, missing };
            if count <= left && share.is_sound() {
                left -= count;
                return Some(share);
            }
            // Without its ranks it is of use only where it is whole everywhere.
            one.missing.is_empty().then(|| Share { of, here: Vec::new(), missing: Vec::new() })
        })
        .collect();
    match shares.iter().any(|share| !share.here.is_empty()) {
        true => shares,
        false => Vec::new(),
    }
}

/// The maximum number of processes that this node can run, and the number that a setting or the
/// platform fixed.
fn capacity(settings: &Settings, facts: &Facts) -> Result<(u32, Option<u32>), Refusal> {
    let asked = plan::asked_nproc(settings, &facts.contract)?;
    let capacity = plan::node_capacity(settings, facts, &asked)?;
    let offered = plan::offered_nproc(&facts.contract).filter(|_| asked == AskedNproc::Auto);
    let most = offered.map_or(capacity.most, |(offered, _)| capacity.most.min(offered));
    Ok((most, capacity.exact.map(|(exact, _)| exact)))
}

/// The program with its arguments and those of the engine, as they were given: masked, with the
/// placeholders that each node fills in by itself, and with a digest, since the text may be cut. The
/// folder of the program may differ between nodes; the bytes of a script are compared separately.
fn command(settings: &Settings) -> Option<String> {
    const SHOWN: usize = 160;
    let program = &settings.program.as_ref()?.value;
    let mut words = match program {
        Program::Script { path, .. } => vec![path.clone()],
        Program::Module { name, .. } => vec!["-m".into(), name.into()],
        Program::Command { .. } => Vec::new(),
    };
    words.extend(program.args().iter().cloned());
    if let Some(first) = words.first_mut()
        && let Some(name) = Path::new(first).file_name()
    {
        *first = name.to_owned();
    }
    words.extend(settings.engine_args.iter().map(OsString::from));
    let words = mask_args(&words);
    let digest = observe::digest(format!("{words:?}").as_bytes());
    let line = words.join(OsStr::new(" "));
    let line = line.to_string_lossy();
    let (shown, rest) = match line.char_indices().nth(SHOWN) {
        Some((end, _)) => (&line[..end], "…"),
        None => (&*line, ""),
    };
    Some(format!("{shown}{rest} ({})", digest.get(..8).unwrap_or(&digest)))
}

/// The interface that the ranks use.
pub(super) fn interface<'a>(facts: &'a Facts, plan: &Plan) -> Option<&'a Interface> {
    let name = plan.network.socket_ifname.as_ref()?;
    facts.network.interfaces.iter().find(|interface| interface.name == *name)
}

/// Count and rate of the ports that will be used, such as `8 × 400` in Gb/s.
fn rates(facts: &Facts, plan: &Plan) -> Option<String> {
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    for used in &plan.network.hcas {
        let (name, number) = used.split_once(':')?;
        let hca = facts.hcas.iter().find(|hca| hca.name == name)?;
        let port = hca.ports.iter().find(|port| port.number.to_string() == number)?;
        // `as` saturates, and rates are small positive numbers. 56.25 and 56 count as one class.
        #[expect(clippy::cast_sign_loss, reason = "negative rates do not exist")]
        let rate = port.gigabits.unwrap_or(0.0) as u64;
        *counts.entry(rate).or_default() += 1;
    }
    let words: Vec<String> =
        counts.iter().rev().map(|(rate, count)| format!("{count} × {rate}")).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn nccl_digest(facts: &Facts) -> Option<String> {
    let settings: BTreeMap<&str, &str> = facts
        .network
        .nccl
        .iter()
        .filter(|setting| !OF_ONE_NODE.contains(&setting.name.as_str()))
        // The first source of a name wins.
        .rev()
        .map(|setting| (setting.name.as_str(), setting.value.as_str()))
        .in_map();
    (!settings.is_empty()).then(|| observe::digest(format!("{settings:?}").as_bytes()))
}

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
    use plan::fixtures;
    use settings::{Source, Sourced};

    fn of(program: Program) -> String {
        let mut settings = fixtures::settings(&[]);
        settings.program = Some(Sourced::new(program, Source::Default));
        command(&settings).expect("a command")
    }

    fn script(path: &str, args: &[&str]) -> String {
        of(Program::Script { path: path.into(), args: args.iter().map(OsString::from).collect() })
    }

    #[test]
    fn command_summary_omits_folder_and_secrets() {
        let same = [script("/a/train.py", &["--lr", "1"]), script("/b/train.py", &["--lr", "1"])];
        assert_eq!(same[0], same[1]);
        assert!(same[0].starts_with("train.py --lr 1 ("), "{}", same[0]);
        assert_ne!(same[0], script("/a/train.py", &["--lr", "2"]));
        assert_ne!(script("a.py", &["b c"]), script("a.py", &["b", "c"]));
        let secret = script("a.py", &["--token", "Zq59"]);
        assert!(!secret.contains("Zq59"), "{secret}");
        assert_eq!(secret, script("a.py", &["--token", "Zq60"]));
        assert!(script("a.py", &["--node={node_rank}"]).contains("{node_rank}"));
        let module = of(Program::Module { name: "a.b".to_owned(), args: Vec::new() });
        assert!(module.starts_with("-m a.b ("), "{module}");
        // Two commands that differ only in the cut part still differ by their digests.
        let long = |last: &str| script("a.py", &["x".repeat(400).as_str(), last]);
        assert_ne!(long("1"), long("2"));
        assert!(long("1").chars().count() < 200);
    }
}

#[cfg(test)]
mod master_tests {
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
