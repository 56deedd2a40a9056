//! Orphans are reaped, and leftovers of the command are ended.

use std::process::Command;

use harness::alive::zombies_of;
use harness::{Launcher, executable, kill, processes_of, wait_until};
use linux::sys;
use nix::sys::signal::Signal;

use super::{ORPHANS, both, ours, shell};

#[test]
fn a_thousand_orphans_are_reaped() {
    for launcher in both(&["sh", "-c", &format!("{ORPHANS}; exec sleep 300")]) {
        let mut running = launcher.start();
        running.says("MADE", 1);
        wait_until("an end of zombies", || (zombies_of(running.pid()) == 0).then_some(()));
        running.signal(Signal::SIGTERM);
        running.wait().expect_code(143);
    }
    // The same below a subreaper that does not reap.
    let mut careless = Command::new("sh");
    sys::in_child(&mut careless, || {
        Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
    });
    let script = format!("({ORPHANS}) & exec sleep 300");
    let mut running = Launcher::of(careless, ["-c", &script]).start();
    running.says("MADE", 1);
    wait_until("a thousand zombies", || (zombies_of(running.pid()) >= 1000).then_some(()));
    running.signal(Signal::SIGTERM);
    running.wait().expect_code(143);
}

/// Leaves behind a session without our environment, a double fork with a child of its own, and a
/// stopped process. Each carries `token` in its command line.
fn leave(token: &str) -> String {
    format!(
        "setsid env -i PATH=\"$PATH\" sh -c ': >a; sleep 300; : {token}' &\n\
         (setsid sh -c 'sleep 300 & : >b; sleep 300; : {token}' &)\n\
         sh -c ': >c; kill -STOP $$; : {token}' &\n\
         until [ -e a ] && [ -e b ] && [ -e c ]; do sleep 0.02; done; exit 4"
    )
}

/// The control of `expect_nothing_left`: neither the environment nor the command line identifies
/// the process.
#[test]
fn process_without_environment_is_found_by_its_folder() {
    let script = "setsid env -i /bin/sleep 304 & until [ $(wc -c </proc/$!/environ) -eq 0 ]; do sleep 0.02; done";
    let ended = Launcher::of(Command::new("sh"), ["-c", script]).run().expect_code(0);
    let left = ended.left_now();
    left.iter().for_each(|process| kill(process.pid));
    let commands: Vec<String> = left.iter().map(harness::Process::command).collect();
    assert_eq!(commands, ["/bin/sleep 304"]);
    wait_until("its end", || ended.left_now().is_empty().then_some(()));
}

#[test]
fn nothing_is_left_behind() {
    let token = format!("left-by-init-{}", std::process::id());
    shell(&leave(&token)).run().expect_code(4).expect_nothing_left();
    let left = processes_of(&token);
    assert!(left.is_empty(), "{left:#?}");

    // The same without an init: the check must see the leftovers.
    let token = format!("left-by-sh-{}", std::process::id());
    Launcher::of(Command::new("sh"), ["-c", &leave(&token)]).run().expect_code(4);
    let left = processes_of(&token);
    assert_eq!(left.len(), 3, "{left:#?}");
    for process in left {
        kill(process.pid);
    }
}

#[test]
fn earlier_children_and_their_orphans_are_left_alone() {
    // A shell starts something of its own and becomes the init.
    let script = "(until [ -e go ]; do sleep 0.02; done; (setsid sleep 301 &); : >made; exec sleep 302) &\n\
        exec \"$0\" init -- sh -c ': >go; until [ -e made ]; do sleep 0.02; done; setsid sleep 303 & exit 3'";
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script);
    let token = format!("strangers-{}-of-init", std::process::id());
    let launcher = Launcher::of(shell, [executable()]).env("STRANGERS", &token);
    launcher.run().expect_code(3);
    let mut left = processes_of(&token);
    left.sort_by_key(harness::Process::command);
    for process in &left {
        kill(process.pid);
    }
    let commands: Vec<String> = left.iter().map(|process| process.command()).collect();
    assert_eq!(commands, ["sleep 301", "sleep 302"]);
}

#[test]
fn leftovers_get_term_then_kill_after_the_grace() {
    let polite = "(trap 'sleep 0.3; echo bye >bye; exit' TERM; echo READY >ready; \
        while :; do sleep 0.05; done) & \
        while [ ! -e ready ]; do sleep 0.02; done; exit 5";
    let ended = shell(polite).run().expect_code(5).expect_nothing_left();
    assert!(ended.folder().join("bye").exists(), "its TERM was waited for");

    let deaf = "(trap '' TERM; echo READY >ready; while :; do sleep 0.05; done) & \
        while [ ! -e ready ]; do sleep 0.02; done; exit 5";
    for (options, variable) in [(&["--grace", "1s"][..], "1h"), (&[], "1s")] {
        let launcher = ours(options, ["sh", "-c", deaf]).env("RANKLAUNCH_GRACE", variable);
        let ended = launcher.run().expect_code(5).expect_nothing_left();
        let millis = ended.elapsed.as_millis();
        assert!(millis >= 1000, "{millis} ms");
    }
}
