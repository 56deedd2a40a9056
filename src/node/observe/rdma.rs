//! Reads the RDMA devices of sysfs, with the properties that decide whether NCCL can use them.
//!
//! Takes the [`Host`]; gives every [`Hca`], usable or not. In a container sysfs also shows the host's devices, so each
//! device is opened in the way a rank would open it. `src/plan/hcas.rs` chooses among them.

use std::fs::OpenOptions;
use std::net::Ipv6Addr;

use super::{Hca, HcaPort, pci};
use linux::host::Host;

const CLASS: &str = "/sys/class/infiniband";
const VERBS: &str = "/sys/class/infiniband_verbs";

/// All RDMA devices, by name. No name is filtered: mlx5_0, rocep1s0f0, efa_0, bnxt_re0 and
/// irdma0 all occur.
pub(super) fn hcas(host: &Host) -> Vec<Hca> {
    let nodes = verbs_nodes(host);
    host.list(CLASS)
        .into_iter()
        .map(|name| {
            let device = format!("{CLASS}/{name}/device");
            let address = host
                .real_path(&device)
                .and_then(|folder| pci::address(&folder.file_name()?.to_string_lossy()));
            let opens = nodes
                .iter()
                .find(|(of, _)| *of == name)
                .is_some_and(|(_, node)| can_open(host, node));
            let netdevs = netdevs(host, &name);
            Hca {
                numa_node: host
                    .read(format!("{device}/numa_node"))
                    .ok()
                    .and_then(|text| text.trim().parse().ok()),
                bridges: address.as_deref().map(|at| pci::bridges(host, at)).unwrap_or_default(),
                // Only a virtual function has a link to its physical function.
                physical: host
                    .real_path(format!("{device}/physfn"))
                    .and_then(|folder| pci::address(&folder.file_name()?.to_string_lossy())),
                bond: name.contains("bond") || netdevs.iter().any(|net| in_bond(host, net)),
                netdevs,
                pci: address,
                openable: opens,
                ipv6_only: is_ipv6_only(host, &name),
                ports: ports(host, &name),
                name,
            }
        })
        .collect()
}

/// The interfaces of the device's own function, and the interfaces that own its GIDs, since the device of a bond lists
/// no interface of its own.
fn netdevs(host: &Host, device: &str) -> Vec<String> {
    let mut found = host.list(format!("{CLASS}/{device}/device/net"));
    for port in host.list(format!("{CLASS}/{device}/ports")) {
        let owners = format!("{CLASS}/{device}/ports/{port}/gid_attrs/ndevs");
        for index in host.list(&owners) {
            // An entry of another network namespace gives EINVAL.
            if let Ok(owner) = host.read(format!("{owners}/{index}")) {
                let owner = owner.trim().to_owned();
                if !owner.is_empty() && !found.contains(&owner) {
                    found.push(owner);
                }
            }
        }
    }
    found
}

fn in_bond(host: &Host, interface: &str) -> bool {
    let folder = format!("/sys/class/net/{interface}");
    host.exists(format!("{folder}/bonding")) || host.exists(format!("{folder}/bonding_slave"))
}

/// (device, `/dev/infiniband/uverbsN`) of each node; the numbers need not match the names.
fn verbs_nodes(host: &Host) -> Vec<(String, String)> {
    host.list(VERBS)
        .into_iter()
        .filter_map(|node| {
            let device = host.read(format!("{VERBS}/{node}/ibdev")).ok()?;
            Some((device.trim().to_owned(), format!("/dev/infiniband/{node}")))
        })
        .collect()
}

/// Whether a node opens. A node that the device cgroup blocks exists but does not open, so stat is not sufficient.
fn can_open(host: &Host, node: &str) -> bool {
    if !host.is_live() {
        return host.exists(node);
    }
    let opens = OpenOptions::new().read(true).write(true).open(host.path(node)).is_ok();
    if opens {
        host.seen(node);
    }
    opens
}

fn ports(host: &Host, device: &str) -> Vec<HcaPort> {
    let folder = format!("{CLASS}/{device}/ports");
    let mut ports: Vec<HcaPort> = host
        .list(&folder)
        .into_iter()
        .filter_map(|number| {
            let port = format!("{folder}/{number}");
            let read = |file: &str| {
                host.read(format!("{port}/{file}")).map(|text| text.trim().to_owned()).ok()
            };
            let link_layer = read("link_layer").unwrap_or_default();
            let ethernet = link_layer == "Ethernet";
            Some(HcaPort {
                number: number.parse().ok()?,
                // The text is `4: ACTIVE`; NCCL uses no other state.
                active: read("state").is_some_and(|state| state.starts_with("4:")),
                gigabits: read("rate").as_deref().and_then(gigabits),
                roce_v2_gid: ethernet && has_roce_v2_gid(host, &port),
                link_layer,
            })
        })
        .collect();
    ports.sort_by_key(|port| port.number);
    ports
}

/// `400 Gb/sec (4X NDR)` → 400.
fn gigabits(rate: &str) -> Option<f64> {
    rate.split_whitespace().next()?.parse().ok()
}

/// Whether the table has a RoCE v2 GID that is set and not link-local. The type of an entry of another network
/// namespace reads as EINVAL; NCCL skips such entries as well.
fn has_roce_v2_gid(host: &Host, port: &str) -> bool {
    !roce_v2_gids(host, port).is_empty()
}

fn roce_v2_gids(host: &Host, port: &str) -> Vec<Ipv6Addr> {
    let set = |index: &String| -> Option<Ipv6Addr> {
        let gid = host.read(format!("{port}/gids/{index}")).ok()?;
        gid.trim()
            .parse()
            .ok()
            .filter(|gid: &Ipv6Addr| !gid.is_unspecified() && !gid.is_unicast_link_local())
    };
    let is_v2 = |index: &String| {
        host.read(format!("{port}/gid_attrs/types/{index}"))
            .is_ok_and(|kind| kind.trim() == "RoCE v2")
    };
    host.list(format!("{port}/gids")).iter().filter(|index| is_v2(index)).filter_map(set).collect()
}

/// Whether all RoCE v2 GIDs are IPv6 addresses. By default NCCL searches for IPv4 addresses, mapped into a GID.
fn is_ipv6_only(host: &Host, device: &str) -> bool {
    let ports = format!("{CLASS}/{device}/ports");
    let gids: Vec<Ipv6Addr> = host
        .list(&ports)
        .into_iter()
        .flat_map(|port| roce_v2_gids(host, &format!("{ports}/{port}")))
        .collect();
    !gids.is_empty() && gids.iter().all(|gid| gid.to_ipv4_mapped().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }

    fn device(root: &Path, name: &str, pci: &str, port: &[(&str, &str)]) {
        let folder = format!("sys/devices/pci0000:00/{pci}");
        write(root, &format!("{folder}/numa_node"), "1\n");
        let class = root.join("sys/class/infiniband").join(name);
        std::fs::create_dir_all(&class).expect("a folder");
        symlink(Path::new("/").join(&folder), class.join("device")).expect("a link");
        for (file, text) in port {
            write(root, &format!("sys/class/infiniband/{name}/ports/1/{file}"), text);
        }
    }

    #[test]
    fn devices_are_read_with_their_ports() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        device(
            root,
            "mlx5_0",
            "0000:18:00.0",
            &[
                ("state", "4: ACTIVE\n"),
                ("link_layer", "InfiniBand\n"),
                ("rate", "400 Gb/sec (4X NDR)\n"),
            ],
        );
        device(
            root,
            "rocep1s0f0",
            "0000:2a:00.1",
            &[
                ("state", "1: DOWN\n"),
                ("link_layer", "Ethernet\n"),
                ("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
                ("gid_attrs/types/0", "RoCE v2\n"),
                ("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
                ("gids/2", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
                ("gid_attrs/types/2", "IB/RoCE v1\n"),
            ],
        );
        device(
            root,
            "mlx5_9",
            "0000:3a:00.1",
            &[
                ("link_layer", "Ethernet\n"),
                ("gids/5", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
                ("gid_attrs/types/5", "RoCE v2\n"),
            ],
        );
        write(root, "sys/devices/pci0000:00/0000:3a:00.1/physfn/vendor", "0x15b3\n");
        write(root, "sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_0\n");
        write(root, "sys/class/infiniband_verbs/uverbs0/ibdev", "rocep1s0f0\n");
        write(root, "sys/class/infiniband_verbs/abi_version", "6\n");
        write(root, "dev/infiniband/uverbs3", "");

        let found = hcas(&Host::replayed(root, BTreeMap::new()));
        let names: Vec<&str> = found.iter().map(|hca| hca.name.as_str()).collect();
        assert_eq!(names, ["mlx5_0", "mlx5_9", "rocep1s0f0"]);
        let [ib, vf, roce] = found.as_slice() else { panic!("three devices") };
        assert_eq!(
            (ib.pci.as_deref(), ib.numa_node, ib.openable),
            (Some("0000:18:00.0"), Some(1), true)
        );
        assert_eq!(
            ib.ports,
            [HcaPort {
                number: 1,
                active: true,
                link_layer: "InfiniBand".to_owned(),
                gigabits: Some(400.0),
                roce_v2_gid: false,
            }]
        );
        assert!(!roce.openable);
        let gid = |hca: &Hca| hca.ports.iter().map(|port| port.roce_v2_gid).collect::<Vec<_>>();
        assert_eq!((gid(roce), gid(vf)), (vec![false], vec![true]));
        assert!(roce.ports.iter().all(|port| !port.active));
    }
}
