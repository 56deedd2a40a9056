//! The rules on fake /proc folders.

use super::*;

/// One process beside us, by default an orphan of PID 1.
#[test]
fn each_process_kind_gets_its_fate() {
    const DEAD: &str = "RANKLAUNCH_JOB=a:HERE:77:90";
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
        ("nohup deepspeed's", Planted { nohup: true, ..runs("CROSS_RANK=0") }, KILL),
        // Anyone sets these, and leaves such a process running on purpose.
        ("an orphan with LOCAL_RANK alone", rank(), FORCE),
        ("an orphan of a step of mpirun", runs("OMPI_COMM_WORLD_RANK=0"), FORCE),
        ("an orphan of a step of srun", runs("SLURM_PROCID=0"), FORCE),
        ("an orphan of a step of Hydra", runs("PMI_RANK=0 MPI_LOCALRANKID=0"), FORCE),
        // nohup leaves healthy orphans.
        ("a script that runs by itself", runs("PATH=/bin"), FORCE),
        ("the same under nohup", Planted { nohup: true, ..runs("PATH=/bin") }, FORCE),
        ("RANK and WORLD_SIZE, as a platform sets them", runs("RANK=0 WORLD_SIZE=1"), FORCE),
        ("nohup with LOCAL_RANK by hand", Planted { nohup: true, ..rank() }, FORCE),
        ("a step's, after nohup", Planted { nohup: true, ..runs("SLURM_PROCID=0") }, FORCE),
        ("at a terminal", Planted { terminal: 34816, ..rank() }, FORCE),
        ("below a living shell", Planted { ppid: 40, ..elastic() }, FORCE),
        ("from docker exec", Planted { ppid: 0, ..elastic() }, FORCE),
        // The parent ended during the scan.
        ("of a parent that is not there", Planted { ppid: 99, ..elastic() }, FORCE),
        ("a living torchrun of our script", planted(60, "torchrun train.py"), FORCE),
        ("a living mpirun of it", planted(60, "mpirun -np 2 python train.py"), FORCE),
        ("a ranklaunch of it", planted(60, "ranklaunch run -- train.py"), NOT_FOUND),
        // A launcher that starts us is on this node only as a daemon, not as our ancestor.
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
        // Only this script counts; remains of another job are left alone.
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
        ("of a dead agent", marked("RANKLAUNCH_JOB=a:b:HERE:77:90"), KILL),
        ("of an agent whose pid is another's by now", marked("RANKLAUNCH_JOB=a:HERE:1:90"), KILL),
        (
            "of another namespace, where its agent may live",
            Planted { namespace: "pid:[2]", ..marked("RANKLAUNCH_JOB=a:HERE:77:90") },
            NOT_FOUND,
        ),
        (
            "of a living agent, and no script of ours",
            marked("RANKLAUNCH_JOB=a:HERE:1:1"),
            NOT_FOUND,
        ),
        ("a rank of a living agent", runs("RANKLAUNCH_JOB=a:HERE:1:1 LOCAL_RANK=0"), FORCE),
        ("of a dead agent, of an older release", marked("RANKLAUNCH_JOB=a:77:90"), NOT_FOUND),
        ("of another host or boot", marked("RANKLAUNCH_JOB=a:0-0:1:77:90"), NOT_FOUND),
        ("of an agent in another namespace", marked("RANKLAUNCH_JOB=a:BOOT:2:77:90"), NOT_FOUND),
        ("started with it by a living shell", Planted { ppid: 40, ..marked(DEAD) }, NOT_FOUND),
        ("started with it from outside", Planted { ppid: 0, ..marked(DEAD) }, NOT_FOUND),
        ("the script of such a job", Planted { ppid: 40, ..runs(DEAD) }, FORCE),
        ("the script, left over", runs(DEAD), KILL),
        ("a mark that is none", marked("RANKLAUNCH_JOB=a:HERE:1:x"), NOT_FOUND),
    ] {
        assert_eq!(fates(&[process]), expected.map(<[i32]>::to_vec), "{what}");
    }
}

/// A platform may start a launcher per rank, so several of them serve one job.
#[test]
fn sibling_task_processes_are_never_ended() {
    const JOB: &str = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4";
    let sibling = Planted { environ: JOB, ..planted(60, "/bin/ranklaunch run -- train.py") };
    let agent = Planted { ppid: 60, ..Planted { pid: 61, ..sibling.clone() } };
    let rank = Planted {
        ppid: 61,
        environ: "RANKLAUNCH_JOB=a:HERE:61:100 LOCAL_RANK=1",
        ..planted(62, "python -u train.py")
    };
    let loader = Planted { ppid: 62, ..planted(63, "python -u train.py") };
    // Began between two tasks: only the later task could take it for older than the job.
    let since =
        Planted { start: 300, environ: "RANKLAUNCH_JOB=b:HERE:77:90", ..planted(70, "worker") };
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
    // The launchers are not tasks, or belong to another step of the job: `force` ends the launcher
    // with all processes that it started.
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

/// After `docker exec` PID 1 is not above us. Everything that the container runs is below it.
#[test]
fn container_init_is_never_ended() {
    for argv in ["python train.py", "torchrun train.py"] {
        let first = Planted { argv, ..init() };
        let server = planted(60, "nginx");
        let folder = tempfile::tempdir().expect("folder");
        let host = host(folder.path(), &[first, server]);
        let shell = folder.path().join("proc/40/stat");
        let stat = std::fs::read_to_string(&shell).expect("stat");
        let outside = stat.replacen("S 1 ", "S 0 ", 1);
        assert_ne!(outside, stat);
        std::fs::write(&shell, outside).expect("stat");
        let found = find(&host, &Request { mode: StaleMode::Force, ..request() });
        let [one] = found.as_slice() else { panic!("{argv}: {found:?}") };
        assert_eq!((one.pid, one.rule != StaleRule::Holds), (1, true), "{argv}");
        assert!(!one.is_ended_by(StaleMode::Force), "{argv}: {one:?}");
    }
}

#[test]
fn process_tree_is_judged_as_one() {
    let torchrun = planted(60, "python /usr/bin/torchrun train.py");
    let rank =
        Planted { ppid: 60, environ: "TORCHELASTIC_RUN_ID=x", ..planted(61, "python -u train.py") };
    let loader = Planted { ppid: 61, session: 61, ..rank.clone() };
    let loader = Planted { pid: 62, ..loader };
    // The parent of this process died, so only the session shows its tree. It is newer than all of us.
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

    // A tmux started inside a step has the step's variables and init as its parent.
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
    let marked = "RANKLAUNCH_JOB=a:HERE:66:100";
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

    // An interactive shell below a process that `force` ends, as `!bash` in pdb opens it.
    let shell = Planted { ppid: 61, terminal: 34816, session: 69, ..planted(69, "bash") };
    let helper = Planted { ppid: 61, session: 61, ..planted(73, "sh -c ffmpeg") };
    let editor = Planted { ppid: 69, terminal: 34816, session: 69, ..planted(74, "vim train.py") };
    let with_shell = [torchrun, rank, shell, helper, editor];
    assert_eq!(fates(&with_shell), [none(), vec![60, 61, 73], vec![69, 74]], "a person's shell");
}

/// A tmux that a rank started keeps the marker of that rank's run, and gives it to each run that
/// is started in it.
#[test]
fn living_run_below_leftovers_is_not_a_leftover() {
    const DEAD: &str = "RANKLAUNCH_JOB=a:HERE:77:90";
    const LIVING: &str = "RANKLAUNCH_JOB=b:HERE:66:100";
    let nothing: [Vec<i32>; 3] = Default::default();
    let tree = |marker: &'static str, agent: &'static str, rank: &'static str| {
        let shim =
            Planted { environ: marker, ..planted(67, "/bin/ranklaunch rank -- python x.py") };
        let probe = Planted { ppid: 66, session: 65, ..planted(69, "node-probe watch") };
        let agent = Planted { ppid: 65, session: 65, ..planted(66, agent) };
        let unmarked = [
            planted(60, "tmux: server"),
            Planted { ppid: 60, terminal: 34817, ..planted(61, "-bash") },
            // setsid: a session of its own, without a terminal.
            Planted { pid: 65, ppid: 61, ..agent.clone() },
            agent,
            probe,
        ];
        let mut tree = unmarked.map(|one| Planted { environ: DEAD, ..one }).to_vec();
        tree.push(Planted { ppid: 66, ..shim });
        tree.push(Planted { ppid: 67, environ: marker, ..planted(68, rank) });
        tree
    };
    let ours = |marker| tree(marker, "/bin/ranklaunch run -- train.py", "python -u train.py");
    assert_eq!(fates(&ours(LIVING)), [vec![], vec![65, 66, 67, 68, 69], vec![]], "as any other");
    let other = tree(LIVING, "/bin/ranklaunch run -- other.py", "python -u other.py");
    assert_eq!(fates(&other), nothing, "another script's");
    // The run is younger than we are: no rule matches it, but it is below the tmux.
    let younger: Vec<Planted> = tree(
        "RANKLAUNCH_JOB=b:HERE:66:600",
        "/bin/ranklaunch run -- train.py",
        "python -u train.py",
    )
    .into_iter()
    .map(|one| Planted { start: if one.pid < 65 { 100 } else { 600 }, ..one })
    .collect();
    assert_eq!(fates(&younger), nothing, "began after us");
    // The control: without a living agent the whole tree is left over, except for a person's shell.
    let dead = ours("RANKLAUNCH_JOB=b:HERE:66:99");
    assert_eq!(fates(&dead), [vec![60, 65, 66, 67, 68, 69], vec![], vec![61]], "a dead one");
}

/// A script that was started with the environment of a rank after that rank's job is a job of its own.
#[test]
fn job_with_an_inherited_marker_is_not_ended() {
    const DEAD: &str = "RANKLAUNCH_JOB=a:HERE:77:90";
    let marked = |one: Planted| Planted { environ: DEAD, ..one };
    let nothing: [Vec<i32>; 3] = Default::default();
    let daemon = |argv| Planted { start: 20, ..planted(70, argv) };
    let script = marked(Planted { ppid: 70, ..planted(60, "bash job.sh") });
    let monitor = marked(Planted { ppid: 60, session: 60, ..planted(61, "python monitor.py") });
    for starter in ["slurmstepd: [7.batch]", "atd -f", "sshd: u@notty", "cron -f", "pbs_mom"] {
        let all = [daemon(starter), script.clone(), monitor.clone()];
        assert_eq!(fates(&all), nothing, "{starter}");
    }
    // The control: an adopter has started neither process.
    let adopted = [daemon("systemd --user"), script.clone(), monitor.clone()];
    assert_eq!(fates(&adopted), [vec![60, 61], vec![], vec![]]);
    // A run goes on below it.
    let script = Planted { ppid: 1, ..script };
    let agent =
        marked(Planted { ppid: 60, session: 65, ..planted(65, "/bin/ranklaunch run -- other.py") });
    let rank = Planted {
        ppid: 65,
        environ: "RANKLAUNCH_JOB=b:HERE:65:100",
        ..planted(66, "python -u other.py")
    };
    let living = [script.clone(), monitor.clone(), agent.clone(), rank.clone()];
    assert_eq!(fates(&living), nothing);
    let dead = [script, monitor, Planted { start: 99, ..agent }, rank];
    assert_eq!(fates(&dead), [vec![60, 61, 65, 66], vec![], vec![]], "a dead one");
}

/// Holding the port proves nothing: the process is named, but only proof ends it.
#[test]
fn port_holder_is_named_but_not_proven_stale() {
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
        assert_eq!(one.holds, [HeldResource::Port(29500)]);
        one
    };
    let other = listening("python /bin/torchrun other.py", "PATH=/bin");
    assert!(matches!((&other.rule, &other.fate), (StaleRule::Holds, Fate::Spared(_))), "{other:?}");
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
