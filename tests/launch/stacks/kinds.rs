//! Ranks that are blocked in different ways: each is shown at its line.

use std::collections::BTreeMap;

use harness::{Launcher, root, run_args};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{document, eventually, line, list, stacks, text};

/// The activity of a rank, its function, and further facts about it.
struct Kind {
    name: &'static str,
    function: &'static str,
    gil: Option<bool>,
    /// The state of the thread in the kernel.
    state: &'static str,
    /// The system call, if it is the same with every C library.
    call: &'static str,
    /// True if the stack is in a process that the rank started.
    child: bool,
}

const fn kind(name: &'static str, function: &'static str, state: &'static str) -> Kind {
    Kind { name, function, gil: None, state, call: "", child: false }
}

const KINDS: &[Kind] = &[
    Kind { gil: Some(false), ..kind("sleeps", "sleeps", "S") },
    Kind { gil: Some(false), call: "futex", ..kind("locks", "locks", "S") },
    kind("loops", "loops", "R"),
    Kind { gil: Some(true), call: "clock_nanosleep", ..kind("holds", "holds", "S") },
    kind("matches", "matches", "R"),
    Kind { gil: Some(false), ..kind("threads", "inside", "S") },
    kind("coroutines", "inside", "S"),
    kind("stops", "stops", "T"),
    Kind { child: true, ..kind("forks", "forks", "S") },
    Kind { call: "read", ..kind("reads", "reads", "S") },
];

/// The processes in which the stack of a rank may be.
fn processes<'a>(rank: &'a Value, kind: &Kind) -> Vec<&'a Value> {
    match kind.child {
        true => list(&rank["children"]).iter().collect(),
        false => vec![&rank["process"]],
    }
}

/// The thread that has this line in one of its frames.
fn thread_at<'a>(processes: &[&'a Value], at: &(String, u64)) -> Option<&'a Value> {
    let is_there = |thread: &&Value| {
        list(&thread["python"]["frames"]).iter().any(|frame| {
            let (function, file, number) = line(frame);
            file.ends_with("/stacks_kinds.py") && (function, number) == *at
        })
    };
    processes.iter().flat_map(|process| list(&process["threads"])).find(is_there)
}

#[test]
fn blocked_rank_is_shown_at_its_line() {
    let program = root().join("tests/python/stacks_kinds.py");
    let source = std::fs::read_to_string(&program).expect("the program");
    let lines: BTreeMap<&str, u64> = (1..)
        .zip(source.lines())
        .filter_map(|(number, line)| Some((line.rsplit_once("  # ")?.1, number)))
        .collect();
    let at = |kind: &Kind| (kind.function.to_owned(), lines[kind.name]);
    let ranks = u32::try_from(KINDS.len()).expect("few");
    let mut job = Launcher::new(run_args("direct", ranks))
        .args(["--".into(), program.into_os_string()])
        .args(KINDS.iter().map(|kind| kind.name))
        .env("RANKLAUNCH_GRACE", "3s")
        .start();
    job.says("READY", KINDS.len());
    for (rank, kind) in KINDS.iter().enumerate() {
        eventually(kind.name, || {
            let seen = document(&job);
            let rank = &list(&seen["ranks"])[rank];
            let found = thread_at(&processes(rank, kind), &at(kind));
            let thread = found.ok_or_else(|| format!("not at its line: {rank:#}"))?;
            let (kernel, gil) = (&thread["kernel"], &thread["python"]["holds_gil"]);
            let right = kernel["state"] == kind.state
                && (kind.call.is_empty() || kernel["syscall"]["name"] == kind.call)
                && kind.gil.is_none_or(|holds| *gil == holds);
            if right { Ok(()) } else { Err(format!("{thread:#}")) }
        });
        // The control: no other rank is at this line.
        let seen = document(&job);
        for (other, its) in list(&seen["ranks"]).iter().zip(KINDS) {
            let found = thread_at(&processes(other, its), &at(kind));
            assert_eq!(found.is_some(), its.name == kind.name, "{other:#}");
        }
    }
    // A thread that loops holds the GIL, but for the moments in which it hands it over.
    for busy in ["loops", "matches"] {
        let rank = KINDS.iter().position(|kind| kind.name == busy).expect("it is there");
        eventually(busy, || {
            let seen = document(&job);
            let held = &list(&seen["ranks"])[rank]["process"]["threads"][0]["python"]["holds_gil"];
            if *held == true { Ok(()) } else { Err(held.to_string()) }
        });
    }
    let shown = stacks(&job, &["--rank", "9"]).expect_code(0);
    assert!(shown.out.contains("sleeping in read(fd "), "{}", shown.out);
    assert!(shown.out.contains("pipe:["), "{}", shown.out);
    job.signal(Signal::SIGTERM);
    job.wait().expect_nothing_left();
}

#[test]
fn dataloader_worker_is_a_child_of_its_rank() {
    let program = root().join("tests/python/stacks_kinds.py");
    let mut job = Launcher::new(run_args("direct", 1))
        .with_torch()
        .args(["--".into(), program.into_os_string(), "workers".into()])
        .env("RANKLAUNCH_GRACE", "3s")
        .start();
    job.says("READY", 1);
    eventually("two workers", || {
        let seen = document(&job);
        let rank = &list(&seen["ranks"])[0];
        let at_line = |process: &&Value| {
            let frames = |thread: &Value| {
                list(&thread["python"]["frames"]).iter().any(|frame| line(frame).0 == "__getitem__")
            };
            list(&process["threads"]).iter().any(frames)
        };
        let workers = list(&rank["children"]).iter().filter(at_line).count();
        let waits = super::lines(&rank["process"])
            .iter()
            .any(|stack| stack.iter().any(|(function, ..)| function == "workers"));
        if workers == 2 && waits { Ok(()) } else { Err(format!("{workers} {rank:#}")) }
    });
    let shown = stacks(&job, &[]).expect_code(0).out;
    assert!(shown.contains("Child processes "), "{shown}");
    assert!(shown.contains("Slow.__getitem__ ("), "{shown}");
    assert_eq!(shown.matches("Slow.__getitem__ (").count(), 1, "equal workers are one: {shown}");
    job.signal(Signal::SIGTERM);
    job.wait().expect_nothing_left();
}

#[test]
fn outlier_rank_comes_first() {
    let script = "\
import os, time
def load_batch():
    time.sleep(600)
def all_reduce():
    time.sleep(600)
print('READY', flush=True)
load_batch() if os.environ['RANK'] == '5' else all_reduce()
";
    let mut job = super::of_script(8, script);
    job.says("READY", 8);
    eventually("two groups", || {
        let groups = document(&job)["groups"].to_string();
        if groups == "[[5],[0,1,2,3,4,6,7]]" { Ok(()) } else { Err(groups) }
    });
    let shown = stacks(&job, &[]).expect_code(0).out;
    let (odd, rest) = shown.split_once("── ranks 0-4, 6-7 (7 of 8); this is rank 0").expect(&shown);
    assert!(odd.contains("── rank 5 (1 of 8)") && odd.contains("load_batch ("), "{shown}");
    assert!(rest.contains("all_reduce (") && !rest.contains("load_batch ("), "{shown}");
    let chinese = stacks(&job, &["--lang", "zh"]).expect_code(0).out;
    assert!(chinese.contains("── rank 5（8 个中的 1 个）"), "{chinese}");
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(143).expect_nothing_left();
}

#[test]
fn rank_without_python_shows_its_kernel_state() {
    let args = ["--", "sh", "-c", "echo READY; exec sleep 600"];
    let mut job = Launcher::new(run_args("direct", 1)).args(args).start();
    job.says("READY", 1);
    eventually("sleep", || {
        let seen = document(&job);
        let process = &seen["ranks"][0]["process"];
        let right = text(&process["name"]) == "sleep"
            && process["unread"]["why"] == "not_python"
            && process["threads"][0]["kernel"]["syscall"]["name"] == "clock_nanosleep";
        if right { Ok(()) } else { Err(process.to_string()) }
    });
    let shown = stacks(&job, &[]).expect_code(0).out;
    assert!(shown.contains("not a Python process"), "{shown}");
    assert!(shown.contains("\"sleep\": sleeping in clock_nanosleep"), "{shown}");
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(143).expect_nothing_left();
}

/// Real torch: rank 1 never enters the collective in which the others wait.
#[test]
fn rank_absent_from_a_collective_is_the_outlier() {
    let script = "\
import time, torch, torch.distributed as dist
dist.init_process_group('gloo')
def load_batch():
    time.sleep(600)
def step():
    if dist.get_rank() == 1: load_batch()
    dist.all_reduce(torch.ones(4))
print('READY', flush=True)
step()
";
    let launcher = Launcher::new(run_args("torchrun", 3));
    let file = launcher.folder().join("train.py");
    std::fs::write(&file, script).expect("written");
    let args = ["--".into(), file.into_os_string()];
    let mut job = launcher.args(args).env("RANKLAUNCH_GRACE", "5s").start();
    job.says("READY", 3);
    eventually("the odd rank", || {
        let seen = document(&job);
        let has = |rank: &Value, function: &str| {
            let stacks = super::lines(&rank["process"]);
            stacks.iter().any(|stack| stack.iter().any(|(name, ..)| name == function))
        };
        let is_right = list(&seen["ranks"]).iter().all(|rank| match rank["rank"] == 1 {
            true => has(rank, "load_batch") && !has(rank, "all_reduce"),
            false => has(rank, "all_reduce") && !has(rank, "load_batch"),
        });
        let groups = seen["groups"].to_string();
        if is_right && groups == "[[1],[0,2]]" { Ok(()) } else { Err(groups) }
    });
    let shown = stacks(&job, &[]).expect_code(0).out;
    assert!(shown.contains("── ranks 0, 2 (2 of 3); this is rank 0"), "{shown}");
    assert!(shown.contains("threads without Python: "), "{shown}");
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(143).expect_nothing_left();
}

#[test]
fn rank_on_dead_mount_shows_file_and_mount() {
    let mut left = None;
    let tried = harness::hung_mount::with_hung_mount(|folder| {
        let file = folder.join("checkpoint.pt").display().to_string();
        let script = format!("import os\nprint('READY', flush=True)\nos.stat('{file}')\n");
        let mut job = super::of_script(1, &script);
        job.says("READY", 1);
        eventually("the call", || {
            let seen = document(&job);
            let call = seen["ranks"][0]["process"]["threads"][0]["kernel"]["syscall"].clone();
            let (used, mount) = (&call["file"], &call["file"]["mount"]);
            let right = text(&used["path"]) == file
                && text(&mount["kind"]) == "fuse"
                && text(&mount["source"]) == "hung";
            if right { Ok(()) } else { Err(call.to_string()) }
        });
        let shown = stacks(&job, &[]).expect_code(0).out;
        let on = format!("({file}, on fuse {} from hung)", folder.display());
        assert!(shown.contains(&on) && shown.contains("<module> ("), "{on}: {shown}");
        left = Some(job);
    });
    // The mount is gone, so the rank fails.
    let ended = left.map(harness::Running::wait);
    assert_eq!(ended.is_some(), tried);
}

#[test]
fn second_interpreter_in_a_process_has_own_stacks() {
    let script = "\
import threading, time
try: import _interpreters as several
except ImportError: import _xxsubinterpreters as several
inner = 'import time' + chr(10) + 'def inside():' + chr(10) + '    time.sleep(600)' + chr(10) + 'inside()'
other = several.create()
run = getattr(several, 'exec', None) or several.run_string
threading.Thread(target=run, args=(other, inner), daemon=True).start()
print('READY', flush=True)
time.sleep(600)
";
    let mut job = super::of_script(1, script);
    job.says("READY", 1);
    eventually("both interpreters", || {
        let seen = document(&job);
        let process = &seen["ranks"][0]["process"];
        let inside = |thread: &&Value| {
            let frames = list(&thread["python"]["frames"]);
            frames
                .first()
                .is_some_and(|frame| line(frame) == ("inside".into(), "<string>".into(), 3))
        };
        let found = list(&process["threads"]).iter().find(inside).map(|thread| &thread["python"]);
        let main = &process["threads"][0]["python"]["interpreter"];
        match found.map(|python| &python["interpreter"]) {
            Some(number) if *number == 1 && main.is_null() => Ok(()),
            _ => Err(process.to_string()),
        }
    });
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(143).expect_nothing_left();
}
