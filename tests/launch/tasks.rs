//! A platform that starts its command once per rank: four launchers, as on two nodes of Slurm, each
//! of which starts one rank of one job.

use std::path::{Path, PathBuf};

use harness::inside::{self, READY};
use harness::{Ended, Launcher, Running, free_port, program, python, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Rank, node, local rank: three tasks on the first node, one on the second.
const UNEVEN: [(u32, u32, u32); 4] = [(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 1, 0)];
/// Two tasks on each node, dealt out in turn.
const CYCLIC: [(u32, u32, u32); 4] = [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)];

/// A job of four tasks on two nodes, all of them on this host.
struct Job {
    tasks: [(u32, u32, u32); 4],
    per_node: &'static str,
    port: u16,
    /// The log folder of all tasks, as on a file system that the nodes share.
    logs: tempfile::TempDir,
}

impl Job {
    fn new(tasks: [(u32, u32, u32); 4], per_node: &'static str) -> Job {
        Job { tasks, per_node, port: free_port(), logs: tempfile::tempdir().expect("a folder") }
    }

    fn even() -> Job {
        Job::new(CYCLIC, "2(x2)")
    }

    /// `ranklaunch run --engine ENGINE MORE` as one task of the job.
    fn launcher(&self, engine: &str, (rank, node, local): (u32, u32, u32)) -> Launcher {
        Launcher::new(["run", "--engine", engine, "--device", "cpu", "--python"])
            .args([python().into_os_string(), "--log-dir".into(), self.logs.path().into()])
            .env("SLURM_JOB_ID", self.port.to_string())
            .env("SLURM_STEP_ID", "0")
            .env("SLURM_STEP_NUM_NODES", "2")
            .env("SLURM_STEP_NODELIST", "n[1-2]")
            .env("SLURM_STEP_NUM_TASKS", "4")
            .env("SLURM_STEP_TASKS_PER_NODE", self.per_node)
            .env("SLURM_NODEID", node.to_string())
            .env("SLURM_PROCID", rank.to_string())
            .env("SLURM_LOCALID", local.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", self.port.to_string())
    }

    fn start(&self, more: &[&str], script: &[&str]) -> Vec<Running> {
        let start = |task: &(u32, u32, u32)| {
            let launcher = self.launcher("direct", *task).args(more).args(["--"]);
            launcher.args(script).start()
        };
        self.tasks.iter().map(start).collect()
    }

    /// `rank.sh WHAT` as every rank.
    fn ranks(&self, more: &[&str], what: &str) -> Vec<Running> {
        let script = program("rank.sh");
        self.start(more, &[script.to_str().expect("text"), what])
    }

    /// The folder of one task in the newest run.
    fn folder(&self, (_, node, local): (u32, u32, u32)) -> PathBuf {
        self.logs.path().join("latest").join(format!("node-{node}-task-{local}"))
    }

    fn run_json(&self, task: (u32, u32, u32)) -> Value {
        let text = std::fs::read_to_string(self.folder(task).join("run.json")).expect("run.json");
        serde_json::from_str(&text).expect("it is JSON")
    }
}

fn wait_all(tasks: Vec<Running>) -> Vec<Ended> {
    tasks.into_iter().map(|task| task.wait().expect_nothing_left()).collect()
}

/// A process that must not outlive its test.
struct Leftover(i32);

impl Drop for Leftover {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0);
        let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|one| one.expect("an entry").file_name().to_string_lossy().into()).collect();
    names.sort();
    names
}

#[test]
fn each_task_starts_its_rank_with_own_files() {
    let job = Job::new(UNEVEN, "3,1");
    let print = "echo \"$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $NODE_RANK $MASTER_ADDR:$MASTER_PORT\"";
    let ended = wait_all(job.start(&[], &["sh", "-c", print]));
    let mut run_ids = Vec::new();
    for (ended, task) in ended.into_iter().zip(UNEVEN) {
        let (rank, node, local) = task;
        let ended = ended.expect_code(0);
        let of = [3, 1][node as usize];
        let port = job.port;
        let line = format!("{rank}/4 {local}/{of} {node}/2 {node} 127.0.0.1:{port}");
        assert_eq!(ended.out, format!("[r{rank}] {line}\n"), "only its own rank\n{}", ended.err);
        // The first task of a node reports what its tasks have in common.
        let place = format!("rank {rank} of 4, local rank {local} of {of}, on node {node} of 2");
        assert_eq!(ended.err.contains("── ranklaunch: rank "), local == 0, "{}", ended.err);
        assert!(ended.err.contains(&place), "{}", ended.err);
        assert_eq!(ended.err.contains("all 4 tasks agree: one rank each"), local == 0);

        let folder = job.folder(task);
        assert_eq!(names(&folder), ["agent.jsonl", "attempt-0", "report.html", "run.json"]);
        let logs: Vec<String> = names(&folder.join("attempt-0"))
            .into_iter()
            .filter(|name| name.starts_with("rank-"))
            .collect();
        assert!(logs.iter().all(|name| name.starts_with(&format!("rank-{rank:05}"))), "{logs:?}");
        let log = folder.join(format!("attempt-0/rank-{rank:05}.out"));
        assert_eq!(std::fs::read_to_string(log).expect("the log"), format!("{line}\n"));
        let run = job.run_json(task);
        assert_eq!(run["plan"]["membership"]["task"]["rank"], rank, "{run:#}");
        assert_eq!(run["outcome"]["ranks"].as_array().map(Vec::len), Some(1));
        run_ids.push(run["run_id"].clone());
    }
    assert!(run_ids.iter().all(|id| id == &run_ids[0]), "one run: {run_ids:?}");
    // The run has a folder of each task, and the report of the job.
    assert_eq!(names(&job.logs.path().join("latest")).len(), 5);
}

/// The environment is the same with engine torchrun, which would start as many ranks again in each
/// task.
#[test]
fn other_engines_refuse_one_start_per_rank() {
    let job = Job::even();
    let launcher = job.launcher("torchrun", CYCLIC[3]).args(["--", "train.py"]);
    let ended = launcher.run().expect_code(65).expect_nothing_left();
    let ended = ended.expect_id("membership.tasks");
    assert!(ended.err.contains("SLURM_STEP_TASKS_PER_NODE=2(x2)"), "{}", ended.err);
    assert!(ended.err.contains("--engine direct"), "{}", ended.err);
}

#[test]
fn failing_task_ends_all_with_one_cause() {
    let job = Job::even();
    let ended = wait_all(job.ranks(&[], "exit-7-on-rank-1"));
    for (ended, task) in ended.iter().zip(CYCLIC) {
        let code = if task.0 == 1 { 7 } else { 143 };
        assert_eq!(ended.code, code, "{task:?}\n{}", ended.err);
        // Rank 1 is the first task of node 1.
        assert_eq!(ended.id(), Some("rank.exit"), "{}", ended.err);
        let verdict = job.run_json(task)["verdict"].clone();
        assert_eq!((&verdict["rank"], &verdict["node"]), (&1.into(), &1.into()), "{verdict}");
    }
}

#[test]
fn a_killed_agent_ends_all_and_is_named() {
    let job = Job::even();
    let mut tasks = job.ranks(&[], "wait");
    tasks.iter_mut().for_each(|task| {
        task.says("READY", 1);
    });
    harness::kill(tasks[3].agent());
    let ended = wait_all(tasks);
    let codes: Vec<i32> = ended.iter().map(|ended| ended.code).collect();
    assert_eq!(codes, [143, 143, 143, 137]);
    for (ended, task) in ended.iter().zip(CYCLIC).take(3) {
        assert_eq!(ended.id(), Some("node.died"), "{}", ended.err);
        assert!(ended.err.contains(" task 3 ("), "{}", ended.err);
        // The verdict names the node of rank 1.
        assert_eq!(job.run_json(task)["verdict"]["node"], 1, "{}", ended.err);
    }
}

#[test]
fn term_to_every_task_ends_all_with_143() {
    let job = Job::even();
    let mut tasks = job.ranks(&[], "escape");
    tasks.iter_mut().for_each(|task| {
        task.says("READY", 1);
    });
    // Every task gets the signal, as from scancel.
    tasks.iter().for_each(|task| task.signal(Signal::SIGTERM));
    for ended in wait_all(tasks) {
        ended.expect_code(143);
    }
}

#[test]
fn all_tasks_start_again_together() {
    let job = Job::even();
    let once = job.logs.path().join("failed-once");
    let script = format!(
        "if [ $RANK = 2 ] && mkdir {} 2>/dev/null; then kill -9 $$; fi; echo fine",
        once.display()
    );
    let ended = wait_all(job.start(&["--max-restarts", "1"], &["sh", "-c", &script]));
    for (ended, task) in ended.into_iter().zip(CYCLIC) {
        let ended = ended.expect_code(0);
        assert!(ended.out.contains(&format!("[r{}] fine", task.0)), "{}\n{}", ended.out, ended.err);
        assert!(job.folder(task).join("attempt-1").is_dir());
    }
}

/// Leftovers are ended once, by the first task of the node, and no sibling task counts as
/// leftover, even with `force`.
#[test]
fn one_task_ends_leftovers_and_spares_siblings() {
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    inside::run(unshare, inside_leftovers);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_leftovers() {
    assert_eq!(std::process::id(), 1, "this half runs in a namespace of its own");
    println!("{READY}");
    let job = Job::even();
    let script = job.logs.path().join("train.py");
    let text = "import os, sys, time\n\
        open(sys.argv[1] + '.up', 'w').close()\n\
        print('READY', flush=True)\n\
        while not os.path.exists(sys.argv[1]): time.sleep(0.02)\n";
    std::fs::write(&script, text).expect("written");
    let script = script.to_str().expect("text");
    let (left, over) = (job.logs.path().join("left"), job.logs.path().join("over"));
    // A rank without a launcher: orphaned by the shell that started it.
    let pid_file = job.logs.path().join("pid");
    let line = format!(
        "setsid {} {script} {} > /dev/null 2>&1 & echo $! > {}",
        python().display(),
        left.display(),
        pid_file.display()
    );
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", &line])
        .env("LOCAL_RANK", "0")
        .env("RANK", "0")
        .env("TORCHELASTIC_RUN_ID", "x");
    harness::run_tool(&mut shell);
    let pid: i32 =
        std::fs::read_to_string(&pid_file).expect("a pid").trim().parse().expect("number");
    let leftover = Leftover(pid);
    let is_there = || std::fs::exists(format!("/proc/{pid}/exe")).is_ok_and(|there| there);
    wait_until("the leftover", || job.logs.path().join("left.up").exists().then_some(()));

    let over_text = over.to_str().expect("text").to_owned();
    let mut tasks = job.start(&["--stale", "force"], &[script, &over_text]);
    tasks.iter_mut().for_each(|task| {
        task.says("READY", 1);
    });
    assert!(!is_there(), "it is gone before any rank begins");
    // The pid may belong to another process by now.
    std::mem::forget(leftover);
    std::fs::write(&over, "").expect("written");
    let ended = wait_all(tasks);
    let pid = format!("pid {pid}");
    let mut told = 0;
    for (ended, (_, node, local)) in ended.into_iter().zip(CYCLIC) {
        let ended = ended.expect_code(0);
        told += usize::from(ended.err.contains(&pid));
        assert!(local == 0 || !ended.err.contains(&pid), "node {node}\n{}", ended.err);
    }
    assert!(told > 0);
}

/// Tasks meet without torchrun: gloo adds up the values of all four ranks.
#[test]
fn torch_reduces_over_four_tasks() {
    let job = Job::new(UNEVEN, "3,1");
    let script = program("reduce.py");
    let tasks = job.start(&[], &[script.to_str().expect("text"), "3"]);
    for ended in wait_all(tasks) {
        let ended = ended.expect_code(0);
        assert!(ended.out.contains("READY: the sum of 4 ranks is 6"), "{}", ended.out);
    }
}

/// The plan of one task, with the source of each number.
#[test]
fn plan_names_the_rank_and_its_source() {
    let job = Job::new(UNEVEN, "3,1");
    let shown = |format: &str| {
        let launcher = Launcher::new(["plan", "--engine", "direct", "--device", "cpu", "--python"]);
        let mut launcher = launcher.args([python().into_os_string()]);
        for (name, value) in [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "n[1-2]"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_STEP_TASKS_PER_NODE", job.per_node),
            ("SLURM_NODEID", "0"),
            ("SLURM_PROCID", "2"),
            ("SLURM_LOCALID", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
        ] {
            launcher = launcher.env(name, value);
        }
        let ended = launcher.args(["--format", format, "--", "sh", "-c", "true"]).run();
        ended.expect_code(0).out
    };
    let text = shown("text");
    assert!(text.starts_with("rank 2 of 4, local rank 2 of 3, on node 0 of 2"), "{text}");
    for source in ["SLURM_PROCID=2", "SLURM_LOCALID=2", "SLURM_STEP_NUM_TASKS=4", "=3,1"] {
        assert!(text.contains(&format!("{source}]")), "{source}\n{text}");
    }
    let plan: Value = serde_json::from_str(&shown("json")).expect("JSON");
    let task = &plan["membership"]["task"];
    assert_eq!((&task["rank"], &task["world"]), (&2.into(), &4.into()), "{plan:#}");
    assert_eq!((&task["local"], &task["of"]), (&2.into(), &3.into()), "{plan:#}");
}
