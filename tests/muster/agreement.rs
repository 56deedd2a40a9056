//! Several launchers on loopback: they agree before anything starts, and share
//! one verdict.

use harness::{Ended, Launcher, Running, free_port, kill, program, run_args, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

/// One node of a job of `nodes`, running `rank.sh WHAT` in `nproc` ranks.
fn node(rank: u32, nodes: u32, port: u16, more: &[&str], what: &str) -> Launcher {
    node_with(2, rank, nodes, port, more, what)
}

fn node_with(nproc: u32, rank: u32, nodes: u32, port: u16, more: &[&str], what: &str) -> Launcher {
    let mut args = run_args("direct", nproc);
    args.extend(more.iter().map(Into::into));
    args.extend(["--".into(), program("rank.sh").into_os_string(), what.into()]);
    Launcher::new(args).node(rank, nodes, port)
}

fn start(nodes: u32, more: &[&str], what: &str) -> Vec<Running> {
    let port = free_port();
    (0..nodes).map(|rank| node(rank, nodes, port, more, what).start()).collect()
}

/// The line of the closing block that names the cause, without this node's own part.
fn cause(ended: &Ended) -> String {
    let line = ended.err.lines().rev().find(|line| line.starts_with("── ranklaunch: "));
    let line = line.unwrap_or_else(|| panic!("no closing block:\n{}", ended.err));
    line.rsplit_once("after ").map_or(line, |(cause, _)| cause).to_owned()
}

#[test]
fn three_nodes_run_one_plan() {
    let ended: Vec<Ended> = start(3, &[], "succeed").into_iter().map(Running::wait).collect();
    let mut ids = std::collections::BTreeSet::new();
    for (node, ended) in (0..).zip(ended) {
        let ended = ended.expect_code(0).expect_nothing_left();
        let words = "the connections between the nodes are not encrypted";
        assert_eq!(ended.err.contains(words), node == 0, "{}", ended.err);
        let run = ended.run_json(node);
        let plan = &run["plan"];
        assert_eq!((&plan["nproc_per_node"], &plan["world_size"]), (&2.into(), &6.into()));
        assert_eq!(plan["membership"]["nnodes"], 3);
        ids.insert(run["run_id"].as_str().expect("an id").to_owned());
    }
    assert_eq!(ids.len(), 1, "one run id: {ids:?}");
}

/// A warning of all nodes is printed once, on node 0 with the nodes named. A warning of one node stays
/// on that node. Both are repeated only after a failure.
#[test]
fn a_warning_is_printed_once_for_the_job() {
    for (what, code) in [("succeed", 0), ("exit-7-on-rank-1", 7)] {
        let port = free_port();
        let common = |launcher: Launcher| launcher.env("NCCL_TIMEOUT", "1800");
        let zero = common(node(0, 2, port, &[], what)).start();
        let one = common(node(1, 2, port, &[], what)).env("NCCL_MIN_NRINGS", "4").start();
        let (zero, one) = (zero.wait().expect_code(code), one.wait());
        let count = |ended: &Ended, words: &str| ended.err.matches(words).count();
        let (told, own) = ("NCCL_TIMEOUT=1800", "NCCL_MIN_NRINGS=4");
        let repeated = usize::from(code != 0);
        assert_eq!(count(&zero, told), 1 + repeated, "{}", zero.err);
        assert_eq!(count(&one, told), 0, "{}", one.err);
        assert_eq!(count(&zero, own), 0, "{}", zero.err);
        assert_eq!(count(&one, own), 1 + repeated, "{}", one.err);
        let same = zero.err.lines().find(|line| line.contains("the same on node 1: "));
        assert!(same.is_some_and(|line| line.contains("env.nccl")), "{}", zero.err);
        assert_eq!(count(&zero, "warned: env.nccl"), repeated, "{}", zero.err);
        let blames = |line: &&str| line.contains("not the same on all nodes");
        assert!(!one.err.lines().any(|line| blames(&line)), "{}", one.err);
    }
}

/// The scopes in which a node decided on a plan, in order, from its journal.
fn scopes(ended: &Ended, node: u32) -> Vec<String> {
    let text = std::fs::read_to_string(ended.node_folder(node).join("agent.jsonl"));
    let lines = text.expect("agent.jsonl is there");
    let events = lines.lines().map(|line| serde_json::from_str(line).expect("it is JSON"));
    let decided = events.filter(|event: &Value| event["fields"]["message"] == "decided");
    let scope = |event: Value| event["fields"]["scope"].as_str().expect("a scope").to_owned();
    decided.map(scope).collect()
}

/// Two plans for one scope would be two answers to one question.
#[test]
fn each_node_plans_once_per_scope() {
    let alone = Launcher::ranks("direct", 2, &["succeed"]).run().expect_code(0);
    assert_eq!(scopes(&alone, 0), ["Alone"]);
    let ended: Vec<Ended> = start(4, &[], "succeed").into_iter().map(Running::wait).collect();
    for (node, ended) in (0..).zip(ended) {
        let ended = ended.expect_code(0);
        let after = match node {
            0 => "ForAll { fewest: 2, heads: None, seat: None }",
            _ => "Agreed { nproc: 2, heads: None, seat: None }",
        };
        assert_eq!(scopes(&ended, node), ["Alone", after], "node {node}");
    }
    // Node 0 waits for no other node, and knows that from the start.
    let without = node(0, 2, free_port(), &["--muster", "off"], "succeed").run().expect_code(0);
    assert_eq!(scopes(&without, 0), ["Alone"]);
}

#[test]
fn killed_rank_ends_all_nodes_with_one_block() {
    let mut nodes = start(3, &[], "wait");
    nodes.iter_mut().for_each(|node| {
        node.says("READY", 2);
    });
    let victim = wait_until("a rank of node 1", || {
        nodes[1].processes().into_iter().find(|process| process.command().starts_with("sleep 300"))
    });
    kill(victim.pid);
    let ended: Vec<Ended> = nodes.into_iter().map(Running::wait).collect();
    let causes: Vec<String> = ended.iter().map(cause).collect();
    assert!(
        causes[0].contains(" on node 1 (") && causes[0].contains(") was killed by SIGKILL"),
        "{causes:?}"
    );
    assert!(causes.iter().all(|cause| *cause == causes[0]), "{causes:?}");
    for (node, (ended, code)) in (0..).zip(ended.into_iter().zip([143, 137, 143])) {
        let ended = ended.expect_code(code).expect_nothing_left();
        let run = ended.run_json(node);
        assert_eq!(
            (&run["verdict"]["node"], &run["verdict"]["id"]),
            (&1.into(), &"rank.signal".into())
        );
    }
}

#[test]
fn other_nodes_exit_143_showing_the_last_lines() {
    let ended: Vec<Ended> =
        start(2, &[], "exit-7-on-rank-1").into_iter().map(Running::wait).collect();
    for (ended, code) in ended.into_iter().zip([7, 143]) {
        let ended = ended.expect_code(code).expect_nothing_left();
        let ended = ended.expect_id("rank.exit");
        assert!(cause(&ended).contains("rank 1 on node 0 ("), "{}", ended.err);
        assert!(ended.err.contains("about to fail"), "{}", ended.err);
    }
}

#[test]
fn a_killed_launcher_is_named_by_the_others() {
    for victim in [1usize, 0] {
        let mut nodes = start(3, &[], "wait");
        nodes.iter_mut().for_each(|node| {
            node.says("READY", 2);
        });
        kill(nodes[victim].agent());
        let ended: Vec<Ended> = nodes.into_iter().map(Running::wait).collect();
        for (node, ended) in ended.into_iter().enumerate() {
            let code = if node == victim { 137 } else { 143 };
            let ended = ended.expect_code(code).expect_nothing_left();
            if node != victim {
                let node = u32::try_from(node).expect("small");
                let verdict = &ended.run_json(node)["verdict"];
                let expected = (&"node.died".into(), &victim.into());
                assert_eq!((&verdict["id"], &verdict["node"]), expected, "{}", ended.err);
            }
        }
    }
}

#[test]
fn outside_stop_of_one_node_stops_all() {
    let mut nodes = start(2, &[], "wait");
    nodes.iter_mut().for_each(|node| {
        node.says("READY", 2);
    });
    nodes[1].signal(Signal::SIGTERM);
    for (rank, node) in (0..).zip(nodes) {
        let ended = node.wait().expect_code(143).expect_nothing_left();
        let verdict = &ended.run_json(rank)["verdict"];
        let expected = (&"stopped.signal".into(), &1.into());
        assert_eq!((&verdict["id"], &verdict["node"]), expected, "{}", ended.err);
    }
}

#[test]
fn term_during_the_gathering_ends_at_once() {
    let running = node(0, 2, free_port(), &[], "succeed").start();
    wait_until("the gathering", || running.err().contains("connections between").then_some(()));
    // Without the signal, the node would wait for half an hour.
    running.signal(Signal::SIGTERM);
    running.wait().expect_code(143).expect_nothing_left();
}

#[test]
fn disagreeing_nodes_are_refused_on_both_sides() {
    let port = free_port();
    let rows: [(u32, &[&str], &str, &str); 2] = [
        (3, &[], "muster.layout", " 3 "),
        (2, &["--layout", "ulysses-world"], "muster.rule", "ulysses-world"),
    ];
    for (nproc, more, id, value) in rows {
        let zero = node(0, 2, port, &[], "succeed");
        for node in [zero, node_with(nproc, 1, 2, port, more, "succeed")].map(Launcher::start) {
            let ended = node.wait();
            assert!(matches!(ended.code, 66 | 88), "{}\n{}", ended.code, ended.err);
            assert_eq!(ended.id(), Some(id), "{}", ended.err);
            assert!(ended.err.contains(value), "{value}\n{}", ended.err);
            assert!(ended.out.is_empty(), "nothing ran: {}", ended.out);
        }
    }
    // The second node may belong to another job: it is refused at once, and node 0 continues to wait
    // for its own.
    let more = ["--wait-timeout", "4s"];
    let nodes = [node(0, 2, port, &more, "succeed"), node(1, 3, port, &[], "succeed")];
    let [zero, one] = nodes.map(Launcher::start).map(|node| node.wait().expect_code(88));
    let one = one.expect_id("muster.nnodes");
    assert!(one.err.contains(" 3 nodes") && one.err.contains(" counts 2"), "{}", one.err);
    let words = format!(") belongs to the job of 3 nodes on port {port}: rejected");
    assert!(zero.err.contains(&words), "{}", zero.err);
    let (_, verdict) = zero.err.split_once("refused: ").expect("a refusal");
    assert!(verdict.contains(&words) && verdict.contains("--nnodes"), "{verdict}");
}

#[test]
fn missing_node_is_named_at_the_deadline() {
    let port = free_port();
    let more = ["--wait-timeout", "2s"];
    let nodes = [node(0, 3, port, &more, "succeed"), node(2, 3, port, &more, "succeed")];
    for node in nodes.map(Launcher::start) {
        let ended = node.wait().expect_code(88).expect_id("muster.missing");
        for words in ["2 of 3", " 2s", "node 1 ("] {
            assert!(ended.err.contains(words), "{words}\n{}", ended.err);
        }
    }
}

/// A rank that looks for the secret in its own environment and in those of all its ancestors.
const ANCESTORS: &str = r#"
echo secret=${RANKLAUNCH_SECRET-none}
pid=$PPID
while [ "$pid" -gt 1 ]; do
    grep -qa PATH= /proc/$pid/environ && echo "ancestor $pid"
    grep -qaE 'RANKLAUNCH_SECRET|horse battery' /proc/$pid/environ && echo "$pid shows it"
    pid=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$pid/status)
done
:"#;

#[test]
fn secret_encrypts_the_channel_and_reaches_no_rank() {
    let port = free_port();
    let encrypted = |rank, secret: &str, nodes| {
        let mut args = run_args("direct", 1);
        args.extend(["--wait-timeout".into(), "3s".into(), "--".into()]);
        args.extend(["sh".into(), "-c".into(), ANCESTORS.into()]);
        Launcher::new(args).node(rank, nodes, port).env("RANKLAUNCH_SECRET", secret)
    };
    let secret = "correct horse battery";
    for node in [encrypted(0, secret, 2), encrypted(1, secret, 2)].map(Launcher::start) {
        let ended = node.wait().expect_code(0);
        assert!(ended.out.contains("secret=none"), "{}", ended.out);
        // The ancestors are at least shim, agent and guard, each with a readable environment.
        assert!(ended.out.matches("ancestor").count() >= 3, "{}", ended.out);
        assert!(!ended.out.contains("shows it"), "{}", ended.out);
        assert!(
            !ended.err.contains("connections between the nodes are not encrypted"),
            "{}",
            ended.err
        );
        assert!(!ended.err.contains(secret), "{}", ended.err);
    }
    let [zero, one] = [encrypted(0, secret, 2), encrypted(1, "another secret altogether", 2)]
        .map(Launcher::start);
    one.wait().expect_code(88).expect_id("muster.secret");
    let zero = zero.wait().expect_code(88).expect_id("muster.missing");
    assert!(zero.err.contains("has another secret"), "{}", zero.err);
}

/// A Kubernetes Secret from a file with a newline, as a variable on one node and mounted on the other,
/// with a separate port for the muster.
#[test]
fn secret_file_equals_variable_and_muster_port_works() {
    let (port, own) = (free_port(), free_port());
    let file = tempfile::NamedTempFile::new().expect("a file");
    let secret = "correct horse battery\n";
    std::fs::write(file.path(), secret).expect("written");
    let node = |rank| {
        let mut args = run_args("direct", 1);
        args.extend(["--muster-port".into(), own.to_string().into(), "--".into()]);
        let script =
            "echo port=$MASTER_PORT ${RANKLAUNCH_SECRET-none} ${RANKLAUNCH_SECRET_FILE-none}";
        args.extend(["sh", "-c", script].map(Into::into));
        let launcher = Launcher::new(args).node(rank, 2, port);
        match rank {
            0 => launcher.env("RANKLAUNCH_SECRET", secret),
            _ => launcher.env("RANKLAUNCH_SECRET_FILE", file.path()),
        }
    };
    let zero = node(0).start();
    let waits = format!("waiting on port {own} for node 1");
    wait_until("node 0 says where it waits", || zero.err().contains(&waits).then_some(()));
    for ended in [node(1).run(), zero.wait()] {
        let ended = ended.expect_code(0).expect_nothing_left();
        assert!(ended.out.contains(&format!("port={port} none none")), "{}", ended.out);
        assert!(
            !ended.err.contains("connections between the nodes are not encrypted"),
            "{}",
            ended.err
        );
    }
    let empty = node(1).env("RANKLAUNCH_SECRET", "").run().expect_code(64);
    assert!(empty.err.contains("RANKLAUNCH_SECRET "), "{}", empty.err);
    empty.expect_id("muster.secret");
}

#[test]
fn all_nodes_restart_together() {
    let port = free_port();
    // The script fails on node 1 in the first attempt only.
    let script = "test -e first-$RANK || { touch first-$RANK; test $RANK = 1 && { sleep 0.2; exit 5; }; sleep 60; }; echo again $RANK";
    let node = |rank| {
        let mut args = run_args("direct", 1);
        args.extend(["--max-restarts".into(), "3".into(), "--".into()]);
        args.extend(["sh".into(), "-c".into(), script.into()]);
        Launcher::new(args).node(rank, 2, port).start()
    };
    for (rank, node) in [node(0), node(1)].into_iter().enumerate() {
        let ended = node.wait().expect_code(0).expect_nothing_left();
        assert!(ended.out.contains(&format!("again {rank}")), "{}\n{}", ended.out, ended.err);
        assert!(ended.err.contains("attempt 1"), "{}", ended.err);
        let rank = u32::try_from(rank).expect("small");
        assert!(ended.node_folder(rank).join("attempt-1").is_dir());
    }
}

#[test]
fn node_unable_to_take_part_tells_the_others() {
    let port = free_port();
    let healthy = node(0, 2, port, &[], "succeed").start();
    // The node's own plan refuses it before it meets any other node.
    let sick = node(1, 2, port, &["--min-nproc", "4"], "succeed").start();
    let sick = sick.wait().expect_code(66).expect_id("layout.min-nproc");
    let healthy = healthy.wait().expect_code(88).expect_id("muster.declined");
    assert!(healthy.err.contains("node 1 ("), "{}", healthy.err);
    assert!(sick.err.contains("min-nproc"), "{}", sick.err);
}

/// Node 0 needs a connection per node: a limit that is too low is reported before any node
/// waits.
#[test]
fn too_low_file_limit_is_reported_at_once() {
    for muster in ["required", "auto"] {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "ulimit -n 300 && exec \"$@\"", "sh"]).arg(harness::executable());
        let mut args = run_args("direct", 1);
        args.extend(["--muster".into(), muster.into(), "--".into()]);
        args.extend(["echo".into(), "it runs".into()]);
        // The other nodes would wait for the muster of a node 0 that starts without one.
        let refused = Launcher::of(shell, args).node(0, 200, free_port()).run().expect_code(84);
        let refused = refused.expect_id("muster.nofile");
        for value in [" 300 ", " 200 ", " 328"] {
            assert!(refused.err.contains(value), "{value}\n{}", refused.err);
        }
        assert!(refused.out.is_empty(), "{}", refused.out);
        assert!(refused.err.contains("--muster off on all nodes"), "{}", refused.err);
    }
}

/// Another job's `ranklaunch install` into the same folder, or an update, gives the name to a new file.
#[test]
fn job_with_replaced_executable_restarts() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["ranklaunch", "new"] {
        std::fs::copy(harness::executable(), at(name)).expect("a copy");
    }
    let script = format!(
        "cd {} && if [ $RANK = 0 ] && [ -e new ]; then mv new ranklaunch; exit 5; fi
         [ ! -e new ] || exec sleep 60; echo AGAIN",
        folder.path().display()
    );
    let port = free_port();
    let start = |rank| {
        let mut args = run_args("direct", 1);
        args.extend(["--max-restarts", "1", "--", "sh", "-c", &script].map(Into::into));
        Launcher::of(std::process::Command::new(at("ranklaunch")), args).node(rank, 2, port).start()
    };
    for (rank, node) in [0, 1].map(|rank| (rank, start(rank))) {
        let ended = node.wait().expect_code(0).expect_nothing_left();
        assert!(ended.out.contains("AGAIN"), "{}", ended.out);
        assert_eq!(ended.run_json(rank)["attempt"], 1);
    }
}
