//! Variables of NCCL and Gloo without effect, with harm, or misread.

use crate::AskedNproc;
use crate::fixtures::{facts, planned, rail, settings, warned};
use verdict::Id;

use super::network::{interface, networked};

#[test]
fn dead_and_harmful_variables_name_their_source() {
    let mut node = facts(8);
    for (name, value) in [
        ("NCCL_TIMEOUT", "10800"),
        ("TORCH_DISTRIBUTED_TIMEOUT", "10800"),
        ("NCCL_MIN_NRINGS", "8"),
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_SOCKET_FAMILY", "ipv4"),
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_P2P_DISABLE", "0"),
    ] {
        node.environment.insert(name.into(), value.into());
    }
    let named = |node: &node::observe::Facts| {
        let plan = planned(&settings(&[]), node, 1, &AskedNproc::Auto).expect("a plan");
        plan.warnings
            .iter()
            .filter_map(|warning| warning.text.en.split('=').next().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        named(&node),
        ["NCCL_TIMEOUT", "TORCH_DISTRIBUTED_TIMEOUT", "NCCL_MIN_NRINGS", "NCCL_SOCKET_FAMILY"]
    );
    node.hcas = vec![rail("mlx5_0", 400.0, true)];
    assert!(named(&node).contains(&"NCCL_IB_DISABLE".to_owned()));
}
#[test]
fn nccl_and_gloo_settings_are_judged_as_parsed() {
    // Variable, value, part of the finding ("" for none).
    let table: &[(&str, &str, &str)] = &[
        ("NCCL_LAUNCH_MODE", "GROUP", "deprecated"),
        ("NCCL_LAUNCH_MODE", "PARALLEL", ""),
        ("NCCL_CHECK_POINTERS", "1", "old name"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "hanging"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", ""),
        ("CUDA_LAUNCH_BLOCKING", "1", "wait for the one before"),
        ("NCCL_SOCKET_IFNAME", "=eth1", ""),
        ("NCCL_SOCKET_IFNAME", "eth1, eth0", "white space"),
        ("NCCL_SOCKET_IFNAME", "eth", "takes eth0 before eth1"),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo,kube,eth0", ""),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo", "takes kube-ipvs0 before eth1"),
        ("NCCL_SOCKET_IFNAME", "ib0", "only a link-local address"),
        ("NCCL_SOCKET_IFNAME", "eth0,eno1,ens,ib", "matches eno1, ens"),
        ("NCCL_SOCKET_IFNAMES", "eth0", "did you mean NCCL_SOCKET_IFNAME"),
        ("GLOO_SOCKET_IFNAME", "eth1", ""),
        ("GLOO_SOCKET_IFNAME", "^lo", "no interface ^lo"),
        ("NCCL_IB_HCA", "mlx5_1", "takes mlx5_10 as well"),
        ("NCCL_IB_HCA", "=mlx5_1", ""),
        ("NCCL_IB_HCA", "mlx5", ""),
        ("NCCL_TOPO_FILE", "/gone.xml", "does not exist"),
        ("NCCL_GRAPH_FILE", "/there.xml", ""),
        ("NCCL_DEBUG", "INFO", "thousands of lines"),
        ("NCCL_DEBUG", "WARN", ""),
    ];
    for (name, value, words) in table {
        let mut node = networked();
        node.network.interfaces.push(interface("ib0", "fe80::1"));
        node.hcas = vec![rail("mlx5_1", 400.0, true), rail("mlx5_10", 400.0, true)];
        node.state.absent = vec!["NCCL_TOPO_FILE".into()];
        node.environment.insert((*name).into(), (*value).into());
        let plan = planned(&settings(&[]), &node, 8, &AskedNproc::Auto).expect("a plan");
        let found: Vec<String> = plan
            .warnings
            .iter()
            .filter(|warning| warning.id == Id::EnvNccl)
            .map(|warning| format!("{} {}", warning.text.en, warning.hint.en))
            .collect();
        if words.is_empty() {
            assert!(found.is_empty(), "{name}={value}: {found:?}");
        } else {
            assert!(found.iter().any(|text| text.contains(words)), "{name}={value}: {found:?}");
        }
    }
    let mut node = networked();
    node.environment.insert("NCCL_DEBUG".into(), "INFO".into());
    let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
    assert!(!warned(&plan, Id::EnvNccl), "sixteen ranks may talk");
    let many = vec!["=eth1"; 17].join(",");
    node.environment.insert("NCCL_SOCKET_IFNAME".into(), many);
    let plan = planned(&settings(&[]), &node, 2, &AskedNproc::Auto).expect("a plan");
    assert!(plan.warnings.iter().any(|warning| warning.text.en.contains("first 16")));
}
