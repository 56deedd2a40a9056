//! Every removed, renamed or harmful setting of a network library: `check` finds it, and finds
//! nothing with a sound value.

use harness::node::Node;
use serde_json::Value;

/// (setting, a part of the warning, the sound form). Without a sound form the variable should
/// not be set.
const TABLE: &[(&str, &str, Option<&str>)] = &[
    // Settings of the guides for these jobs.
    (
        "NCCL_SOCKET_IFNAME=eth0,eno1,ens,ib",
        "no running interface matches eno1, ens;",
        Some("=eth0"),
    ),
    ("NCCL_MIN_NRINGS=4", "is an old name", None),
    ("NCCL_TIMEOUT=1800", "is not a variable of NCCL", None),
    ("TORCH_DISTRIBUTED_TIMEOUT=1800", "is not a variable of NCCL", None),
    ("NCCL_IB_DISABLE=1", "turns RoCE off", Some("0")),
    // Settings that were removed, renamed, or never existed.
    ("NCCL_MAX_NRINGS=4", "is an old name", None),
    ("NCCL_IB_GDR_LEVEL=4", "no longer read", None),
    ("NCCL_IB_CUDA_SUPPORT=1", "no longer read", None),
    ("NCCL_TREE_THRESHOLD=0", "no longer read", None),
    ("NCCL_SINGLE_RING_THRESHOLD=0", "no longer read", None),
    ("NCCL_CHECKS_DISABLE=1", "no longer read", None),
    ("NCCL_LL_THRESHOLD=0", "no longer read", None),
    ("NCCL_LAUNCH_MODE=GROUP", "deprecated", Some("PARALLEL")),
    ("NCCL_CHECK_POINTERS=1", "is an old name", None),
    ("NCCL_ASYNC_ERROR_HANDLING=1", "is an old name", None),
    ("NCCL_BLOCKING_WAIT=1", "is an old name", None),
    ("NCCL_DESYNC_DEBUG=1", "is an old name", None),
    ("NCCL_ENABLE_TIMING=1", "is an old name", None),
    ("NCCL_SOCKET_FAMILY=ipv4", "only AF_INET and AF_INET6", Some("AF_INET")),
    ("NCCL_TEMP_DIR=/tmp", "is not a variable of NCCL", None),
    ("NCCL_NSOCKS=4", "is not a variable of NCCL", None),
    // Settings with a wrong value.
    ("NCCL_SOCKET_IFNAME=ib0", "only a link-local address", Some("=eth0")),
    ("NCCL_SOCKET_IFNAME=ens5", "matches no running interface", Some("eth0")),
    (
        "NCCL_SOCKET_IFNAME=^docker0,eno1,lo",
        "leaves veth1 in use",
        Some("^docker,lo,br-,veth,ib,eth1"),
    ),
    (
        "NCCL_SOCKET_IFNAME=^=docker0,^=lo",
        "inside the list",
        Some("^=docker0,lo,br-4f1a,veth1,ib0,eth1,eth10"),
    ),
    ("NCCL_SOCKET_IFNAME=eth0, eth1", "white space", Some("eth0")),
    ("NCCL_SOCKET_IFNAME=eth0:1", "a colon", Some("eth0")),
    ("NCCL_SOCKET_IFNAME=eth1", "the route to the master is through eth0", Some("=eth0")),
    ("NCCL_SOCKET_IFNAMES=eth0", "did you mean", None),
    ("NCCL_IB_HCA=mlx5_1", "mlx5_10", Some("=mlx5_0,mlx5_1")),
    ("NCCL_IB_HCA==mlx5_0,mlx5_99", "no RDMA device matches mlx5_99", Some("=mlx5_0")),
    ("NCCL_IB_HCA==mlx5_100,mlx5_101", "matches no usable RDMA port", Some("=mlx5_0:1,mlx5_1:1")),
    ("NCCL_IB_HCA==mlx5_0,=mlx5_1", "inside the list", Some("=mlx5_0,mlx5_1")),
    ("NCCL_IB_GID_INDEX=3", "can differ between pods", Some("-1")),
    ("NCCL_P2P_DISABLE=1", "turns a fast path off", Some("0")),
    ("NCCL_SHM_DISABLE=1", "turns a fast path off", Some("0")),
    ("NCCL_NET=Socket", "turns a fast path off", Some("IB")),
    ("NCCL_P2P_LEVEL=2", "changed between versions", Some("NVL")),
    ("NCCL_P2P_LEVEL=NVLINK", "is ignored", Some("PXB")),
    ("NCCL_NET_GDR_LEVEL=5", "changed between versions", Some("SYS")),
    ("NCCL_NET_GDR_LEVEL=sys", "is ignored", Some("SYS")),
    ("NCCL_IB_TIMEOUT=32", "wait for ever", Some("22")),
    ("NCCL_DEBUG=INFO", "thousands of lines", Some("WARN")),
    ("NCCL_DEBUG_FILE=/nowhere/nccl.%h.%p", "does not exist", Some("/logs/nccl.%h.%p")),
    ("NCCL_DEBUG_FILE=/logs/nccl.log", "one file for all ranks", Some("/logs/nccl.%h.%p")),
    ("NCCL_TOPO_FILE=/nowhere/topo.xml", "does not exist", Some("/logs/topo.xml")),
    ("NCCL_GRAPH_FILE=/nowhere/graph.xml", "does not exist", Some("/logs/topo.xml")),
    ("NCCL_CONF_FILE=/nowhere/nccl.conf", "does not exist", Some("/logs/sound.conf")),
    ("NCCL_CONF_FILE=/logs/odd.conf", "from the first column on", Some("/logs/sound.conf")),
    ("NCCL_COMM_ID=10.0.0.1:1234", "demand an interface", None),
    ("GLOO_SOCKET_IFNAME=^lo,eth0", "supports neither", Some("eth0")),
    ("TP_SOCKET_IFNAME==eth0", "supports neither", Some("eth0")),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "hanging", Some("3")),
    // Settings left over from debugging.
    ("CUDA_LAUNCH_BLOCKING=1", "every kernel wait", Some("0")),
    ("CUDA_INJECTION64_PATH=/opt/tool.so", "debugging tool", None),
    ("CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1", "writes the memory", Some("0")),
    ("CUDA_PROFILE=1", "debugging tool", Some("0")),
];

/// Two nodes of 40 GPUs, so that a job is large; decoys beside eth0, which leads to the
/// master, and eleven HCAs.
fn node() -> Node {
    let interface = |name: &str, address: &str| {
        format!(
            "{{\"name\":\"{name}\",\"addresses\":[\"{address}\"],\"running\":true,\"loopback\":{}}}",
            name == "lo"
        )
    };
    let interfaces = [
        interface("lo", "127.0.0.1"),
        interface("docker0", "172.17.0.1"),
        interface("br-4f1a", "172.18.0.1"),
        interface("veth1", "169.254.1.1"),
        interface("ib0", "fe80::1"),
        interface("eth0", "10.0.0.2"),
        interface("eth1", "10.9.0.2"),
        interface("eth10", "10.10.0.2"),
    ];
    let mut node = Node::with_gpus(40)
        .file("/run/ranklaunch/interfaces.json", &format!("[{}]", interfaces.join(",")))
        .file("/run/ranklaunch/route/10.0.0.1.json", "{\"Ok\":\"10.0.0.2\"}")
        .file("/logs/topo.xml", "<system/>")
        .file("/logs/sound.conf", "# ours\nNCCL_DEBUG=WARN\n\nnoise\n")
        .file("/logs/odd.conf", "export NCCL_DEBUG=WARN\n")
        .file("/sys/module/nvidia_peermem/version", "1\n");
    for hca in 0..11 {
        let port = format!("/sys/class/infiniband/mlx5_{hca}/ports/1");
        node = node
            .file(&format!("{port}/state"), "4: ACTIVE\n")
            .file(&format!("{port}/link_layer"), "InfiniBand\n")
            .file(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n")
            .file(
                &format!("/sys/class/infiniband_verbs/uverbs{hca}/ibdev"),
                &format!("mlx5_{hca}\n"),
            )
            .file(&format!("/dev/infiniband/uverbs{hca}"), "");
    }
    node
}

/// Variables of one line are judged together, so that only one of them is set at a time.
const TOGETHER: &[&[&str]] = &[
    &["NCCL_IB_DISABLE", "NCCL_NET", "NCCL_IB_HCA"],
    &["NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_CONF_FILE"],
    &["NCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAMES"],
];

/// The table in the smallest number of parts, none of which sets a variable twice.
fn parts() -> Vec<Vec<&'static (&'static str, &'static str, Option<&'static str>)>> {
    let slot = |setting: &'static str| {
        let name = setting.split_once('=').expect("NAME=value").0;
        let group = TOGETHER.iter().find(|group| group.contains(&name));
        group.map_or(name, |group| group[0])
    };
    let mut parts: Vec<Vec<&(&str, &str, Option<&str>)>> = Vec::new();
    for row in TABLE {
        let free =
            parts.iter_mut().find(|part| part.iter().all(|other| slot(other.0) != slot(row.0)));
        match free {
            Some(part) => part.push(row),
            None => parts.push(vec![row]),
        }
    }
    parts
}

/// The warnings of `check` on these settings: text and hint.
fn warnings(node: &Node, settings: &[(&str, &str)]) -> Vec<String> {
    let mut launcher = node
        .launcher("check", &["--format", "json", "--lang", "en", "--nnodes", "2"])
        .args(["--node-rank", "1", "--master-addr", "10.0.0.1", "--master-port", "29500"]);
    for (name, value) in settings {
        launcher = launcher.env(name, value);
    }
    let ended = launcher.run().expect_code(0);
    let report: Value = serde_json::from_str(&ended.out).expect("a report");
    let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
    let checks = report["checks"].as_array().expect("checks").iter();
    checks
        .filter(|check| check["id"] == "env.nccl" || check["id"] == "rdma.ports")
        .filter(|check| check["severity"] == "warn" || check["severity"] == "fail")
        .map(|check| text(check, "text") + " → " + &text(check, "hint"))
        .collect()
}

#[test]
fn each_wrong_setting_is_found_without_false_alarms() {
    let node = node();
    assert_eq!(warnings(&node, &[]), Vec::<String>::new());
    let mut wrong = Vec::new();
    for part in parts() {
        let split = |setting: &'static str| setting.split_once('=').expect("NAME=value");
        let bad: Vec<_> = part.iter().map(|row| split(row.0)).collect();
        let found = warnings(&node, &bad);
        for (setting, words, _) in &part {
            if !found.iter().any(|text| text.contains(words)) {
                wrong.push(format!("{setting}: {words:?} is not said: {found:#?}"));
            }
        }
        let good: Vec<_> = part.iter().filter_map(|row| Some((split(row.0).0, row.2?))).collect();
        let found = warnings(&node, &good);
        if !found.is_empty() {
            wrong.push(format!("{good:?} are sound: {found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
