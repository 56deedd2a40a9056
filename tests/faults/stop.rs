//! Stopping a job that resists: repeated and second signals, stopped processes, waits, processes
//! that fork while they are killed.

use std::path::Path;
use std::time::{Duration, Instant};

use harness::{Launcher, PLACES, Place, Role, Running, modules, send, skipped};
use nix::sys::signal::Signal;

/// A limit that only an endless wait exceeds. Tests that must not wait for the grace period use a
/// longer grace.
const SOON: Duration = harness::TIMEOUT;
/// A grace longer than [`SOON`].
const ENDLESS: &str = "10m";

fn direct(nproc: u32, options: &[&str], program: &[&str]) -> Running {
    let mut job = Launcher::at(Place::Plain).direct(nproc, options, program);
    job.says("READY", nproc as usize);
    job
}

#[test]
fn repeated_term_leaves_the_checkpoint_its_time() {
    // The control comes first: a grace shorter than the needed time loses the checkpoint.
    for (grace, needed, saved) in [("2s", "30000", 0), (ENDLESS, "3000", 2)] {
        let mut job = direct(2, &["--grace", grace], &["checkpoint", needed]);
        let started = Instant::now();
        for sent in 1..=6u32 {
            job.send(Role::Guard, Signal::SIGTERM);
            job.waits("the pause between two signals", |_| {
                started.elapsed() >= Duration::from_millis(150) * sent
            });
        }
        let over = job.ends_within(SOON).expect_code(143).expect_nothing_left();
        assert_eq!(over.out.matches("SAVED").count(), saved, "{}", over.err);
        assert!(saved == 0 || started.elapsed() >= Duration::from_secs(3));
    }
}

#[test]
fn second_interrupt_kills_after_at_least_a_second() {
    let (mut job, first) = loop {
        let mut job = direct(2, &["--grace", ENDLESS], &["ignore"]);
        let guard = job.find(Role::Guard);
        let first = Instant::now();
        send(guard, Signal::SIGINT);
        job.waits("a moment", |_| first.elapsed() > Duration::from_millis(300));
        send(guard, Signal::SIGINT);
        // A busy machine may have taken a second for this.
        if first.elapsed() < Duration::from_millis(900) {
            break (job, first);
        }
    };
    job.waits("the end of the second", |_| first.elapsed() > Duration::from_millis(1500));
    assert_eq!(job.roles().iter().filter(|(role, _)| *role == Role::Rank).count(), 2);
    job.send(Role::Guard, Signal::SIGINT);
    let over = job.ends_within(SOON).expect_code(130).expect_nothing_left();
    let over = over.expect_words(&["a second one ends them at once", "second SIGINT received"]);
    for untrue in ["grace period is over", "the shim of rank"] {
        assert!(!over.err.contains(untrue), "{untrue}: {}", over.err);
    }
}

#[test]
fn second_interrupt_kills_despite_a_hung_agent() {
    let mut job = direct(2, &["--grace", ENDLESS], &["ignore"]);
    job.send(Role::Agent, Signal::SIGSTOP);
    let guard = job.find(Role::Guard);
    job.send(Role::Guard, Signal::SIGINT);
    // The guard counts the second from when it took the first, which a busy machine delays.
    job.waits("the first to be taken", |_| !is_pending(guard, Signal::SIGINT));
    let first = Instant::now();
    job.waits("a second", |_| first.elapsed() > Duration::from_millis(1100));
    job.send(Role::Guard, Signal::SIGINT);
    job.ends_within(SOON).expect_code(130).expect_nothing_left();
}

fn is_pending(pid: i32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let pending = pending.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    pending.is_some_and(|bits| bits & (1 << (signal as i32 - 1)) != 0)
}

/// A stopped process takes no TERM. If the agent is stopped, the guard's own deadline remains.
#[test]
fn stopped_processes_end_with_the_grace() {
    for place in PLACES.into_iter().filter(|place| place.exists()) {
        for stopped in [Role::Rank, Role::Shim, Role::Agent] {
            let setup = Launcher::at(place).env("RANKLAUNCH_GRACE", ENDLESS);
            let mut job = setup.direct(2, &["--grace", "2s"], &["escape"]);
            job.says("READY", 2);
            job.send(stopped, Signal::SIGSTOP);
            job.send(Role::Guard, Signal::SIGTERM);
            job.ends_within(SOON).expect_code(143).expect_nothing_left();
        }
    }
}

#[test]
fn term_ends_every_wait_at_once() {
    let free = harness::free_port().to_string();
    for place in PLACES.into_iter().filter(|place| place.exists()) {
        for (master, sign) in
            [("no-such-host.invalid", "no-such-host.invalid"), ("127.0.0.1", &free)]
        {
            let setup = Launcher::at(place)
                .env("WORLD_SIZE", "2")
                .env("RANK", "1")
                .env("MASTER_ADDR", master)
                .env("MASTER_PORT", &free);
            let mut job = setup.direct(1, &["--muster", "off"], &["wait"]);
            job.waits("the wait's beginning", |job| job.err().contains(sign));
            let began = Instant::now();
            job.waits("the wait itself", |_| began.elapsed() > Duration::from_millis(300));
            job.send(Role::Guard, Signal::SIGTERM);
            // Without the stop, the wait would last half an hour.
            job.ends_within(SOON).expect_code(143).expect_nothing_left();
        }
    }
}

/// A process outside of the job that has a rank's stdout open keeps the pipe open.
#[test]
fn pipe_held_by_stranger_does_not_delay_end() {
    let setup = Launcher::at(Place::Plain);
    let release = setup.folder().join("release");
    let mut job = setup.direct(1, &[], &["until", "release"]);
    job.says("READY", 1);
    let path = format!("/proc/{}/fd/1", job.find(Role::Rank));
    let held = std::fs::OpenOptions::new().write(true).open(path).expect("the pipe opens");
    std::fs::write(release, "").expect("the rank is released");
    job.ends_within(SOON).expect_code(0).expect_nothing_left();
    drop(held);
}

#[test]
fn upload_gets_a_second_only_after_success() {
    for (code, written) in [("0", true), ("3", false)] {
        let job =
            Launcher::at(Place::Subreaper).direct(1, &["--grace", "5s"], &["upload", "file", code]);
        let over =
            job.ends_within(SOON).expect_code(code.parse().expect("a code")).expect_nothing_left();
        let file = std::fs::read_to_string(over.folder().join("file"));
        assert_eq!(file.is_ok_and(|file| file == "whole\n"), written);
        assert!(!written || over.elapsed >= Duration::from_secs(1), "{:?}", over.elapsed);
    }
}

/// A leftover that ignores TERM after success delays the job by at most the grace period.
#[test]
fn leftover_holding_stdout_is_killed_after_the_grace() {
    let job = Launcher::at(Place::Subreaper).direct(2, &["--grace", "2s"], &["hold-stdout", "0"]);
    let over = job.ends_within(SOON).expect_code(0).expect_nothing_left();
    assert!(over.elapsed >= Duration::from_millis(1900), "{:?}", over.elapsed);
}

#[test]
fn process_forking_during_the_kill_is_caught() {
    for place in [Place::Plain, Place::Subreaper] {
        for program in ["hydra", "bomb"] {
            for victim in [Role::Guard, Role::Agent, Role::Shim, Role::Rank] {
                let mut job = Launcher::at(place).direct(1, &["--grace", "2s"], &[program]);
                job.says("READY", 1);
                let victim_pid = job.find(victim);
                harness::kill(victim_pid);
                let over = job.ends_within(SOON);
                let elapsed = over.elapsed;
                let _ = match victim {
                    Role::Guard => over.expect_nothing_left_soon(),
                    _ => over.expect_nothing_left(),
                };
                println!("{program} {victim:?} {place:?}: {elapsed:?}");
            }
            let mut job = Launcher::at(place).direct(1, &["--grace", "2s"], &[program]);
            job.says("READY", 1);
            job.send(Role::Guard, Signal::SIGTERM);
            job.ends_within(SOON).expect_code(143).expect_nothing_left();
        }
    }
}

/// A single pass over the processes, as in a script: sooner or later a fork escapes, though not
/// every time.
#[test]
fn control_shell_does_not_catch_a_forking_process() {
    let escaped = |_| {
        let script = "./misbehave hydra & wait";
        let mut job = Launcher::at(Place::Subreaper)
            .program(Path::new("/bin/sh"), &["-c".into(), script.into()]);
        job.says("READY", 1);
        for seen in job.processes() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(seen.pid), Signal::SIGKILL);
        }
        !job.ends_within(SOON).report().starts_with("at-once 0 ")
    };
    assert!((0..20).any(escaped), "every pass caught all of it");
}

/// DeepSpeed's launcher keeps its ranks in its own session. A rank that dies there must not take
/// others with it before they got TERM.
#[test]
fn ranks_of_one_session_die_one_by_one() {
    let setup = Launcher::at(Place::Subreaper).env("PYTHONPATH", modules());
    let program = setup.misbehave();
    let mut args = harness::run_args("deepspeed", 2);
    args.extend(["--grace".into(), "10s".into(), "--".into(), program.into()]);
    args.extend(["checkpoint".into(), "1000".into()]);
    let mut job = setup.program(&harness::executable(), &args);
    job.says("READY", 2);
    let sessions: std::collections::BTreeSet<i32> = job
        .roles()
        .into_iter()
        .filter(|(role, _)| matches!(role, Role::Rank | Role::Shim))
        .map(|(_, seen)| {
            let pid = nix::unistd::Pid::from_raw(seen.pid);
            nix::unistd::getsid(Some(pid)).expect("it lives").as_raw()
        })
        .collect();
    assert_eq!(sessions.len(), 1, "{:#?}", job.roles());
    job.send(Role::Shim, Signal::SIGKILL);
    let over = job.ends_within(SOON).expect_code(137).expect_nothing_left();
    assert_eq!(over.out.matches("SAVED").count(), 1, "{}", over.err);
}

/// The agent is killed after its verdict, while it waits only for a blocked console: the exit code
/// is the announced one.
#[test]
fn agent_lost_after_its_verdict_keeps_the_code() {
    let script = "head -c 1000000 /dev/zero | tr '\\0' '\\n'; exit 5";
    for kill in [false, true] {
        let setup = Launcher::at(Place::Plain).full_console();
        let options = ["--termination-log", "message"];
        let mut job = setup.direct_of(Path::new("/bin/sh"), 1, &options, &["-c", script]);
        let record = job.node_folder(0).join("run.json");
        job.waits("run.json", |_| record.exists());
        if kill {
            job.send(Role::Agent, Signal::SIGKILL);
        }
        let over = job.ends_within(SOON).expect_code(5);
        let message = std::fs::read_to_string(over.folder().join("message")).expect("written");
        assert!(message.contains("code 5"), "{message}");
    }
}

/// Processes that outlive SIGKILL cannot be created, but processes that may not be signalled can:
/// they belong to root, and the launcher does not. The launcher waits for them, but not for ever.
#[test]
fn unkillable_process_is_named_without_delaying_the_end() {
    if !nix::unistd::geteuid().is_root() {
        skipped("only root can make a process that its launcher may not signal");
        return;
    }
    for (mode, nproc, stop) in [("become-root", 1, true), ("fail-beside-root", 2, false)] {
        let setup = Launcher::at(Place::Plain).user(65534);
        let program = setup.folder().join("rooted");
        // Another process makes the copy, since a descriptor open for writing forbids execution.
        let script = "cp misbehave rooted && chmod 4755 rooted";
        let made = std::process::Command::new("/bin/sh")
            .args(["-c", script])
            .current_dir(setup.folder())
            .status()
            .expect("a shell");
        assert!(made.success());
        let mut job = setup.direct_of(
            &program,
            nproc,
            &["--grace", "3s", "--termination-log", "message"],
            &[mode],
        );
        job.waits("the rank", |job| job.out().matches("READY").count() >= nproc as usize);
        if stop {
            job.send(Role::Guard, Signal::SIGTERM);
        }
        // Stopped or failed, the job keeps to its grace, whatever is left, and the guard does not
        // wait for the processes that the agent has named.
        let over = job.ends_within(SOON);
        assert_eq!(over.code, 83, "{}", over.err);
        // The control has the same grace, with ranks that can be killed, on the same machine.
        let control = direct(nproc, &["--grace", "3s"], &["ignore"]);
        control.send(Role::Guard, Signal::SIGTERM);
        let control = control.ends_within(SOON).expect_code(143).elapsed;
        assert!(over.elapsed < 3 * control, "{:?}, {control:?}\n{}", over.elapsed, over.err);
        assert!(over.left.iter().any(|seen| seen.argv[0].ends_with("rooted")), "{:#?}", over.left);
        assert!(over.err.contains("rooted"), "{}", over.err);
        let message = std::fs::read_to_string(over.folder().join("message")).expect("written");
        assert!(message.contains("rooted"), "{message}");
        let run = over.node_folder(0).join("run.json");
        assert!(run.exists(), "{}", over.err);
    }
}
