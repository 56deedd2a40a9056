//! State inherited from the parent: ignored signals, closed streams, a bare root, foreign
//! children. None of it may change how a job ends.

use std::process::{Command, Stdio};

use harness::{Launcher, Place, copy_program, executable, run_args, skipped};
use nix::sys::signal::Signal;

/// `ranklaunch ARGS…`, started by a parent that ignores SIGCHLD to avoid zombies.
fn without_sigchld(args: &[&str]) -> Launcher {
    let mut command = Command::new("env");
    command.arg("--ignore-signal=CHLD").arg(executable());
    Launcher::of(command, args)
}

#[test]
fn an_ignored_sigchld_loses_no_end() {
    // A launcher that missed the end would wait for this grace, which is longer than any test
    // waits.
    let run = ["run", "--engine", "command", "--device", "cpu", "--stale", "off", "--grace", "10m"];
    let run = without_sigchld(&run).args(["--", "sh", "-c", "exit 3"]);
    run.run().expect_code(3).expect_nothing_left();
    without_sigchld(&["init", "--", "sh", "-c", "exit 3"]).run().expect_code(3);
    let plan = ["plan", "--engine", "command", "--device", "cpu", "--", "true"];
    without_sigchld(&plan).run().expect_code(0);
}

/// No process is left that could stop the shim, so the shim must notice the end itself.
#[test]
fn an_ignored_sigchld_leaves_no_shim() {
    let mut args = run_args("direct", 1);
    args.extend(["--", "sh", "-c", "echo READY; exec sleep 60"].map(Into::into));
    let mut command = Command::new("env");
    command.arg("--ignore-signal=CHLD").arg(executable());
    let mut running = Launcher::of(command, args).start();
    running.says("READY", 1);
    let token_holders = running.processes();
    let agent = running.agent();
    // Both are killed at once, so that the agent does not end its ranks because of the guard.
    harness::kill(agent);
    harness::kill(running.pid());
    drop(running.wait());
    harness::wait_until("the end of shim and rank", || {
        token_holders
            .iter()
            .all(|one| !std::path::Path::new(&format!("/proc/{}/environ", one.pid)).exists())
            .then_some(())
    });
}

/// The rank gets back the state that the parent had set.
#[test]
fn rank_inherits_the_original_signal_state() {
    let run = ["run", "--engine", "command", "--device", "cpu", "--stale", "off", "--"];
    let ignored = |ended: harness::Ended| {
        let line = ended.out.lines().find_map(|line| line.split_once("SigIgn:")).expect("a line");
        u64::from_str_radix(line.1.trim(), 16).expect("a mask")
    };
    let child = 1 << (Signal::SIGCHLD as u32 - 1);
    // No shell runs in between, because a shell sets SIGCHLD for itself.
    let program = ["grep", "SigIgn", "/proc/self/status"];
    let with = ignored(without_sigchld(&run).args(program).run().expect_code(0));
    assert_eq!(with & child, child, "{with:x}");
    let plain = ignored(Launcher::new(run).args(program).run().expect_code(0));
    // No state of ours may remain either: the shim ignores all signals, including real-time ones.
    let real_time = u64::MAX << (nix::libc::SIGRTMIN() - 1);
    assert_eq!(plain & (child | real_time), 0, "{plain:x}");
}

#[test]
fn real_time_signals_belong_to_the_rank() {
    let script = "import os, signal, time\n\
        def got(*_): print('GOT', flush=True)\n\
        signal.signal(signal.SIGRTMIN + 1, got)\n\
        print('READY', flush=True)\n\
        end = time.monotonic() + 30\n\
        while not os.path.exists('end') and time.monotonic() < end: time.sleep(0.02)\n";
    let mut args = run_args("direct", 1);
    args.extend(["--".into(), harness::python().into_os_string(), "-c".into(), script.into()]);
    let mut running = Launcher::new(args).start();
    running.says("READY", 1);
    let agent = running.agent();
    let shim = harness::wait_until("the shim", || {
        running.processes().into_iter().find(|one| one.parent == agent)
    });
    let number = nix::libc::SIGRTMIN() + 1;
    let rank = harness::wait_until("the rank", || {
        running.processes().into_iter().find(|one| one.parent == shim.pid)
    });
    // Each process leads its own group; the shim must not die of the signal.
    let groups = [shim.pid, rank.pid].map(|pid| format!("-{pid}"));
    let sent = Command::new("kill").args(["-s", &number.to_string(), "--"]).args(groups).status();
    assert!(sent.is_ok_and(|status| status.success()));
    running.says("GOT", 1);
    // The launcher passes the signal on, like USR1.
    linux::sys::send(running.pid(), number);
    running.says("GOT", 2);
    std::fs::write(running.folder().join("end"), "").expect("a file");
    running.wait().expect_code(0).expect_nothing_left();
}

/// A root with only the executable and a program: no /dev/null, no /dev at all.
fn bare_root(setup: &Launcher) -> std::path::PathBuf {
    let root = setup.folder().join("root");
    for folder in ["bin", "proc", "tmp"] {
        std::fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    copy_program(&executable(), &root.join("bin/ranklaunch"));
    copy_program(&setup.misbehave(), &root.join("bin/misbehave"));
    root
}

/// Runs `script` with the bare root as $ROOT in a PID namespace: (code, output).
fn in_bare_root(script: &str) -> Option<(i32, String)> {
    if !Place::Namespace.exists() || !nix::unistd::geteuid().is_root() {
        skipped("no namespace and no chroot here");
        return None;
    }
    let setup = Launcher::at(Place::Plain);
    let output = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script])
        .env("ROOT", bare_root(&setup))
        .stdin(Stdio::null())
        .output()
        .expect("unshare");
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned()))
}

const BARE_RUN: &str =
    "run --engine direct --device cpu --stale off --probe off --nproc-per-node 2 --log-dir /tmp";

#[test]
fn a_root_without_dev_null_runs_a_job() {
    let script = format!(
        "mount -t proc proc $ROOT/proc && chroot $ROOT /bin/ranklaunch {BARE_RUN} -- /bin/misbehave exit 0"
    );
    let Some((code, text)) = in_bare_root(&script) else { return };
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("all ranks ended with code 0"), "{text}");
}

#[test]
fn closed_streams_without_dev_null_cause_no_crash() {
    for closed in ["<&-", "<&- >&-", "<&- 2>&-", "<&- >&- 2>&-"] {
        let script = format!(
            "mount -t proc proc $ROOT/proc && chroot $ROOT /bin/ranklaunch {BARE_RUN} -- /bin/misbehave exit 5 {closed}"
        );
        let Some((code, text)) = in_bare_root(&script) else { return };
        assert_eq!(code, 5, "{closed}: {text}");
    }
}

/// Without /proc only wait(2) knows our descendants.
#[test]
fn init_without_proc_ends_what_is_left() {
    // `hold-stdout` leaves a process in a session of its own that ignores TERM.
    let script = "chroot $ROOT /bin/ranklaunch init --grace 1s -- /bin/misbehave hold-stdout 0; \
                  code=$?; pgrep -f '^/bin/misbehave' && exit 99; exit $code";
    let Some((code, text)) = in_bare_root(script) else { return };
    assert_eq!(code, 0, "{text}");
}

/// A shell starts a process and then becomes our init. Leftovers of the command are ended, even
/// without its environment; the earlier process is not.
#[test]
fn leftovers_are_distinguished_from_earlier_children() {
    let leave = "(exec env -i setsid sleep 61.7) & sleep 0.3";
    for ours in
        ["init --grace 1s --", "run --engine command --device cpu --stale off --grace 1s --"]
    {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 62.3 & echo $! > stranger; exec \"$@\"", "sh"]).arg(executable());
        let words: Vec<&str> = ours.split(' ').collect();
        let ended = Launcher::of(shell, words).args(["sh", "-c", leave]).run().expect_code(0);
        let sleeps = |time: &str| {
            harness::alive::pids()
                .into_iter()
                .filter(|pid| {
                    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                    line == format!("sleep\0{time}\0").into_bytes()
                })
                .collect::<Vec<i32>>()
        };
        assert_eq!(sleeps("61.7"), Vec::<i32>::new(), "{ours}\n{}", ended.err);
        let stranger = std::fs::read_to_string(ended.folder().join("stranger"));
        let stranger = stranger.expect("a pid").trim().parse().expect("a number");
        assert!(sleeps("62.3").contains(&stranger), "{ours}: the earlier child was ended");
        harness::kill(stranger);
    }
}
