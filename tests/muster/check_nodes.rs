//! `check` on several nodes: all nodes have the same report, which names the bad link or node.
//! Nodes with their own addresses need root and `ip`.

use std::ffi::OsString;
use std::process::{Child, Command, Stdio};

use harness::cluster::Cluster;
use harness::node::Node;
use harness::{Ended, Launcher, Running, free_port, kill, program, run_tool, wait_until};
use serde_json::Value;

const CHECK: &[&str] = &[
    "check",
    "--lang",
    "en",
    "--format",
    "json",
    "--device",
    "cpu",
    // The machine's own python may have no torch, which is irrelevant here.
    "--severity",
    "python.torch=warn",
];

fn words(more: &[&str]) -> Vec<OsString> {
    CHECK.iter().chain(more).map(OsString::from).collect()
}

/// `check` on every host of a cluster.
fn start(cluster: &Cluster, nodes: u32, more: &[&str]) -> Vec<Running> {
    let start = |rank| cluster.launcher(rank, rank, nodes, &words(more)).start();
    (0..nodes).map(start).collect()
}

/// Reports of nodes that all end with this code and agree on nodes and links.
#[track_caller]
fn reports(nodes: Vec<Running>, code: i32) -> Vec<Value> {
    let ended: Vec<Ended> = nodes.into_iter().map(Running::wait).collect();
    let reports: Vec<Value> = ended.iter().map(report).collect();
    for (ended, report) in ended.iter().zip(&reports) {
        assert_eq!(ended.code, code, "{}\n{}", ended.out, ended.err);
        let first = &reports[0];
        assert_eq!((&report["nodes"], &report["links"]), (&first["nodes"], &first["links"]));
        for id in ["nodes.arrive", "link.reach", "link.latency", "link.bandwidth"] {
            assert_eq!(said(report, id), said(first, id), "one verdict");
        }
    }
    reports
}

#[track_caller]
fn report(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out)
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", ended.out, ended.err))
}

/// (severity, text) of every finding of a check.
fn said(report: &Value, id: &str) -> Vec<(String, String)> {
    let checks = report["checks"].as_array().expect("checks");
    let text = |check: &Value, key: &str| check[key].as_str().expect("text").to_owned();
    checks
        .iter()
        .filter(|check| check["id"] == id)
        .map(|check| (text(check, "severity"), text(check, "text")))
        .collect()
}

/// The only finding of a check.
#[track_caller]
fn only(report: &Value, id: &str) -> (String, String) {
    match said(report, id).as_slice() {
        [one] => one.clone(),
        all => panic!("{id}: {all:?}"),
    }
}

#[track_caller]
fn expect(report: &Value, id: &str, severity: &str, part: &str) {
    let (level, text) = only(report, id);
    assert_eq!(level, severity, "{id}: {text}");
    assert!(text.contains(part), "{id}: {text}");
}

/// Runs a command inside a host.
fn inside(cluster: &Cluster, host: u32, line: &str) {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &cluster.namespace(host), "sh", "-c", line]);
    run_tool(&mut command);
}

#[test]
fn three_healthy_nodes_hold_one_report_without_findings() {
    let Some(cluster) = Cluster::new(3) else { return };
    let start = |rank| {
        let launcher = cluster.launcher(rank, rank, 3, &words(&["--report", "report.json"]));
        launcher.env("RANKLAUNCH_SECRET", "correct horse battery").start()
    };
    let found = reports((0..3).map(start).collect(), 0);
    for report in &found {
        expect(report, "nodes.arrive", "ok", "all 3 have arrived");
        expect(report, "nodes.checks", "ok", "");
        expect(report, "nodes.differ", "ok", "");
        expect(report, "link.reach", "ok", "");
        expect(report, "link.latency", "ok", "");
        expect(report, "link.bandwidth", "ok", "");
        expect(report, "master.reach", "ok", "");
    }
    let nodes = found[0]["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 3);
    assert_eq!(nodes[2]["interface"], "eth0");
    assert_eq!(nodes[2]["address"], "10.99.0.3", "measured on the interface of the job");
    assert_eq!(nodes[2]["hostname"], "node-2");
    let links = found[0]["links"].as_array().expect("links");
    assert_eq!(links.len(), 6, "every pair, both ways");
    for link in links {
        let number = |key: &str| link[key].as_f64().unwrap_or_else(|| panic!("{key}: {link}"));
        assert!(number("rtt_min_us") <= number("rtt_median_us"), "{link}");
        assert!(number("rtt_median_us") <= number("rtt_p99_us"), "{link}");
        assert!(number("gigabits_per_second") > 0.0, "{link}");
    }
}

/// A delay of 10 ms each way between a host and the bridge. The child lives as long as this value.
struct LongCable(Child);

impl LongCable {
    fn new(cluster: &Cluster, host: u32) -> LongCable {
        let (own, switch) = (cluster.namespace(host), cluster.switch_namespace());
        let relay = Command::new("ip")
            .args(["netns", "exec", &switch])
            .arg(harness::python())
            .arg(program("delay.py"))
            .args(["near", "far", "0.01"])
            .stdout(Stdio::null())
            .spawn();
        let cable = LongCable(relay.expect("ip runs"));
        let there = |name: &str| {
            let found = Command::new("ip").args(["-n", &switch, "link", "show", name]).output();
            found.is_ok_and(|found| found.status.success()).then_some(())
        };
        wait_until("the relay's devices", || there("near").and(there("far")));
        let near = host + 1;
        for line in [
            format!("-n {own} link set eth0 name plain"),
            format!("-n {own} link set plain down"),
            format!("-n {own} addr flush dev plain"),
            format!("-n {switch} link set near netns {own}"),
            format!("-n {own} link set near address 02:00:00:00:00:{near:02x} name eth0"),
            format!("-n {own} addr add 10.99.0.{near}/24 dev eth0"),
            format!("-n {own} link set eth0 up"),
            format!("-n {switch} link set p{host} nomaster"),
            format!("-n {switch} link set far master sw up"),
        ] {
            run_tool(Command::new("ip").args(line.split(' ')));
        }
        cable
    }
}

impl Drop for LongCable {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn only_the_distant_node_is_named() {
    if !std::path::Path::new("/dev/net/tun").exists() {
        return harness::skipped("no /dev/net/tun");
    }
    let Some(cluster) = Cluster::new(3) else { return };
    let _cable = LongCable::new(&cluster, 2);
    for report in reports(start(&cluster, 3, &[]), 0) {
        expect(&report, "link.latency", "warn", "every link of node 2 (node-2) on eth0: ");
        expect(&report, "link.reach", "ok", "");
        expect(&report, "link.bandwidth", "ok", "");
        let links = report["links"].as_array().expect("links");
        for link in links {
            let far = link["from"] == 2 || link["to"] == 2;
            let trip = link["rtt_min_us"].as_u64().expect("a number");
            assert_eq!(trip >= 20_000, far, "{link}");
        }
    }
}

/// Limits a host to 20 Mb/s; false if this kernel cannot.
fn throttle(cluster: &Cluster, host: u32) -> bool {
    let line = "qdisc add dev eth0 root tbf rate 20mbit burst 16kb latency 50ms";
    let mut command = Command::new("tc");
    command.args(["-n", &cluster.namespace(host)]).args(line.split(' '));
    let done = command.output().is_ok_and(|done| done.status.success());
    if !done {
        harness::skipped("no tc, or no tbf in this kernel");
    }
    done
}

#[test]
fn only_the_slowly_sending_node_is_named() {
    let Some(cluster) = Cluster::new(3) else { return };
    if !throttle(&cluster, 1) {
        return;
    }
    for report in reports(start(&cluster, 3, &[]), 0) {
        expect(
            &report,
            "link.bandwidth",
            "warn",
            "every link of node 1 (node-1) on eth0: the bandwidth is 0.0",
        );
        expect(&report, "link.latency", "ok", "");
        expect(&report, "link.reach", "ok", "");
    }
}

#[test]
fn slow_direction_is_named_beside_the_claimed_speed() {
    let Some(cluster) = Cluster::new(2) else { return };
    if !throttle(&cluster, 1) {
        return;
    }
    for report in reports(start(&cluster, 2, &["--severity", "link.bandwidth=fail"]), 88) {
        let part = "node 1 (node-1) → node 0 (node-0) on eth0: the bandwidth is 0.0";
        expect(&report, "link.bandwidth", "fail", part);
        expect(&report, "link.latency", "ok", "");
    }
}

#[test]
fn unconnected_pair_is_named_though_node_0_answers() {
    let Some(cluster) = Cluster::new(3) else { return };
    inside(&cluster, 1, "ip route add unreachable 10.99.0.3");
    inside(&cluster, 2, "ip route add unreachable 10.99.0.2");
    for report in reports(start(&cluster, 3, &[]), 88) {
        expect(&report, "nodes.arrive", "ok", "");
        let pair = "node 1 (node-1) ↔ node 2 (node-2) on eth0: no connection (10.99.0.";
        expect(&report, "link.reach", "fail", pair);
        expect(&report, "link.latency", "ok", "");
        expect(&report, "link.bandwidth", "ok", "");
    }
}

#[test]
fn absent_node_is_named() {
    let port = free_port();
    let node = |rank| Launcher::new(words(&["--wait-timeout", "2s"])).node(rank, 3, port).start();
    for ended in [node(0), node(2)].map(Running::wait) {
        let words = "2 of 3 nodes arrived in 2s; missing node 1 (never connected)";
        expect(&report(&ended), "nodes.arrive", "fail", words);
        ended.expect_code(88);
    }
    // Run alone on request, the node waits for no other node and reports none.
    let ended = Launcher::new(words(&["--muster", "off"])).node(0, 3, port).run().expect_code(0);
    let report = report(&ended);
    assert_eq!(said(&report, "nodes.arrive"), []);
    assert!(report.get("links").is_none());
}

#[test]
fn node_dying_during_link_measurement_is_named() {
    let Some(cluster) = Cluster::new(3) else { return };
    // Packets from node 1 to node 2 are dropped, so that a measurement is running when node 2
    // dies.
    let drop = "nft add table ip t && nft add chain ip t in '{ type filter hook input priority 0; }' \
        && nft add rule ip t in ip saddr 10.99.0.2 drop";
    inside(&cluster, 2, drop);
    let mut nodes = start(&cluster, 3, &[]);
    let dials = || {
        let mut table = Command::new("ip");
        table.args(["netns", "exec", &cluster.namespace(1), "cat", "/proc/net/tcp"]);
        let table = String::from_utf8(table.output().expect("ip runs").stdout).expect("text");
        // The row has the address 10.99.0.3 and the state SYN_SENT.
        table.lines().any(|line| line.contains(" 0300630A:") && line.contains(" 02 ")).then_some(())
    };
    wait_until("node 1 dials node 2", dials);
    let victim = nodes.pop().expect("three");
    kill(victim.pid());
    victim.wait().expect_code(137);
    for report in reports(nodes, 88) {
        expect(&report, "nodes.arrive", "fail", "node 2 (node-2) disconnected during link");
        expect(&report, "link.reach", "ok", "");
        assert_eq!(report["nodes"][2]["lost"], "died");
        let links = report["links"].as_array().expect("links");
        assert!(links.iter().all(|link| link["from"] != 2 && link["to"] != 2), "{links:?}");
    }
}

#[test]
fn check_failing_on_one_node_sets_all_codes() {
    let port = free_port();
    let node = |rank, more: &[&str]| {
        Launcher::new(words(more)).node(rank, 2, port).env("NCCL_TIMEOUT", "1").start()
    };
    let fails = ["--severity", "env.nccl=fail"];
    let [zero, one] = [node(0, &[]), node(1, &fails)].map(Running::wait);
    expect(&report(&one), "env.nccl", "fail", "");
    expect(&report(&one), "nodes.checks", "ok", "");
    expect(&report(&zero), "nodes.checks", "fail", "): env.nccl: ");
    assert_eq!((zero.code, one.code), (64, 64), "{}\n{}", zero.err, one.err);
}

/// `count` RDMA ports of this rate, as files.
fn with_rails(count: u32, rate: u32) -> Node {
    (0..count).fold(Node::without_gpus(), |node, n| {
        let port = format!("/sys/class/infiniband/mlx5_{n}/ports/1");
        node.file(&format!("{port}/state"), "4: ACTIVE\n")
            .file(&format!("{port}/rate"), &format!("{rate} Gb/sec (4X NDR)\n"))
            .file(&format!("{port}/link_layer"), "InfiniBand\n")
            .file(&format!("/sys/class/infiniband_verbs/uverbs{n}/ibdev"), &format!("mlx5_{n}\n"))
            .file(&format!("/dev/infiniband/uverbs{n}"), "")
    })
}

#[test]
fn nodes_with_different_rails_are_named() {
    let port = free_port();
    let nodes = [with_rails(8, 400), with_rails(7, 400), with_rails(8, 200), with_rails(8, 400)];
    // A replayed node meets other nodes only on request.
    let more = ["--lang", "en", "--format", "json", "--device", "cpu", "--muster", "required"];
    let start =
        |(rank, node): (u32, &Node)| node.launcher("check", &more).node(rank, 4, port).start();
    let running: Vec<Running> = (0..).zip(&nodes).map(start).collect();
    for ended in running.into_iter().map(Running::wait) {
        let report = report(&ended);
        let all = said(&report, "nodes.rails");
        let words = [
            "the number of RDMA ports is not the same on all nodes: node 1: 7; the others: 8",
            "the speed of the RDMA ports (Gb/s) is not the same on all nodes: node 1: 7 × 400, node 2: 8 × 200; the others: 8 × 400",
        ];
        let expected = words.map(|words| ("fail".to_owned(), words.to_owned()));
        assert_eq!(all, expected);
        assert_eq!(ended.code, 88, "{}", ended.err);
    }
}
