//! Ranks that are forked from a warmed interpreter: they equal unforked ranks (`conformance`), every end of any
//! process ends the job as usual, and the warm start steps aside if necessary (`aside`).

mod aside;
mod configured;
mod conformance;

use std::path::Path;

use harness::alive::is_alive;
use harness::{Launcher, Running, program, run_args, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

fn job(engine: &str, nproc: u32, warm: &str, more: &[&str], script: &str) -> Launcher {
    let mut args = run_args(engine, nproc);
    args.extend(["--warm", warm].map(Into::into));
    args.extend(more.iter().map(Into::into));
    args.extend(["--".into(), program(script).into_os_string()]);
    Launcher::new(args).with_torch()
}

/// `warmed.py HOW`, after its ranks have begun.
fn began(engine: &str, more: &[&str], how: &str) -> Running {
    let launcher = job(engine, 2, "required", more, "warmed.py");
    let folder = launcher.folder().display().to_string();
    let mut running = launcher.args([how, &folder]).start();
    running.says("began ", 2);
    assert_eq!(running.out().matches(" forked").count(), 2, "{}", running.out());
    running
}

/// The record that a rank wrote at its beginning.
fn beginning(folder: &Path, rank: u32, attempt: u32) -> Value {
    let text = std::fs::read(folder.join(format!("began-{rank}-{attempt}"))).expect("it began");
    serde_json::from_slice(&text).expect("JSON")
}

fn pid(value: &Value) -> i32 {
    i32::try_from(value.as_i64().expect("a number")).expect("a pid")
}

/// The warmed interpreter: the process with this name in its environment that is not a rank.
fn interpreter(running: &Running) -> i32 {
    let ranks: Vec<i32> =
        (0..2).map(|rank| pid(&beginning(running.folder(), rank, 0)["pid"])).collect();
    let warmed = |pid: &i32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environ).contains("RANKLAUNCH_WARM_LISTEN=")
    };
    let of_job = running.processes();
    let found: Vec<i32> = of_job
        .iter()
        .map(|process| process.pid)
        .filter(|pid| warmed(pid) && !ranks.contains(pid))
        .collect();
    let [one] = *found else { panic!("{found:?} of {of_job:?}") };
    one
}

#[test]
fn killed_rank_ends_the_job_as_usual() {
    let running = began("direct", &[], "waits");
    harness::send(pid(&beginning(running.folder(), 1, 0)["pid"]), Signal::SIGKILL);
    running.wait().expect_code(137).expect_nothing_left().expect_words(&["rank 1", "SIGKILL"]);
}

/// The victim is the rank's parent, which the agent knows as its shim.
#[test]
fn killed_shim_ends_the_job() {
    for engine in ["direct", "torchrun"] {
        let running = began(engine, &[], "waits");
        harness::send(pid(&beginning(running.folder(), 1, 0)["shim"]), Signal::SIGKILL);
        let ended = running.wait().expect_nothing_left_in(engine);
        assert_ne!(ended.code, 0, "{engine} {}", ended.err);
    }
}

/// The victim is the engine's own child.
#[test]
fn killed_relay_ends_the_job() {
    for engine in ["direct", "torchrun"] {
        let running = began(engine, &[], "waits");
        let shims: Vec<i32> =
            (0..2).map(|rank| pid(&beginning(running.folder(), rank, 0)["shim"])).collect();
        let is_relay = |argv: &[String]| argv.get(1).is_some_and(|role| role == "rank");
        let relays: Vec<i32> = running
            .processes()
            .iter()
            .filter(|process| is_relay(&process.argv) && !shims.contains(&process.pid))
            .map(|process| process.pid)
            .collect();
        assert_eq!(relays.len(), 2, "{engine} {:?}", running.processes());
        harness::send(relays[0], Signal::SIGKILL);
        let ended = running.wait().expect_nothing_left_in(engine);
        assert_ne!(ended.code, 0, "{engine} {}", ended.err);
    }
}

/// No process needs the warmed interpreter any more.
#[test]
fn ranks_outlive_the_warmed_interpreter() {
    let running = began("direct", &["--grace", "5s"], "handles");
    let interpreter = interpreter(&running);
    harness::send(interpreter, Signal::SIGKILL);
    wait_until("the interpreter's end", || (!is_alive(interpreter)).then_some(()));
    assert!(is_alive(pid(&beginning(running.folder(), 0, 0)["pid"])));
    running.signal(Signal::SIGTERM);
    let ended = running.wait().expect_code(143).expect_nothing_left();
    assert_eq!(ended.out.matches("told").count(), 2, "{}", ended.out);
}

#[test]
fn stop_reaches_every_rank_once_in_time() {
    for engine in ["direct", "torchrun"] {
        let running = began(engine, &["--grace", "20s"], "handles");
        running.signal(Signal::SIGTERM);
        let ended = running.wait().expect_code(143).expect_nothing_left_in(engine);
        assert_eq!(ended.out.matches("told").count(), 2, "{engine} {}", ended.out);
    }
    let mut running = began("direct", &["--grace", "3s"], "ignores");
    running.says("deaf", 2);
    running.signal(Signal::SIGTERM);
    running.wait().expect_code(143).expect_nothing_left();
}

#[test]
fn nothing_survives_a_killed_agent_or_guard() {
    for victim in ["agent", "guard"] {
        let running = began("direct", &[], "ignores");
        let pid = if victim == "agent" { running.agent() } else { running.pid() };
        harness::send(pid, Signal::SIGKILL);
        running.wait().expect_nothing_left_soon_in(victim);
    }
}

#[test]
fn leftovers_of_a_rank_are_ended() {
    let running = began("direct", &["--grace", "2s"], "leaves");
    let ended = running.wait().expect_code(0).expect_nothing_left();
    assert!(ended.err.contains("sleep"), "{}", ended.err);
}

#[test]
fn next_attempt_forks_from_the_same_interpreter() {
    for engine in ["direct", "torchrun"] {
        let launcher = job(engine, 2, "required", &["--max-restarts", "1"], "warmed.py");
        let folder = launcher.folder().to_path_buf();
        let text = folder.display().to_string();
        let ended = launcher.args(["fails-once", &text]).run().expect_code(0).expect_nothing_left();
        assert!(!ended.out.contains(" alone"), "{engine} {}", ended.out);
        let (first, second) = (beginning(&folder, 0, 0), beginning(&folder, 0, 1));
        assert_eq!((&first["count"], &first["own"]), (&"0".into(), &"0".into()), "{engine}");
        assert_eq!((&second["count"], &second["own"]), (&"1".into(), &"1".into()), "{engine}");
        assert_eq!(second["forked"], true, "{engine}");
    }
}

#[test]
fn a_forked_rank_reads_standard_input() {
    for engine in ["direct", "torchrun"] {
        let (pipe, mut writer) = std::io::pipe().expect("a pipe");
        std::io::Write::write_all(&mut writer, b"bob\n").expect("room");
        let launcher = job(engine, 2, "required", &[], "warmed.py").stdin(pipe);
        let folder = launcher.folder().display().to_string();
        let ended = launcher.args(["reads", &folder]).run().expect_code(0).expect_nothing_left();
        assert!(!ended.out.contains(" alone"), "{engine} {}", ended.out);
        let (first, other) = ("[r0] read 'bob\\n'", "[r1] read ''");
        assert!(ended.out.contains(first) && ended.out.contains(other), "{engine} {}", ended.out);
    }
}
