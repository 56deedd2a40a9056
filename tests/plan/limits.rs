//! `check` finds limits and leftovers of real containers, and none on a healthy node.

use std::process::Command;

use harness::docker::{self, RANKLAUNCH, Setup};
use harness::node::Node;
use harness::report::{Checked, check_of};
use harness::{Launcher, executable, skipped};
use serde_json::Value;

/// `check` after a preparing shell, in its own mount namespace with empty /dev/shm and /mnt; `None`
/// if that is not allowed.
fn prepared(setup: &str, args: &[&str]) -> Option<Value> {
    let script = format!(
        "set -e\nmount -t tmpfs -o size=8m shm /dev/shm\nmount -t tmpfs -o size=1m mnt /mnt\n\
         echo the namespace is ready >&2\n{setup}\n\"$@\" || exit 99"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(executable());
    let ended = Launcher::of(command, ["check", "--format", "json", "--lang", "en"])
        // This tests the node, not its python.
        .args(["--device", "cpu", "--severity", "python.torch=off"])
        .args(args)
        .run();
    if !ended.err.contains("the namespace is ready") {
        skipped(format_args!("no mount namespace can be made here: {}", ended.err));
        return None;
    }
    let ended = ended.expect_code(0);
    Some(serde_json::from_str(&ended.out).expect("a report"))
}

#[test]
fn sound_limits_are_reported_ok() {
    // Caches of their own, as the disk of this machine may be nearly full.
    let setup = "ulimit -s 8192\nmount -t tmpfs -o size=200m caches /media\n\
        export TMPDIR=/media HOME=/media XDG_CACHE_HOME=/media";
    let Some(report) = prepared(setup, &["--log-dir", "/mnt/logs"]) else { return };
    for id in
        ["shm.leftovers", "stack.size", "disk.space", "rdma.gpudirect", "env.proxy", "cuda.compat"]
    {
        let Checked { severity, text, .. } = check_of(&report, id);
        assert_eq!(severity, "ok", "{id}: {text}");
    }
    let state = &report["facts"]["state"];
    assert_eq!(state["leftovers"], serde_json::json!([]));
    assert!(state["folders"].as_array().is_some_and(|folders| !folders.is_empty()));
}

#[test]
fn unusual_process_limits_are_found() {
    let setup = "ulimit -s unlimited\nulimit -v 60000000";
    let Some(report) = prepared(setup, &[]) else { return };
    let Checked { severity, text, .. } = check_of(&report, "stack.size");
    assert_eq!(severity, "info", "no GPU here: {text}");
    assert!(text.contains("unlimited"), "{text}");
    let Checked { severity, text, .. } = check_of(&report, "memory.limit");
    assert_eq!(severity, "info", "{text}");
    assert!(text.contains("57.2 GiB"), "{text}");
}

#[test]
fn leftover_files_of_dead_processes_are_found() {
    // The file of the living process is as old as the others.
    let setup = "for name in nccl-dead sem.dead torch_1_2 other; do head -c 4096 /dev/zero > /dev/shm/$name; done\n\
        head -c 1000 /dev/zero > /dev/shm/nccl-young\n\
        touch -d '1 hour ago' /dev/shm/nccl-dead /dev/shm/sem.dead /dev/shm/torch_1_2 /dev/shm/other\n\
        exec 9< /dev/shm/torch_1_2";
    let Some(report) = prepared(setup, &[]) else { return };
    let left = report["facts"]["state"]["leftovers"].as_array().expect("a list").clone();
    let names: Vec<_> = left.iter().filter_map(|file| file["name"].as_str()).collect();
    assert_eq!(names, ["nccl-dead", "sem.dead"]);
    let Checked { severity, text, .. } = check_of(&report, "shm.leftovers");
    assert_eq!(severity, "warn");
    assert!(
        text.contains("2 leftover files") && text.contains("8 KiB") && text.contains("owner 0"),
        "{text}"
    );
}

#[test]
fn log_folder_is_tested_by_writing() {
    let Some(report) = prepared("", &["--log-dir", "/mnt/a/b"]) else { return };
    let Checked { severity, text, .. } = check_of(&report, "disk.logs");
    // 1 MiB is little, but a file could be written and is gone again.
    assert_eq!(severity, "warn");
    assert!(text.contains("are free in /mnt/a/b"), "{text}");
    for (setup, words) in [
        ("mount -o remount,ro /mnt", "Read-only file system"),
        ("head -c 2000000 /dev/zero > /mnt/full 2> /dev/null || true", "No space left on device"),
        ("touch /mnt/a", "Not a directory"),
    ] {
        let Some(report) = prepared(setup, &["--log-dir", "/mnt/a/b"]) else { return };
        let Checked { severity, text, .. } = check_of(&report, "disk.logs");
        assert_eq!(severity, "warn", "{setup}: {text}");
        assert!(text.contains(words), "{setup}: {text}");
    }
}

#[test]
fn unwritable_log_folder_is_reported() {
    let reason = "chmod 755 /mnt; set -- setpriv --reuid 65534 --clear-groups \"$@\"";
    let Some(report) = prepared(reason, &["--log-dir", "/mnt/a"]) else { return };
    let Checked { severity, text, .. } = check_of(&report, "disk.logs");
    assert_eq!(severity, "warn", "{text}");
    assert!(text.contains("Permission denied"), "{text}");
}

#[test]
fn link_errors_are_reported_when_a_job_fails() {
    let port = "/sys/class/infiniband/mlx5_0/ports/1";
    let node = Node::with_gpus(8)
        .file(&format!("{port}/state"), "4: ACTIVE\n")
        .file(&format!("{port}/link_layer"), "InfiniBand\n")
        .file(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n")
        .file(&format!("{port}/counters/symbol_error"), "7\n")
        .file(&format!("{port}/hw_counters/out_of_sequence"), "100\n")
        .file("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
        .file("/dev/infiniband/uverbs0", "");
    let counter = node.inside(&format!("{port}/hw_counters/out_of_sequence"));
    for (code, told) in [("3", true), ("0", false)] {
        let script = format!("echo 140 > {}; exit {code}", counter.display());
        std::fs::write(&counter, "100\n").expect("a file");
        let ended = node
            .launcher("run", &["--engine", "direct", "--nproc-per-node", "1", "--stale", "off"])
            .args(["--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.1"])
            .args([
                "--master-port",
                "29500",
                "--muster",
                "off",
                "--lang",
                "en",
                "--log-dir",
                "logs",
            ])
            .args(["--", "/bin/sh", "-c", &script])
            .run();
        let line = "link errors since the start: mlx5_0:1 out_of_sequence +40";
        assert_eq!(ended.err.contains(line), told, "{}", ended.err);
        let elsewhere = "(--host-root): the ranks start on this machine anyway";
        assert!(ended.err.contains(elsewhere), "{}", ended.err);
        let folder = ended.folder().join("logs/latest/node-0/run.json");
        let record: Value =
            serde_json::from_slice(&std::fs::read(folder).expect("a file")).expect("a record");
        assert_eq!(record["link_errors"][0]["by"], 40, "{record:#}");
        ended.expect_code(code.parse().expect("a number"));
    }
}

/// Docker's default profile forbids the NUMA calls; the capability lifts it.
#[test]
fn seccomp_profile_forbidding_numa_calls_is_found() {
    if docker::missing().is_some() {
        return;
    }
    for (options, severity, blocked) in
        [(&[][..], "info", true), (&["--cap-add", "SYS_NICE"][..], "ok", false)]
    {
        let check = ["check", "--format", "json", "--lang", "en", "--device", "cpu"];
        let job = ["--engine", "command", "--severity", "disk.logs=warn", "--", RANKLAUNCH];
        let setup = Setup::of(docker::bare()).options(&["--network", "none"]).options(options);
        let ended = setup.run(&[&check[..], &job].concat()).expect_code(0);
        let report: Value = serde_json::from_str(&ended.out).expect("a report");
        assert_eq!(check_of(&report, "numa.calls").severity, severity, "{options:?}");
        assert_eq!(report["facts"]["state"]["numa_blocked"], blocked, "{options:?}");
    }
}
