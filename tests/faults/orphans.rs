//! Ten thousand orphans that end at once are reaped while the job runs: by the shim of their rank,
//! or by PID 1 if a process from outside left them.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::alive::zombies_of;
use harness::{Launcher, Place, Role, Running};
use nix::sys::signal::Signal;

const MANY: usize = 10_000;
/// The grace of these jobs is longer.
const SOON: Duration = harness::TIMEOUT;
const ENDLESS: &[&str] = &["--grace", "10m"];

/// The time from the first zombie or the call until `parent` has no zombie child.
fn until_reaped(job: &mut Running, parent: i32) -> Duration {
    let started = Instant::now();
    job.waits("the reaping", |_| zombies_of(parent) == 0);
    started.elapsed()
}

#[test]
fn a_shim_reaps_ten_thousand() {
    let mut job =
        Launcher::at(Place::Subreaper).direct(1, ENDLESS, &["orphans", &MANY.to_string()]);
    job.says("READY", 1);
    let shim = job.find(Role::Shim);
    // The rank stays, so only its orphans can end.
    job.waits("their end", |job| job.roles().len() == 4);
    let took = until_reaped(&mut job, shim);
    println!("a shim reaped {MANY} orphans within {took:?} of the last one's end");
    job.send(Role::Guard, Signal::SIGTERM);
    job.ends_within(SOON).expect_code(143).expect_nothing_left();
}

#[test]
fn pid_1_reaps_a_visitors_ten_thousand() {
    if !Place::Namespace.exists() {
        return;
    }
    let mut job = Launcher::at(Place::Namespace).direct(1, ENDLESS, &["wait"]);
    job.says("READY", 1);
    let guard = job.find(Role::Guard);
    let said = job.folder().join("visitor.out");
    let mut visitor = Command::new("nsenter")
        .args(["-t", &guard.to_string(), "-p", "-m"])
        .arg(job.folder().join("misbehave"))
        .args(["orphans", &MANY.to_string()])
        .env("JOB_TEST_TOKEN", job.token())
        .stdout(std::fs::File::create(&said).expect("a file"))
        .stdin(Stdio::null())
        .spawn()
        .expect("nsenter");
    // The whole crowd was there. Afterwards only the job's four processes, nsenter and the visitor
    // are left.
    job.waits("the crowd", |_| std::fs::read_to_string(&said).is_ok_and(|out| out == "READY\n"));
    job.waits("their end", |job| job.roles().len() == 6);
    let took = until_reaped(&mut job, guard);
    println!("PID 1 reaped {MANY} orphans within {took:?} of the last one's end");
    job.send(Role::Guard, Signal::SIGTERM);
    job.ends_within(SOON).expect_code(143).expect_nothing_left();
    visitor.wait().expect("the namespace took it along");
}

/// A PID 1 that does not reap keeps all zombies.
#[test]
fn control_parent_that_does_not_reap_keeps_zombies() {
    if !Place::Namespace.exists() {
        return;
    }
    let setup = Launcher::at(Place::Namespace);
    let program = setup.misbehave();
    let mut job = setup.program(&program, &["orphans".into(), "100".into()]);
    job.says("READY", 1);
    job.waits("their end", |job| job.roles().len() == 1);
    let init = job.processes().remove(0).pid;
    assert_eq!(zombies_of(init), 100);
}
