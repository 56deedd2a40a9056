//! The interface of the route to the master, asked of the real kernel in network
//! namespaces of their own. Needs the rights to make one, and iproute2's `ip`.

mod common;

use std::process::Command;

use common::{Launcher, executable, skipped};
use serde_json::Value;

/// Runs its command line in a fresh network (and mount) namespace.
const UNSHARE: &[&str] = &["--net", "--mount"];

/// Why namespaces cannot be had here.
fn missing() -> Option<String> {
    let output =
        Command::new("unshare").args(UNSHARE).args(["ip", "link", "set", "lo", "up"]).output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
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

/// The plan of this rank of two in a network that `setup` builds; None where this
/// kernel has not what the set-up asks for.
fn plan(setup: &str, rank: u32, master: &str) -> Option<Value> {
    let script = format!("set -e\nip link set lo up\n{setup}\nexec \"$@\" || exit 99");
    let mut command = Command::new("unshare");
    command.args(UNSHARE).args(["sh", "-c", &script, "sh"]).arg(executable());
    let ended = Launcher::of(command, ["plan", "--format", "json", "--lang", "en"])
        .args(["--device", "cpu", "--python", "/bin/sh", "--engine", "command"])
        .args(["--nnodes", "2", "--master-port", "29500", "--master-addr", master])
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
    setup: String,
    rank: u32,
    master: &'static str,
    /// The interface, and NCCL_SOCKET_FAMILY.
    expected: (&'static str, Option<&'static str>),
}

fn cases() -> Vec<Case> {
    let case = |name, setup: String, rank, master, expected| Case {
        name,
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
            "ip link add kube-ipvs0 type dummy && ip addr add 10.96.0.1/32 dev kube-ipvs0\n"
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
    for Case { name, setup, rank, master, expected: (interface, family) } in cases() {
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
    assert!(seen >= 9, "only {seen} networks could be built");
}
