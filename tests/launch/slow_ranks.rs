//! Ranks of real torch, one of which holds the others back, and the rank that is named for it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use harness::{Launcher, Running, free_port, program, run_args, skipped};
use serde_json::{Value, json};

const JOURNAL: &str = "ranklaunch-logs/latest/node-0/agent.jsonl";

fn steps(kind: &str, ranks: u32, seconds: u32) -> Launcher {
    let words = [kind.to_owned(), seconds.to_string()];
    let launcher = Launcher::new(run_args("direct", ranks)).with_torch();
    launcher.args(["--".into(), program("steps.py").into_os_string()]).args(words)
}

/// The events of this kind up to now.
fn events(folder: &Path, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join(JOURNAL)).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.map(|mut line| line["fields"].take()).filter(|event| event["message"] == kind).collect()
}

/// The first slow rank, while the job runs.
fn named(running: &mut Running) -> Value {
    running.waits("a slow rank", |one| !events(one.folder(), "slow").is_empty());
    events(running.folder(), "slow").remove(0)
}

/// One job names its slow rank within a minute; two other jobs run meanwhile and name none.
#[test]
fn only_the_late_rank_is_named() {
    let even = steps("even", 3, 50).start();
    let turns = steps("turns", 2, 50).start();
    let mut late = steps("late", 3, 300).start();
    let slow = named(&mut late);
    assert_eq!((&slow["rank"], &slow["node"]), (&json!(1), &json!(0)), "{slow:#}");
    assert_eq!(slow["group"], "default_pg");
    let number = |name: &str| slow[name].as_f64().expect(name);
    assert!(number("lost") > 0.2 && number("share") > 0.8, "{slow:#}");
    assert!((10.0..60.0).contains(&number("median_ms")), "{slow:#}");
    late.waits("a line", |one| {
        one.err().contains("rank 1 holds the others of group default_pg back")
    });
    // The rank is not named once more for each look.
    assert_eq!(events(late.folder(), "slow").len(), 1);
    drop(late);
    for (kind, job) in [("even", even), ("turns", turns)] {
        let ended = job.wait().expect_code(0);
        let journal = ended.node_folder(0).join("agent.jsonl");
        let text = std::fs::read_to_string(journal).expect("a journal");
        assert!(text.contains("\"sampled\"") && !text.contains("\"slow\""), "{kind}");
        assert!(!ended.err.contains("holds the others"), "{kind}\n{}", ended.err);
    }
}

/// Node 0 names the slow rank by the records of both nodes, with the other node's measurements of it.
#[test]
fn node_0_names_another_nodes_slow_rank() {
    let (port, group) = (free_port(), Group::new("nodes"));
    let start = |node| {
        let kind = if group.is_some() { "throttled" } else { "late" };
        let job = steps(kind, 2, 300).node(node, 2, port).env("LATE_RANK", "3");
        job.env("RANK_GROUP", group.as_ref().map_or(Path::new(""), |group| &group.0)).start()
    };
    let (mut zero, mut one) = (start(0), start(1));
    let slow = named(&mut zero);
    assert_eq!((&slow["rank"], &slow["node"]), (&json!(3), &json!(1)), "{slow:#}");
    assert!(slow["lost"].as_f64() > Some(0.2), "{slow:#}");
    zero.waits("a line", |zero| zero.err().contains("rank 3 holds the others"));
    if group.is_some() {
        let reason = &slow["reasons"][0];
        assert_eq!((&reason["kind"], &reason["ranks"]), (&json!("cpu_throttled"), &json!([3])));
        assert!(zero.err().contains("node 1: the control group was throttled"), "{}", zero.err());
    }
    assert!(!one.err().contains("holds the others"), "{}", one.err());
    one.waits("its ranks", |one| !one.processes().is_empty());
}

#[test]
fn slow_ranks_cpu_limit_is_the_reason() {
    let Some(group) = Group::new("node") else { return };
    let mut job = steps("throttled", 2, 300).env("RANK_GROUP", &group.0).start();
    let slow = named(&mut job);
    assert_eq!(slow["rank"], 1, "{slow:#}");
    let reason = &slow["reasons"][0];
    assert_eq!((&reason["kind"], &reason["ranks"]), (&json!("cpu_throttled"), &json!([1])));
    let text = reason["text"]["en"].as_str().expect("a sentence");
    assert!(text.contains("throttled") && text.contains("(cpu.max) of 0.03 CPUs"), "{text}");
    // A separate thread writes the console.
    job.waits("the line", |job| job.err().contains(text));
}

/// A control group with 3 % of a CPU, less than a process gets on a machine that other tests keep
/// busy.
struct Group(PathBuf);

impl Group {
    fn new(of: &str) -> Option<Group> {
        let name = format!("ranklaunch-slow-{of}-{}", std::process::id());
        for (top, file, value) in [
            ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "3000"),
            ("/sys/fs/cgroup", "cpu.max", "3000 100000"),
        ] {
            let group = Group(Path::new(top).join(&name));
            if std::fs::create_dir(&group.0).is_ok()
                && std::fs::write(group.0.join(file), value).is_ok()
            {
                return Some(group);
            }
        }
        skipped("no control group of CPU time can be made");
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let until = Instant::now() + harness::TIMEOUT;
        while self.0.exists() && std::fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
