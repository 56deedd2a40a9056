//! PCI functions and RDMA devices in sysfs, with the properties that decide whether NCCL can use them; and the error
//! counters of the job's HCAs, before and after the job.
//!
//! Takes the [`Host`]; gives every [`Hca`], usable or not. In a container sysfs also shows the host's devices, so each
//! device is opened in the way a rank would open it. `src/plan/hcas.rs` chooses among them. A counter that cannot be read
//! is not read again: firmware-owned functions answer with EINVAL and a line in the kernel's log each time.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::net::Ipv6Addr;
use std::str::FromStr;

use serde::Serialize;

use super::{Hca, HcaPort};
use crate::probe::PcieLink;
use linux::host::Host;
use text::order::Ordered;

const CLASS: &str = "/sys/class/infiniband";
const VERBS: &str = "/sys/class/infiniband_verbs";

/// All RDMA devices, by name. No name is filtered: mlx5_0, rocep1s0f0, efa_0, bnxt_re0 and
/// irdma0 all occur.
pub(super) fn hcas(host: &Host) -> Vec<Hca> {
    let nodes = verbs_nodes(host);
    let address_of =
        |device: String| pci_address(&host.real_path(device)?.file_name()?.to_string_lossy());
    host.list(CLASS)
        .into_iter()
        .map(|name| {
            let device = format!("{CLASS}/{name}/device");
            let address = address_of(device.clone());
            let opens = nodes
                .iter()
                .find(|(of, _)| *of == name)
                .is_some_and(|(_, node)| can_open(host, node));
            let netdevs = netdevs(host, &name);
            Hca {
                numa_node: number(host, format!("{device}/numa_node")),
                bridges: address.as_deref().map(|at| bridges(host, at)).unwrap_or_default(),
                // Only a virtual function has a link to its physical function.
                physical: address_of(format!("{device}/physfn")),
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
                // `400 Gb/sec (4X NDR)`
                gigabits: read("rate").and_then(|rate| rate.split(' ').next()?.parse().ok()),
                roce_v2_gid: ethernet && !roce_v2_gids(host, &port).is_empty(),
                link_layer,
            })
        })
        .collect();
    ports.order_by_key(|port| port.number);
    ports
}

/// The RoCE v2 GIDs that are set and not link-local. The type of an entry of another network namespace reads as EINVAL;
/// NCCL skips such entries as well.
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

/// `0000:18:00.0` from any spelling (`00000000:18:00.0`, upper case). None if the text is not a full address.
pub(super) fn pci_address(text: &str) -> Option<String> {
    let (domain, rest) = text.trim().split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let number = |part: &str| u32::from_str_radix(part, 16).ok();
    Some(format!(
        "{:04x}:{:02x}:{:02x}.{:x}",
        number(domain)?,
        number(bus)?,
        number(device)?,
        number(function)?
    ))
}

/// The NUMA node of a device. None for -1, the value on machines with one NUMA node and in many VMs.
pub(super) fn numa_node(host: &Host, address: &str) -> Option<u32> {
    number(host, format!("/sys/bus/pci/devices/{address}/numa_node"))
}

fn number<T: FromStr>(host: &Host, file: String) -> Option<T> {
    host.read(file).ok()?.trim().parse().ok()
}

/// The link from sysfs: its current width, and the maximum width of the device and of its port.
pub(super) fn link(host: &Host, address: &str) -> PcieLink {
    let lanes = |address: &str, file: &str| {
        number(host, format!("/sys/bus/pci/devices/{address}/{file}")).filter(|lanes| *lanes > 0)
    };
    // The last bridge is a port, or in a flat VM the host bridge, which has no link width.
    let port = bridges(host, address).pop().and_then(|port| lanes(&port, "max_link_width"));
    let own = lanes(address, "max_link_width");
    PcieLink {
        width: lanes(address, "current_link_width"),
        max_width: own.map(|own| port.map_or(own, |port| own.min(port))),
        ..PcieLink::default()
    }
}

/// The host bridge and the bridges between it and the device:
/// `…/pci0000:17/0000:17:01.0/0000:18:00.0` gives `pci0000:17` and `0000:17:01.0`.
pub(super) fn bridges(host: &Host, address: &str) -> Vec<String> {
    let Some(path) = host.real_path(format!("/sys/bus/pci/devices/{address}")) else {
        return Vec::new();
    };
    let parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    // The domain of a VMD device has its own host bridge, further down.
    let Some(root) = parts.iter().rposition(|part| part.starts_with("pci")) else {
        return Vec::new();
    };
    let above = parts.len().saturating_sub(1);
    parts.get(root..above).unwrap_or_default().to_vec()
}

/// Counters whose growth indicates a problem of a link, a cable or a congested fabric.
const COUNTERS: &[&str] = &[
    "counters/link_downed",
    "counters/link_error_recovery",
    "counters/symbol_error",
    "counters/port_rcv_errors",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/packet_seq_err",
    "hw_counters/out_of_sequence",
    "hw_counters/out_of_buffer",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/implied_nak_seq_err",
    "hw_counters/roce_adp_retrans",
    "hw_counters/roce_slow_restart",
];

/// The value of each counter file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<(String, &'static str), u64>);

/// A counter that grew while the job ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Growth {
    /// `mlx5_0:1`
    pub port: String,
    /// `out_of_sequence`
    pub counter: &'static str,
    pub by: u64,
}

impl Counters {
    /// Reads the counters of `ports` (`mlx5_0:1`).
    pub fn read(host: &Host, ports: &[String]) -> Counters {
        let all =
            ports.iter().flat_map(|port| COUNTERS.iter().map(move |file| (port.clone(), *file)));
        Counters(all.filter_map(|at| Some((at.clone(), counter(host, &at.0, at.1)?))).collect())
    }

    /// The growth since these counters, largest first. A counter that was reset (by reloading the driver) has grown by its
    /// current value.
    pub fn growth(&self, host: &Host) -> Vec<Growth> {
        let now = self.0.keys().filter_map(|at| Some((at.clone(), counter(host, &at.0, at.1)?)));
        Counters(now.collect()).since(self)
    }

    /// Bytes received and sent by each of these ports, as far as the counters can be read.
    pub fn traffic(host: &Host, ports: &[String]) -> Vec<(String, u64, u64)> {
        let bytes = |port: &str, file: &str| {
            // The counters count words of four bytes.
            Some(counter(host, port, &format!("counters/{file}"))?.saturating_mul(4))
        };
        let of = |port: &String| {
            let (received, sent) = (bytes(port, "port_rcv_data")?, bytes(port, "port_xmit_data")?);
            Some((port.clone(), received, sent))
        };
        ports.iter().filter_map(of).collect()
    }

    /// The growth from `before` to these counters, computed as in [`Counters::growth`].
    pub fn since(&self, before: &Counters) -> Vec<Growth> {
        let grown = before.0.iter().filter_map(|(at, old)| {
            let now = *self.0.get(at)?;
            let by = now.checked_sub(*old).unwrap_or(now);
            let counter = at.1.rsplit('/').next()?;
            (by > 0).then(|| Growth { port: at.0.clone(), counter, by })
        });
        let mut grown: Vec<Growth> = grown.collect();
        grown.order_by_key(|one| std::cmp::Reverse(one.by));
        grown
    }
}

fn counter(host: &Host, port: &str, file: &str) -> Option<u64> {
    let (device, port) = port.split_once(':')?;
    number(host, format!("{CLASS}/{device}/ports/{port}/{file}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

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

    #[test]
    fn addresses_have_one_spelling() {
        for (text, expected) in [
            ("00000000:18:00.0", Some("0000:18:00.0")),
            ("0000:AF:00.0", Some("0000:af:00.0")),
            ("0009:01:00.0", Some("0009:01:00.0")),
            ("00010000:01:00.0", Some("10000:01:00.0")),
            ("[N/A]", None),
            ("18:00.0", None),
        ] {
            assert_eq!(pci_address(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn traffic_is_counted_in_bytes() {
        let root = tempfile::tempdir().expect("a folder");
        let counters = root.path().join("sys/class/infiniband/mlx5_0/ports/1/counters");
        std::fs::create_dir_all(&counters).expect("a folder");
        std::fs::write(counters.join("port_rcv_data"), "25\n").expect("a file");
        std::fs::write(counters.join("port_xmit_data"), "2\n").expect("a file");
        let host = Host::replayed(root.path(), BTreeMap::new());
        let ports = ["mlx5_0:1".to_owned(), "mlx5_1:1".to_owned()];
        assert_eq!(Counters::traffic(&host, &ports), [("mlx5_0:1".to_owned(), 100, 8)]);
    }

    #[test]
    fn growth_is_reported_unreadable_counters_are_skipped() {
        let root = tempfile::tempdir().expect("a folder");
        let port = root.path().join("sys/class/infiniband/mlx5_0/ports/1");
        let write = |file: &str, value: &str| {
            let path = port.join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, value).expect("a file");
        };
        write("counters/symbol_error", "7\n");
        write("counters/link_downed", "3\n");
        write("hw_counters/out_of_sequence", "100\n");
        write("hw_counters/packet_seq_err", "not a number\n");
        let host = Host::replayed(root.path(), BTreeMap::new());
        let before = Counters::read(&host, &["mlx5_0:1".to_owned(), "mlx5_9:1".to_owned()]);
        assert_eq!(before.growth(&host), []);
        write("counters/link_downed", "1\n");
        write("hw_counters/out_of_sequence", "140\n");
        write("hw_counters/packet_seq_err", "5\n");
        let grown = before.growth(&host);
        let told: Vec<_> = grown.iter().map(|one| (one.counter, one.by)).collect();
        assert_eq!(told, [("out_of_sequence", 40), ("link_downed", 1)]);
    }
}
