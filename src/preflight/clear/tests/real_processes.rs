//! The whole clearing on real processes in their own PID namespace.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::skipped;

use super::*;
use linux::procfs::Process;

const STAGE: &str = "RANKLAUNCH_TEST_STAGE";
const FOLDER: &str = "RANKLAUNCH_TEST_FOLDER";

/// `sh SCRIPT` under another name, started in `folder`.
fn start(folder: &Path, name: &str, args: &[&str]) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg0(name).args(args).current_dir(folder).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Three stages of one executable: outside; inside a new PID namespace, where the processes are
/// planted; and the clearing stage, which is younger than they are.
#[test]
fn stale_rank_is_ended_and_neighbours_stay() {
    match std::env::var(STAGE).as_deref() {
        Err(_) => outside(),
        Ok("plant") => plant(),
        Ok(mode) => act(mode),
    }
}

fn again(program: &mut Command, stage: &str, folder: &Path) -> std::process::Output {
    program
        .args([
            "--exact",
            "clear::tests::real_processes::stale_rank_is_ended_and_neighbours_stay",
            "--nocapture",
        ])
        .env(STAGE, stage)
        // A stage with arguments of its own does not count as a fork of its parent.
        .args(["--skip", stage])
        .env(FOLDER, folder)
        .env_remove(MARKER)
        .output()
        .expect("runs")
}

fn outside() {
    let works = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).status();
    if !works.is_ok_and(|status| status.success()) {
        skipped("unshare --pid --mount-proc is not allowed here");
        return;
    }
    let folder = tempfile::tempdir().expect("folder");
    let mut program = Command::new("unshare");
    program
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe().expect("own path"));
    let output = again(&mut program, "plant", folder.path());
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let proof = std::fs::read_to_string(folder.path().join("planted")).expect("it ran inside");
    assert_eq!(proof, "done");
}

/// The marker of a job whose agent is, or was, a process of this namespace.
fn mark(pid: i32, ticks: u64) -> String {
    let place = Host::live().process(pid).pid_place().expect("a kernel that tells");
    format!("job:{place}:{pid}:{ticks}")
}

fn plant() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("folder"));
    let host = Host::live();
    assert_eq!(std::process::id(), 1, "this stage runs in a namespace of its own");
    std::fs::write(folder.join("train.py"), "sleep 600 & wait\n").expect("script");
    symlink("/bin/sh", folder.join("python3")).expect("link");
    std::fs::write(folder.join("torchrun"), "./python3 train.py & wait\n").expect("launcher");
    std::fs::write(folder.join("deaf.py"), "trap '' TERM\n: > deaf\nwhile :; do sleep 600; done\n")
        .expect("script");

    let rank = || start(&folder, "python3", &["train.py"]);
    let spawn = |mut command: Command| command.spawn().expect("starts");
    let own = Process::own(&host).expect("own");
    let (pid, ticks) = (own.pid, own.start_ticks);
    let mut decoys: Vec<(&str, Child)> = vec![
        ("editor", spawn(start(&folder, "vim", &["train.py"]))),
        ("grep", spawn(start(&folder, "grep", &["train.py", "train.py"]))),
        ("shell", spawn(start(&folder, "sh", &["-c", "sleep 600; : train.py"]))),
        ("another user's", {
            let mut command = rank();
            command.uid(65534);
            std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .expect("mode");
            spawn(command)
        }),
        ("a living agent's", {
            let mut command = rank();
            command.env(MARKER, mark(pid, ticks));
            spawn(command)
        }),
        ("a living torchrun's", spawn(start(&folder, "torchrun", &["torchrun", "train.py"]))),
        ("a script that runs by itself", spawn(rank())),
        ("a rank that pid 1 itself started", {
            let mut command = rank();
            command.env("LOCAL_RANK", "0").env("RANK", "0").env("WORLD_SIZE", "2");
            spawn(command)
        }),
    ];
    let mut stale: Vec<(&str, Child)> = vec![
        ("orphan rank", {
            let mut command = rank();
            command
                .env("TORCHELASTIC_RUN_ID", "x")
                .env("LOCAL_RANK", "0")
                .env("RANK", "0")
                .env("WORLD_SIZE", "2");
            spawn(command)
        }),
        ("dead agent's", {
            let mut command = start(&folder, "anything", &["-c", "sleep 600; :"]);
            command.env(MARKER, mark(pid, ticks + 1));
            spawn(command)
        }),
        ("torchrun's orphan", {
            let mut command = rank();
            command.env("TORCHELASTIC_RUN_ID", "none");
            spawn(command)
        }),
    ];
    let loader = {
        let pid = stale[0].1.id().cast_signed();
        let mut found = None;
        until("the rank's child", || {
            let all = host.processes();
            found = Process::descendants(&all, &[pid]).first().copied().cloned();
            found.is_some()
        });
        found.expect("found")
    };
    let alive = |child: &mut Child| child.try_wait().expect("wait").is_none();

    for mode in ["off", "report"] {
        run_stage(&folder, mode, &mut decoys);
        for (what, child) in stale.iter_mut().chain(&mut decoys) {
            assert!(alive(child), "{mode} ended the {what} process");
        }
    }
    run_stage(&folder, "kill", &mut decoys);
    for (what, child) in &mut stale {
        assert!(!alive(child), "the {what} process lives");
    }
    assert!(!host.process(loader.pid).is_alive(loader.start_ticks), "its child lives");
    for (what, child) in &mut decoys {
        assert!(alive(child), "the {what} process was ended");
    }

    let mut deaf = {
        let mut command = start(&folder, "python3", &["deaf.py"]);
        command.env("TORCHELASTIC_RUN_ID", "x");
        spawn(command)
    };
    until("it ignores TERM", || folder.join("deaf").exists());
    run_stage(&folder, "deaf", &mut decoys);
    let status = deaf.try_wait().expect("wait").expect("ended by KILL");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));

    // The control: the processes left alone can be ended, and `force` ends those that run the
    // script.
    run_stage(&folder, "force", &mut decoys);
    for (what, child) in &mut decoys {
        let runs_it = [
            "a living agent's",
            "a living torchrun's",
            "a script that runs by itself",
            "a rank that pid 1 itself started",
        ];
        assert_eq!(alive(child), !runs_it.contains(what), "{what} under force");
    }
    std::fs::write(folder.join("planted"), "done").expect("proof");
    // The namespace ends with us, and with it all processes in it.
}

/// Runs the clearing stage after it is certain to be younger than the processes to clear.
fn run_stage(folder: &Path, mode: &str, others: &mut [(&str, Child)]) {
    let host = Host::live();
    let newest = host.processes().values().map(|one| one.start_ticks).max().expect("some");
    until("the clock ticks", || {
        let mut probe = Command::new("sleep").arg("60").spawn().expect("sleep");
        let start = host.process(probe.id().cast_signed()).stat().expect("lives").start_ticks;
        probe.kill().expect("kill");
        probe.wait().expect("wait");
        start > newest
    });
    let mut program = Command::new(std::env::current_exe().expect("own path"));
    let output = again(&mut program, mode, folder);
    assert!(
        output.status.success(),
        "{mode}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    for (_, child) in others {
        let _ = child.try_wait();
    }
}

fn act(mode: &str) {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("folder"));
    let host = Host::live();
    let (stale, script) = match mode {
        "off" => (StaleMode::Off, "train.py"),
        "report" => (StaleMode::Report, "train.py"),
        "deaf" => (StaleMode::Kill, "deaf.py"),
        "force" => (StaleMode::Force, "train.py"),
        _ => (StaleMode::Kill, "train.py"),
    };
    // This process is younger than us and an orphan at the time of the scan: it must not be ended.
    let younger = format!("setsid ./python3 {script} &");
    assert!(start(&folder, "sh", &["-c", &younger]).status().expect("runs").success());
    let request = Request {
        script: Some(folder.join(script).canonicalize().expect("script")),
        term_wait: Duration::from_millis(if mode == "deaf" { 200 } else { 10_000 }),
        ..Request::new(stale)
    };
    let own = Process::own(&host).expect("own");
    let newer = || -> Vec<Process> {
        host.processes()
            .into_values()
            .filter(|one| one.start_ticks >= own.start_ticks && one.pid != own.pid)
            .filter(|one| {
                host.process(one.pid)
                    .cmdline()
                    .is_some_and(|argv| argv.get(1).is_some_and(|arg| arg == script.as_bytes()))
            })
            .collect()
    };
    until("the younger one", || !newer().is_empty());
    let mut lines = Vec::new();
    let report = clear(&host, &request, &mut |text| lines.push(text)).expect("clears");
    assert_eq!(report.found.is_empty(), mode == "off");
    let ends = matches!(stale, StaleMode::Kill | StaleMode::Force);
    assert_eq!(report.ended.is_empty(), !ends, "{:?}", report.found);
    // Each ended process has its own line.
    let told = lines.iter().filter(|line| line.en.starts_with("ended: pid ")).count();
    assert_eq!(told, report.ended.len(), "{lines:?}");
    assert!(!newer().is_empty(), "the younger one was ended");
    assert!(report.waited < Duration::from_secs(9), "{:?}", report.waited);
    if mode == "report" {
        let words = [("user 65534", stale), ("is still running", stale), ("kill would end", stale)];
        for (word, mode) in words {
            let said = |one: &StaleProcess| one.left_alone(mode).en.contains(word);
            assert!(report.found.iter().any(said), "{word}: {:?}", report.found);
        }
    }
}
