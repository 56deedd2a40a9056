//! Signals reach the command, which inherits the signal state of init.

use std::process::Command;

use harness::{Launcher, executable, wait_until};
use linux::sys::{self, Dispositions, SignalSet};
use nix::sys::signal::Signal;

use super::{both, shell, state};

#[test]
fn every_signal_is_passed_on() {
    // tini keeps the signals that a fault of its own would raise.
    const KEPT_BY_TINI: [i32; 6] = [4, 5, 6, 7, 8, 11];
    for signal in (1..=15).filter(|&signal| signal != Signal::SIGKILL as i32).chain([24, 39]) {
        for (nth, launcher) in
            both(&["sh", "-c", "echo READY; exec sleep 300"]).into_iter().enumerate()
        {
            if nth > 0 && KEPT_BY_TINI.contains(&signal) {
                continue;
            }
            let mut running = launcher.start();
            running.says("READY", 1);
            sys::send(running.pid(), signal);
            running.wait().expect_code(128 + signal).expect_nothing_left();
        }
    }
}

#[test]
fn caught_signal_ends_nothing() {
    let script = "trap 'echo GOT' USR1; trap 'exit 10' TERM; echo READY\n\
        while :; do sleep 0.05; done";
    for launcher in both(&["sh", "-c", script]) {
        let mut running = launcher.start();
        running.says("READY", 1);
        running.signal(Signal::SIGUSR1);
        running.says("GOT", 1);
        running.signal(Signal::SIGTERM);
        running.wait().expect_code(10);
    }
}

#[test]
fn the_second_interrupt_kills() {
    let mut running = shell("trap '' INT; echo READY; while :; do sleep 0.05; done").start();
    running.says("READY", 1);
    let started = std::time::Instant::now();
    let init = running.pid();
    let asking = std::thread::spawn(move || {
        // Interrupts within a second are one.
        while started.elapsed().as_millis() < 1300 {
            sys::send(init, Signal::SIGINT as i32);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    let ended = running.wait().expect_code(137).expect_nothing_left();
    assert!(started.elapsed().as_millis() >= 1000, "{}", ended.err);
    asking.join().expect("the asking ends");
}

#[test]
fn a_stop_and_a_continue_reach_the_command() {
    for launcher in both(&["sh", "-c", "echo READY; while :; do sleep 0.05; done"]) {
        let mut running = launcher.start();
        running.says("READY", 1);
        let init = running.pid();
        let below = || {
            running.processes().into_iter().find(|process| process.parent == init).map(|it| it.pid)
        };
        let command = wait_until("the command", below);
        running.signal(Signal::SIGTSTP);
        wait_until("its stop", || (state(command) == Some('T')).then_some(()));
        running.signal(Signal::SIGCONT);
        wait_until("its continuation", || (state(command) != Some('T')).then_some(()));
        running.signal(Signal::SIGTERM);
        running.wait().expect_code(143);
    }
}

#[test]
fn command_inherits_the_signal_state_of_init() {
    use sys::Signal;
    let sets: [(&[Signal], &[Signal]); 4] = [
        (&[], &[]),
        (&[Signal::USR1, Signal::TERM], &[]),
        (&[], &[Signal::HUP, Signal::PIPE, Signal::TSTP, Signal::TTOU]),
        (&[Signal::PIPE], &[Signal::INT, Signal::PIPE]),
    ];
    for (blocked, ignored) in sets {
        let start = Dispositions { mask: SignalSet::of(blocked), ignored: SignalSet::of(ignored) };
        let below = |mut command: Command, words: &[&str]| {
            sys::in_child(&mut command, move || start.restore_in_child());
            Launcher::of(command, words).run().expect_code(0).out
        };
        let look = ["-E", "^Sig(Blk|Ign)", "/proc/self/status"];
        let plain = below(Command::new("grep"), &look);
        let mut words = vec!["init", "--", "grep"];
        words.extend(look);
        assert_eq!(below(Command::new(executable()), &words), plain, "{blocked:?} {ignored:?}");
    }
}

#[test]
fn ignored_signal_stays_ignored() {
    let script = "echo READY; while [ ! -e go ]; do sleep 0.05; done; exit 6";
    let mut nohup = Command::new("nohup");
    nohup.arg(executable());
    let mut running = Launcher::of(nohup, ["init", "--", "sh", "-c", script]).start();
    running.says("READY", 1);
    running.signal(Signal::SIGHUP);
    std::fs::write(running.folder().join("go"), "").expect("a file");
    running.wait().expect_code(6);
}
