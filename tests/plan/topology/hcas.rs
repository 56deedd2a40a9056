//! RDMA devices, by their place, rate, state and addresses.

use serde_json::{Value, json};

use super::{Node, Rdma, because, below_switch, front, rail, roce, with_eight_gpus};

struct Case {
    name: &'static str,
    build: fn(&mut Node),
    options: &'static [&'static str],
    hcas: Vec<String>,
    /// True if NCCL_IB_HCA is set to these devices.
    set: bool,
    /// Part of the reason.
    because: &'static str,
}

fn names(prefix: &str, numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
    numbers.into_iter().map(|number| format!("{prefix}{number}:1")).collect()
}

#[test]
fn rdma_devices_are_chosen_with_a_reason() {
    let cases = [
        Case {
            name: "DGX-like: eight rails of 400 and two storage cards",
            build: |node| {
                with_eight_gpus(node);
                for n in 0..8 {
                    node.hca(&rail(format!("mlx5_{n}"), below_switch(n / 2, 4 + n % 2)));
                }
                for n in [10_u32, 11] {
                    node.hca(&roce(format!("mlx5_{n}"), front(n), 200));
                }
            },
            options: &[],
            hcas: names("mlx5_", 0..8),
            set: true,
            because: "mlx5_10:1 (slower than the others)",
        },
        Case {
            name: "Azure-like: rails with a domain each, and the accelerated front-end",
            build: |node| {
                for n in 0..8_u32 {
                    node.gpu(&format!("pci{0:04x}:00/{0:04x}:00:00.0", 1 + n), -1, 0);
                    let path = format!("pci{0:04x}:00/{0:04x}:00:00.0", 0x101 + n);
                    node.hca(&rail(format!("mlx5_ib{n}"), path));
                }
                let path = "pcif8dd:00/f8dd:00:02.0";
                node.hca(&Rdma { netdev: Some("eth1"), ..roce("mlx5_an0", path, 100) });
                node.default_route("eth0");
            },
            options: &[],
            hcas: names("mlx5_ib", 0..8),
            set: true,
            because: "mlx5_an0:1 (slower than the others)",
        },
        Case {
            name: "SR-IOV pod: nothing but its own virtual functions",
            build: |node| {
                with_eight_gpus(node);
                for n in 0..8 {
                    let nets = ["net1", "net2", "net3", "net4", "net5", "net6", "net7", "net8"];
                    node.hca(&Rdma {
                        netdev: Some(nets[n as usize]),
                        physical: Some(below_switch(n / 2, 8 + n % 2)),
                        ..roce(format!("mlx5_{}", 100 + n), below_switch(n / 2, 4 + n % 2), 400)
                    });
                }
                node.default_route("eth0");
            },
            options: &[],
            hcas: names("mlx5_", 100..108),
            set: false,
            because: "what NCCL takes by itself",
        },
        Case {
            name: "shared mode: two of nine can be opened",
            build: |node| {
                with_eight_gpus(node);
                for n in 0..9 {
                    let path = below_switch((n / 2).min(3), 4 + n);
                    node.hca(&Rdma { opens: n == 3 || n == 6, ..rail(format!("mlx5_{n}"), path) });
                }
            },
            options: &[],
            hcas: names("mlx5_", [3, 6]),
            set: false,
            because: "what NCCL takes by itself",
        },
        Case {
            name: "RoCE with a bond per rail: all stay, also the one with the default route",
            build: |node| {
                with_eight_gpus(node);
                for n in 0..8 {
                    let netdev = Some(["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7"][n as usize]);
                    let path = below_switch(n / 2, 4 + n % 2);
                    let rail = roce(format!("mlx5_bond_{n}"), path, 200);
                    node.hca(&Rdma { netdev, bond: true, ..rail });
                }
                node.default_route("b0");
            },
            options: &[],
            hcas: names("mlx5_bond_", 0..8),
            set: false,
            because: "what NCCL takes by itself",
        },
        Case {
            name: "one bond beside plain rails of the same speed is the front-end",
            build: |node| {
                with_eight_gpus(node);
                for n in 0..8 {
                    node.hca(&roce(format!("mlx5_{n}"), below_switch(n / 2, 4 + n % 2), 200));
                }
                node.hca(&Rdma { bond: true, ..roce("mlx5_bond_0", front(9), 200) });
            },
            options: &[],
            hcas: names("mlx5_", 0..8),
            set: true,
            because: "mlx5_bond_0:1 (a bond beside plain rails)",
        },
        Case {
            name: "the device of the default route, though a VLAN of a bond lies above it",
            build: |node| {
                with_eight_gpus(node);
                for n in 0..8 {
                    node.hca(&roce(format!("mlx5_{n}"), below_switch(n / 2, 4 + n % 2), 200));
                }
                node.hca(&Rdma { netdev: Some("ens9"), ..roce("mlx5_8", front(9), 200) });
                node.default_route("bond0.12");
                node.write("sys/class/net/bond0.12/lower_bond0/x", "");
                node.write("sys/class/net/bond0/lower_ens9/x", "");
            },
            options: &[],
            hcas: names("mlx5_", 0..8),
            set: true,
            because: "mlx5_8:1 (carries the default route)",
        },
        Case {
            name: "InfiniBand and Ethernet of one speed are not mixed",
            build: |node| {
                with_eight_gpus(node);
                for n in 0..4 {
                    node.hca(&rail(format!("mlx5_{n}"), below_switch(n, 4)));
                }
                node.hca(&roce("mlx5_4", front(9), 400));
            },
            options: &[],
            hcas: names("mlx5_", 0..4),
            set: true,
            because: "mlx5_4:1 (of the other link layer)",
        },
        Case {
            name: "a physical function and its virtual one: the pod's own stays",
            build: |node| {
                with_eight_gpus(node);
                for n in 0..2 {
                    let parent = below_switch(n, 4);
                    node.hca(&roce(format!("mlx5_{n}"), parent.clone(), 200));
                    node.hca(&Rdma {
                        netdev: Some(["net1", "net2"][n as usize]),
                        physical: Some(parent),
                        ..roce(format!("mlx5_{}", 20 + n), below_switch(n, 5), 200)
                    });
                }
            },
            options: &[],
            hcas: names("mlx5_", [20, 21]),
            set: true,
            because: "mlx5_0:1 (its physical or virtual counterpart is used)",
        },
        Case {
            name: "RoCE without an address, and one that is down",
            build: |node| {
                with_eight_gpus(node);
                node.hca(&roce("mlx5_0", front(9), 200));
                node.hca(&Rdma { gid: false, ..roce("mlx5_1", front(10), 200) });
                node.hca(&Rdma { active: false, ..roce("mlx5_2", front(11), 200) });
            },
            options: &[],
            hcas: names("mlx5_", [0]),
            set: true,
            because: "mlx5_1:1 (no RoCE v2 address",
        },
        Case {
            name: "a job of two GPUs takes the rails beside them, in a domain other than 0000",
            build: |node| {
                for n in 0..4 {
                    let switch = n / 2;
                    let bridges = format!("pci000{0}:00/000{0}:00:00.0/000{0}:01:00.0", 8 + switch);
                    let domain = format!("000{}", 8 + switch);
                    let slot = n % 2;
                    let gpu =
                        format!("{bridges}/{domain}:02:0{slot}.0/{domain}:0{}:00.0", 3 + slot);
                    node.gpu(&gpu, i32::from(n >= 2), if n < 2 { 60_000 } else { 0 });
                    let card = format!(
                        "{bridges}/{domain}:02:0{}.0/{domain}:0{}:00.0",
                        4 + slot,
                        6 + slot
                    );
                    node.hca(&rail(format!("mlx5_{n}"), card));
                }
            },
            options: &["--nproc-per-node", "2"],
            hcas: names("mlx5_", [2, 3]),
            set: true,
            because: "mlx5_0:1 (far from the chosen GPUs)",
        },
        Case {
            name: "EFA is left to its plugin",
            build: |node| {
                with_eight_gpus(node);
                for n in 0..4 {
                    node.hca(&roce(format!("rdmap{n}s0"), below_switch(n, 4), 100));
                }
                node.hca(&Rdma { gid: false, ..roce("mlx5_0", front(9), 25) });
            },
            options: &[],
            hcas: (0..4).map(|n| format!("rdmap{n}s0:1")).collect(),
            set: false,
            because: "nothing is set",
        },
        Case {
            name: "one fast card among slower ones is no class of rails",
            build: |node| {
                with_eight_gpus(node);
                node.hca(&roce("mlx5_0", front(8), 200));
                for n in 1..4 {
                    node.hca(&roce(format!("mlx5_{n}"), front(8 + n), 25));
                }
            },
            options: &[],
            hcas: names("mlx5_", 0..4),
            set: false,
            because: "what NCCL takes by itself",
        },
        Case {
            name: "one GPU and one rail beside a slower front-end",
            build: |node| {
                node.gpu(&below_switch(0, 0), 0, 0);
                node.hca(&rail("mlx5_0", below_switch(0, 4)));
                node.hca(&roce("mlx5_1", front(9), 100));
            },
            options: &[],
            hcas: names("mlx5_", [0]),
            set: true,
            because: "mlx5_1:1 (slower than the others)",
        },
        Case {
            name: "TCPX: several gVNICs and no RDMA device; NCCL's plugin finds its own way",
            build: |node| {
                with_eight_gpus(node);
                for n in 0..5 {
                    node.write(&format!("sys/class/net/eth{n}/operstate"), "up\n");
                    node.write(
                        &format!("sys/class/net/eth{n}/device/driver/module/drivers/pci:gve/x"),
                        "",
                    );
                }
                node.default_route("eth0");
            },
            options: &["--env", "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=eth1,eth2,eth3,eth4"],
            hcas: Vec::new(),
            set: false,
            because: "",
        },
        Case {
            name: "no RDMA",
            build: with_eight_gpus,
            options: &[],
            hcas: Vec::new(),
            set: false,
            because: "",
        },
    ];
    for Case { name, build, options, hcas, set, because: reason } in cases {
        let mut node = Node::new();
        build(&mut node);
        let plan = node.plan(options);
        assert_eq!(plan["network"]["hcas"], json!(hcas), "{name}");
        let wanted = if set { json!(format!("={}", hcas.join(","))) } else { Value::Null };
        assert_eq!(plan["env"]["NCCL_IB_HCA"], wanted, "{name}");
        let said = because(&plan, "hcas");
        assert!(said.contains(reason), "{name}: {said}");
        // With any transport, a plugin that is not ours to choose stays chosen.
        for variable in ["NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_NET_PLUGIN"] {
            assert_eq!(plan["env"][variable], Value::Null, "{name}: {variable}");
        }
    }
}

#[test]
fn roce_addresses_count_at_any_gid_index() {
    const V4: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001";
    const V6: &str = "fd00:0000:0000:0000:0000:0000:0000:0001";
    const LOCAL: &str = "fe80:0000:0000:0000:0202:c9ff:fe00:0001";
    const NONE: &str = "0000:0000:0000:0000:0000:0000:0000:0000";
    /// (index, GID, type; none: the kernel gives EINVAL for an entry of another namespace)
    type Entry = (u32, &'static str, Option<&'static str>);
    let (one, two) = (Some("IB/RoCE v1"), Some("RoCE v2"));
    let rows: [(&str, &[Entry], bool, Option<&str>); 8] = [
        (
            "bare metal: index 3",
            &[(0, LOCAL, one), (1, LOCAL, two), (2, V4, one), (3, V4, two)],
            true,
            None,
        ),
        (
            "a pod: index 7 of a sparse table",
            &[(0, NONE, None), (6, V4, one), (7, V4, two)],
            true,
            None,
        ),
        ("IPv6 and IPv4", &[(3, V6, two), (5, V4, two)], true, None),
        ("IPv6 alone", &[(0, LOCAL, two), (3, V6, two)], true, Some("AF_INET6")),
        ("link-local alone", &[(0, LOCAL, one), (1, LOCAL, two)], false, None),
        ("version 1 alone", &[(0, V4, one)], false, None),
        ("those of another namespace", &[(2, V4, None), (3, NONE, None)], false, None),
        ("none at all", &[], false, None),
    ];
    for (name, entries, taken, family) in rows {
        let mut node = Node::new();
        with_eight_gpus(&mut node);
        node.hca(&Rdma { gid: false, ..roce("mlx5_0", front(9), 200) });
        for (index, gid, kind) in entries {
            let port = "sys/class/infiniband/mlx5_0/ports/1";
            node.write(&format!("{port}/gids/{index}"), format!("{gid}\n"));
            if let Some(kind) = kind {
                node.write(&format!("{port}/gid_attrs/types/{index}"), format!("{kind}\n"));
            }
        }
        // Another device can serve the job, so that leaving this one out is visible.
        node.hca(&Rdma { ipv6: family.is_some(), ..roce("mlx5_1", front(10), 200) });
        let plan = node.plan(&[]);
        let expected = if taken { names("mlx5_", [0, 1]) } else { names("mlx5_", [1]) };
        assert_eq!(plan["network"]["hcas"], json!(expected), "{name}");
        assert_eq!(plan["env"]["NCCL_IB_ADDR_FAMILY"], json!(family), "{name}");
        let reason = "mlx5_0:1 (no RoCE v2 address in this network namespace)";
        assert_eq!(because(&plan, "hcas").contains(reason), !taken, "{name}");
        assert_eq!(plan["env"]["NCCL_IB_GID_INDEX"], Value::Null, "{name}: NCCL finds it");
    }
}
