//! Reads interfaces, the route to the master, and existing NCCL settings.
//!
//! Takes the [`Host`] and the master's name with its resolved addresses; gives [`NetworkFacts`]. Asks the kernel for
//! the route of a packet and never guesses by names. Sends no packet and asks no name server.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use super::{Interface, MasterRoute, NcclSetting, NetworkFacts};
use linux::host::Host;
use linux::users;
use text::lang::{Text, cause};
use text::text;

/// Interfaces on which Kubernetes keeps addresses of Services. They exist on every node and carry no packets.
const PARKING: &[&str] = &["kube-ipvs0", "nodelocaldns"];

/// The file of a capture that holds the kernel's answer about interfaces.
const INTERFACES: &str = "interfaces";

impl NetworkFacts {
    /// The facts of this node's network, without the files of NCCL, which may be on a dead mount. `master` is the master's
    /// name with its addresses, or with the reason why it has none.
    pub fn read(host: &Host, master: Option<(&str, Result<Vec<IpAddr>, Text>)>) -> NetworkFacts {
        let interfaces = interfaces(host);
        let default_interface = default_interface(host, &interfaces);
        NetworkFacts {
            master: master.map(|(name, addresses)| {
                route(host, &interfaces, &default_interface, name, addresses)
            }),
            hostname_addresses: hostname_addresses(host, &interfaces),
            nccl: of_environment(host),
            default_lower: default_interface.iter().flat_map(|at| below(host, at)).collect(),
            default_interface,
            interfaces,
        }
    }

    /// The facts if [`NetworkFacts::read`] does not return in time.
    pub(super) fn unanswered(host: &Host) -> NetworkFacts {
        NetworkFacts { nccl: of_environment(host), ..NetworkFacts::default() }
    }
}

/// The interfaces in the kernel's order, which is also NCCL's. For a replayed node only the names may be known.
fn interfaces(host: &Host) -> Vec<Interface> {
    if !host.is_live() {
        if let Some(kept) = host.answer(INTERFACES, Vec::new) {
            return kept;
        }
        let interface = |name: String| Interface {
            running: host
                .read(format!("/sys/class/net/{name}/operstate"))
                .is_ok_and(|state| matches!(state.trim(), "up" | "unknown")),
            loopback: name == "lo",
            addresses: Vec::new(),
            mtu: link_number(host, &name, "mtu"),
            megabits: link_number(host, &name, "speed"),
            name,
        };
        return host.list("/sys/class/net").into_iter().map(interface).collect();
    }
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for entry in getifaddrs().into_iter().flatten() {
        // The kernel gives one entry per address, and one for the link itself.
        let place = *places.entry(entry.interface_name.clone()).or_insert(interfaces.len());
        if place == interfaces.len() {
            interfaces.push(Interface {
                mtu: link_number(host, &entry.interface_name, "mtu"),
                megabits: link_number(host, &entry.interface_name, "speed"),
                name: entry.interface_name,
                addresses: Vec::new(),
                running: entry.flags.contains(InterfaceFlags::IFF_RUNNING),
                loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
            });
        }
        let address = entry.address.and_then(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        });
        if let (Some(address), Some(interface)) = (address, interfaces.get_mut(place)) {
            interface.addresses.push(address);
        }
    }
    host.keep(INTERFACES, &interfaces);
    interfaces
}

/// A positive number of /sys/class/net/NAME. `speed` gives EINVAL or -1 if the rate is unknown.
fn link_number(host: &Host, name: &str, file: &str) -> Option<u32> {
    let text = host.read(format!("/sys/class/net/{name}/{file}")).ok()?;
    text.trim().parse().ok().filter(|number| *number > 0)
}

/// The route to the first of the master's addresses that has a route.
fn route(
    host: &Host,
    interfaces: &[Interface],
    default_interface: &Option<String>,
    name: &str,
    addresses: Result<Vec<IpAddr>, Text>,
) -> MasterRoute {
    let (addresses, error) = match addresses {
        Ok(addresses) => (addresses, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let local = addresses.iter().any(|address| is_ours(*address, interfaces));
    let mut route = MasterRoute { host: name.to_owned(), addresses, local, interface: None, error };
    for address in &route.addresses {
        let Some(source) = source_address(host, *address) else { continue };
        match source {
            Ok(source) => {
                let owner = owner(source, interfaces);
                route.interface = match owner {
                    // Packets to a Service address leave the node by the default route.
                    Some(owner) if PARKING.contains(&owner.name.as_str()) => {
                        default_interface.clone()
                    }
                    owner => owner.map(|owner| owner.name.clone()),
                };
                route.error = None;
                return route;
            }
            Err(Text { en, zh }) => {
                route.error =
                    Some(text!("no route to {address}: {en}", "没有到 {address} 的路由：{zh}"));
            }
        }
    }
    route
}

/// The address from which the kernel would send: connecting a UDP socket looks up the route, including policy rules and
/// VRFs, and sends nothing. None for a replayed node without a recorded answer.
fn source_address(host: &Host, to: IpAddr) -> Option<Result<IpAddr, Text>> {
    let ask = || ask_route(to).map_err(|error| cause(&error));
    host.answer(&format!("route/{to}"), ask)
}

fn ask_route(to: IpAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    // Port 9 (discard); any port except 0 works.
    socket.connect(SocketAddr::new(to, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// The interface that owns an address. All of 127.0.0.0/8 belongs to loopback, whatever addresses it lists.
fn owner(address: IpAddr, interfaces: &[Interface]) -> Option<&Interface> {
    let has = |interface: &&Interface| interface.addresses.contains(&address);
    interfaces
        .iter()
        .find(has)
        .or_else(|| interfaces.iter().find(|one| one.loopback && address.is_loopback()))
}

fn is_ours(address: IpAddr, interfaces: &[Interface]) -> bool {
    address.is_loopback()
        || owner(address, interfaces)
            .is_some_and(|interface| !PARKING.contains(&interface.name.as_str()))
}

fn default_interface(host: &Host, interfaces: &[Interface]) -> Option<String> {
    let of_table = default_v4(&host.read("/proc/net/route").unwrap_or_default())
        .or_else(|| default_v6(&host.read("/proc/net/ipv6_route").unwrap_or_default()));
    if of_table.is_some() {
        return of_table;
    }
    // There is no /proc, or the default route is outside the main table. These addresses are reserved for documentation
    // (RFC 5737, RFC 3849), so no more specific route exists.
    let outside: [IpAddr; 2] =
        [Ipv4Addr::new(192, 0, 2, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    outside
        .into_iter()
        .filter_map(|address| source_address(host, address)?.ok())
        .find_map(|source| owner(source, interfaces).map(|interface| interface.name.clone()))
}

/// The interfaces below `interface`, at any depth: sysfs links each as `lower_<name>`.
fn below(host: &Host, interface: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut left = vec![interface.to_owned()];
    while let Some(upper) = left.pop() {
        for entry in host.list(format!("/sys/class/net/{upper}")) {
            if let Some(lower) = entry.strip_prefix("lower_")
                && !found.iter().any(|known| known == lower)
            {
                found.push(lower.to_owned());
                left.push(lower.to_owned());
            }
        }
    }
    found
}

/// RTF_UP and RTF_REJECT of linux/route.h.
const UP: u32 = 0x1;
const REJECT: u32 = 0x200;

/// The interface of the default route. Columns: Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT.
fn default_v4(table: &str) -> Option<String> {
    best_route(table, |fields| {
        let [name, to, _, flags, _, _, metric, mask, ..] = fields else { return None };
        let is_default = *to == "00000000" && *mask == "00000000";
        is_default.then_some((*flags, metric.parse().ok()?, *name))
    })
}

/// The interface of the route with the lowest metric. `read` gives flags, metric and interface of a default route.
fn best_route(
    table: &str,
    read: impl for<'a> Fn(&[&'a str]) -> Option<(&'a str, u32, &'a str)>,
) -> Option<String> {
    let route = |line| {
        let (flags, metric, name) = read(&str::split_whitespace(line).collect::<Vec<_>>())?;
        let flags = u32::from_str_radix(flags, 16).ok()?;
        (flags & UP != 0 && flags & REJECT == 0).then_some((metric, name))
    };
    let best = table.lines().filter_map(route).min_by_key(|(metric, _)| *metric);
    best.map(|(_, name)| name.to_owned())
}

/// The interface of the IPv6 default route. Columns: destination, its length, source, its length, next hop, metric,
/// references, use, flags, interface; all numbers in hexadecimal.
fn default_v6(table: &str) -> Option<String> {
    best_route(table, |fields| {
        let [to, length, _, _, _, metric, _, _, flags, name] = fields else { return None };
        // Without IPv6 routes the kernel lists a rejecting default route on lo.
        let is_default = *length == "00" && to.bytes().all(|byte| byte == b'0') && *name != "lo";
        is_default.then_some((*flags, u32::from_str_radix(metric, 16).ok()?, *name))
    })
}

/// Addresses of our own host name in /etc/hosts that an interface has. Gloo binds such an address by default.
fn hostname_addresses(host: &Host, interfaces: &[Interface]) -> Vec<IpAddr> {
    let Ok(name) = host.read("/proc/sys/kernel/hostname") else { return Vec::new() };
    let Ok(table) = host.read("/etc/hosts") else { return Vec::new() };
    let mut found = Vec::new();
    for line in table.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else {
            continue;
        };
        // A capture may contain only the names of interfaces.
        let unknown = !host.is_live() && interfaces.iter().all(|one| one.addresses.is_empty());
        let known = unknown || is_ours(address, interfaces);
        if known && words.any(|word| word.eq_ignore_ascii_case(name.trim())) {
            found.push(address);
        }
    }
    found
}

/// NCCL's settings, the strongest first. NCCL loads its files without overwriting, so the first entry of a name wins.
pub fn nccl_settings(host: &Host) -> Vec<NcclSetting> {
    let mut settings = of_environment(host);
    let own = host
        .variable("NCCL_CONF_FILE")
        .filter(|file| !file.is_empty())
        .or_else(|| Some(format!("{}/.nccl.conf", home(host)?)));
    for file in own.into_iter().chain(["/etc/nccl.conf".to_owned()]) {
        if let Ok(text) = host.read(&file) {
            settings.extend(conf_lines(&text).map(|(name, value)| NcclSetting {
                name: name.to_owned(),
                value: value.to_owned(),
                source: file.clone(),
            }));
        }
    }
    settings
}

/// The variables in `settings` that name a missing file, or for NCCL_DEBUG_FILE a missing folder.
pub(super) fn absent_files(host: &Host, settings: &[NcclSetting]) -> Vec<String> {
    let named = |name: &str| {
        // The first entry of a name wins.
        let found = settings.iter().find(|setting| setting.name == name)?;
        let path = Path::new(&found.value);
        let path = if name == "NCCL_DEBUG_FILE" { path.parent()? } else { path };
        let is_absent = path.is_absolute() && !host.exists(path);
        is_absent.then(|| name.to_owned())
    };
    ["NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE", "NCCL_DEBUG_FILE"]
        .into_iter()
        .filter_map(named)
        .collect()
}

fn of_environment(host: &Host) -> Vec<NcclSetting> {
    let of_nccl =
        super::environment(host).into_iter().filter(|(name, _)| name.starts_with("NCCL_"));
    let source = || "environment".to_owned();
    of_nccl.map(|(name, value)| NcclSetting { name, value, source: source() }).collect()
}

/// The home folder. NCCL takes it from the user database, not from HOME. HOME is used for users that are not in
/// /etc/passwd and for replayed nodes.
fn home(host: &Host) -> Option<String> {
    host.answer("home", || of_user(host)).flatten().or_else(|| host.variable("HOME"))
}

fn of_user(host: &Host) -> Option<String> {
    let passwd = host.read("/etc/passwd").ok()?;
    let fields = users::fields(&passwd, rustix::process::getuid().as_raw())?;
    fields.get(5).map(|home| (*home).to_owned())
}

/// The settings of a file, by NCCL's grammar: `#` only at the start of a line, the first `=` ends the name, nothing is
/// trimmed. So `KEY==eth0` is KEY with the value `=eth0`, and ` KEY=1` or `export KEY=1` sets a variable that is never
/// read (nccl src/misc/param.cc, setEnvFile).
pub fn conf_lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split('\n')
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| {
            let name = name.trim_start();
            let name = name.strip_prefix("export").map_or(name, str::trim_start);
            name.starts_with("NCCL_")
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::skipped;
    use std::collections::BTreeMap;

    fn live_with(name: &str, address: &str) -> NetworkFacts {
        let address = address.parse().expect("an address");
        NetworkFacts::read(&Host::live(), Some((name, Ok(vec![address]))))
    }

    #[test]
    fn kernel_gives_the_route_to_the_master() {
        let facts = live_with("localhost", "127.0.0.1");
        let lo = facts.interfaces.iter().find(|one| one.loopback).expect("a loopback");
        assert!(lo.addresses.contains(&Ipv4Addr::LOCALHOST.into()), "{lo:?}");
        let master = facts.master.expect("a master");
        assert_eq!((master.local, master.interface.as_ref()), (true, Some(&lo.name)));
    }

    #[test]
    fn own_address_is_local_with_its_interface() {
        let facts = NetworkFacts::read(&Host::live(), None);
        let own = facts.interfaces.iter().filter(|one| !one.loopback).find_map(|one| {
            let v4 = one.addresses.iter().find(|address| address.is_ipv4())?;
            Some((one.name.clone(), *v4))
        });
        let Some((name, address)) = own else {
            skipped("no interface but the loopback");
            return;
        };
        let master = live_with("me", &address.to_string()).master.expect("a master");
        assert_eq!((master.local, master.interface), (true, Some(name)));
    }

    #[test]
    fn a_name_without_address_keeps_its_error() {
        let facts = NetworkFacts::read(
            &Host::live(),
            Some(("gone", Err(Text::new("no such name", "没有该名称")))),
        );
        let master = facts.master.expect("a master");
        assert_eq!(
            (master.local, master.error.map(|why| why.zh)),
            (false, Some("没有该名称".into()))
        );
    }

    #[test]
    fn a_parked_service_address_is_not_ours() {
        let address: IpAddr = "10.96.0.10".parse().expect("an address");
        let parked = |name: &str| {
            vec![Interface {
                name: name.to_owned(),
                addresses: vec![address],
                ..Interface::default()
            }]
        };
        assert!(!is_ours(address, &parked("kube-ipvs0")));
        assert!(is_ours(address, &parked("eth0")));
    }

    #[test]
    fn default_route_has_the_lowest_metric() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                     ib0\t00000000\t0100000A\t0003\t0\t0\t300\t00000000\t0\t0\t0\n\
                     eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                     eth1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n";
        assert_eq!(default_v4(table).as_deref(), Some("eth0"));
        assert_eq!(default_v4(""), None);
    }

    #[test]
    fn the_v6_default_is_not_the_rejecting_one() {
        let zero = "0".repeat(32);
        let line = |flags: &str, name: &str| {
            format!("{zero} 00 {zero} 00 {zero} 00000400 00000001 00000000 {flags} {name}\n")
        };
        let table = line("00200200", "lo") + &line("00450003", "net1");
        assert_eq!(default_v6(&table).as_deref(), Some("net1"));
        assert_eq!(default_v6(&line("00200200", "lo")), None);
    }

    #[test]
    fn nccl_settings_come_strongest_first_and_untrimmed() {
        let root = tempfile::tempdir().expect("a folder");
        for (file, text) in [
            (
                "root/.nccl.conf",
                "# site\nNCCL_SOCKET_IFNAME==eth0\n #NCCL_X=1\nNCCL_DEBUG = INFO\nnoise\nexport NCCL_Y=1\n",
            ),
            ("etc/nccl.conf", "NCCL_SOCKET_IFNAME=ib0\nNCCL_IB_HCA=mlx5_1"),
        ] {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        let environment: BTreeMap<_, _> =
            [("HOME", "/root"), ("NCCL_DEBUG", "WARN"), ("PATH", "/bin")]
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect();
        let settings = nccl_settings(&Host::replayed(root.path(), environment.clone()));
        let found: Vec<_> = settings
            .iter()
            .map(|one| (one.name.as_str(), one.value.as_str(), one.source.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("NCCL_DEBUG", "WARN", "environment"),
                ("NCCL_SOCKET_IFNAME", "=eth0", "/root/.nccl.conf"),
                ("NCCL_DEBUG ", " INFO", "/root/.nccl.conf"),
                ("export NCCL_Y", "1", "/root/.nccl.conf"),
                ("NCCL_SOCKET_IFNAME", "ib0", "/etc/nccl.conf"),
                ("NCCL_IB_HCA", "mlx5_1", "/etc/nccl.conf"),
            ]
        );

        let mut environment = environment;
        environment.insert("NCCL_CONF_FILE".into(), "/nowhere".into());
        let settings = nccl_settings(&Host::replayed(root.path(), environment));
        assert!(settings.iter().all(|one| one.source != "/root/.nccl.conf"));
    }

    #[test]
    fn own_name_is_resolved_by_hosts_file_only() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(root.path().join("proc/sys/kernel")).expect("a folder");
        std::fs::create_dir_all(root.path().join("etc")).expect("a folder");
        std::fs::write(root.path().join("proc/sys/kernel/hostname"), "worker-0\n").expect("a file");
        std::fs::write(
            root.path().join("etc/hosts"),
            "127.0.0.1 localhost\n10.0.0.7\tworker-0.svc worker-0 # us\n# 10.0.0.8 worker-0\n",
        )
        .expect("a file");
        let facts = NetworkFacts::read(&Host::replayed(root.path(), BTreeMap::new()), None);
        assert_eq!(facts.hostname_addresses, ["10.0.0.7".parse::<IpAddr>().expect("an address")]);
    }
}
