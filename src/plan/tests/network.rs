//! Interfaces and HCAs that a plan names.

use crate::AskedNproc;
use crate::fixtures::{facts, planned, profile, rail, settings, warned};
use node::observe::{Interface, MasterRoute, NcclSetting};
use settings::{Need, Sourced};
use verdict::{Id, Verdict};

use super::{env, id_of};

pub(super) fn interface(name: &str, address: &str) -> Interface {
    Interface {
        name: name.into(),
        addresses: vec![address.parse().expect("an address")],
        running: true,
        loopback: name == "lo",
        ..Interface::default()
    }
}

pub(super) fn networked() -> node::observe::Facts {
    let mut node = facts(8);
    node.network.interfaces = vec![
        interface("lo", "127.0.0.1"),
        interface("docker0", "172.17.0.1"),
        interface("kube-ipvs0", "10.96.0.1"),
        interface("eth0", "10.0.0.2"),
        interface("eth1", "10.1.0.2"),
    ];
    node.network.master = Some(MasterRoute {
        host: "master".into(),
        addresses: vec!["10.0.0.1".parse().expect("an address")],
        local: false,
        interface: Some("eth1".into()),
        error: None,
    });
    node
}

#[test]
fn the_interface_of_the_route_is_named_exactly() {
    let plan = planned(&settings(&[]), &networked(), 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!(env(&plan, "NCCL_SOCKET_IFNAME"), Some("=eth1"));
    assert_eq!(env(&plan, "GLOO_SOCKET_IFNAME"), Some("eth1"));
    assert_eq!(env(&plan, "TP_SOCKET_IFNAME"), Some("eth1"));
    assert_eq!(plan.network.socket_ifname.as_deref(), Some("eth1"));
    assert_eq!(plan.network.local_addr.map(|own| own.to_string()).as_deref(), Some("10.1.0.2"));
    let single = planned(&settings(&[]), &networked(), 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!((env(&single, "NCCL_SOCKET_IFNAME"), &single.network.socket_ifname), (None, &None));
}

#[test]
fn interface_guess_prefers_the_masters_address() {
    let chosen = |change: &dyn Fn(&mut node::observe::NetworkFacts)| {
        let mut node = networked();
        change(&mut node.network);
        let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
        (plan.network.socket_ifname.clone(), warned(&plan, Id::NetInterface))
    };
    let some = |name: &str| (Some(name.to_owned()), false);
    let master = |address: &str, local, interface: Option<&str>| MasterRoute {
        host: "m".into(),
        addresses: vec![address.parse().expect("an address")],
        local,
        interface: interface.map(str::to_owned),
        error: None,
    };
    assert_eq!(chosen(&|n| n.master = Some(master("10.0.0.2", true, Some("lo")))), some("eth0"));
    // A Service's address on kube-ipvs0 leads nowhere.
    assert_eq!(
        chosen(&|n| {
            n.master = Some(master("10.96.0.1", true, Some("lo")));
            n.default_interface = Some("eth1".into());
        }),
        some("eth1")
    );
    assert_eq!(
        chosen(&|n| {
            n.master = None;
            n.default_interface = Some("docker0".into());
        }),
        some("eth0")
    );
    assert_eq!(
        chosen(&|n| {
            n.master = None;
            n.interfaces.truncate(2);
        }),
        (None, true)
    );
}

#[test]
fn an_existing_interface_setting_is_kept_and_checked() {
    // Value, env.nccl warnings, Gloo's interface.
    let cases = [
        ("=eth1", 0, "eth1"),
        ("eth", 1, "eth1"),
        ("eth0", 1, "eth0"),
        ("ib0", 1, "eth1"),
        ("eth1,eno1", 1, "eth1"),
        ("^docker0,lo", 1, "eth1"),
        ("", 0, "eth1"),
    ];
    for (value, warnings, gloo) in cases {
        for source in ["environment", "/etc/nccl.conf"] {
            let mut node = networked();
            node.network.nccl = vec![NcclSetting {
                name: "NCCL_SOCKET_IFNAME".into(),
                value: value.into(),
                source: source.into(),
            }];
            let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
            let seen = plan.warnings.iter().filter(|warning| warning.id == Id::EnvNccl).count();
            assert_eq!(seen, warnings, "{value:?}: {:?}", plan.warnings);
            assert_eq!(env(&plan, "GLOO_SOCKET_IFNAME"), Some(gloo), "{value:?}");
            assert_eq!(env(&plan, "NCCL_SOCKET_IFNAME").is_some(), value.is_empty());
        }
    }
}

#[test]
fn hca_list_is_set_only_if_it_differs() {
    let mut node = networked();
    node.hcas = vec![rail("mlx5_0", 400.0, true), rail("mlx5_1", 400.0, true)];
    let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!(plan.network.hcas, ["mlx5_0:1", "mlx5_1:1"]);
    assert_eq!(env(&plan, "NCCL_IB_HCA"), None);
    node.hcas.push(rail("mlx5_2", 100.0, true));
    let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!(env(&plan, "NCCL_IB_HCA"), Some("=mlx5_0:1,mlx5_1:1"));
    node.environment.insert("NCCL_IB_HCA".into(), "mlx5_2".into());
    let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
    assert_eq!(
        (env(&plan, "NCCL_IB_HCA"), plan.network.hcas.as_slice()),
        (None, &["mlx5_2:1".to_owned()][..])
    );
    node.environment.insert("NCCL_IB_HCA".into(), "mlx5_100".into());
    let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
    assert!(warned(&plan, Id::RdmaPorts));
}

#[test]
fn required_rdma_refuses_a_node_without() {
    let mut settings = settings(&[]);
    settings.rdma = Sourced::new(Need::Required, profile(7));
    let mut node = networked();
    let rdma = (Verdict::Rdma, Id::RdmaPorts);
    assert_eq!(id_of(planned(&settings, &node, 2, &AskedNproc::Auto)), rdma);
    node.hcas = vec![rail("mlx5_0", 400.0, false)];
    assert_eq!(id_of(planned(&settings, &node, 2, &AskedNproc::Auto)), rdma);
    node.hcas = vec![rail("mlx5_0", 400.0, true)];
    assert!(planned(&settings, &node, 2, &AskedNproc::Auto).is_ok());
    node.environment.insert("NCCL_IB_DISABLE".into(), "1".into());
    assert_eq!(id_of(planned(&settings, &node, 2, &AskedNproc::Auto)), rdma);
}

#[test]
fn unresolvable_single_node_gets_gloo_on_the_loopback() {
    let mut node = networked();
    let plan = planned(&settings(&[]), &node, 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!(env(&plan, "GLOO_SOCKET_IFNAME"), Some("lo"));
    node.network.hostname_addresses = vec!["10.0.0.2".parse().expect("an address")];
    let plan = planned(&settings(&[]), &node, 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!(env(&plan, "GLOO_SOCKET_IFNAME"), None);
}
