//! Logs that are only partly available, and lines that hold several lines.

use super::super::{Origin, catalogue, diagnose, diagnose_whole};
use super::{id, of, scanned};
use verdict::Confidence;

const ARGUMENTS: &str = "unrecognized arguments: --lora_rank=16\n";
const CHILD_FAILED: &str = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n";

fn named(log: &str) -> String {
    id(&of(log)).to_owned()
}

#[test]
fn last_line_of_excerpt_is_likely_cause() {
    let diagnosis = of(ARGUMENTS);
    let cause = diagnosis.cause.as_ref().expect("a cause");
    assert_eq!((&*cause.why.id, cause.why.confidence), ("cli_args", Confidence::Likely));
    let warned = "[W socket.cpp:601] [c10d] The IPv6 network addresses of (n7.lab, 29500) cannot be retrieved (gai error: -2 - Name or service not known).\n";
    assert_eq!(named(warned), "gai_error");
    // The program worked on, or used an alternative.
    assert_eq!(named(&format!("{ARGUMENTS}step 1 loss 2.5\n")), "none");
    assert_eq!(named(&format!("{ARGUMENTS}{}", "a line\n".repeat(21))), "none");
    assert_eq!(
        named("OSError: [Errno 28] No space left on device, using /tmp instead\nok\n"),
        "disk_full"
    );
    assert_eq!(named("cache: No space left on device, using /tmp instead\n"), "none");
}

#[test]
fn known_failure_makes_a_mere_mention_evidence() {
    let log = format!("{ARGUMENTS}{}", "a line\n".repeat(30));
    let of = |known| {
        let logs = [scanned(0, Origin::default(), log.as_bytes())];
        id(&diagnose(catalogue(), &logs, known)).to_owned()
    };
    assert_eq!((&*of(true), &*of(false)), ("cli_args", "none"));
}

#[test]
fn lone_exception_counts_if_nothing_else_does() {
    let alone = "TypeError: main() got multiple values for argument 'seed'\n";
    assert_eq!(named(&format!("{alone}{CHILD_FAILED}")), "user_exception");
    let other = "RuntimeError: CUDA error: device-side assert triggered\n";
    assert_eq!(named(&format!("{alone}{other}{CHILD_FAILED}")), "cuda_device_assert");
    let worked = (0..5).map(|step| format!("step {step} loss 0.5\n")).collect::<String>();
    assert_eq!(named(&format!("{alone}{worked}")), "none");
    assert_eq!(named(&format!("WARNING: {alone}")), "none");
}

#[test]
fn indented_tables_and_quotes_are_read() {
    let table = "  traceback : Traceback (most recent call last):\n    File \"/work/fit.py\", line 8, in main\n      load()\n    File \"/work/fit.py\", line 3, in load\n      raise KeyError('split')\n  KeyError: 'split'\n  \n";
    let diagnosis = of(&format!("{table}{CHILD_FAILED}"));
    let cause = diagnosis.cause.expect("a cause");
    assert_eq!((&*cause.why.id, &*cause.evidence.text), ("user_exception", "KeyError: 'split'"));
    assert_eq!(cause.frame.expect("a frame").line, 3);
    let quoted: String =
        table.lines().skip(1).map(|line| format!("> {}\n", line.trim_start())).collect();
    assert_eq!(named(&quoted), "user_exception");
}

#[test]
fn one_line_may_hold_several_lines() {
    let json = r#"{"error": "Traceback (most recent call last):\n  File \"/work/fit.py\", line 3, in load\n    open(path)\nValueError: no split\n", "rank": 3}"#;
    let diagnosis = of(json);
    let cause = diagnosis.cause.expect("a cause");
    assert_eq!(cause.frame.expect("a frame").path, "/work/fit.py");
    let escaped = json.replace('\\', r"\\");
    assert_eq!(named(&escaped), "user_exception");
    let glued = "[rank1]:   File \"/work/fit.py\", line 3, in load [rank1]:     read() [rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.";
    let cause = of(glued).cause.expect("a cause");
    assert_eq!((&*cause.why.id, cause.why.rank), ("cuda_oom", Some(1)));
}

#[test]
fn survived_remark_yields_to_the_fatal_exception() {
    let remark = "ninja: build stopped: subcommand failed.\nfalling back to the slow kernel\n";
    let worked = "step 0 loss 11.0\nstep 1 loss 10.9\n";
    let fatal = "Traceback (most recent call last):\n  File \"/work/fit.py\", line 3, in <module>\n    step()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n";
    assert_eq!(named(&format!("{remark}{worked}{fatal}")), "cuda_oom");
    assert_eq!(named(&format!("{remark}{CHILD_FAILED}")), "triton_compile");
}

#[test]
fn nccl_warning_counts_as_error() {
    let said = "n1:7:9 [0] misc/ibvwrap.cc:201 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n";
    let after = "a line\n".repeat(30);
    assert_eq!(named(&format!("{said}{after}")), "ib_memlock");
    let advice = said.replace("NCCL WARN", "NCCL INFO");
    assert_eq!(named(&format!("{advice}{after}")), "none");
}

/// The parts of a line have the node and the task of the line.
#[test]
fn parts_of_a_line_keep_its_prefix() {
    let glued = "[pod/w-1/c] [rank8]: a line [rank9]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.";
    let cause = of(glued).cause.expect("a cause");
    assert_eq!(cause.why.rank, Some(9));
    assert_eq!(cause.node.map(|node| node.to_string()).as_deref(), Some("w-1"));
    // A prefix before torch's own prefix is kept.
    let task = "3: [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n";
    let other = "0: RuntimeError: CUDA error: device-side assert triggered\n";
    let late = of(&format!("{task}{other}")).cause.expect("a cause");
    assert_eq!((&*late.why.id, late.why.rank), ("cuda_oom", Some(3)));
    // The report of a logger about an exception that it caught.
    let caught = r#"{"level": "WARNING", "exc": "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\nValueError: no split"}"#;
    assert_eq!(named(caught), "none");
    let long = format!("Traceback (most recent call last):{}ValueError: x", "\\n".repeat(10_000));
    assert_eq!(named(&long), "user_exception");
}

/// Somebody asks about a job that still runs, because another node failed.
#[test]
fn last_line_of_running_job_is_no_cause() {
    let of_whole = |log: &str| {
        let logs = [scanned(0, Origin::default(), log.as_bytes())];
        diagnose_whole(catalogue(), &logs, false).cause.map(|cause| cause.why.id)
    };
    let remapped = "NVRM: Xid (PCI:0000:10:1c): 63, pid=1850, Row Remapper: New row marked for remapping, reset gpu to activate\n";
    assert_eq!(named(remapped), "xid_63");
    assert_eq!((of_whole(remapped), of_whole(ARGUMENTS)), (None, None));
    let raised = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n";
    assert_eq!(of_whole(raised).as_deref(), Some("cuda_oom"));
}

#[test]
fn silent_rank_that_failed_is_asked_for() {
    let needed = |log: &str| of(log).needed.map(|needed| needed.en.into_owned());
    let table = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-02-01_10:00:00\n  host      : n3\n  rank      : 24 (local_rank: 0)\n  exitcode  : 1 (pid: 812)\n";
    let lost = "[rank3]: RuntimeError: [/build/gloo/transport/tcp/pair.cc:534] Connection closed by peer [rank 24]\n";
    for log in [format!("{CHILD_FAILED}{table}"), lost.to_owned(), format!("{lost}{table}")] {
        let needed = needed(&log).expect("a rank");
        assert!(needed.starts_with("the first error of rank 24"), "{needed}: {log}");
    }
    // Its error is here.
    let raised = "[rank24]: Traceback (most recent call last):\n[rank24]:   File \"/work/fit.py\", line 3, in <module>\n[rank24]: KeyError: 'x'\n";
    assert_eq!(needed(&format!("{raised}{table}")), None);
    // A line that consequences speak of.
    let unhandled = "torch.distributed.DistBackendError: NCCL error in: x.hpp:268, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n";
    assert!(needed(unhandled).is_some_and(|needed| needed.contains("NCCL WARN")));
    assert_eq!(needed("step 3 loss 0.5\n"), None);
}

#[test]
fn log_that_ends_while_it_waits_names_what_it_waits_for() {
    let retry = "[W105 01:00:00.000000000 TCPStore.cpp:343] [c10d] TCP client failed to connect/validate to host n0:29400 - retrying (try=1, timeout=900000ms, delay=1041ms): Connection refused\n";
    let worked = (0..5).map(|step| format!("step {step} loss 0.5\n")).collect::<String>();
    let diagnosis = of(&format!("[rank1]: starting\n{retry}"));
    assert_eq!(id(&diagnosis), "waits_for_master");
    assert_eq!(diagnosis.cause.expect("a cause").why.confidence, Confidence::Likely);
    assert_eq!(named(&format!("{retry}{worked}")), "none");
    assert_eq!(named(&format!("{retry}{}", "a line\n".repeat(30))), "none");
    // A job that still runs waits for much that comes.
    let logs = [scanned(0, Origin::default(), retry.as_bytes())];
    assert_eq!(diagnose_whole(catalogue(), &logs, false).cause, None);
    // What failed wins over what waited.
    let oom = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n";
    assert_eq!(named(&format!("{oom}{retry}")), "cuda_oom");
    let never = catalogue().rows().iter().filter(|row| row.waits);
    assert!(never.map(|row| row.role).all(|role| role == crate::Role::Root));
}

#[test]
fn versions_of_the_log_decide_on_rows_with_a_range() {
    let found = |version: &str, log: &str| {
        let diagnosis = of(&format!("{version}{log}"));
        let confidence = diagnosis.cause.as_ref().map(|cause| cause.why.confidence);
        (id(&diagnosis).to_owned(), confidence)
    };
    let crossed = "n1:41:52 [5] NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_1:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.0.10.11, remote GID ::ffff:10.0.110.12\n";
    for (version, expected) in [
        ("", "ib_rail"),
        ("NCCL version 2.27.5+cuda12.9\n", "ib_rail"),
        ("NCCL version 2.29.2+cuda12.9\n", "ib_qp_gid"),
        // Two versions leave it open.
        ("NCCL version 2.27.5+cuda12.9\nNCCL version 2.29.2+cuda12.9\n", "ib_rail"),
    ] {
        assert_eq!(found(version, crossed), (expected.to_owned(), Some(Confidence::Likely)));
    }
    let raised = "Traceback (most recent call last):\n  File \"/work/fit.py\", line 3, in <module>\n    load()\nRuntimeError: Dataset scripts are no longer supported, but found acme.py\n";
    for (version, confidence) in
        [("", Confidence::Likely), ("datasets==4.0.0\n", Confidence::Certain)]
    {
        assert_eq!(found(version, raised), ("dataset_script".to_owned(), Some(confidence)));
    }
}
