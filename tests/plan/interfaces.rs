//! The interface of the route to the master, from the real kernel in network namespaces. Needs
//! the permission to create them, and iproute2's `ip`.

use std::process::Command;

use harness::{Launcher, executable, skipped};
use serde_json::Value;

/// Runs its command line in a fresh network (and mount) namespace.
const UNSHARE: &[&str] = &["--net", "--mount"];

/// The reason why namespaces are not available here, if any.
fn missing() -> Option<String> {
    let output =
        Command::new("unshare").args(UNSHARE).args(["ip", "link", "set", "lo", "up"]).output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// True if this kernel can create such an interface.
fn has_kind(kind: &str) -> bool {
    let script = format!(
        "ip link add p type veth peer name q; ip link add link p name x type {kind} 2> /dev/null || ip link add x type {kind}"
    );
    let script = script.replace("type vlan", "type vlan id 5");
    let output = Command::new("unshare").args(UNSHARE).args(["sh", "-c", &script]).output();
    output.is_ok_and(|output| output.status.success())
}

/// A pair of veth interfaces, the near end with these addresses.
fn veth(name: &str, addresses: &[&str]) -> String {
    let address = |address: &&str| {
        let (family, nodad) = if address.contains(':') { ("-6", " nodad") } else { ("-4", "") };
        format!("ip {family} addr add {address} dev {name}{nodad}\n")
    };
    let link = format!(
        "ip link add {name} type veth peer name {name}p && ip link set {name}p up && ip link set {name} up\n"
    );
    link + &addresses.iter().map(address).collect::<String>()
}

fn bridge(name: &str, address: &str) -> String {
    format!(
        "ip link add {name} type bridge && ip addr add {address} dev {name} && ip link set {name} up\n\
         ip link add {name}m type veth peer name {name}n && ip link set {name}m master {name}\n\
         ip link set {name}m up && ip link set {name}n up\n"
    )
}

/// The plan of this rank of two in a network that `setup` creates; `None` if this kernel does not
/// support the set-up.
fn plan(setup: &str, rank: u32, master: &str) -> Option<Value> {
    plan_of(setup, 2, rank, master)
}

fn plan_of(setup: &str, nodes: u32, rank: u32, master: &str) -> Option<Value> {
    let script = format!("set -e\nip link set lo up\n{setup}\nexec \"$@\" || exit 99");
    let mut command = Command::new("unshare");
    command.args(UNSHARE).args(["sh", "-c", &script, "sh"]).arg(executable());
    let ended = Launcher::of(command, ["plan", "--format", "json", "--lang", "en"])
        .args(["--device", "cpu", "--python", "/bin/sh", "--engine", "command"])
        .args(["--nnodes", &nodes.to_string(), "--master-port", "29500", "--master-addr", master])
        .args(["--node-rank", &rank.to_string(), "--", "true"])
        .run();
    if ended.err.contains("Unknown device type") || ended.err.contains("not supported") {
        skipped(format_args!("{}", ended.err));
        return None;
    }
    let ended = ended.expect_code(0);
    Some(serde_json::from_str(&ended.out).expect("a plan"))
}

struct Case {
    name: &'static str,
    /// A kind of interface that some kernels lack.
    kind: Option<&'static str>,
    setup: String,
    rank: u32,
    master: &'static str,
    /// The interface, and NCCL_SOCKET_FAMILY.
    expected: (&'static str, Option<&'static str>),
}

fn cases() -> Vec<Case> {
    let case = |name, setup: String, rank, master, expected| Case {
        name,
        kind: None,
        setup,
        rank,
        master,
        expected: (expected, None),
    };
    let mut cases = vec![
        case(
            "a decoy bridge of a container runtime comes first",
            bridge("docker0", "172.17.0.1/16") + &veth("eth0", &["10.0.0.2/24"]),
            1,
            "10.0.0.1",
            "eth0",
        ),
        case(
            "a pod: its eth0 is a veth, the route a default one",
            veth("eth0", &["10.1.0.7/24"]) + "ip route add default via 10.1.0.1\n",
            1,
            "10.96.0.12",
            "eth0",
        ),
        case(
            "two uplinks: the more specific route wins over the default",
            veth("eth0", &["10.0.0.2/24"])
                + &veth("eth1", &["10.9.0.2/24"])
                + "ip route add default via 10.0.0.1\nip route add 10.77.0.0/16 via 10.9.0.1\n",
            1,
            "10.77.3.4",
            "eth1",
        ),
        case(
            "two uplinks: the default route of the least metric",
            veth("eth0", &["10.0.0.2/24"])
                + &veth("eth1", &["10.9.0.2/24"])
                + "ip route add default via 10.0.0.1 metric 200\n\
                   ip route add default via 10.9.0.1 metric 100\n",
            1,
            "192.0.2.7",
            "eth1",
        ),
        case(
            "policy routing sends the master's network through a table of its own",
            veth("eth0", &["10.0.0.2/24"])
                + &veth("eth1", &["10.9.0.2/24"])
                + "ip route add default via 10.0.0.1\n\
                   ip route add default via 10.9.0.1 table 100\n\
                   ip rule add to 10.50.0.0/16 table 100\n",
            1,
            "10.50.0.1",
            "eth1",
        ),
        case(
            "node 0 owns the address, so the route says lo and is not followed",
            veth("eth0", &["10.0.0.2/24"]) + &veth("eth1", &["10.9.0.2/24"]),
            0,
            "10.9.0.2",
            "eth1",
        ),
        case("IPv6 alone", veth("eth0", &["fd00::2/64"]), 1, "fd00::1", "eth0"),
        case(
            "a service address parked on a dummy interface is nobody's",
            // Some kernels have no dummy interfaces; the test only requires that no packet leaves
            // by this one.
            "{ ip link add kube-ipvs0 type dummy 2> /dev/null || ip link add kube-ipvs0 type bridge; }\n\
             ip addr add 10.96.0.1/32 dev kube-ipvs0\n"
                .to_owned()
                + &veth("eth0", &["10.0.0.2/24"])
                + "ip route add default via 10.0.0.1\n",
            1,
            "10.96.0.1",
            "eth0",
        ),
        case(
            "no route: the first interface with a global address, tunnels and bridges apart",
            veth("tun0", &["10.8.0.2/24"])
                + &veth("ens9", &["169.254.3.1/16"])
                + &bridge("br-4f1a", "172.18.0.1/16")
                + &veth("ens5", &["10.0.0.2/24"]),
            1,
            "192.0.2.7",
            "ens5",
        ),
    ];
    cases.push(case(
        "a rule before the main table hides its default route, as a VPN does",
        veth("eth0", &["10.0.0.2/24"])
            + &veth("wg0", &["10.8.0.2/24"])
            + "ip route add default via 10.0.0.1\n\
               ip route add default via 10.8.0.1 table 51820\n\
               ip rule add lookup main suppress_prefixlength 0 priority 100\n\
               ip rule add lookup 51820 priority 200\n",
        1,
        "192.0.2.7",
        "wg0",
    ));
    cases.push(case(
        "IPv6 alone, two uplinks: the default route of the least metric",
        veth("eth0", &["fd00::2/64"])
            + &veth("eth1", &["fd01::2/64"])
            + "ip -6 route add default via fd00::1 metric 200\n\
               ip -6 route add default via fd01::1 metric 100\n",
        1,
        "2001:db8::7",
        "eth1",
    ));
    cases.push(case(
        "two interfaces in one network: the one that the route names",
        veth("eth0", &["10.0.0.2/24"])
            + &veth("eth1", &["10.0.0.3/24"])
            + "ip route del 10.0.0.0/24 dev eth0\n",
        1,
        "10.0.0.1",
        "eth1",
    ));
    cases.push(case(
        "a name that begins like another's",
        veth("eth1", &["10.1.0.2/24"]) + &veth("eth10", &["10.10.0.2/24"]),
        1,
        "10.1.0.1",
        "eth1",
    ));
    for (kind, add, name) in [
        ("vlan", "ip link add link eth0 name eth0.100 type vlan id 100", "eth0.100"),
        ("macvlan", "ip link add net1 link eth0 type macvlan mode bridge", "net1"),
        ("ipvlan", "ip link add net1 link eth0 type ipvlan", "net1"),
        (
            "bond",
            "ip link add bond0 type bond && ip link set eth0 down && ip link set eth0 master bond0",
            "bond0",
        ),
    ] {
        let setup = veth("eth0", &["10.0.0.2/24"])
            + &format!("{add}\nip addr add 10.7.0.2/24 dev {name}\nip link set {name} up\n");
        cases.push(Case { kind: Some(kind), ..case(kind, setup, 1, "10.7.0.1", name) });
    }
    cases.push(Case {
        expected: ("eth0", Some("AF_INET6")),
        ..case(
            "both families, and the master is an IPv6 address",
            veth("eth0", &["10.0.0.2/24", "fd00::2/64"]),
            1,
            "fd00::1",
            "eth0",
        )
    });
    cases.push(Case {
        expected: ("eth0", Some("AF_INET")),
        ..case(
            "both families, and the master is an IPv4 address",
            veth("eth0", &["10.0.0.2/24", "fd00::2/64"]),
            1,
            "10.0.0.1",
            "eth0",
        )
    });
    cases
}

#[test]
fn the_kernels_route_decides_in_every_network() {
    if let Some(why) = missing() {
        skipped(format_args!("no network namespace can be made here: {why}"));
        return;
    }
    let mut seen = 0;
    for Case { name, kind, setup, rank, master, expected: (interface, family) } in cases() {
        if kind.is_some_and(|kind| !has_kind(kind)) {
            skipped(format_args!("this kernel has no {name} interfaces"));
            continue;
        }
        let Some(plan) = plan(&setup, rank, master) else { continue };
        seen += 1;
        assert_eq!(plan["network"]["socket_ifname"], interface, "{name}: {plan:#}");
        let env = &plan["env"];
        assert_eq!(env["NCCL_SOCKET_IFNAME"], format!("={interface}"), "{name}");
        for bare in ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"]
        {
            assert_eq!(env[bare], interface, "{name}");
        }
        assert_eq!(env["NCCL_SOCKET_FAMILY"].as_str(), family, "{name}");
        let local = plan["network"]["local_addr"].as_str().expect("an address");
        assert_eq!(local.contains(':'), master.contains(':'), "{name}: {local}");
    }
    assert!(seen >= 15, "only {seen} networks could be built");
}

/// Variables that name an interface, in a plan's environment.
fn named(plan: &Value) -> Vec<(String, String)> {
    let env = plan["env"].as_object().expect("an environment");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names = env.iter().filter(|(name, _)| name.contains("SOCK") && name.ends_with("IFNAME"));
    let mut all: Vec<_> = names.map(|(name, value)| (name.clone(), text(value))).collect();
    all.sort();
    all
}

#[test]
fn existing_setting_stays_and_one_node_needs_none() {
    if let Some(why) = missing() {
        skipped(format_args!("no network namespace can be made here: {why}"));
        return;
    }
    let network = veth("eth0", &["10.0.0.2/24"]) + &veth("eth1", &["10.9.0.2/24"]);
    let all = |interface: &str| {
        ["GLOO_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "TP_SOCKET_IFNAME"]
            .map(|name| (name.to_owned(), interface.to_owned()))
            .to_vec()
    };
    // Libraries without match marks get a whole name; NCCL's own value is the user's.
    for (set, interface) in [
        ("export NCCL_SOCKET_IFNAME==eth1\n", "eth1"),
        ("export NCCL_SOCKET_IFNAME=^eth0,lo\n", "eth1"),
        ("export NCCL_SOCKET_IFNAME=eth\n", "eth0"),
        ("echo NCCL_SOCKET_IFNAME==eth1 > conf; export NCCL_CONF_FILE=$PWD/conf\n", "eth1"),
    ] {
        let Some(plan) = plan(&(network.clone() + set), 1, "10.0.0.1") else { return };
        assert_eq!(named(&plan), all(interface), "{set}");
        let warned = plan["warnings"].to_string().contains("the master is through eth0");
        assert_eq!(warned, interface == "eth1", "{set}: {}", plan["warnings"]);
    }
    // Empty means unset to NCCL, so it is filled in.
    let Some(plan) = plan(&(network.clone() + "export NCCL_SOCKET_IFNAME=\n"), 1, "10.0.0.1")
    else {
        return;
    };
    assert_eq!(plan["env"]["NCCL_SOCKET_IFNAME"], "=eth0");
    let others = "export GLOO_SOCKET_IFNAME=eth1 TP_SOCKET_IFNAME=eth1\n";
    let Some(plan) = self::plan(&(network.clone() + others), 1, "10.0.0.1") else { return };
    let kept = [("NCCL_SOCKET_IFNAME", "=eth0"), ("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "eth0")];
    let kept = kept.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(named(&plan), kept);

    // All ranks run on this node, so at most Gloo needs the setting, if the host's name has no
    // address of its own.
    let bound = "echo '127.0.0.1 localhost' > hosts; mount --bind hosts /etc/hosts\n";
    let Some(plan) = plan_of(&(network.clone() + bound), 1, 0, "127.0.0.1") else { return };
    assert_eq!(named(&plan), [("GLOO_SOCKET_IFNAME".to_owned(), "lo".to_owned())]);
    let bound = "echo \"10.0.0.2 $(hostname)\" > hosts; mount --bind hosts /etc/hosts\n";
    let Some(plan) = plan_of(&(network + bound), 1, 0, "127.0.0.1") else { return };
    assert_eq!(named(&plan), []);
}
