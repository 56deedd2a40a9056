//! SIGKILL of any single process of a job: the launcher ends, and nothing is left. The job runs as
//! a plain process, below another subreaper and as PID 1.

use std::path::Path;
use std::time::Duration;

use harness::{Launcher, PLACES, Place, Role};
use nix::sys::signal::Signal;

/// The grace of these jobs is longer.
const SOON: Duration = harness::TIMEOUT;
const ENDLESS: &[&str] = &["--grace", "10m"];

fn escapees(place: Place, victim: Role) -> harness::Running {
    let mut job = Launcher::at(place).direct(2, ENDLESS, &["escape"]);
    job.says("READY", 2);
    let roles = job.roles();
    let count = |role| roles.iter().filter(|(its, _)| *its == role).count();
    assert_eq!(
        [Role::Guard, Role::Agent, Role::Shim, Role::Rank].map(count),
        [1, 1, 2, 2],
        "{roles:#?}"
    );
    assert_eq!(count(Role::Grandchild), 14, "{roles:#?}");
    job.send(victim, Signal::SIGKILL);
    job
}

fn in_every_place(test: impl Fn(Place)) {
    for place in PLACES.into_iter().filter(|place| place.exists()) {
        test(place);
    }
}

#[test]
fn nothing_survives_a_killed_guard() {
    in_every_place(|place| {
        let over = escapees(place, Role::Guard).ends_within(SOON).expect_nothing_left_soon();
        // unshare cannot report that its child was killed.
        if place != Place::Namespace {
            over.expect_code(137);
        }
    });
}

#[test]
fn nothing_survives_a_killed_agent() {
    in_every_place(|place| {
        escapees(place, Role::Agent).ends_within(SOON).expect_code(137).expect_nothing_left();
    });
}

#[test]
fn nothing_survives_a_killed_shim() {
    in_every_place(|place| {
        escapees(place, Role::Shim).ends_within(SOON).expect_code(137).expect_nothing_left();
    });
}

#[test]
fn nothing_survives_a_killed_rank() {
    in_every_place(|place| {
        escapees(place, Role::Rank).ends_within(SOON).expect_code(137).expect_nothing_left();
    });
}

/// The job is not affected, and runs until it is stopped.
#[test]
fn a_killed_grandchild_changes_nothing() {
    in_every_place(|place| {
        let job = escapees(place, Role::Grandchild);
        job.send(Role::Guard, Signal::SIGTERM);
        job.ends_within(SOON).expect_code(143).expect_nothing_left();
    });
}

#[test]
fn nothing_survives_a_crash_or_dead_data_loaders() {
    in_every_place(|place| {
        for (program, code) in
            [(&["escape-and-exit", "9"][..], 9), (&["loader"], 134), (&["hold-stdout", "5"], 5)]
        {
            let mut job = Launcher::at(place).direct(2, ENDLESS, program);
            job.waits("a READY", |job| job.out().contains("READY") || !job.err().is_empty());
            job.ends_within(SOON).expect_code(code).expect_nothing_left();
        }
    });
}

/// The same ranks without us: each check above would fail.
#[test]
fn control_a_shell_leaves_them() {
    for place in [Place::Plain, Place::Subreaper] {
        let script = "./misbehave escape & ./misbehave escape & wait";
        let mut job =
            Launcher::at(place).program(Path::new("/bin/sh"), &["-c".into(), script.into()]);
        job.says("READY", 2);
        let shell = job
            .processes()
            .into_iter()
            .find(|seen| seen.argv.first().is_some_and(|word| word == "/bin/sh"))
            .expect("the shell");
        harness::kill(shell.pid);
        let over = job.ends_within(SOON).expect_code(137);
        if place == Place::Plain {
            assert_eq!(over.left.len(), 16, "{:#?}", over.left);
        } else {
            // The count includes both ranks and both daemons; the other processes still have their
            // parents.
            assert!(over.report().contains("at-once 4 "), "{}", over.report());
            assert!(over.report().contains("\nafter 4 "), "{}", over.report());
        }
    }
    // A rank that crashes leaves its data loaders and processes in other sessions.
    for (program, left) in [("escape-and-exit 9", 7), ("loader", 4), ("hold-stdout 5", 1)] {
        let script = format!("./misbehave {program}; exit 3");
        let job =
            Launcher::at(Place::Plain).program(Path::new("/bin/sh"), &["-c".into(), script.into()]);
        let over = job.ends_within(SOON).expect_code(3);
        assert_eq!(over.left.len(), left, "{:#?}", over.left);
    }
}

/// At the end of a container's PID 1, the kernel ends every process. The difference is in the
/// processes that an attempt leaves while the container lives.
#[test]
fn control_a_container_keeps_what_a_rank_left() {
    if !Place::Namespace.exists() {
        return;
    }
    let script = "./misbehave escape-and-exit 9; echo OVER; while :; do sleep 0.1; done";
    let mut job =
        Launcher::at(Place::Namespace).program(Path::new("/bin/sh"), &["-c".into(), script.into()]);
    job.says("OVER", 1);
    let of_shell = |seen: &harness::Process| {
        matches!(seen.argv.first().map(String::as_str), Some("/bin/sh" | "sleep"))
    };
    let left = job.processes().iter().filter(|seen| !of_shell(seen)).count();
    assert!(left >= 7, "{:#?}", job.processes());
}
