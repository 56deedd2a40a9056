//! Kernels and container runtimes that refuse newer system calls: a job runs, its ranks get TERM,
//! and nothing is left. seccomp refuses the calls by their numbers, since newer calls have higher
//! numbers.

use std::process::Command;

use harness::{Launcher, Running, compiled, skipped};
use nix::sys::signal::Signal;

/// A kernel or runtime, its error, and the number from which on it refuses system calls. Some
/// earlier calls are refused too.
#[cfg(target_arch = "x86_64")]
const REFUSED: [(&str, &str, &str); 4] = [
    ("Linux 5.0", "ENOSYS", "424"),
    ("Linux 4.18 (RHEL 8)", "ENOSYS", "335"),
    ("Linux 3.10 (CentOS 7)", "ENOSYS", "314"),
    ("a sandbox without pidfd", "EPERM", "100000,424,434"),
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED: [(&str, &str, &str); 2] =
    [("Linux 5.0", "ENOSYS", "424"), ("a sandbox without pidfd", "EPERM", "100000,424,434")];

/// Prints its signals: a checkpoint on TERM, a mark on USR1.
const RANK: &str = "trap 'echo USR1 $RANK' USR1; trap 'echo SAVED $RANK; exit 0' TERM; \
                    echo READY; while :; do sleep 0.05; done";

/// `ranklaunch ARGS…` with these calls refused; `None` without seccomp.
fn refused(errno: &str, first: &str, args: &[&str]) -> Option<Launcher> {
    let mut tried = Command::new(compiled("refuse_calls"));
    if !tried.args([errno, first, "true"]).status().is_ok_and(|status| status.success()) {
        skipped("this machine takes no seccomp filter");
        return None;
    }
    let mut command = Command::new(compiled("refuse_calls"));
    command.args([errno, first]).arg(harness::executable());
    Some(Launcher::of(command, args))
}

const RUN: [&str; 9] =
    ["run", "--engine", "direct", "--device", "cpu", "--stale", "off", "--nproc-per-node", "2"];

fn started(errno: &str, first: &str, grace: &str) -> Option<Running> {
    let launcher = refused(errno, first, &RUN)?;
    let mut running = launcher.args(["--grace", grace, "--", "sh", "-c", RANK]).start();
    running.says("READY", 2);
    Some(running)
}

#[test]
fn ranks_receive_term_and_usr1() {
    for (who, errno, first) in REFUSED {
        let Some(mut running) = started(errno, first, "10m") else { return };
        running.signal(Signal::SIGUSR1);
        running.says("USR1", 2);
        running.signal(Signal::SIGTERM);
        let ended = running.wait().expect_code(143).expect_nothing_left();
        assert_eq!(ended.out.matches("SAVED").count(), 2, "{who}\n{}", ended.err);
    }
}

#[test]
fn a_killed_agent_leaves_nothing() {
    for (who, errno, first) in REFUSED {
        let Some(running) = started(errno, first, "20s") else { return };
        harness::kill(running.agent());
        let ended = running.wait().expect_code(137).expect_nothing_left_in(who);
        ended.expect_id("agent.killed");
    }
}

/// Every call that only newer kernels support has a silent fallback.
#[test]
fn plan_check_and_init_answer() {
    for (who, errno, first) in REFUSED {
        let script = ["--engine", "command", "--device", "cpu", "--", "true"];
        let Some(plan) = refused(errno, first, &["plan"]) else { return };
        let plan = plan.args(script).run().expect_code(0);
        assert!(!plan.err.contains("not implemented"), "{who}\n{}", plan.err);
        let Some(check) = refused(errno, first, &["check"]) else { return };
        let check = check.args(script).run();
        assert!([0, 84].contains(&check.code), "{who}: {}\n{}", check.code, check.err);
        let left = "(setsid sleep 60 &) ; exit 7";
        let init = ["init", "--grace", "5s", "--", "sh", "-c", left];
        let Some(init) = refused(errno, first, &init) else { return };
        init.run().expect_code(7).expect_nothing_left();
    }
}

/// A seccomp profile may allow pidfd_open (434) and refuse pidfd_send_signal (424); kill(2) is the
/// fallback.
#[test]
fn leftovers_end_where_handles_cannot_be_signalled() {
    let unshare = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let allowed = Command::new("unshare").args(unshare).arg("true").status();
    if !allowed.is_ok_and(|status| status.success()) {
        return skipped("no PID namespace can be made here");
    }
    // The leftover is older than the launcher by the kernel's clock. The shell's wait reports how
    // it ended.
    let script =
        "here=$(cat /proc/sys/kernel/random/boot_id):$(readlink /proc/self/ns/pid | tr -dc 0-9)
        RANKLAUNCH_JOB=gone:$here:4194303:1 setsid sleep 60 & left=$!
        began() { cut -d' ' -f22 /proc/$1/stat; }
        until [ \"$(began self)\" -gt \"$(began $left)\" ]; do sleep 0.01; done
        \"$@\"; echo clean $?; wait $left; echo left $?";
    let clean = ["clean", "--engine", "command", "--device", "cpu", "--", "true"];
    for (errno, calls) in [("ENOSYS", "100000,424"), ("EPERM", "100000,424")] {
        let Some(_) = refused(errno, calls, &clean) else { return };
        let mut command = Command::new("unshare");
        command.args(unshare).args(["sh", "-c", script, "sh"]).arg(compiled("refuse_calls"));
        command.args([errno, calls]).arg(harness::executable());
        let ended = Launcher::of(command, clean).run();
        assert!(ended.out.ends_with("clean 0\nleft 143\n"), "{errno}: {}{}", ended.out, ended.err);
    }
}

/// The C library takes EPERM from clone3 as final, so no thread can be created.
#[test]
fn a_runtime_that_refuses_clone3_is_named() {
    let Some(launcher) = refused("EPERM", "424", &RUN) else { return };
    let ended = launcher.args(["--", "true"]).run().expect_code(84).expect_id("pids.limit");
    for words in ["clone3", "Docker before 20.10.10"] {
        assert!(ended.err.contains(words), "{words}\n{}", ended.err);
    }
}

/// Maps of the standard library need random bytes, and abort the program without them, as before
/// Linux 3.17 in a root without /dev.
#[test]
fn a_kernel_without_random_bytes_is_named() {
    let empty = ["--mount", "sh", "-c", "mount -t tmpfs none /dev && exec \"$@\"", "sh"];
    let allowed = Command::new("unshare").args(empty).arg("true").status();
    if !allowed.is_ok_and(|status| status.success()) {
        return skipped("no mount namespace can be made here");
    }
    // Call 318 is getrandom.
    for (refused, code) in [("318", 84), ("100000", 0)] {
        let mut command = Command::new("unshare");
        command
            .args(empty)
            .arg(compiled("refuse_calls"))
            .args(["ENOSYS", &format!("100000,{refused}")]);
        let plan = ["plan", "--engine", "command", "--device", "cpu", "--", "true"];
        let ended = Launcher::of(command, [harness::executable().into_os_string()])
            .args(plan)
            .run()
            .expect_code(code);
        assert!(!ended.err.contains("panicked"), "{}", ended.err);
        assert_eq!(ended.id(), (code != 0).then_some("random.none"), "{}", ended.err);
    }
}

/// DNS needs getrandom(2), which Linux has since 3.17. Without it, the C library's resolver is
/// asked for names, and nothing crashes.
#[test]
fn unresolvable_name_causes_no_crash() {
    for (who, errno, first) in REFUSED {
        let args = ["wait", "no-such-host.invalid:29500", "--timeout", "1s"];
        let Some(launcher) = refused(errno, first, &args) else { return };
        let ended = launcher.run().expect_code(85);
        assert!(!ended.err.contains("panicked"), "{who}\n{}", ended.err);
    }
}
