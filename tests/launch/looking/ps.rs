//! `ranklaunch ps`: the running jobs with all their nodes, and the ended runs.

use harness::{Launcher, Place, Role, Running, free_port};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{asked, shell, two_nodes};

fn jobs(args: &[&str]) -> Value {
    let all: Vec<&str> = ["ps", "--format", "json"].iter().chain(args).copied().collect();
    serde_json::from_str(&asked(&all).expect_code(0).out).expect("JSON")
}

fn job<'a>(all: &'a Value, run: &str) -> Option<&'a Value> {
    all["jobs"].as_array()?.iter().find(|job| job["run_id"] == run)
}

fn stopped(nodes: impl IntoIterator<Item = Running>) {
    let nodes: Vec<Running> = nodes.into_iter().collect();
    nodes.iter().for_each(|node| node.signal(Signal::SIGTERM));
    nodes.into_iter().for_each(|node| drop(node.wait().expect_nothing_left()));
}

#[test]
fn a_job_is_listed_with_all_its_nodes() {
    let mut nodes = two_nodes("echo READY; sleep 600");
    for node in &mut nodes {
        node.says("READY", 1);
    }
    let run = nodes[0].run_id();
    let all = jobs(&[]);
    let job = job(&all, &run).unwrap_or_else(|| panic!("{all:#}"));
    let of_nodes = job["nodes"].as_array().expect("nodes");
    assert_eq!(of_nodes.len(), 2, "{job:#}");
    for (number, node) in of_nodes.iter().enumerate() {
        assert_eq!(node["run"]["node"], number);
        assert_eq!(node["phase"], "running");
        assert_eq!(node["ranks"][0]["rank"], number);
        assert_eq!(node["ranks"][0]["last_line"], "READY");
    }
    let shown = asked(&["ps"]).expect_code(0).out;
    let (_, of_run) = shown.split_once(&format!("run {run} (agent ")).expect("the run");
    for line in ["  node 0  ", "  node 1  ", "  running  ", "1 of 1 rank"] {
        assert!(of_run.contains(line), "{line}: {shown}");
    }
    stopped(nodes);
    assert!(asked(&["ps"]).expect_code(0).out.lines().all(|line| !line.contains(&run)));
}

/// Node 0 of two, which waits for the other: it has a plan, no ranks and no log folder.
#[test]
fn job_waiting_for_nodes_is_listed_as_agreeing() {
    let mut node = shell(1, &[], "sleep 600").node(0, 2, free_port()).start();
    let agent = node.agent();
    let found = |all: &Value| {
        let waits = |job: &&Value| job["nodes"][0]["agent_pid"] == agent;
        all["jobs"].as_array()?.iter().find(waits).cloned()
    };
    node.waits("it is listed", |_| {
        found(&jobs(&[])).is_some_and(|job| job["nodes"][0]["phase"] == "agreeing")
    });
    let job = found(&jobs(&[])).expect("it is listed");
    assert_eq!(job["nodes"][0]["run"]["nodes"], 2, "{job:#}");
    let shown = asked(&["ps"]).expect_code(0).out;
    assert!(shown.contains(&format!("(agent {agent})")), "{shown}");
    assert!(shown.contains("  agreeing  "), "{shown}");
    stopped([node]);
}

/// As with the host's network: the agent has another number in its own namespace, and answers nobody else there.
#[test]
fn agent_of_another_pid_namespace_is_named_here() {
    if !Place::Namespace.exists() {
        return;
    }
    let mut job = Launcher::at(Place::Namespace).direct(1, &[], &["wait"]);
    job.says("READY", 1);
    let agent = job.find(Role::Agent);
    let shown = asked(&["ps"]).expect_code(0).out;
    let named = format!("(agent {agent})\n  it is in another container");
    assert!(shown.contains(&named), "{named}: {shown}");
    let all = jobs(&[]);
    let has_number = |job: &Value| job["agent_pid"] == agent;
    assert!(all["jobs"].as_array().is_some_and(|jobs| jobs.iter().any(has_number)), "{all:#}");
    job.send(Role::Guard, Signal::SIGTERM);
    job.wait().expect_code(143).expect_nothing_left();
}

#[test]
fn ended_runs_are_listed_with_their_verdict() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = folder.path().display().to_string();
    let options = ["--log-dir", &logs];
    shell(1, &options, "exit 0").run().expect_code(0);
    shell(1, &options, "exit 7").run().expect_code(7);
    let args = ["ps", "--all", "--log-dir", &logs];
    let shown = asked(&args).expect_code(0).out;
    let (_, earlier) = shown.split_once("earlier runs:\n").expect("both");
    let rows: Vec<&str> = earlier.lines().collect();
    assert!(rows.len() == 2 && rows[0].contains("exit code 7  rank.exit"), "{earlier}");
    assert!(rows[1].contains("exit code 0  done"), "{earlier}");
    let all = jobs(&args[1..]);
    assert_eq!(all["ended"][0]["exit_code"], 7);
    assert_eq!(all["ended"][1]["lives"], false);
    assert!(all["ended"][1]["bytes"].as_u64().is_some_and(|bytes| bytes > 100));
}
