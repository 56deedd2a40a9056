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
use harness::skipped;

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
    /// The kernel's short name, where it is not that of the program.
    comm: &'static str,
    /// Ignores SIGHUP, as after nohup.
    nohup: bool,
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
        comm: "",
        nohup: false,
    }
}

/// The init of most tests: a container's, which adopts and starts nothing.
fn init() -> Planted {
    Planted { ppid: 0, start: 1, session: 1, ..planted(1, "sleep infinity") }
}

/// A /proc with an init (1), ourselves (50, below shell 40), and `processes`; one of them may
/// be another init.
fn host(folder: &Path, processes: &[Planted]) -> Host {
    let own = Planted { ppid: 40, start: 500, ..planted(50, "/bin/ranklaunch run") };
    let shell = Planted { start: 50, ..planted(40, "bash") };
    let init = init();
    let init = Some(&init).filter(|_| processes.iter().all(|one| one.pid != 1));
    for one in init.into_iter().chain([&shell, &own]).chain(processes) {
        let Planted { pid, ppid, session, terminal, start, state, .. } = one;
        let proc = folder.join(format!("proc/{pid}"));
        std::fs::create_dir_all(proc.join("ns")).expect("folder");
        std::fs::create_dir_all(proc.join("fd")).expect("folder");
        let first = one.argv.split(' ').next().unwrap_or_default();
        let comm = first.rsplit('/').next().unwrap_or_default();
        let comm = if one.comm.is_empty() { comm } else { one.comm };
        let zeros = "0 ".repeat(14);
        let stat = format!(
            "{pid} ({comm}) {state} {ppid} {session} {session} {terminal} {zeros}0 {start} 0\n"
        );
        // Fields 8 to 21 are fourteen; the extra zero above stands for none of them.
        let stat = stat.replacen(&format!("{zeros}0 "), &zeros, 1);
        std::fs::write(proc.join("stat"), stat).expect("stat");
        let nul = |text: &str| format!("{}\0", text.replace(' ', "\0"));
        std::fs::write(proc.join("cmdline"), nul(one.argv)).expect("cmdline");
        std::fs::write(proc.join("environ"), nul(one.environ)).expect("environ");
        let ignored = u64::from(one.nohup);
        let status = format!("Name:\tx\nUid:\t0\t{}\t0\t0\nSigIgn:\t{ignored:016x}\n", one.uid);
        std::fs::write(proc.join("status"), status).expect("status");
        std::fs::write(proc.join("cgroup"), format!("{}\n", one.cgroup)).expect("cgroup");
        symlink(one.namespace, proc.join("ns/pid")).expect("ns");
        symlink("/job", proc.join("cwd")).expect("cwd");
        symlink(one.open, proc.join("fd/3")).expect("fd");
    }
    std::fs::create_dir_all(folder.join("job")).expect("job");
    std::fs::write(folder.join("job/train.py"), "").expect("script");
    symlink("50", folder.join("proc/self")).expect("self");
    std::fs::write(folder.join("proc/uptime"), "100.25 200.00\n").expect("uptime");
    Host::replayed(
        folder,
        BTreeMap::<OsString, OsString>::from([("SLURM_JOB_ID".into(), "7".into())]),
    )
}

fn request() -> Request {
    Request {
        script: Some(PathBuf::from("/job/train.py")),
        gpu_minors: vec![0, 1],
        ..Request::new(StaleMode::Kill)
    }
}

/// What ends under kill, what under force alone, and what under no mode.
fn fates(processes: &[Planted]) -> [Vec<i32>; 3] {
    let folder = tempfile::tempdir().expect("folder");
    let found = find(&host(folder.path(), processes), &request());
    let of = |which: fn(&Fate) -> bool| {
        found.iter().filter(|one| which(&one.fate)).map(|one| one.pid).collect()
    };
    [
        of(|fate| matches!(fate, Fate::Leftover(_))),
        of(|fate| matches!(fate, Fate::Forced(_))),
        of(|fate| matches!(fate, Fate::Spared(_))),
    ]
}

/// A python that runs the script, and with these variables.
fn runs(environ: &'static str) -> Planted {
    Planted { environ, ..planted(60, "python -u train.py") }
}

/// One process beside us, an orphan of PID 1 unless it says otherwise.
#[test]
fn each_process_has_its_fate() {
    let rank = || runs("LOCAL_RANK=0 RANK=0 WORLD_SIZE=2");
    let elastic = || runs("TORCHELASTIC_RUN_ID=none LOCAL_RANK=0");
    let marked = |environ| Planted { environ, ..planted(60, "worker") };
    const KILL: [&[i32]; 3] = [&[60], &[], &[]];
    const FORCE: [&[i32]; 3] = [&[], &[60], &[]];
    const SPARED: [&[i32]; 3] = [&[], &[], &[60]];
    const NOT_FOUND: [&[i32]; 3] = [&[], &[], &[]];
    for (what, process, expected) in [
        ("an orphan of torchrun", elastic(), KILL),
        ("an orphan of deepspeed", runs("CROSS_RANK=0 LOCAL_RANK=0"), KILL),
        ("an orphan of mpirun", runs("OMPI_COMM_WORLD_RANK=0"), KILL),
        ("an orphan of srun", runs("SLURM_PROCID=0"), KILL),
        ("an orphan of Hydra", runs("PMI_RANK=0"), KILL),
        ("an orphan with LOCAL_RANK alone", rank(), KILL),
        ("nohup deepspeed's", Planted { nohup: true, ..runs("CROSS_RANK=0") }, KILL),
        // nohup leaves orphans that are well.
        ("a script that runs by itself", runs("PATH=/bin"), FORCE),
        ("the same under nohup", Planted { nohup: true, ..runs("PATH=/bin") }, FORCE),
        ("RANK and WORLD_SIZE, as a platform sets them", runs("RANK=0 WORLD_SIZE=1"), FORCE),
        ("nohup with LOCAL_RANK by hand", Planted { nohup: true, ..rank() }, FORCE),
        ("a step's, after nohup", Planted { nohup: true, ..runs("SLURM_PROCID=0") }, FORCE),
        ("at a terminal", Planted { terminal: 34816, ..rank() }, FORCE),
        ("below a living shell", Planted { ppid: 40, ..elastic() }, FORCE),
        ("from docker exec", Planted { ppid: 0, ..elastic() }, FORCE),
        // The parent went while we looked.
        ("of a parent that is not there", Planted { ppid: 99, ..elastic() }, FORCE),
        ("a living torchrun of our script", planted(60, "torchrun train.py"), FORCE),
        ("a living mpirun of it", planted(60, "mpirun -np 2 python train.py"), FORCE),
        ("a ranklaunch of it", planted(60, "ranklaunch run -- train.py"), NOT_FOUND),
        // What starts us is above us on no node but through a daemon.
        ("an srun of ranklaunch", planted(60, "srun -N2 ranklaunch run -- train.py"), NOT_FOUND),
        (
            "the srun of our job",
            Planted { environ: "SLURM_JOB_ID=7", ..planted(60, "srun bash run.sh train.py") },
            NOT_FOUND,
        ),
        (
            "the srun of another job",
            Planted { environ: "SLURM_JOB_ID=8", ..planted(60, "srun bash run.sh train.py") },
            FORCE,
        ),
        ("a younger one", Planted { start: 501, ..elastic() }, NOT_FOUND),
        ("one as old as we are", Planted { start: 500, ..elastic() }, NOT_FOUND),
        ("a zombie", Planted { state: 'Z', ..elastic() }, NOT_FOUND),
        ("another user's", Planted { uid: 65534, ..elastic() }, SPARED),
        ("another namespace's", Planted { namespace: "pid:[2]", ..elastic() }, SPARED),
        ("another container's", Planted { cgroup: "0::/pod/b", ..elastic() }, SPARED),
        (
            "an editor",
            Planted { environ: "LOCAL_RANK=0", ..planted(60, "vim train.py") },
            NOT_FOUND,
        ),
        ("a grep", planted(60, "grep train.py"), NOT_FOUND),
        ("a shell", planted(60, "bash -c python_train.py"), NOT_FOUND),
        ("another script", planted(60, "python other.py train.py"), NOT_FOUND),
        // The decision is about this script; another job's remains are not ours to judge.
        (
            "another script's orphan",
            Planted { environ: "TORCHELASTIC_RUN_ID=x", ..planted(60, "python other.py") },
            NOT_FOUND,
        ),
        ("a living torchrun of another script", planted(60, "torchrun other.py"), NOT_FOUND),
        (
            "a notebook on our GPU",
            Planted { open: "/dev/nvidia1", ..planted(60, "python -m ipykernel_launcher") },
            SPARED,
        ),
        (
            "a notebook on another GPU",
            Planted { open: "/dev/nvidia7", ..planted(60, "python -m ipykernel_launcher") },
            NOT_FOUND,
        ),
        ("of a dead agent", marked("RANKLAUNCH_JOB=a:b:77:90"), KILL),
        ("of an agent whose pid is another's by now", marked("RANKLAUNCH_JOB=a:1:90"), KILL),
        ("of a living agent, and no script of ours", marked("RANKLAUNCH_JOB=a:1:1"), NOT_FOUND),
        ("a rank of a living agent", runs("RANKLAUNCH_JOB=a:1:1 LOCAL_RANK=0"), FORCE),
        ("a mark that is none", marked("RANKLAUNCH_JOB=a:1:x"), NOT_FOUND),
    ] {
        assert_eq!(fates(&[process]), expected.map(<[i32]>::to_vec), "{what}");
    }
}

/// Where a platform starts a launcher per rank, several of them are at work for one job.
#[test]
fn what_another_task_of_this_job_looks_after_is_ended_by_no_mode() {
    const JOB: &str = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4";
    let sibling = Planted { environ: JOB, ..planted(60, "/bin/ranklaunch run -- train.py") };
    let agent = Planted { ppid: 60, ..Planted { pid: 61, ..sibling.clone() } };
    let rank = Planted {
        ppid: 61,
        environ: "RANKLAUNCH_JOB=a:61:100 LOCAL_RANK=1",
        ..planted(62, "python -u train.py")
    };
    let loader = Planted { ppid: 62, ..planted(63, "python -u train.py") };
    // Left over since then: only the later of the tasks could take it for older than the job.
    let since = Planted { start: 300, environ: "RANKLAUNCH_JOB=b:77:90", ..planted(70, "worker") };
    let fates = |sibling: &Planted, shares: bool| {
        let folder = tempfile::tempdir().expect("folder");
        let host = host(
            folder.path(),
            &[sibling.clone(), agent.clone(), rank.clone(), loader.clone(), since.clone()],
        );
        let mut request = Request { mode: StaleMode::Force, ..request() };
        if shares {
            let claims = JOB.split(' ').filter_map(|pair| pair.split_once('='));
            request.siblings = claims
                .map(|(variable, value)| Claim { variable: variable.into(), value: value.into() })
                .collect();
        }
        let found = find(&host, &request);
        let ended = found.iter().filter(|one| one.is_ended_by(StaleMode::Force));
        ended.map(|one| one.pid).collect::<Vec<i32>>()
    };
    assert_eq!(fates(&sibling, true), [0; 0]);
    // Not tasks, or another step of the job: `force` ends the launcher with all that it started.
    assert_eq!(fates(&sibling, false), [60, 61, 62, 63, 70]);
    let other = Planted { environ: "SLURM_JOB_ID=7 SLURM_STEP_ID=1", ..sibling };
    let agent = Planted { environ: other.environ, ..agent.clone() };
    let ends = |other: &Planted| {
        let folder = tempfile::tempdir().expect("folder");
        let host = host(folder.path(), &[other.clone(), agent.clone(), rank.clone()]);
        let claim = Claim { variable: "SLURM_STEP_ID".into(), value: "0".into() };
        let request = Request { mode: StaleMode::Force, siblings: vec![claim], ..request() };
        find(&host, &request).iter().any(|one| one.is_ended_by(StaleMode::Force))
    };
    assert!(ends(&other));
}

/// Whose orphan it is depends on who may have started it.
#[test]
fn an_adopter_is_told_from_a_parent() {
    let first = |argv| Planted { argv, ..init() };
    let elastic = runs("TORCHELASTIC_RUN_ID=none");
    let by_hand = Planted { session: 1, ..runs("LOCAL_RANK=0") };
    let own_session = runs("LOCAL_RANK=0");
    let first_child = Planted { start: 20, ..own_session.clone() };
    for (what, init, process, is_leftover) in [
        ("a shell has not torchrun's variable", first("bash start.sh"), &elastic, true),
        ("a loop in a shell may set LOCAL_RANK", first("bash start.sh"), &by_hand, false),
        ("a rank with a session of its own", first("bash start.sh"), &own_session, true),
        ("a torchrun as PID 1", first("torchrun train.py"), &elastic, false),
        (
            "python -um as PID 1",
            first("python -um torch.distributed.run train.py"),
            &elastic,
            false,
        ),
        ("an mpirun as PID 1", first("mpirun python train.py"), &elastic, false),
        ("a python that may be one", first("python platform.py"), &elastic, false),
        ("a ranklaunch init around us", first("ranklaunch init -- bash"), &elastic, true),
        ("tini's own program", first("tini -- bash -c x"), &first_child, false),
        (
            "a container that is told LOCAL_RANK",
            Planted { environ: "LOCAL_RANK=0", ..first("sleep 9") },
            &own_session,
            false,
        ),
        ("systemd's user manager", init(), &Planted { ppid: 61, ..elastic.clone() }, true),
    ] {
        let manager = Planted { start: 90, ..planted(61, "systemd --user") };
        let [leftover, forced, spared] = fates(&[init, process.clone(), manager]);
        assert_eq!(leftover == [60], is_leftover, "{what}: {forced:?} {spared:?}");
    }
    // Of tini's children the first is its program, and another one is an orphan.
    let program = Planted { start: 90, ..planted(70, "python train.py") };
    let tini = first("tini -- python train.py");
    assert_eq!(fates(&[tini, program, own_session]), [vec![60], vec![70], vec![]]);
}

#[test]
fn trees_are_judged_as_one() {
    let torchrun = planted(60, "python /usr/bin/torchrun train.py");
    let rank =
        Planted { ppid: 60, environ: "TORCHELASTIC_RUN_ID=x", ..planted(61, "python -u train.py") };
    let loader = Planted { ppid: 61, session: 61, ..rank.clone() };
    let loader = Planted { pid: 62, ..loader };
    // Its parent died: only the session says whose it was; newer than us and all.
    let stray = Planted { ppid: 1, session: 61, start: 900, ..planted(63, "ffmpeg") };
    let none = Vec::new;

    let living = [torchrun.clone(), rank.clone(), loader.clone(), stray.clone()];
    assert_eq!(fates(&living), [none(), vec![60, 61, 62, 63], none()], "a living torchrun");
    let mut busy = living.to_vec();
    busy[2].open = "/dev/nvidia1";
    assert_eq!(fates(&busy), [none(), vec![60, 61, 62, 63], none()], "even on our GPU");

    let orphan = Planted { ppid: 1, ..rank.clone() };
    let orphans = [orphan.clone(), loader.clone(), stray.clone()];
    assert_eq!(fates(&orphans), [vec![61, 62, 63], none(), none()], "what a dead one left");

    // torchrun --no-python bash wrapper.sh: the wrapper is the rank.
    let wrapper = Planted { pid: 64, argv: "bash wrapper.sh", ..orphan.clone() };
    let below = Planted { ppid: 64, session: 64, ..orphan.clone() };
    let wrapped = [Planted { session: 64, ..wrapper.clone() }, below.clone()];
    assert_eq!(fates(&wrapped), [vec![61, 64], none(), none()], "a wrapper and its rank");
    let living = [torchrun.clone(), Planted { ppid: 60, session: 64, ..wrapper }, below];
    assert_eq!(fates(&living), [none(), vec![60, 61, 64], none()], "below a living torchrun");

    // A tmux that was begun inside a step has the step's variables and init as its parent.
    let tmux = Planted { environ: "SLURM_PROCID=0", ..planted(70, "tmux: server") };
    let pane =
        Planted { ppid: 70, terminal: 34817, pid: 71, session: 71, argv: "-bash", ..tmux.clone() };
    let by_a_person = Planted {
        ppid: 71,
        session: 71,
        environ: "SLURM_PROCID=0",
        terminal: 34817,
        ..planted(72, "python train.py")
    };
    assert_eq!(fates(&[tmux, pane, by_a_person]), [none(), vec![72], none()], "in a tmux");

    // The agent lives, so the job is running: force ends it from the guard down.
    let guard = planted(65, "/bin/ranklaunch run -- train.py");
    let agent = Planted { ppid: 65, ..planted(66, "/bin/ranklaunch run -- train.py") };
    let marked = "RANKLAUNCH_JOB=a:66:100";
    let shim = Planted {
        ppid: 66,
        environ: marked,
        ..planted(67, "/bin/ranklaunch rank -- python train.py")
    };
    let ours = Planted { ppid: 67, environ: marked, ..planted(68, "python train.py") };
    let job = [guard, agent, shim.clone(), ours.clone()];
    assert_eq!(fates(&job), [none(), vec![65, 66, 67, 68], none()], "a living ranklaunch");
    let shim = Planted { ppid: 1, ..shim };
    assert_eq!(fates(&[shim, ours]), [vec![67, 68], none(), none()], "a shim whose agent died");

    // A person's shell below what is forced, as `!bash` in pdb opens it.
    let shell = Planted { ppid: 61, terminal: 34816, session: 69, ..planted(69, "bash") };
    let helper = Planted { ppid: 61, session: 61, ..planted(73, "sh -c ffmpeg") };
    let editor = Planted { ppid: 69, terminal: 34816, session: 69, ..planted(74, "vim train.py") };
    let with_shell = [torchrun, rank, shell, helper, editor];
    assert_eq!(fates(&with_shell), [none(), vec![60, 61, 73], vec![69, 74]], "a person's shell");
}

/// The port decides nothing by itself: whoever holds it is named, and only proof ends it.
#[test]
fn who_holds_the_port_is_named_and_not_condemned() {
    let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1\n";
    let listening = |argv, environ| {
        let folder = tempfile::tempdir().expect("folder");
        let holder = Planted { open: "socket:[4242]", environ, ..planted(60, argv) };
        let host = host(folder.path(), &[holder]);
        std::fs::create_dir_all(folder.path().join("proc/50/net")).expect("folder");
        std::fs::write(folder.path().join("proc/50/net/tcp"), table).expect("table");
        let request = Request { master_port: Some(29500), ..request() };
        let found = find(&host, &request);
        assert_eq!(found.len(), 1, "{argv}");
        let one = found.into_iter().next().expect("one");
        assert_eq!(one.holds, [Held::Port(29500)]);
        one
    };
    let other = listening("python /bin/torchrun other.py", "PATH=/bin");
    assert!(matches!((&other.rule, &other.fate), (Rule::Holds, Fate::Spared(_))), "{other:?}");
    assert!(!other.is_ended_by(StaleMode::Force));
    let server = listening("nginx", "PATH=/bin");
    assert!(matches!(server.fate, Fate::Spared(_)));
    let same = listening("torchrun train.py", "PATH=/bin");
    assert!(matches!(same.fate, Fate::Forced(_)));
    let rank = listening("python train.py", "TORCHELASTIC_RUN_ID=x");
    assert!(matches!(rank.fate, Fate::Leftover(_)));
    // Pid, command, age, parent, rule, and what would end it.
    let line = same.left_alone(StaleMode::Kill);
    for part in [
        "pid 60 (torchrun train.py",
        "99 s old",
        "parent 1 sleep",
        "launches this job's script",
        "listens on master port 29500",
        "--stale force would end it",
    ] {
        assert!(line.en.contains(part), "{part}: {}", line.en);
    }
    for part in ["pid 60（torchrun train.py", "99 秒", "父进程 1 sleep", "29500", "--stale force"]
    {
        assert!(line.zh.contains(part), "{part}: {}", line.zh);
    }
    let line = rank.ended();
    assert!(line.en.starts_with("ended: pid 60") && line.zh.starts_with("已终止：pid 60"));
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
        ("a script that runs by itself", spawn(rank())),
    ];
    let mut stale: Vec<(&str, Child)> = vec![
        ("orphan rank", {
            let mut command = rank();
            command.env("LOCAL_RANK", "0").env("RANK", "0").env("WORLD_SIZE", "2");
            spawn(command)
        }),
        ("dead agent's", {
            let mut command = start(&folder, "anything", &["-c", "sleep 600; :"]);
            command.env(MARKER, format!("job:{pid}:{}", ticks + 1));
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

    let mut deaf = {
        let mut command = start(&folder, "python3", &["deaf.py"]);
        command.env("LOCAL_RANK", "0");
        spawn(command)
    };
    until("it ignores TERM", || folder.join("deaf").exists());
    run_stage(&folder, "deaf", &mut decoys);
    let status = deaf.try_wait().expect("wait").expect("ended by KILL");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));

    // The control: what was left alone can be ended, and force ends what runs the script.
    run_stage(&folder, "force", &mut decoys);
    for (what, child) in &mut decoys {
        let runs_it = ["a living agent's", "a living torchrun's", "a script that runs by itself"];
        assert_eq!(alive(child), !runs_it.contains(what), "{what} under force");
    }
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
        "force" => (StaleMode::Force, "train.py"),
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
    assert_eq!(report.found.is_empty(), mode == "off");
    let ends = matches!(stale, StaleMode::Kill | StaleMode::Force);
    assert_eq!(report.ended.is_empty(), !ends, "{:?}", report.found);
    // Each that is gone has its line, and each line says so.
    let told = lines.iter().filter(|line| line.en.starts_with("ended: pid ")).count();
    assert_eq!(told, report.ended.len(), "{lines:?}");
    assert!(!newer().is_empty(), "the younger one was ended");
    assert!(report.waited < Duration::from_secs(9), "{:?}", report.waited);
    if mode == "report" {
        let words = [("user 65534", stale), ("is still running", stale), ("kill would end", stale)];
        for (word, mode) in words {
            let said = |one: &Found| one.left_alone(mode).en.contains(word);
            assert!(report.found.iter().any(said), "{word}: {:?}", report.found);
        }
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
