//! Confined containers: features that a job needs there, and features that it cannot have.

use harness::Running;
use harness::docker::{self, Setup};

use crate::run;

/// The place where ranklaunch can write its logs, or the reason why there is none.
struct Root {
    options: &'static [&'static str],
    says: &'static [&'static str],
}

#[test]
fn a_job_runs_in_every_kind_of_confinement() {
    if docker::missing().is_some() {
        return;
    }
    const HERE: &str = "logs: /ranklaunch-logs/";
    const TMP: &str = "logs: /tmp/ranklaunch-";
    const NOWHERE: &str = "no folder takes log files";
    let table = [
        Root { options: &[], says: &[HERE] },
        Root { options: &["--read-only"], says: &[NOWHERE, "Read-only file system"] },
        Root {
            options: &["--read-only", "--tmpfs", "/logs", "-e", "RANKLAUNCH_LOG_DIR=/logs"],
            says: &["logs: /logs/"],
        },
        // This uid is not in /etc/passwd, which does not exist.
        Root { options: &["--user", "4711"], says: &[TMP] },
        Root {
            options: &["--cap-drop", "ALL", "--security-opt", "no-new-privileges"],
            says: &[HERE],
        },
        Root { options: &["--pids-limit", "64"], says: &[HERE, "allows 64 processes and threads"] },
        Root {
            options: &[
                "--read-only",
                "--user",
                "1000",
                "--cap-drop",
                "ALL",
                "--security-opt",
                "no-new-privileges",
                "--pids-limit",
                "64",
                "--tmpfs",
                "/tmp",
                "--network",
                "none",
            ],
            says: &[TMP],
        },
    ];
    let image = docker::host_like();
    let started: Vec<Running> = table
        .iter()
        .map(|root| {
            let setup = Setup::of(&image).programs().options(root.options);
            setup.start(&run("echo rank $RANK of $WORLD_SIZE"))
        })
        .collect();
    for (container, root) in started.into_iter().zip(&table) {
        let over = container.wait().expect_code(0).expect_words(root.says);
        for rank in 0..2 {
            let line = format!("[r{rank}] rank {rank} of 2");
            assert!(over.out.contains(&line), "{:?}: {}", root.options, over.out);
        }
    }
}

/// No file below /proc is writable (oom_score_adj, for one).
#[test]
fn read_only_proc_is_enough() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    let script = format!(
        "mount -o remount,ro /proc || exit 99; ! echo 0 2>/dev/null >/proc/self/oom_score_adj && exec {} {}",
        docker::RANKLAUNCH,
        run("'echo rank $RANK of $WORLD_SIZE'").join(" ")
    );
    let may = ["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined"];
    let setup = Setup::of(&image).programs().options(&may).options(&["--entrypoint", "sh"]);
    let over = setup.run(&["-c", &script]);
    if over.code == 99 {
        harness::skipped(format_args!("this engine lets nobody mount: {}", over.err));
        return;
    }
    let over = over.expect_code(0).expect_words(&["logs: /ranklaunch-logs/"]);
    assert!(over.out.contains("[r1] rank 1 of 2"), "{}", over.out);
}

#[test]
fn empty_root_runs_the_executable() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::empty();
    let command = ["run", "--engine", "command", "--", docker::RANKLAUNCH, "--version"];
    let read_only = Setup::of(&image).options(&["--read-only"]).start(&command);
    let over =
        Setup::of(&image).run(&command).expect_code(0).expect_words(&["logs: /ranklaunch-logs/"]);
    assert!(over.out.contains("static"), "{}", over.out);
    // There is no /tmp to fall back on.
    read_only
        .wait()
        .expect_code(0)
        .expect_words(&["no folder takes log files", "/tmp/ranklaunch-0"]);
}

#[test]
fn requested_but_missing_gpus_are_refused() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    let uuid = "GPU-5a2b5a2b-0000-4000-8000-000000000000";
    let table: [(&[&str], &[&str], &str); 3] = [
        (&[], &["--device", "gpu"], "device gpu (--device)"),
        (&["-e", "NVIDIA_VISIBLE_DEVICES=GPU-5a2b5a2b-0000-4000-8000-000000000000"], &[], uuid),
        (&["-e", "GPU_COUNT=8"], &[], "GPU_COUNT=8"),
    ];
    let started = table.map(|(options, args, words)| {
        let args =
            [&["run", "--engine", "direct"], args, &["--", "sh", "-c", "echo started"]].concat();
        (Setup::of(&image).programs().options(options).start(&args), words)
    });
    for (container, words) in started {
        let over = container.wait().expect_code(80).expect_words(&[
            words,
            "none can be used",
            "(gpu.count)",
        ]);
        assert!(!over.out.contains("started"), "{}", over.out);
    }
}
