//! Connections that a device between the nodes resets, and launchers that are frozen: no innocent
//! node is accused.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use harness::cluster::{Cluster, PORT, one_cause};
use harness::{Ended, Launcher, Role, Running, free_port, run_args, skipped, wait_until};
use nix::sys::signal::Signal;

use super::silence::wait_all;

/// While this value lives, a firewall before node 0 resets packets from node 1.
struct Resets<'a>(&'a Cluster, Vec<String>);

impl Resets<'_> {
    fn of<'a>(cluster: &'a Cluster, rule: &str) -> Option<Resets<'a>> {
        let rule = format!("INPUT -p tcp -s 10.99.0.2{rule} -j REJECT --reject-with tcp-reset");
        let rule = rule.split(' ').map(str::to_owned).collect();
        let resets = Resets(cluster, rule);
        resets.change("-A").then_some(resets)
    }

    fn change(&self, how: &str) -> bool {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0.namespace(0), "iptables", "-w", how]);
        command.args(&self.1).output().is_ok_and(|done| done.status.success())
    }
}

impl Drop for Resets<'_> {
    fn drop(&mut self) {
        self.change("-D");
    }
}

/// Three nodes that run until `go` exists; node 1's packets are reset until `lasts` returns.
fn with_resets(
    rule: &str,
    lasts: impl FnOnce(&mut [Running]),
    check: impl FnOnce(Vec<Running>, &dyn Fn()),
) {
    let Some(cluster) = Cluster::new(3) else { return };
    let go = cluster.folder().join("go");
    let script = "echo READY; until [ -e \"$GO\" ]; do sleep 0.1; done";
    let mut args = run_args("direct", 1);
    args.extend(["--", "sh", "-c", script].map(Into::into));
    let start = |rank| cluster.launcher(rank, rank, 3, &args).env("GO", &go).start();
    let mut nodes: Vec<Running> = (0..3).map(start).collect();
    nodes.iter_mut().for_each(|node| {
        node.says("READY", 1);
    });
    let Some(resets) = Resets::of(&cluster, rule) else {
        skipped("no right to reset connections, or no `iptables`");
        return;
    };
    lasts(&mut nodes);
    drop(resets);
    check(nodes, &|| std::fs::write(&go, "").expect("a file"));
    cluster.expect_nothing_left();
}

fn is_soon_over(node: &mut Running) {
    let deadline = Instant::now() + Duration::from_secs(90);
    while !node.is_over() {
        assert!(Instant::now() < deadline, "{}", node.err());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Heartbeats are 3 s apart at most, so each connection is used and reset within this time.
const LONGER_THAN_A_HEARTBEAT: Duration = Duration::from_secs(5);

#[test]
fn job_survives_a_reset_of_its_port() {
    let lasts = |_: &mut [Running]| thread::sleep(LONGER_THAN_A_HEARTBEAT);
    with_resets(&format!(" --dport {PORT}"), lasts, |nodes, end| {
        end();
        for (rank, ended) in (0u32..).zip(wait_all(nodes)) {
            let ended = ended.expect_code(0);
            let journal = ended.node_folder(rank).join("agent.jsonl");
            let journal = std::fs::read_to_string(journal).expect("the journal");
            let was_cut = journal.contains("was cut, and is there again");
            assert_eq!(was_cut, rank < 2, "node {rank}");
        }
    });
}

/// The control: if no packet passes any more, the job ends, and its message leaves the reason open.
#[test]
fn ambiguous_cut_is_not_reported_as_a_death() {
    // Node 1 receives a refusal of each packet, and node 0 receives nothing until they end.
    let lasts = |nodes: &mut [Running]| is_soon_over(&mut nodes[1]);
    with_resets("", lasts, |nodes, _| {
        for (rank, ended) in (0u32..).zip(wait_all(nodes)) {
            let run = ended.expect_code(143).run_json(rank);
            let text = run["verdict"]["text"].as_str().expect("text").to_owned();
            assert_eq!(run["verdict"]["id"], "node.cut", "node {rank}: {text}");
            assert!(text.contains("or something between the nodes cut it"), "{text}");
            assert!(!text.contains("died"), "{text}");
        }
    });
}

/// The launcher of a node is stopped until the others have given it up, and is then continued.
fn frozen(victim: usize) -> Vec<Ended> {
    let port = free_port();
    let mut args = run_args("direct", 1);
    args.extend(["--", "sh", "-c", "echo READY; exec sleep 300"].map(Into::into));
    let mut nodes: Vec<Running> =
        (0..3).map(|rank| Launcher::new(&args).node(rank, 3, port).start()).collect();
    nodes.iter_mut().for_each(|node| {
        node.says("READY", 1);
    });
    for role in [Role::Guard, Role::Agent] {
        nodes[victim].send(role, Signal::SIGSTOP);
    }
    let others = nodes.iter_mut().enumerate().filter(|(node, _)| *node != victim);
    others.for_each(|(_, node)| is_soon_over(node));
    for role in [Role::Agent, Role::Guard] {
        nodes[victim].send(role, Signal::SIGCONT);
    }
    wait_all(nodes)
}

#[test]
fn frozen_node_reports_itself_and_accuses_nobody() {
    let jobs = [0, 1].map(|victim| thread::spawn(move || (victim, frozen(victim))));
    for job in jobs {
        let (victim, ended) = job.join().expect("no panic");
        for (rank, ended) in (0u32..).zip(&ended) {
            let run = ended.run_json(rank);
            let verdict = &run["verdict"];
            let said = (&verdict["id"], &verdict["node"], ended.code);
            assert_eq!(
                said,
                (&"node.silent".into(), &victim.into(), 143),
                "node {rank}: {verdict}"
            );
            let text = verdict["text"].as_str().expect("text");
            assert!(text.contains(&format!("nothing was heard from node {victim} (")), "{text}");
            let knows =
                text.contains("): it did not run for ") || text.contains(": it did not run");
            assert_eq!(knows, rank as usize == victim, "node {rank}: {text}");
        }
    }
}

/// The others start again, so a node that was given up must not save between their saves. It takes part all the same.
#[test]
fn ranks_of_a_node_that_was_given_up_save_nothing() {
    let port = free_port();
    let saves = "trap 'echo SAVED; exit 1' TERM; echo READY; while :; do sleep 0.1; done";
    let mut args = run_args("direct", 1);
    args.extend(["--max-restarts", "1", "--", "sh", "-c", saves].map(Into::into));
    let mut nodes: Vec<Running> =
        (0..2).map(|rank| Launcher::new(&args).node(rank, 2, port).start()).collect();
    nodes.iter_mut().for_each(|node| {
        node.says("READY", 1);
    });
    for role in [Role::Guard, Role::Agent] {
        nodes[1].send(role, Signal::SIGSTOP);
    }
    wait_until("the end of the attempt", || nodes[0].err().contains("start again").then_some(()));
    for role in [Role::Agent, Role::Guard] {
        nodes[1].send(role, Signal::SIGCONT);
    }
    nodes.iter_mut().for_each(|node| {
        node.says("READY", 2);
    });
    let (given_up, other) = (nodes[1].out(), nodes[0].out());
    assert!(nodes[1].err().contains("this node stood still and the others go on without it"));
    assert!(!given_up.contains("SAVED"), "{given_up}");
    // The control: ranks that are stopped in order save.
    assert!(other.contains("SAVED"), "{other}");
    nodes.iter_mut().for_each(|node| node.send(Role::Guard, Signal::SIGTERM));
    wait_all(nodes);
}

/// A permanent loss of a node is still reported at once, with its true cause.
#[test]
fn killed_agent_is_still_named_at_once() {
    let Some(cluster) = Cluster::new(3) else { return };
    let nodes = cluster.waiting(&[]);
    let killed = Instant::now();
    harness::kill(nodes[1].agent());
    wait_until("the word of node 0", || nodes[0].err().contains("died").then_some(()));
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    let ended = wait_all(nodes);
    let cause = one_cause(&[(0, &ended[0], 143), (2, &ended[2], 143)]);
    assert_eq!((cause.id, cause.node), ("node.died".into(), 1.into()));
}
