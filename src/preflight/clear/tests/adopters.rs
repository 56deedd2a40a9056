//! Processes taken for left over, by the kind of PID 1, how the process came to it, and its variables.

use super::*;

/// Variables that a process may have in its environment, and whether only a launcher sets them.
const VARIABLES: [(&str, bool); 8] = [
    ("PATH=/bin", false),
    ("LOCAL_RANK=0 RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500", false),
    ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_RANK=0", false),
    ("PMI_RANK=0 MPI_LOCALRANKID=0", false),
    ("SLURM_PROCID=0 SLURM_LOCALID=0", false),
    ("TORCHELASTIC_RUN_ID= LOCAL_RANK=0", false),
    ("TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 GROUP_RANK=0 LOCAL_RANK=0", true),
    ("CROSS_RANK=0 CROSS_SIZE=1 LOCAL_SIZE=2 LOCAL_RANK=0", true),
];

/// A PID 1, and whether it may be a launcher that sets those variables.
fn first_processes() -> Vec<(Planted, bool)> {
    let adopts = [
        // Inits, which start nothing beside their one child.
        "tini -- bash run.sh",
        "docker-init -- bash run.sh",
        "dumb-init bash run.sh",
        "catatonit -P",
        "systemd --system",
        "s6-svscan /run/service",
        "runit",
        "pause",
        // Programs that only keep a container alive.
        "sleep infinity",
        "tail -f /dev/null",
        "cat",
        "sshd -D",
        "cron -f",
        // Programs that start other programs, and ranks as well.
        "sh -c sleep_infinity",
        "bash start.sh",
        "-bash",
        "node server.js",
        "perl start.pl",
        "java -jar server.jar",
        "supervisor",
        // Our own programs: we run below them.
        "ranklaunch init -- bash",
    ];
    let launches = [
        "python platform.py",
        "/opt/conda/bin/python3.11 -m supervisor.supervisord",
        "torchrun train.py",
        "python -um torch.distributed.run train.py",
        "accelerate launch train.py",
        "mpirun python train.py",
        "slurmstepd",
        "atd -f",
        "pbs_mom",
    ];
    let first = |argv| Planted { argv, ..init() };
    let adopts = adopts.map(|argv| (first(argv), false));
    let hidden = [
        Planted { comm: "launch", exe: "python3.12", ..first("launch: all ranks") },
        Planted { comm: "launch", exe: "python3.12 (deleted)", ..first("launch: all ranks") },
        Planted {
            maps: "7f00-7f01 r-xp 0 0:0 1 /tmp/_MEI1/libpython3.11.so.1.0\n",
            ..first("/opt/frozen")
        },
    ];
    let launches = launches.map(first).into_iter().chain(hidden).map(|one| (one, true));
    adopts.into_iter().chain(launches).collect()
}

/// The same rank in /proc, left or started in different ways: with `&` and the end of its shell,
/// setsid, nohup, disown (with and without the terminal), or by PID 1.
fn ways(environ: &'static str) -> Vec<(&'static str, Planted)> {
    let rank = Planted { start: 110, ..runs(environ) };
    let nohup = Planted { nohup: true, ..rank.clone() };
    vec![
        ("a session of its own", rank.clone()),
        ("the session of PID 1", Planted { session: 1, ..rank.clone() }),
        ("a session whose leader is gone", Planted { session: 58, ..rank.clone() }),
        ("a session outside", Planted { session: 0, ..rank.clone() }),
        ("at a terminal", Planted { terminal: 34816, session: 58, ..rank }),
        ("nohup", Planted { session: 58, ..nohup.clone() }),
        ("nohup setsid", nohup),
    ]
}

/// Every way with all variables below one parent: processes, whether a launcher's variable is set, and
/// the description.
fn crowd(ppid: i32) -> Vec<(Planted, bool, String)> {
    let each = VARIABLES.into_iter().flat_map(|(environ, of_launcher)| {
        let named = move |(how, rank)| (rank, of_launcher, format!("{how} · {environ}"));
        ways(environ).into_iter().map(named)
    });
    each.zip(100..)
        .map(|((rank, of_launcher, what), pid)| {
            let session = if rank.session == rank.pid { pid } else { rank.session };
            (Planted { pid, ppid, session, ..rank }, of_launcher, what)
        })
        .collect()
}

/// Any child of PID 1 may be its own or an orphan, and was left by accident or on purpose. Only a
/// variable that PID 1 cannot have set decides.
#[test]
fn only_variables_pid_1_cannot_set_are_proof() {
    let (mut kept, mut ended) = (0, 0);
    for (first, launches) in first_processes() {
        let crowd = crowd(1);
        // An init's oldest child is its program.
        let program = Planted { start: 5, session: 1, ..planted(55, "bash run.sh") };
        let mut all = vec![first.clone(), program];
        all.extend(crowd.iter().map(|(rank, ..)| rank.clone()));
        let [leftover, forced, spared] = fates(&all);
        for (rank, of_launcher, what) in crowd {
            let proven = of_launcher && !launches;
            assert_eq!(leftover.contains(&rank.pid), proven, "{} · {what}", first.argv);
            // A process that is not ended is named.
            let named = [&leftover, &forced, &spared].iter().any(|all| all.contains(&rank.pid));
            assert!(named, "{} · {what}", first.argv);
            *(if proven { &mut ended } else { &mut kept }) += 1;
        }
    }
    assert!(kept > 1000 && ended > 250, "{kept} {ended}");
}

/// The starter lives, whatever program it is and whatever variable it set.
#[test]
fn living_non_adopter_parent_counts_as_starter() {
    for starter in
        ["bash run.sh", "node server.js", "perl start.pl", "python agent.py", "sshd", "sleep 9"]
    {
        let crowd = crowd(70);
        let mut all = vec![init(), Planted { start: 90, ..planted(70, starter) }];
        all.extend(crowd.iter().map(|(rank, ..)| rank.clone()));
        let [leftover, forced, _] = fates(&all);
        assert_eq!(leftover, [0; 0], "{starter}");
        for (rank, _, what) in crowd {
            assert!(forced.contains(&rank.pid), "{starter}: {what}");
        }
    }
    // A user manager is a subreaper, like PID 1.
    let manager = Planted { start: 90, ..planted(70, "systemd --user") };
    for (environ, of_launcher) in VARIABLES {
        let rank = Planted { ppid: 70, ..runs(environ) };
        assert_eq!(fates(&[init(), manager.clone(), rank])[0] == [60], of_launcher, "{environ}");
    }
}

/// A variable of the container, or of the only program that an init starts, marks nobody.
#[test]
fn container_variables_are_no_proof() {
    for (environ, of_launcher) in VARIABLES {
        let told = Planted { environ, ..init() };
        assert_eq!(fates(&[told, runs(environ)]), [vec![], vec![60], vec![]], "{environ}");
        for one in
            ["tini -- env X=1 python train.py", "docker-init -- x", "dumb-init x", "catatonit -- x"]
        {
            let one = Planted { argv: one, ..init() };
            let program = Planted { start: 5, pid: 55, session: 1, ..runs(environ) };
            let orphan = Planted { session: 60, ..runs(environ) };
            let [leftover, forced, _] = fates(&[one.clone(), program, orphan]);
            let ended: &[i32] = if of_launcher { &[60] } else { &[] };
            assert_eq!(leftover, ended, "{}: {environ}", one.argv);
            assert!(forced.contains(&55), "{}: {environ}: {forced:?}", one.argv);
        }
    }
}

/// The reason names the variable that was found, and the option that would end the process.
#[test]
fn process_left_alone_is_listed_with_reason() {
    for (environ, en, zh) in [
        ("LOCAL_RANK=0", "LOCAL_RANK proves no launcher", "LOCAL_RANK 任何人都可以设置"),
        ("SLURM_PROCID=3", "SLURM_PROCID proves no launcher", "SLURM_PROCID 任何人"),
        ("PATH=/bin", "no variable of a launcher", "没有启动器的变量"),
    ] {
        let folder = tempfile::tempdir().expect("folder");
        let host = host(folder.path(), &[runs(environ)]);
        let found = find(&host, &request());
        let [one] = found.as_slice() else { panic!("{environ}: {found:?}") };
        let line = one.left_alone(StaleMode::Kill);
        assert!(line.en.contains(en) && line.en.contains("it may run by itself"), "{}", line.en);
        assert!(line.zh.contains(zh), "{}", line.zh);
        let how = "--stale force";
        assert!(line.en.contains(how) && line.zh.contains(how), "{line:?}");
    }
}
