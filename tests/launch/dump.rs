//! `ranklaunch dump`: the evidence of a hung job, with real torch on two nodes.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use harness::{Ended, Launcher, Running, free_port, program, run_args};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Rank 1 never enters the fourth all_reduce.
const SCRIPT: &str = "import os, sys, time, torch, torch.distributed as dist
def load_batch(): time.sleep(600)
dist.init_process_group('gloo')
for step in range(3):
    dist.all_reduce(torch.ones(1))
print('HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz', flush=True)
print('READY', flush=True)
load_batch() if dist.get_rank() == 1 else dist.all_reduce(torch.ones(1))
";

struct Job {
    nodes: [Running; 2],
    folder: tempfile::TempDir,
}

impl Job {
    fn start(options: &[&str]) -> Job {
        let (port, folder) = (free_port(), tempfile::tempdir().expect("a folder"));
        let file = folder.path().join("train.py");
        std::fs::write(&file, SCRIPT).expect("written");
        let mut nodes = [0, 1].map(|rank| {
            let launcher = Launcher::new(run_args("direct", 2)).node(rank, 2, port).args(options);
            let launcher = launcher.args([OsStr::new("--"), file.as_os_str()]).with_torch();
            launcher.env("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz").start()
        });
        for node in &mut nodes {
            node.says("READY", 2);
        }
        Job { nodes, folder }
    }

    fn ask(&self, args: &[&OsStr]) -> Ended {
        let run = self.nodes[0].run_id();
        let (command, rest) = args.split_first().expect("a command");
        let words = [*command, run.as_ref(), OsStr::new("--lang"), OsStr::new("en")];
        Launcher::new(words).args(rest).run()
    }

    fn dump(&self, name: &str) -> (Ended, PathBuf) {
        let output = self.folder.path().join(name);
        let words = ["dump", "--output"].map(OsStr::new);
        (self.ask(&[words[0], words[1], output.as_os_str()]), output)
    }

    /// Waits until the other ranks wait for rank 1.
    fn stands_still(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let shown = self.ask(&["stacks", "--format", "json"].map(OsStr::new));
            let shown: Value = serde_json::from_str(&shown.out).expect("JSON");
            if shown["groups"][0] == json!([1]) && shown["groups"][1] == json!([0, 2, 3]) {
                return;
            }
            assert!(Instant::now() < deadline, "{}", shown["groups"]);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn end(self) {
        for node in &self.nodes {
            node.signal(Signal::SIGTERM);
        }
        self.nodes.into_iter().for_each(|node| drop(node.wait().expect_nothing_left()));
    }
}

/// The files below a folder, as paths relative to it.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in next.read_dir().expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("below").display().to_string();
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn dump_has_all_nodes_evidence_and_the_culprit() {
    let job = Job::start(&[]);
    job.stands_still();
    let (ended, folder) = job.dump("evidence");
    let said = ended.expect_code(0).out;
    let mut expected: Vec<String> = (0..4).map(|rank| format!("rank_{rank}.json")).collect();
    expected.extend(["dump.json", "stacks.json", "stacks.txt"].map(str::to_owned));
    for node in 0..2 {
        let own = ["agent.jsonl", "node.json", "node.state", "plan.json"].map(str::to_owned);
        let ranks = [2 * node, 2 * node + 1].into_iter();
        let ranks =
            ranks.flat_map(|rank| ["log", "state"].map(|end| format!("rank-{rank:05}.{end}")));
        expected.extend(own.into_iter().chain(ranks).map(|name| format!("node-{node}/{name}")));
    }
    expected.sort();
    assert_eq!(files(&folder), expected, "{said}");
    for line in [
        "stacks.json, stacks.txt  stacks of ranks 0-3\n",
        "rank_N.json              flight recorders of ranks 0-3\n",
        "node-N/rank-N.log        last lines of ranks 0-3\n",
        "23 files in ",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(!said.contains("missing"), "{said}");
    let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("stacks.txt"))), (0o700, 0o600));
    assert!(read(&folder, "node-0/rank-00001.log").contains("READY"));
    assert!(read(&folder, "node-1/rank-00003.state").contains("State:"));
    assert!(read(&folder, "stacks.txt").contains("load_batch ("));
    for name in &expected {
        assert!(!read(&folder, name).contains("hf_abcdefgh"), "{name}");
    }

    // Records of short waits name no culprit yet.
    let deadline = Instant::now() + Duration::from_secs(60);
    for count in 0.. {
        let (_, folder) = job.dump(&format!("evidence-{count}"));
        let explained = Launcher::new(["explain", "--format", "json"]).args([&folder]).run();
        let explained: Value = serde_json::from_str(&explained.expect_code(0).out).expect("JSON");
        let hang = &explained["hang"][0];
        assert_eq!(hang["read"], json!([0, 1, 2, 3]), "{explained:#}");
        let culprit = &hang["culprits"][0];
        if (&culprit["rank"], &culprit["kind"]) == (&json!(1), &json!("never_entered")) {
            break;
        }
        assert!(Instant::now() < deadline, "{explained:#}");
    }

    // A dump is never mixed with an existing one.
    let (again, _) = job.dump("evidence");
    let again = again.expect_code(64).expect_id("report.write");
    assert!(again.err.contains("is not empty"), "{}", again.err);
    job.end();
}

#[test]
fn missing_evidence_is_named_with_the_reason() {
    let job = Job::start(&["--inject", "off"]);
    let agent = job.nodes[1].agent();
    let (ended, folder) = job.dump("without");
    let said = ended.expect_code(0).out;
    let line = "missing: the flight recorders (node 1): the ranks have no control socket";
    assert!(said.contains(line), "{said}");
    assert!(!files(&folder).contains(&"rank_0.json".to_owned()));
    // Node 1 is silent for less time than the job tolerates; the evidence of the other node is written all
    // the same.
    harness::send(agent, Signal::SIGSTOP);
    let (silent, folder) = job.dump("silent");
    harness::send(agent, Signal::SIGCONT);
    assert!(silent.out.contains("missing: node 1: "), "{}\n{}", silent.out, silent.err);
    let written = files(&folder);
    assert!(written.contains(&"node-0/plan.json".to_owned()), "{written:?}");
    assert!(!written.iter().any(|name| name.starts_with("node-1")), "{written:?}");
    let index: Value = serde_json::from_str(&read(&folder, "dump.json")).expect("JSON");
    assert!(index["missing"].to_string().contains("node 1"), "{index}");
    job.end();
}

/// torch 2.15 has the record of `nccl2` under that name alone.
#[test]
fn each_backend_of_a_rank_has_a_file() {
    let mut args = run_args("direct", 1);
    args.extend(["--".into(), program("named_backend.py").into_os_string()]);
    let mut running = Launcher::new(args).with_torch().start();
    running.says("READY", 1);
    let output = running.folder().join("evidence");
    let dump = ["dump", &running.run_id(), "--output"];
    Launcher::new(dump).args([&output]).run().expect_code(0);
    let names: Vec<_> =
        files(&output).into_iter().filter(|name| name.starts_with("rank_")).collect();
    assert_eq!(names, ["rank_0.2.json", "rank_0.json"]);
    assert!(read(&output, "rank_0.json").contains("\"nccl2:all_reduce\""));
    assert!(read(&output, "rank_0.2.json").contains("\"gloo:all_reduce\""));
    running.signal(Signal::SIGTERM);
    running.wait().expect_nothing_left();
}
