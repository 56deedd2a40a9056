//! Three nodes in network namespaces with addresses of their own: what a cut
//! cable does. Needs root and `ip`; without them there is nothing to cut.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{Ended, Launcher, Running, executable, program, run_args, skipped};

const PORT: u16 = 29_517;

/// A bridge in a namespace of its own and one namespace per node.
struct Cluster {
    name: String,
    nodes: u32,
}

fn ip(words: &str) -> bool {
    let done = Command::new("ip").args(words.split_whitespace()).output();
    done.is_ok_and(|done| done.status.success())
}

impl Cluster {
    /// None where this user may not make namespaces.
    fn new(nodes: u32) -> Option<Cluster> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("rl{}x{count}", std::process::id());
        if !ip(&format!("netns add {name}-sw")) {
            skipped("no right to make network namespaces");
            return None;
        }
        let cluster = Cluster { name, nodes };
        let name = &cluster.name;
        let switch = |words: &str| assert!(ip(&format!("-n {name}-sw {words}")), "{words}");
        switch("link add sw type bridge");
        switch("link set sw up");
        for node in 0..nodes {
            assert!(ip(&format!("netns add {name}-{node}")));
            switch(&format!("link add p{node} type veth peer name eth0 netns {name}-{node}"));
            switch(&format!("link set p{node} master sw up"));
            let address = node + 1;
            for words in [
                format!("addr add 10.99.0.{address}/24 dev eth0"),
                "link set eth0 up".to_owned(),
                "link set lo up".to_owned(),
            ] {
                assert!(ip(&format!("-n {name}-{node} {words}")), "{words}");
            }
        }
        Some(cluster)
    }

    /// Cuts the cable at the switch: the node itself sees its interface up.
    fn cable(&self, node: u32, state: &str) {
        let name = &self.name;
        assert!(ip(&format!("-n {name}-sw link set p{node} {state}")));
    }

    fn start(&self, rank: u32, more: &[&str], what: &str) -> Running {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}-{rank}", self.name)]).arg(executable());
        let mut args = run_args("direct", 1);
        args.extend(more.iter().map(Into::into));
        args.extend(["--".into(), program("rank.sh").into_os_string(), what.into()]);
        Launcher::of(command, args)
            .node(rank, self.nodes, PORT)
            .env("MASTER_ADDR", "10.99.0.1")
            .start()
    }

    fn all(&self, what: &str) -> Vec<Running> {
        (0..self.nodes).map(|rank| self.start(rank, &[], what)).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in (0..self.nodes).map(|node| node.to_string()).chain(["sw".to_owned()]) {
            ip(&format!("netns del {}-{node}", self.name));
        }
    }
}

fn cause(ended: &Ended) -> String {
    let line = ended.err.lines().rev().find(|line| line.starts_with("── ranklaunch: "));
    let line = line.unwrap_or_else(|| panic!("no closing block:\n{}", ended.err));
    line.rsplit_once(" (node ").map_or(line, |(cause, _)| cause).to_owned()
}

#[test]
fn nodes_with_addresses_of_their_own_run_one_job() {
    let Some(cluster) = Cluster::new(3) else { return };
    for (rank, node) in cluster.all("succeed").into_iter().enumerate() {
        let ended = node.wait().expect_code(0).expect_nothing_left();
        assert!(ended.err.contains("all 3 nodes agree"), "{}", ended.err);
        let line = format!("rank {rank} of 3, local 0, 10.99.0.1:{PORT}");
        assert!(ended.out.contains(&line), "{}", ended.out);
    }
}

#[test]
fn a_short_partition_is_survived() {
    let Some(cluster) = Cluster::new(3) else { return };
    let mut nodes = cluster.all("wait");
    nodes.iter_mut().for_each(|node| node.says("READY", 1));
    cluster.cable(2, "down");
    let cut = Instant::now();
    // Time itself is what is tested here: less than the peer timeout of 15 s.
    while cut.elapsed() < Duration::from_secs(6) {
        std::thread::sleep(Duration::from_millis(100));
        assert!(nodes.iter().all(|node| !node.err().contains("── ranklaunch: nothing")));
    }
    cluster.cable(2, "up");
    // Long enough for whoever had given up to have said so.
    std::thread::sleep(Duration::from_secs(12));
    assert!(nodes.iter().all(|node| !node.processes().is_empty()), "all run on");
    nodes[2].signal(nix::sys::signal::Signal::SIGTERM);
    for node in nodes {
        // Node 2's word reaches all over the connection that was cut.
        let ended = node.wait().expect_code(143).expect_nothing_left();
        assert!(cause(&ended).contains("SIGTERM, on node 2"), "{}", ended.err);
    }
}

#[test]
fn a_node_that_stays_cut_off_is_named_after_the_peer_timeout() {
    let Some(cluster) = Cluster::new(3) else { return };
    let mut nodes = cluster.all("wait");
    nodes.iter_mut().for_each(|node| node.says("READY", 1));
    let cut = Instant::now();
    cluster.cable(2, "down");
    let ended: Vec<Ended> = nodes.into_iter().map(Running::wait).collect();
    let waited = cut.elapsed();
    assert!((14..30).contains(&waited.as_secs()), "{waited:?}");
    let causes: Vec<String> = ended.iter().map(cause).collect();
    assert!(causes[0].contains("nothing was heard from node 2 ("), "{causes:?}");
    assert_eq!(causes[0], causes[1]);
    assert!(
        causes[2].contains("nothing was heard from node 0 ("),
        "the one that was cut: {causes:?}"
    );
    for ended in ended {
        ended.expect_code(143).expect_nothing_left();
    }
}

#[test]
fn the_death_of_node_0_ends_the_job_on_every_node() {
    let Some(cluster) = Cluster::new(3) else { return };
    let mut nodes = cluster.all("wait");
    nodes.iter_mut().for_each(|node| node.says("READY", 1));
    // Guard and agent at once, as when a container is killed.
    let pids: Vec<i32> = nodes[0].processes().iter().map(|process| process.pid).collect();
    pids.into_iter().for_each(common::kill);
    let killed = Instant::now();
    for node in nodes.split_off(1) {
        let ended = node.wait().expect_code(143).expect_nothing_left();
        assert!(cause(&ended).contains("the agent of node 0 ("), "{}", ended.err);
    }
    assert!(killed.elapsed() < Duration::from_secs(8), "{:?}", killed.elapsed());
}
