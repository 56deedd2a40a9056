//! The rules on planted /proc folders, and the whole act on real processes in a
//! PID namespace of their own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::host::Host;
use crate::procfs;
use crate::skipped::skipped;

/// One planted process; the defaults are an orphan of ours that is older than we are.
#[derive(Clone)]
struct Planted {
    pid: i32,
    ppid: i32,
    session: i32,
    terminal: i32,
    start: u64,
    state: char,
    argv: &'static str,
    environ: &'static str,
    uid: u32,
    namespace: &'static str,
    cgroup: &'static str,
    open: &'static str,
}

fn planted(pid: i32, argv: &'static str) -> Planted {
    Planted {
        pid,
        ppid: 1,
        session: pid,
        terminal: 0,
        start: 100,
        state: 'S',
        argv,
        environ: "PATH=/bin",
        uid: 1000,
        namespace: "pid:[1]",
        cgroup: "0::/pod/a",
        open: "/dev/null",
    }
}

/// A /proc with an init (1), ourselves (50, below shell 40), and `processes`.
fn host(folder: &Path, processes: &[Planted]) -> Host {
    let own = Planted { ppid: 40, start: 500, ..planted(50, "/bin/ranklaunch run") };
    let shell = Planted { start: 50, ..planted(40, "bash") };
    let init = Planted { ppid: 0, start: 1, ..planted(1, "tini -- bash") };
    for one in [&init, &shell, &own].into_iter().chain(processes) {
        let Planted { pid, ppid, session, terminal, start, state, .. } = one;
        let proc = folder.join(format!("proc/{pid}"));
        std::fs::create_dir_all(proc.join("ns")).expect("folder");
        std::fs::create_dir_all(proc.join("fd")).expect("folder");
        let zeros = "0 ".repeat(14);
        let stat = format!(
            "{pid} (x (y) z) {state} {ppid} {session} {session} {terminal} {zeros}0 {start} 0\n"
        );
        // Fields 8 to 21 are fourteen; the extra zero above stands for none of them.
        let stat = stat.replacen(&format!("{zeros}0 "), &zeros, 1);
        std::fs::write(proc.join("stat"), stat).expect("stat");
        let nul = |text: &str| format!("{}\0", text.replace(' ', "\0"));
        std::fs::write(proc.join("cmdline"), nul(one.argv)).expect("cmdline");
        std::fs::write(proc.join("environ"), nul(one.environ)).expect("environ");
        std::fs::write(proc.join("status"), format!("Name:\tx\nUid:\t0\t{}\t0\t0\n", one.uid))
            .expect("status");
        std::fs::write(proc.join("cgroup"), format!("{}\n", one.cgroup)).expect("cgroup");
        symlink(one.namespace, proc.join("ns/pid")).expect("ns");
        symlink("/job", proc.join("cwd")).expect("cwd");
        symlink(one.open, proc.join("fd/3")).expect("fd");
    }
    std::fs::create_dir_all(folder.join("job")).expect("job");
    std::fs::write(folder.join("job/train.py"), "").expect("script");
    symlink("50", folder.join("proc/self")).expect("self");
    Host::replayed(folder, BTreeMap::<OsString, OsString>::new())
}

fn request() -> Request {
    Request {
        script: Some(PathBuf::from("/job/train.py")),
        gpu_minors: vec![0, 1],
        ..Request::new(StaleMode::Kill)
    }
}

/// Pids to end and pids reported.
fn verdicts(processes: &[Planted]) -> (Vec<i32>, Vec<i32>) {
    let folder = tempfile::tempdir().expect("folder");
    let found = find(&host(folder.path(), processes), &request());
    let of = |kill| found.iter().filter(|one| one.is_kill() == kill).map(|one| one.pid).collect();
    (of(true), of(false))
}

#[test]
fn each_rule_has_its_judgement() {
    let rank = || planted(60, "python -u train.py");
    let none: &[i32] = &[];
    for (what, process, kill, report) in [
        ("an orphan rank", rank(), &[60][..], none),
        ("one adopted by a subreaper", Planted { ppid: 40, ..rank() }, &[60], none),
        ("a younger one", Planted { start: 501, ..rank() }, none, none),
        ("one as old as we are", Planted { start: 500, ..rank() }, none, none),
        ("a zombie", Planted { state: 'Z', ..rank() }, none, none),
        ("another user's", Planted { uid: 65534, ..rank() }, none, &[60]),
        ("another namespace's", Planted { namespace: "pid:[2]", ..rank() }, none, &[60]),
        ("another container's", Planted { cgroup: "0::/pod/b", ..rank() }, none, &[60]),
        ("an editor", planted(60, "vim train.py"), none, none),
        ("a grep", planted(60, "grep train.py"), none, none),
        ("another script", planted(60, "python other.py train.py"), none, none),
        (
            "a notebook on our GPU",
            Planted { open: "/dev/nvidia1", ..planted(60, "python -m ipykernel_launcher") },
            none,
            &[60],
        ),
        (
            "a notebook on another GPU",
            Planted { open: "/dev/nvidia7", ..planted(60, "python -m ipykernel_launcher") },
            none,
            none,
        ),
        (
            "a renamed orphan of torchrun",
            Planted { environ: "TORCHELASTIC_RUN_ID=none", ..planted(60, "worker") },
            &[60],
            none,
        ),
        (
            "a shell started in a job",
            Planted { environ: "TORCHELASTIC_RUN_ID=none", terminal: 34816, ..planted(60, "bash") },
            none,
            none,
        ),
        (
            "a rank of a dead agent",
            Planted { environ: "RANKLAUNCH_JOB=a:b:77:90", ..planted(60, "worker") },
            &[60],
            none,
        ),
        (
            "a rank of a reused pid",
            Planted { environ: "RANKLAUNCH_JOB=a:1:90", ..planted(60, "worker") },
            &[60],
            none,
        ),
        (
            "a rank of a living agent",
            Planted { environ: "RANKLAUNCH_JOB=a:1:1", open: "/dev/nvidia0", ..rank() },
            none,
            &[60],
        ),
        ("a living torchrun", planted(60, "torchrun other.py"), none, &[60]),
        ("a living torchrun of our script", planted(60, "torchrun train.py"), none, &[60]),
    ] {
        assert_eq!(verdicts(&[process]), (kill.to_vec(), report.to_vec()), "{what}");
    }
}

#[test]
fn trees_are_judged_as_one() {
    let torchrun = planted(60, "python /usr/bin/torchrun other.py");
    let rank = Planted { ppid: 60, ..planted(61, "python -u other.py") };
    let loader = Planted { ppid: 61, session: 61, ..planted(62, "data loader") };
    // Its parent died: only the session says whose it was; newer than us and all.
    let stray = Planted { ppid: 1, session: 61, start: 900, ..planted(63, "ffmpeg") };

    let free = [torchrun.clone(), rank.clone(), loader.clone()];
    assert_eq!(verdicts(&free), (vec![], vec![60]), "its GPUs are not ours");
    let mut busy = free.to_vec();
    busy[2].open = "/dev/nvidia1";
    assert_eq!(verdicts(&busy), (vec![60, 61, 62], vec![]), "it holds our GPU");

    let orphans = [
        Planted { ppid: 1, environ: "TORCHELASTIC_RUN_ID=x", ..rank.clone() },
        loader.clone(),
        stray.clone(),
    ];
    assert_eq!(verdicts(&orphans), (vec![61, 62, 63], vec![]), "all that a dead torchrun left");

    let kept = [
        Planted { argv: "/bin/ranklaunch run", ..torchrun.clone() },
        Planted { argv: "python train.py", open: "/dev/nvidia0", ..rank },
        loader,
    ];
    assert_eq!(verdicts(&kept), (vec![], vec![61]), "a living ranklaunch is never stale");

    let shim = Planted {
        argv: "/bin/ranklaunch rank -- python train.py",
        environ: "RANKLAUNCH_JOB=a:77:90",
        ..torchrun
    };
    let below = Planted { ppid: 60, ..planted(61, "python train.py") };
    assert_eq!(verdicts(&[shim, below]), (vec![60, 61], vec![]), "a shim whose agent died");
}

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

/// Three stages of one executable: outside; inside a new PID namespace, where the
/// processes are planted; and the one that clears, which is younger than they are.
#[test]
fn a_stale_rank_goes_and_its_neighbours_stay() {
    match std::env::var(STAGE).as_deref() {
        Err(_) => outside(),
        Ok("plant") => plant(),
        Ok(mode) => act(mode),
    }
}

fn again(program: &mut Command, stage: &str, folder: &Path) -> std::process::Output {
    program
        .args(["--exact", "clear::tests::a_stale_rank_goes_and_its_neighbours_stay", "--nocapture"])
        .env(STAGE, stage)
        // A stage of its own arguments is no fork of the stage above it.
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
    let own = procfs::own(&host).expect("own");
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
            command.env(MARKER, format!("job:{pid}:{ticks}"));
            spawn(command)
        }),
        ("a living torchrun's", spawn(start(&folder, "torchrun", &["torchrun", "train.py"]))),
    ];
    let mut stale: Vec<(&str, Child)> = vec![
        ("orphan rank", spawn(rank())),
        ("dead agent's", {
            let mut command = start(&folder, "anything", &["-c", "sleep 600; :"]);
            command.env(MARKER, format!("job:{pid}:{}", ticks + 1));
            spawn(command)
        }),
        ("torchrun's orphan", {
            let mut command = start(&folder, "python3", &["-c", "sleep 600; :"]);
            command.env("TORCHELASTIC_RUN_ID", "none");
            spawn(command)
        }),
    ];
    let loader = {
        let pid = stale[0].1.id().cast_signed();
        let mut found = None;
        until("the rank's child", || {
            found = procfs::descendants(&host, &[pid]).first().cloned();
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
    assert!(!procfs::is_alive(&host, loader.pid, loader.start_ticks), "its child lives");
    for (what, child) in &mut decoys {
        assert!(alive(child), "the {what} process was ended");
    }

    let mut deaf = spawn(start(&folder, "python3", &["deaf.py"]));
    until("it ignores TERM", || folder.join("deaf").exists());
    run_stage(&folder, "deaf", &mut decoys);
    let status = deaf.try_wait().expect("wait").expect("ended by KILL");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    std::fs::write(folder.join("planted"), "done").expect("proof");
    // The namespace ends with us, and with it everything planted.
}

/// Runs the clearing stage once it is certain to be younger than what is planted.
fn run_stage(folder: &Path, mode: &str, others: &mut [(&str, Child)]) {
    let host = Host::live();
    let newest = procfs::processes(&host).values().map(|one| one.start_ticks).max().expect("some");
    until("the clock ticks", || {
        let mut probe = Command::new("sleep").arg("60").spawn().expect("sleep");
        let start = procfs::stat(&host, probe.id().cast_signed()).expect("lives").start_ticks;
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
        _ => (StaleMode::Kill, "train.py"),
    };
    // Younger than us, an orphan by the time we look: not ours to end.
    let younger = format!("setsid ./python3 {script} &");
    assert!(start(&folder, "sh", &["-c", &younger]).status().expect("runs").success());
    let request = Request {
        script: Some(folder.join(script).canonicalize().expect("script")),
        term_wait: Duration::from_millis(if mode == "deaf" { 200 } else { 10_000 }),
        ..Request::new(stale)
    };
    let own = procfs::own(&host).expect("own");
    let newer = || -> Vec<procfs::Process> {
        procfs::processes(&host)
            .into_values()
            .filter(|one| one.start_ticks >= own.start_ticks && one.pid != own.pid)
            .filter(|one| {
                one.argv(&host)
                    .is_some_and(|argv| argv.get(1).is_some_and(|arg| arg == script.as_bytes()))
            })
            .collect()
    };
    until("the younger one", || !newer().is_empty());
    let mut lines = Vec::new();
    let report = clear(&host, &request, &mut |text| lines.push(text)).expect("clears");
    assert_eq!(lines.len(), report.found.len());
    assert_eq!(report.found.is_empty(), mode == "off");
    assert_eq!(report.ended.is_empty(), stale != StaleMode::Kill, "{:?}", report.found);
    assert!(!newer().is_empty(), "the younger one was ended");
    assert!(report.waited < Duration::from_secs(9), "{:?}", report.waited);
    if mode == "report" {
        let reported = |word: &str| lines.iter().any(|line| line.en.contains(word));
        assert!(reported("user 65534") && reported("lives") && reported("stale: pid"), "{lines:?}");
    }
}

/// `unshare --pid --fork --mount-proc` around many sleeping processes; prints the time of a scan.
#[test]
#[ignore = "a measurement, run by hand among thousands of processes"]
fn scan_time() {
    let host = Host::live();
    for _ in 0..3 {
        let start = Instant::now();
        let found = find(&host, &request());
        let scanned = procfs::pids(&host).len();
        println!("{scanned} processes, {} found, {:?}", found.len(), start.elapsed());
    }
}
