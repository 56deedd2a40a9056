//! `--max-restarts` on one node: the whole node again, in a folder of its own,
//! with nothing left of the attempt before; and nothing else is touched.

#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use common::faults::{Over, PLACES, Place, Role, Setup};
use nix::sys::signal::Signal;

const SOON: Duration = Duration::from_secs(10);

fn attempts(over: &Over) -> Vec<String> {
    let folder = over.job.folder().join("ranklaunch-logs/latest/node-0");
    let mut found: Vec<String> = std::fs::read_dir(folder)
        .expect("the node's folder")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("attempt-"))
        .collect();
    found.sort();
    found
}

#[test]
fn it_stops_at_the_first_success() {
    let job = Setup::new(Place::Subreaper).direct(
        1,
        &["--max-restarts", "5", "--grace", "1s"],
        &["fail-times", "times", "2"],
    );
    let over = job.ends_within(SOON).code(0).nothing_left();
    assert_eq!(attempts(&over), ["attempt-0", "attempt-1", "attempt-2"]);
}

#[test]
fn the_last_attempt_gives_the_code() {
    for (restarts, code) in [("0", 10), ("1", 11), ("2", 12)] {
        let job = Setup::new(Place::Plain).direct(
            1,
            &["--max-restarts", restarts],
            &["fail-times", "times", "9"],
        );
        let over = job.ends_within(SOON).code(code).nothing_left();
        assert_eq!(i32::try_from(attempts(&over).len()), Ok(code - 9));
    }
}

#[test]
fn all_ranks_start_again_never_one() {
    let job = Setup::new(Place::Plain).direct(
        2,
        &["--max-restarts", "1", "--grace", "1s"],
        &["fail-rank-1"],
    );
    let over = job.ends_within(SOON).code(9).nothing_left();
    for attempt in ["attempt-0", "attempt-1"] {
        for rank in ["rank-00000.out", "rank-00001.out"] {
            let path = over.job.folder().join("ranklaunch-logs/latest/node-0").join(attempt);
            let wrote = std::fs::read_to_string(path.join(rank)).expect("the rank's file");
            assert_eq!(wrote, "READY\n");
        }
    }
}

/// Rank 1 has failed and rank 0 does not listen: TERM comes while a restart is due.
#[test]
fn term_before_the_restart_prevents_it() {
    let mut job = Setup::new(Place::Plain).direct(
        2,
        &["--max-restarts", "3", "--grace", "2s"],
        &["fail-rank-1"],
    );
    job.waits("the failure", |job| job.err().contains("rank 1 ended with"));
    job.send(Role::Guard, Signal::SIGTERM);
    let over = job.ends_within(SOON).nothing_left();
    assert!([9, 143].contains(&over.code), "{} {}", over.code, over.job.err());
    assert_eq!(attempts(&over), ["attempt-0"]);
    assert!(over.elapsed < Duration::from_secs(3), "{:?}", over.elapsed);
}

/// Somebody who came into the container (`kubectl exec`, a notebook) is nobody's
/// leftover: neither he nor what he started and left to PID 1.
#[test]
fn a_visitor_survives_a_restart_and_the_first_attempt_does_not() {
    for place in PLACES.into_iter().filter(|place| place.is_init() && place.exists()) {
        let setup = Setup::new(place);
        let release = setup.folder().join("release");
        let mut job = setup.direct(1, &["--max-restarts", "1"], &["fail-once", "once", "release"]);
        job.says("READY", 1);
        let guard = job.find(Role::Guard);
        let here = job.folder().join("misbehave");
        // The double fork leaves a daemon of the visitor's to PID 1.
        let mut command = std::process::Command::new("nsenter");
        command
            .args(["-t", &guard.to_string(), "-p", "-m"])
            .arg(&here)
            .args(["escape-and-exit", "0"]);
        let visit = command.env("JOB_TEST_TOKEN", job.token()).status().expect("nsenter");
        assert!(visit.success());
        let daemons: Vec<i32> = job
            .processes()
            .into_iter()
            .filter(|seen| seen.parent == guard)
            .map(|seen| seen.pid)
            .filter(|pid| *pid != job.find(Role::Agent))
            .collect();
        assert_eq!(daemons.len(), 7, "{:#?}", job.processes());
        std::fs::write(release, "").expect("the rank is released");
        job.says("AGAIN", 1);
        let roles = job.roles();
        for daemon in &daemons {
            assert!(roles.iter().any(|(_, seen)| seen.pid == *daemon), "{roles:#?}");
        }
        // Guard, agent, shim, rank and the visitor's: nothing of the first attempt.
        assert_eq!(roles.len(), 4 + daemons.len(), "{roles:#?}");
        job.send(Role::Guard, Signal::SIGTERM);
        job.ends_within(SOON).code(143).nothing_left();
    }
}
