//! `--max-restarts` on one node: the whole node starts again, in its own folder, with nothing left
//! of the attempt before, and no other process is touched.

use harness::{Ended, Launcher, PLACES, Place, Role};
use nix::sys::signal::Signal;

fn attempts(over: &Ended) -> Vec<String> {
    let folder = over.node_folder(0);
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
fn restarts_stop_at_the_first_success() {
    let job = Launcher::at(Place::Subreaper).direct(
        1,
        &["--max-restarts", "5", "--grace", "1s"],
        &["fail-times", "times", "2"],
    );
    let over = job.wait().expect_code(0).expect_nothing_left();
    assert_eq!(attempts(&over), ["attempt-0", "attempt-1", "attempt-2"]);
}

#[test]
fn the_last_attempt_gives_the_code() {
    for (restarts, code) in [("0", 10), ("1", 11), ("2", 12)] {
        let job = Launcher::at(Place::Plain).direct(
            1,
            &["--max-restarts", restarts],
            &["fail-times", "times", "9"],
        );
        let over = job.wait().expect_code(code).expect_nothing_left();
        assert_eq!(i32::try_from(attempts(&over).len()), Ok(code - 9));
    }
}

#[test]
fn all_ranks_start_again_never_one() {
    let job = Launcher::at(Place::Plain).direct(
        2,
        &["--max-restarts", "1", "--grace", "1s"],
        &["fail-rank-1"],
    );
    let over = job.wait().expect_code(9).expect_nothing_left();
    for attempt in ["attempt-0", "attempt-1"] {
        for rank in ["rank-00000.out", "rank-00001.out"] {
            let path = over.node_folder(0).join(attempt);
            let wrote = std::fs::read_to_string(path.join(rank)).expect("the rank's file");
            assert_eq!(wrote, "READY\n");
        }
    }
}

/// Rank 1 has failed and rank 0 ignores TERM, so the stop comes while a restart is due.
#[test]
fn term_before_the_restart_prevents_it() {
    let mut job = Launcher::at(Place::Plain).direct(
        2,
        &["--max-restarts", "3", "--grace", "2s"],
        &["fail-rank-1"],
    );
    job.waits("the failure", |job| job.err().contains("rank 1 ended with"));
    job.send(Role::Guard, Signal::SIGTERM);
    let over = job.wait().expect_nothing_left();
    assert!([9, 143].contains(&over.code), "{} {}", over.code, over.err);
    assert_eq!(attempts(&over), ["attempt-0"]);
}

/// A process that entered the container (`kubectl exec`, a notebook) is no leftover, nor are the
/// processes that it started and left to PID 1.
#[test]
fn restart_spares_visitors_and_ends_the_first_attempt() {
    for place in PLACES.into_iter().filter(|place| place.is_init() && place.exists()) {
        let setup = Launcher::at(place);
        let release = setup.folder().join("release");
        let mut job = setup.direct(1, &["--max-restarts", "1"], &["fail-once", "once", "release"]);
        job.says("READY", 1);
        let guard = job.find(Role::Guard);
        let here = job.folder().join("misbehave");
        // The double fork leaves a daemon of the visitor to PID 1.
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
        // The list has guard, agent, shim, rank and the visitor's processes, and nothing of the
        // first attempt.
        assert_eq!(roles.len(), 4 + daemons.len(), "{roles:#?}");
        job.send(Role::Guard, Signal::SIGTERM);
        job.wait().expect_code(143).expect_nothing_left();
    }
}

/// `--max-restarts 50` with a failure that no restart can fix: one attempt, with the reason.
#[test]
fn permanent_failure_is_not_restarted() {
    let words = "not started again: it would end the same way (rank.e";
    for code in [2, 126, 127] {
        let mut args = harness::run_args("direct", 1);
        args.extend(["--max-restarts", "50", "--", "sh", "-c"].map(Into::into));
        let ended = Launcher::new(args).args([format!("exit {code}")]).run().expect_code(code);
        let attempts = ended.node_folder(0).join("attempt-1");
        assert!(ended.err.contains(words) && !attempts.exists(), "{}", ended.err);
    }
    // A `--retry-on` rule overrides this, up to --max-restarts.
    let mut args = harness::run_args("direct", 1);
    args.extend(["--max-restarts", "1", "--retry-on", "rank.exit", "--"].map(Into::into));
    let ended = Launcher::new(args).args(["sh", "-c", "exit 2"]).run().expect_code(2);
    assert!(ended.node_folder(0).join("attempt-1").exists(), "{}", ended.err);
    assert!(ended.err.contains("not started again: --max-restarts is 1"), "{}", ended.err);
    // Without --max-restarts nothing is printed about restarts.
    let mut args = harness::run_args("direct", 1);
    args.extend(["--", "sh", "-c", "exit 2"].map(Into::into));
    let ended = Launcher::new(args).run().expect_code(2);
    assert!(!ended.err.contains("started again"), "{}", ended.err);
}

#[test]
fn three_quick_ends_of_one_kind_are_enough() {
    let job =
        Launcher::at(Place::Plain).direct(1, &["--max-restarts", "50"], &["escape-and-exit", "9"]);
    let over = job.wait().expect_code(9).expect_nothing_left();
    assert_eq!(attempts(&over), ["attempt-0", "attempt-1", "attempt-2"]);
    let err = over.err;
    let pauses: Vec<&str> = err.lines().filter(|line| line.contains("starting again")).collect();
    assert_eq!(
        pauses,
        [
            "ranklaunch: starting again in 1 s: attempt 1",
            "ranklaunch: starting again in 2 s: attempt 2"
        ]
    );
    let words =
        "not started again: the last 3 attempts ended the same way (rank.exit), each within 60 s";
    assert!(err.contains(words), "{err}");
}

/// A stop in the pause between two attempts.
#[test]
fn term_during_the_pause_is_a_stop() {
    let mut job = Launcher::at(Place::Plain).direct(
        1,
        &["--max-restarts", "9"],
        &["fail-times", "times", "9"],
    );
    job.waits("the longer pause", |job| job.err().contains("starting again in 4 s"));
    job.send(Role::Guard, Signal::SIGTERM);
    let over = job.wait().expect_code(143).expect_nothing_left().expect_id("stopped.signal");
    assert_eq!(attempts(&over), ["attempt-0", "attempt-1", "attempt-2"]);
}

/// Impossible restarts give a warning before anything starts.
#[test]
fn impossible_restarts_are_reported_before_the_launch() {
    let plan = |more: &[&str]| {
        let mut args: Vec<&str> = vec!["plan", "--device", "cpu", "--engine", "direct"];
        args.extend(["--format", "json", "--max-restarts", "3"]);
        args.extend(more);
        args.extend(["--", "true"]);
        let ended = Launcher::new(args).run().expect_code(0);
        let plan: serde_json::Value = serde_json::from_str(&ended.out).expect("a plan");
        plan["warnings"].to_string()
    };
    let two = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1"];
    let off = plan(&[&two[..], &["--muster", "off"]].concat());
    assert!(off.contains("restarts.muster") && off.contains("max_restarts 3 [--max-restarts]"));
    assert!(!plan(&two).contains("restarts."));
    assert!(!plan(&["--muster", "off"]).contains("restarts."), "one node needs no muster");

    // `run` warns too, before the first rank.
    let port = harness::free_port();
    let node = |rank| {
        let mut args = harness::run_args("direct", 1);
        args.extend(["--muster", "off", "--max-restarts", "3", "--"].map(Into::into));
        args.extend([harness::program("meet.py").into_os_string()]);
        Launcher::new(args).node(rank, 2, port).start()
    };
    let nodes = [node(0), node(1)];
    for (node, ended) in (0..).zip(nodes.map(harness::Running::wait)) {
        let ended = ended.expect_code(0);
        let said = ended.err.find("max_restarts 3 [--max-restarts] has no effect on 2 nodes");
        let done = ended.err.find("── ranklaunch: done").expect("an end");
        assert!(said.is_some_and(|at| at < done), "node {node}: {}", ended.err);
    }
}
