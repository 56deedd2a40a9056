//! A dead mount never delays the result: each source has its deadline, a late one is named with
//! its path, and a thread that no signal ends delays nothing.

use std::path::Path;
use std::process::Command;

use harness::hung_mount::with_hung_mount;
use harness::{Ended, Launcher, Running, executable, processes_of, wait_until};
use nix::mount::{MntFlags, MsFlags};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Runs through a pipe whose reader waits for its end, like `x=$(ranklaunch plan)`.
fn piped(args: &[&str], hung: &Path) -> (Ended, i32) {
    piped_with(args, &[], hung)
}

fn piped_with(args: &[&str], program: &[&str], hung: &Path) -> (Ended, i32) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "{ \"$@\" 2> said; echo $? > code; } | cat", "sh"]).arg(executable());
    let launcher = Launcher::of(shell, args)
        .args(["--log-dir".as_ref(), hung.join("logs").as_os_str()])
        .args(["--deadline", "1s", "--device", "cpu", "--lang", "en"])
        .args(["--severity", "python.torch=warn"])
        .args(program)
        .env("NCCL_CONF_FILE", hung.join("nccl.conf"));
    let mut ended = launcher.run().expect_code(0);
    let read = |name: &str| std::fs::read_to_string(ended.folder().join(name));
    let code = read("code").expect("a code").trim().parse().expect("a number");
    ended.err = read("said").expect("a file");
    (ended, code)
}

/// Threads of the launch in state D. Their process has otherwise ended, so only the threads
/// still show the environment.
fn stuck(token: &str) -> usize {
    let folders = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    folders(Path::new("/proc"))
        .flat_map(|process| folders(&process.path().join("task")).collect::<Vec<_>>())
        .filter(|task| {
            let read = |name: &str| std::fs::read(task.path().join(name)).unwrap_or_default();
            let stat = String::from_utf8_lossy(&read("stat")).into_owned();
            let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start().to_owned());
            let environ = String::from_utf8_lossy(&read("environ")).into_owned();
            state.is_some_and(|state| state.starts_with('D')) && environ.contains(token)
        })
        .count()
}

/// Expects that all processes that waited for the mount end after its removal.
fn nothing_left(token: &str) {
    wait_until("the stuck threads to be set free", || (stuck(token) == 0).then_some(()));
    // The process takes a moment to end.
    wait_until("the end of whoever waited", || processes_of(token).is_empty().then_some(()));
}

#[test]
fn check_names_hung_sources_and_gives_its_verdict() {
    let mut token = String::new();
    let there = with_hung_mount(|hung| {
        let (ended, code) = piped(&["check", "--format", "json"], hung);
        assert_eq!(code, 0, "{}", ended.err);
        let report: Value = serde_json::from_str(&ended.out).expect("a report");
        let checks = report["checks"].as_array().expect("checks");
        let late: Vec<&str> = checks
            .iter()
            .filter(|check| check["id"] == "storage.alive" && check["severity"] == "warn")
            .filter_map(|check| check["text"].as_str())
            .collect();
        for path in ["nccl.conf", "logs"] {
            let path = hung.join(path).display().to_string();
            assert!(late.iter().any(|text| text.contains(&path)), "{path}: {late:?}");
        }
        assert!(stuck(ended.token()) > 0, "nobody hangs, so nothing was shown");
        token = ended.token().to_owned();
    });
    if there {
        nothing_left(&token);
    }
}

#[test]
fn plan_and_run_go_on_without_hung_sources() {
    let mut token = String::new();
    let there = with_hung_mount(|hung| {
        let engine = ["--engine", "direct", "--nproc-per-node", "2", "--stale", "off"];
        let program = ["--", "sh", "-c", "echo ran"];
        let of = |name: &'static str| [&[name], engine.as_slice()].concat();

        let (ended, code) = piped_with(&of("plan"), &program, hung);
        assert_eq!(code, 0, "{}", ended.err);
        let config = hung.join("nccl.conf").display().to_string();
        assert!(ended.out.contains(&config), "{}", ended.out);
        assert!(ended.out.contains("world_size"), "{}", ended.out);

        let (ended, code) = piped_with(&of("run"), &program, hung);
        assert_eq!(code, 0, "{}", ended.err);
        assert_eq!(ended.out.matches("ran").count(), 2, "{}", ended.out);
        assert!(ended.err.contains(&config), "{}", ended.err);
        let logs = format!("log folder {} cannot be used", hung.join("logs").display());
        assert!(ended.err.contains(&logs), "{}", ended.err);
        assert!(stuck(ended.token()) > 0, "nobody hangs, so nothing was shown");
        token = ended.token().to_owned();
    });
    if there {
        nothing_left(&token);
    }
}

/// tests/programs/stuck_driver.c: NVML of a driver that hangs.
fn stuck_driver(folder: &Path) -> std::path::PathBuf {
    let library = folder.join("libnvidia-ml.so.1");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-o"]).arg(&library);
    harness::run_tool(compiler.arg(harness::program("stuck_driver.c")));
    library
}

/// The held probe is our own child and no process of the job.
#[test]
fn hung_driver_costs_only_its_deadline() {
    let mut token = String::new();
    let there = with_hung_mount(|hung| {
        let folder = tempfile::tempdir().expect("a folder");
        for (program, code) in [("exit 0", 0), ("exit 5", 5)] {
            let args = ["run", "--engine", "direct", "--stale", "off", "--nproc-per-node", "1"];
            let ended = Launcher::new(args)
                .args(["--deadline", "1s", "--severity", "gpu.fault=warn"])
                .args(["--severity", "gpu.count=warn", "--grace", "10m"])
                .args(["--", "sh", "-c", program])
                .env("RANKLAUNCH_NVML_LIBRARY", stuck_driver(folder.path()))
                .env("STUCK_DRIVER", hung.join("nvidiactl"))
                .run()
                .expect_code(code);
            assert!(ended.err.contains("NVML hangs"), "{}", ended.err);
            assert!(!ended.err.contains("outlived"), "{}", ended.err);
            // The launcher waited neither for the grace nor for the probe, both of which outlast a
            // test.
            assert!(stuck(ended.token()) > 0, "nobody hangs, so nothing was shown");
            token = ended.token().to_owned();
        }
    });
    if there {
        nothing_left(&token);
    }
}

/// The job's program is on a mount that dies between the check and the launch, while the node
/// waits for its master. Tested with our own executable, which is executed as each rank's shim.
fn launched_from_a_mount_that_dies(deadline: &str, hung: &Path, then: impl FnOnce(Running)) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("ranklaunch");
    let copy = "cp -l \"$1\" \"$2\" || cp \"$1\" \"$2\"";
    harness::run_tool(Command::new("sh").args(["-c", copy, "sh"]).args([&executable(), &program]));
    let port = harness::free_port();
    let args = ["run", "--engine", "direct", "--device", "cpu", "--stale", "off"];
    let running = Launcher::of(Command::new(&program), args)
        .args(["--nproc-per-node", "2", "--grace", "4s", "--lang", "en", "--muster", "off"])
        .args(["--deadline", deadline, "--", "sh", "-c", "echo ran"])
        .node(1, 2, port)
        .start();
    let waits = || running.err().contains(&port.to_string()).then_some(());
    wait_until("the wait for the master", waits);
    let nothing = None::<&str>;
    nix::mount::mount(Some(hung), folder.path(), nothing, MsFlags::MS_BIND, nothing)
        .expect("mounted");
    let _master = std::net::TcpListener::bind(("127.0.0.1", port)).expect("a master");
    let said = format!("{} has not been executed after 5 s", program.display());
    wait_until("the word about it", || running.err().contains(&said).then_some(()));
    then(running);
    nix::mount::umount2(folder.path(), MntFlags::MNT_DETACH).expect("unmounted");
}

#[test]
fn program_never_executed_is_named_and_given_up() {
    let mut token = String::new();
    let there = with_hung_mount(|hung| {
        launched_from_a_mount_that_dies("8s", hung, |running| {
            let ended = running.wait().expect_code(68);
            assert!(ended.err.contains("it was not executed within 8 s"), "{}", ended.err);
            assert!(ended.err.contains("findmnt"), "{}", ended.err);
            assert!(stuck(ended.token()) > 0, "nobody hangs, so nothing was shown");
            token = ended.token().to_owned();
        });
    });
    if there {
        nothing_left(&token);
    }
}

/// The agent handles the stop at once, before the guard's deadline.
fn stopped(running: Running) {
    running.signal(Signal::SIGTERM);
    wait_until("an answer", || running.err().contains("SIGTERM received").then_some(()));
    let ended = running.wait().expect_code(83);
    assert!(ended.err.contains("outlived SIGKILL"), "{}", ended.err);
    assert!(!ended.err.contains("agent did not end"), "{}", ended.err);
}

#[test]
fn stop_works_while_a_program_hangs_at_exec() {
    with_hung_mount(|hung| launched_from_a_mount_that_dies("5m", hung, stopped));
}

#[test]
fn rank_hung_at_exec_is_named() {
    with_hung_mount(|hung| {
        let folder = tempfile::tempdir().expect("a folder");
        let [source, program] = ["empty.c", "program"].map(|name| folder.path().join(name));
        std::fs::write(&source, "int main(void) { return 0; }\n").expect("written");
        // The program can be read, and its loader hangs.
        let loader = format!("-Wl,--dynamic-linker={}", hung.join("ld.so").display());
        harness::run_tool(Command::new("cc").args([&loader, "-o"]).args([&program, &source]));
        let args = ["run", "--engine", "direct", "--device", "cpu", "--stale", "off"];
        let running = Launcher::new(args)
            .args(["--nproc-per-node", "1", "--grace", "4s", "--lang", "en", "--"])
            .args([&program])
            .start();
        let said = format!("rank 0: {} has not been executed after 5 s", program.display());
        wait_until("the word about it", || running.err().contains(&said).then_some(()));
        stopped(running);
    });
}

#[test]
fn hung_profile_is_refused_by_name() {
    with_hung_mount(|hung| {
        let profile = hung.join("p.toml").display().to_string();
        let (ended, code) = piped(&["plan", "--profile", &profile], hung);
        assert_eq!(code, 64, "{}", ended.err);
        assert!(
            ended.err.contains(&profile) && ended.err.contains("settings.hung"),
            "{}",
            ended.err
        );
    });
}
