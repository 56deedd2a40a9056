//! The same as PID 1 of a PID namespace.

use std::process::Command;

use harness::alive::{is_alive, zombies_of};
use harness::{Launcher, Place, processes_of, wait_until};
use linux::sys;
use nix::sys::signal::Signal;

use super::{ORPHANS, children, state};

#[test]
fn pid_1_ends_the_commands_leftovers_not_outsiders() {
    if !Place::Namespace.exists() {
        return;
    }
    // The leftover answers TERM and goes on until it is allowed to end.
    let script = "echo pid1 is $PPID\n\
        (setsid sh -c 'trap \"echo ASKED\" TERM; until [ -e end ]; do sleep 0.05; done' &)\n\
        sh -c ': &' \n\
        echo READY\n\
        until [ -e go ]; do sleep 0.05; done; exit 3";
    let launcher = Launcher::at(Place::Namespace);
    let mut running = launcher.args(["init", "--grace", "60s", "--", "sh", "-c", script]).start();
    running.says("READY", 1);
    assert!(running.out().contains("pid1 is 1"), "{}", running.out());

    let init = children(running.pid()).first().copied().expect("PID 1 of the namespace");
    let token = format!("outsider-{}", std::process::id());
    let enter = Command::new("nsenter")
        .args(["--pid", "--mount", "--target", &init.to_string(), "sh", "-c"])
        .arg(format!("(setsid sh -c 'sleep 300; : {token}' &)"))
        .status()
        .expect("nsenter runs");
    assert!(enter.success());
    let outsider = wait_until("an outsider that was adopted", || {
        processes_of(&token).into_iter().find(|process| process.parent == init).map(|it| it.pid)
    });

    std::fs::write(running.folder().join("go"), "").expect("a file");
    running.says("ASKED", 1);
    assert!(is_alive(outsider), "the sweep has been there, and passed it by");
    std::fs::write(running.folder().join("end"), "").expect("a file");
    running.wait().expect_code(3).expect_nothing_left();
    assert_eq!(state(outsider), None, "the namespace ends with its PID 1");
}

#[test]
fn pid_1_forwards_signals_and_reaps() {
    if !Place::Namespace.exists() {
        return;
    }
    let script = format!("{ORPHANS}; trap 'exit 9' TERM; echo READY; while :; do sleep 0.05; done");
    let launcher = Launcher::at(Place::Namespace);
    let mut running = launcher.args(["init", "--", "sh", "-c", &script]).start();
    running.says("READY", 1);
    let init = children(running.pid()).first().copied().expect("PID 1 of the namespace");
    wait_until("an end of zombies", || (zombies_of(init) == 0).then_some(()));
    sys::send(init, Signal::SIGTERM as i32);
    running.wait().expect_code(9).expect_nothing_left();
}
