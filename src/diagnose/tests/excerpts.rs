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
