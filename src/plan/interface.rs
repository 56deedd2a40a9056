//! Chooses the network interface for the ranks' bootstrap and sockets.
//!
//! Takes the interfaces and the kernel's route to the master; gives the interface, this node's
//! address on it, and the variables that select it. An interface that the user or NCCL's
//! configuration named is kept and checked.

use std::ffi::OsString;
use std::net::IpAddr;

use crate::Notes;
use crate::nccl::NcclList;
use crate::variables::Variables;
use node::observe::{Interface, NetworkFacts};
use settings::Settings;
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

/// The interface and its variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Socket {
    pub interface: Option<String>,
    pub address: Option<IpAddr>,
    pub env: Vec<(String, OsString)>,
}

/// Prefixes of interfaces of container runtimes, overlays or tunnels. They are never chosen,
/// since peers cannot be reached from them.
const SKIPPED: &str = "\
    docker br- virbr veth cni cali flannel cilium_ lxc kube-ipvs nodelocaldns dummy tunl ip6tnl \
    sit vxlan tailscale wg tun tap ovs usb lo";

/// Interfaces with the addresses of Services: even a route through them is no path to a peer.
const NEVER: &str = "kube-ipvs nodelocaldns dummy lo";

/// Chooses the interface for a job of `nnodes`.
pub fn choose(
    settings: &Settings,
    facts: &NetworkFacts,
    variables: Variables<'_>,
    nnodes: u32,
    notes: &mut Notes,
) -> Result<Socket, Refusal> {
    let route = on_route(facts);
    check_whole_names(settings, facts, variables, notes);
    if let Some(found) = variables.get("NCCL_SOCKET_IFNAME")
        && let Some(list) = NcclList::parse(&found.value)
    {
        let taken = check_existing(settings, facts, &list, &found, route.as_deref(), notes);
        notes.decide(
            "socket_ifname",
            &found.value,
            text!("NCCL_SOCKET_IFNAME is set and kept", "已设置 NCCL_SOCKET_IFNAME，予以保留"),
            found.source,
        );
        // Gloo knows neither prefixes nor `=` and `^`, so it gets a whole name.
        let whole = taken.or(route).filter(|_| nnodes > 1);
        return Ok(socket(facts, whole, false, variables));
    }
    if nnodes <= 1 {
        return Ok(gloo_on_loopback(facts, variables, notes));
    }
    let guess = |name: &String| !is_one_of(name, SKIPPED);
    let (interface, because) = if let Some(interface) = route {
        (interface, text!("on the kernel's route to the master", "内核到 Master 的路由所经网卡"))
    } else if let Some(interface) = facts.default_interface.clone().filter(guess) {
        (interface, text!("carries the default route", "默认路由所在网卡"))
    } else if let Some(interface) = facts
        .interfaces
        .iter()
        .find(|interface| is_candidate(interface) && guess(&interface.name))
        .map(|interface| interface.name.clone())
    {
        (
            interface,
            text!(
                "first running interface with a global address",
                "首个带全局地址且处于运行状态的网卡"
            ),
        )
    } else {
        notes.warn(
            Id::NetInterface,
            text!(
                "no interface leads to the master, so NCCL chooses by itself",
                "没有找到通往 Master 的网卡，由 NCCL 自行选择"
            ),
            text!(
                "name one with --env NCCL_SOCKET_IFNAME==eth0",
                "可用 --env NCCL_SOCKET_IFNAME==eth0 指定"
            ),
        );
        return Ok(Socket::default());
    };
    notes.decide("socket_ifname", &interface, because, "detected");
    Ok(socket(facts, Some(interface), true, variables))
}

/// The interface towards the master: that of the kernel's route. On the master itself the route would
/// be lo, so there it is the interface with the master's address.
fn on_route(facts: &NetworkFacts) -> Option<String> {
    let master = facts.master.as_ref()?;
    let interface = if master.local {
        facts
            .interfaces
            .iter()
            .find(|interface| {
                !interface.loopback
                    && interface.addresses.iter().any(|own| master.addresses.contains(own))
            })
            .map(|interface| interface.name.clone())
    } else {
        master.interface.clone()
    };
    interface.filter(|name| !is_one_of(name, NEVER))
}

fn is_one_of(name: &str, prefixes: &str) -> bool {
    prefixes.split(' ').any(|prefix| match prefix {
        "lo" => name == "lo",
        prefix => name.starts_with(prefix),
    })
}

fn is_candidate(interface: &Interface) -> bool {
    interface.running && !interface.loopback && interface.addresses.iter().any(is_global)
}

fn is_global(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && !v6.is_unspecified(),
    }
}

/// Variables that take whole names, what reads them, and the error of a wrong one.
const WHOLE_NAMES: &[(&str, &str)] =
    &[("GLOO_SOCKET_IFNAME", "Gloo"), ("TP_SOCKET_IFNAME", "TensorPipe")];

/// Gloo and TensorPipe accept only whole names: with `=`, `^` or a prefix Gloo fails with
/// "unable to find address".
fn check_whole_names(
    settings: &Settings,
    facts: &NetworkFacts,
    variables: Variables<'_>,
    notes: &mut Notes,
) {
    let known = |name: &str| facts.interfaces.iter().any(|one| one.name == name);
    for (variable, reader) in WHOLE_NAMES {
        let Some(found) = variables.get(variable) else { continue };
        let unknown: Vec<&str> =
            found.value.split(',').filter(|name| !name.is_empty() && !known(name)).collect();
        if unknown.is_empty() || facts.interfaces.is_empty() {
            continue;
        }
        let (value, source, unknown) = (&found.value, &found.source, unknown.join(", "));
        notes.env_nccl(
            settings,
            text!(
                "{variable}={value} ({source}): there is no interface {unknown}, and {reader} supports neither ^ and = nor prefixes",
                "{variable}={value}（{source}）：没有名为 {unknown} 的网卡，且 {reader} 不支持 ^、= 与前缀"
            ),
            by_route(),
        );
    }
}

fn by_route() -> Text {
    text!(
        "remove it: the interface on the route to the master is then used",
        "请删除该变量，届时将使用通往 Master 的网卡"
    )
}

/// Warns of names that match nothing, and gives the first interface that NCCL uses.
fn check_existing(
    settings: &Settings,
    facts: &NetworkFacts,
    list: &NcclList,
    found: &crate::variables::Variable,
    route: Option<&str>,
    notes: &mut Notes,
) -> Option<String> {
    if facts.interfaces.is_empty() {
        return None;
    }
    let running: Vec<&str> = facts
        .interfaces
        .iter()
        .filter(|interface| interface.running && !interface.addresses.is_empty())
        .map(|interface| interface.name.as_str())
        .collect();
    let taken = running.iter().copied().find(|name| list.takes(name, None));
    let strangers = list.strangers(&running);
    let (value, source) = (&found.value, &found.source);
    let have = running.join(", ");
    let mut raise = |text: Text, hint: Text| notes.env_nccl(settings, text, hint);
    if taken.is_none() {
        raise(
            text!(
                "NCCL_SOCKET_IFNAME={value} ({source}) matches no running interface, and NCCL then fails at its bootstrap; running here: {have}",
                "NCCL_SOCKET_IFNAME={value}（{source}）没有匹配到运行中的网卡，NCCL 将在引导阶段失败；此处运行中的网卡：{have}"
            ),
            // No refusal: a program may use Gloo, or set the variable itself before its first group.
            text!(
                "remove it: the interface on the route to the master is then used; --severity env.nccl=fail refuses such a launch",
                "请删除该变量，届时将使用通往 Master 的网卡；--severity env.nccl=fail 可拒绝这样的启动"
            ),
        );
    } else if !strangers.is_empty() {
        let strangers = strangers.join(", ");
        raise(
            text!(
                "NCCL_SOCKET_IFNAME={value} ({source}): no running interface matches {strangers}; running here: {have}",
                "NCCL_SOCKET_IFNAME={value}（{source}）：没有运行中的网卡与 {strangers} 匹配；此处运行中的网卡：{have}"
            ),
            by_route(),
        );
    }
    if let (Some(route), Some(taken)) = (route, taken)
        && !list.takes(route, None)
    {
        raise(
            text!(
                "NCCL_SOCKET_IFNAME={value} ({source}) takes {taken}, but the route to the master is through {route}",
                "NCCL_SOCKET_IFNAME={value}（{source}）选中 {taken}，但到 Master 的路由经过 {route}"
            ),
            by_route(),
        );
    }
    if let Some(taken) = taken
        && facts
            .interfaces
            .iter()
            .any(|one| one.name == taken && !one.addresses.iter().any(is_global))
        && taken != "lo"
    {
        raise(
            text!(
                "NCCL_SOCKET_IFNAME={value} ({source}) takes {taken} first, which has only a link-local address; other nodes may take another interface, and the job hangs",
                "NCCL_SOCKET_IFNAME={value}（{source}）首先选中 {taken}，而它只有链路本地地址；其他节点可能选中不同网卡，导致任务挂起"
            ),
            by_route(),
        );
    } else if let (Some(route), Some(taken)) = (route, taken)
        && taken != route
        && list.takes(route, None)
    {
        // Bootstrap uses only the first match; sockets stripe over all of them.
        raise(
            text!(
                "NCCL_SOCKET_IFNAME={value} ({source}) takes {taken} before {route}, which leads to the master",
                "NCCL_SOCKET_IFNAME={value}（{source}）在通往 Master 的 {route} 之前先选中 {taken}"
            ),
            text!(
                "write =NAME for this one interface, or remove it",
                "请写成 =NAME 以只选这一个网卡，或删除该变量"
            ),
        );
    }
    // An exclusion leaves the other interfaces, and the Socket transport stripes over all of
    // them.
    let decoys: Vec<&str> = running
        .iter()
        .copied()
        .filter(|name| list.exclude && is_one_of(name, SKIPPED) && list.takes(name, None))
        // The first one is already reported above.
        .filter(|name| taken != Some(*name))
        .collect();
    if !decoys.is_empty() {
        let decoys = decoys.join(", ");
        raise(
            text!(
                "NCCL_SOCKET_IFNAME={value} ({source}) leaves {decoys} in use, which no other node can reach",
                "NCCL_SOCKET_IFNAME={value}（{source}）未排除 {decoys}，而其他节点无法到达它们"
            ),
            text!(
                "name the one that is meant: NCCL_SOCKET_IFNAME==NAME, or remove it",
                "请指明所要的网卡：NCCL_SOCKET_IFNAME==名称，或删除该变量"
            ),
        );
    }
    // Prefer the route's interface if the list allows it, since it certainly reaches the peers.
    let global =
        facts.interfaces.iter().find(|one| is_candidate(one) && list.takes(&one.name, None));
    let allowed = route.filter(|route| list.takes(route, None));
    let best = allowed.or(global.map(|one| one.name.as_str())).or(taken);
    best.map(str::to_owned)
}

/// Sets Gloo's interface to loopback if our own host name has no address here; otherwise Gloo
/// fails with "unable to find address" or listens on an address that no rank can reach.
fn gloo_on_loopback(facts: &NetworkFacts, variables: Variables<'_>, notes: &mut Notes) -> Socket {
    let lo = facts.interfaces.iter().find(|interface| interface.loopback && interface.running);
    let Some(lo) = lo.filter(|_| facts.hostname_addresses.is_empty()) else {
        return Socket::default();
    };
    if variables.is_set("GLOO_SOCKET_IFNAME") {
        return Socket::default();
    }
    notes.decide(
        "GLOO_SOCKET_IFNAME",
        &lo.name,
        text!(
            "/etc/hosts gives this host's name no address of its own, and all ranks are on this node",
            "/etc/hosts 未给出本机名的本机地址，且所有进程都在本节点"
        ),
        "detected",
    );
    let env = vec![("GLOO_SOCKET_IFNAME".to_owned(), lo.name.clone().into())];
    Socket { env, ..Socket::default() }
}

/// Whether an address has the family in which the master is reached.
fn is_family_of_master(facts: &NetworkFacts, address: &IpAddr) -> bool {
    let master = facts.master.as_ref().and_then(|master| master.addresses.first());
    master.is_none_or(|master| master.is_ipv4() == address.is_ipv4())
}

fn socket(
    facts: &NetworkFacts,
    interface: Option<String>,
    set_nccl: bool,
    variables: Variables<'_>,
) -> Socket {
    let Some(name) = interface else { return Socket::default() };
    let global: Vec<IpAddr> = facts
        .interfaces
        .iter()
        .filter(|interface| interface.name == name)
        .flat_map(|interface| interface.addresses.iter().copied().filter(is_global))
        .collect();
    let address = global
        .iter()
        .find(|own| is_family_of_master(facts, own))
        .or_else(|| global.iter().find(|own| own.is_ipv4()))
        .or(global.first())
        .copied();
    let mut env: Vec<(String, OsString)> = Vec::new();
    if set_nccl {
        // `=`: without it eth1 would select eth10 as well. Also replaces a variable that is set
        // but empty, which NCCL treats as unset.
        env.push(("NCCL_SOCKET_IFNAME".to_owned(), format!("={name}").into()));
    }
    let mut fill = |variable: &str, value: OsString| {
        if !variables.is_set(variable) {
            env.push((variable.to_owned(), value));
        }
    };
    if set_nccl {
        // NCCL uses the first address of an interface, of either family.
        let both = global.iter().any(IpAddr::is_ipv4) && global.iter().any(IpAddr::is_ipv6);
        if let Some(address) = address.filter(|_| both) {
            let family = if address.is_ipv4() { "AF_INET" } else { "AF_INET6" };
            fill("NCCL_SOCKET_FAMILY", family.into());
        }
    }
    for variable in ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"]
    {
        fill(variable, name.clone().into());
    }
    Socket { interface: Some(name), address, env }
}
