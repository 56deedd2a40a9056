//! Problems that were survived, and lines that only look like failures.

use super::super::{Node, Origin, catalogue, diagnose};
use super::{id, of, scanned};
use verdict::Confidence;

const PROBE: &str = "Traceback (most recent call last):\n  File \"/work/probe.py\", line 1, in <module>\n    import flash_attn\nModuleNotFoundError: No module named 'flash_attn'\n";
const RAISED: &str = "Traceback (most recent call last):\n  File \"/work/train.py\", line 9, in <module>\n    main()\nValueError: no label for cat.png\n";
const OOM: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";
const FULL: &str = "OSError: [Errno 28] No space left on device\n";
const PEER: &str = "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error, NCCL version 2.21.5\n";
const CHILD_FAILED: &str = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n";

fn steps(of: &str, number: u32) -> String {
    (0..number).map(|step| format!("{of}step {step} loss 0.{step}\n")).collect()
}

/// The cause, its confidence, and whether anything failed.
fn said(log: &str) -> (String, Option<Confidence>, bool) {
    let diagnosis = of(log);
    let confidence = diagnosis.cause.as_ref().map(|cause| cause.why.confidence);
    (id(&diagnosis).to_owned(), confidence, diagnosis.failed)
}

fn of_logs(logs: &[&str]) -> (String, Option<Confidence>) {
    let scan = |(number, log): (usize, &&str)| scanned(number, Origin::default(), log.as_bytes());
    let logs: Vec<_> = logs.iter().enumerate().map(scan).collect();
    let diagnosis = diagnose(catalogue(), &logs, false);
    let confidence = diagnosis.cause.as_ref().map(|cause| cause.why.confidence);
    (id(&diagnosis).to_owned(), confidence)
}

#[test]
fn missing_optional_module_is_survived_by_progress() {
    let none = ("none".to_owned(), None, false);
    assert_eq!(said(&(PROBE.to_owned() + &steps("", 300))), none);
    assert_eq!(said(&(PROBE.to_owned() + &steps("", 9) + "Training completed\n")), none);
    let failed = said(&(PROBE.to_owned() + &steps("", 300) + RAISED));
    assert_eq!(failed, ("user_exception".to_owned(), Some(Confidence::Likely), true));
    // Other ranks may go on for a while.
    let of_rank =
        PROBE.replace("Traceback", "[rank3]: Traceback").replace("  File", "[rank3]:   File");
    let of_rank =
        of_rank.replace("    import", "[rank3]:     import").replace("Module", "[rank3]: Module");
    let others = said(&(of_rank + &steps("[rank1]: ", 300)));
    assert_eq!(others, ("module_missing".to_owned(), Some(Confidence::Certain), true));
    // The lines below may have waited in a buffer, or the program went on: the log does not show
    // which.
    let late = said(&(PROBE.to_owned() + &steps("", 50)));
    assert_eq!(late, ("module_missing".to_owned(), Some(Confidence::Likely), true));
}

#[test]
fn survived_consequence_is_no_failure() {
    let none = ("none".to_owned(), None, false);
    assert_eq!(said(&(PEER.to_owned() + &steps("", 300))), none);
    assert_eq!(said(&(PEER.to_owned() + "Training completed\n")), none);
    assert_eq!(said(&(PEER.to_owned() + &steps("", 9))), ("none".to_owned(), None, true));
}

#[test]
fn progress_bar_pieces_do_not_change_the_cause() {
    let bar: String = (0..200).map(|step| format!("{step}/200\r")).collect();
    let bus = "\nRuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.\n";
    assert_eq!(id(&of(&(bar + bus))), id(&of(bus)));
    assert_ne!(id(&of(bus)), "none");
}

#[test]
fn lines_are_counted_by_their_line_feeds() {
    let lines = |log: &str| scanned(0, Origin::default(), log.as_bytes()).lines;
    assert_eq!([lines(""), lines("a\rb\n\nc\n"), lines("a\nb")], [0, 3, 2]);
}

#[test]
fn untimed_line_follows_the_last_timed_line() {
    let start = "W0101 10:00:00.000000 1 torch/distributed/run.py:779] Setting OMP_NUM_THREADS environment variable for each process\n";
    let step = "[2024-01-01 14:00:10] INFO step 9\n";
    let first = "[2024-01-01 14:00:00] ERROR torch.OutOfMemoryError: CUDA out of memory. Tried\n";
    let later =
        format!("{start}{step}{}", RAISED.replace("ValueError: no label for cat.png\n", FULL));
    assert_eq!(of_logs(&[&later, first]).0, "cuda_oom");
    assert_eq!(of_logs(&[first, &later]).0, "cuda_oom");
}

#[test]
fn times_of_different_zones_are_compared_correctly() {
    let east = format!("2024-01-01T10:00:00+08:00 {OOM}");
    let west = format!("2024-01-01T03:00:00Z {FULL}");
    assert_eq!(of_logs(&[&west, &east]).0, "cuda_oom");
    // The stamp names its zone; the time that the program prints may not.
    let local = format!("2024-01-01T02:00:00Z [2024-01-01 09:00:00] ERROR {OOM}");
    assert_eq!(of_logs(&[&west, &local]).0, "cuda_oom");
}

#[test]
fn node_logs_in_one_stream_are_one_job() {
    let start = |time: &str| {
        format!(
            "W0101 {time} 1 torch/distributed/run.py:779] Setting OMP_NUM_THREADS environment variable for each process\n"
        )
    };
    let failed = PROBE.replace("ModuleNotFoundError: No module named 'flash_attn'\n", OOM);
    let peer = format!("{}{PEER}{CHILD_FAILED}", steps("", 50));
    let dated = "[2024-01-01 11:00:00] INFO step 9\n";
    let (early, late) = (start("10:00:00.000000"), start("12:00:00.000000"));
    let beside = said(&format!("{early}{dated}{failed}{early}{peer}"));
    assert_eq!(beside, ("cuda_oom".to_owned(), Some(Confidence::Certain), true));
    // The run began after the first one had ended: an attempt of its own.
    let retried = said(&format!("{early}{dated}{failed}{late}{peer}"));
    assert_eq!(retried, ("none".to_owned(), None, true));
    let unknown = said(&format!("{early}{failed}{early}{peer}"));
    assert_eq!(unknown, ("cuda_oom".to_owned(), Some(Confidence::Likely), true));
}

#[test]
fn events_of_one_pod_say_nothing_of_another() {
    let failed = "2m  Warning  Failed  pod/worker-1  Failed to pull image \"a/b:c\": not found\n";
    let started =
        |pod: u32| format!("1m  Normal  Started  pod/worker-{pod}  Started container main\n");
    assert_eq!(id(&of(&format!("{failed}{}", started(2)))), "image_pull");
    assert_eq!(id(&of(&format!("{failed}{}", started(1)))), "none");
    // The type of an event is not the level of a logger.
    let trimmed = "Warning  Failed  pod/worker-1  Failed to pull image \"a/b:c\": not found\n";
    assert_eq!(id(&of(trimmed)), "image_pull");
}

#[test]
fn frame_belongs_to_the_problem_just_before() {
    let lines: String = (0..60).map(|line| format!("line {line}\n")).collect();
    let diagnosis = of(&(FULL.to_owned() + &lines + RAISED));
    assert_eq!(
        diagnosis.findings.iter().find(|one| one.text.contains("Errno 28")).expect("found").frame,
        None
    );
    // Removing an event leaves the other evidence unchanged.
    let log = format!(
        "  Warning  FailedScheduling  2m  default-scheduler  0/8 nodes are available: 8 Insufficient memory.\n[rank0]: RuntimeError: [Errno 28] No space left on device\n[rank1]: {OOM}  Normal  Scheduled  1m  default-scheduler  Successfully assigned a/b to n\n[rank0]: Current thread 0x1 (most recent call first):\n[rank0]:   File \"/w/rank0.py\", line 5 in f\n"
    );
    let frames: Vec<(Option<u32>, bool)> = of(&log)
        .findings
        .iter()
        .filter(|one| one.rank.is_some())
        .map(|one| (one.rank.map(|rank| rank.0), one.frame.is_some()))
        .collect();
    assert_eq!(frames, [(Some(0), true), (Some(1), false)]);
}

#[test]
fn the_order_of_the_files_changes_nothing() {
    let root = format!("ERROR {FULL}");
    let likely = ("disk_full".to_owned(), Some(Confidence::Likely));
    assert_eq!(of_logs(&[&root, CHILD_FAILED]), likely);
    assert_eq!(of_logs(&[CHILD_FAILED, &root]), likely);
    let (root, end) =
        (format!("2024-01-01T03:00:00Z {FULL}"), format!("2024-01-01T03:00:01Z {CHILD_FAILED}"));
    let certain = ("disk_full".to_owned(), Some(Confidence::Certain));
    assert_eq!(of_logs(&[&root, &end]), certain);
    assert_eq!(of_logs(&[&end, &root]), certain);
    let two = said(&format!("[rank0]: {FULL}[rank1]: {OOM}{CHILD_FAILED}"));
    assert_eq!(two, ("disk_full".to_owned(), Some(Confidence::Likely), true));
}

#[test]
fn words_alone_are_no_failure() {
    let none = ("none".to_owned(), None, false);
    let manual = "No space left on device means that a disk is full\n";
    assert_eq!(said(&format!("{manual}{}", "and so on\n".repeat(30))), none);
    assert_eq!(said("{\"text\": \"CUDA out of memory. Tried to allocate\", \"label\": 3}\n"), none);
    assert_eq!(
        said(
            "ERROR: upload failed: OSError: [Errno 28] No space left on device, using /tmp instead\nsaved\nbye\n"
        ),
        none
    );
    assert_eq!(said(OOM).0, "cuda_oom");
    assert_eq!(said("train.py: error: unrecognized arguments: run.log\n").0, "cli_args");
    assert_eq!(said("[2026-05-07T02:17:31.933] error: Detected 1 oom_kill event in StepId=1.batch. Some of the step tasks have been OOM Killed.\n").0, "host_oom");
    // The end of a container beside the program says nothing about the program.
    assert_eq!(said(&format!("{OOM}Container istio-proxy exited with code 0\n")).0, "cuda_oom");
}

#[test]
fn long_lines_are_cut_around_their_fragment() {
    let long = "x".repeat(20_000);
    let log = format!("RuntimeError: {long} CUDA out of memory. Tried to allocate\n");
    let diagnosis = of(&log);
    assert!(diagnosis.findings[0].text.contains("CUDA out of memory"));
    let last = scanned(0, Origin::default(), format!("{long} the end\n").as_bytes()).last_lines(3);
    assert!(last[0].ends_with(" the end"), "{last:?}");
}

#[test]
fn overlong_names_are_kept_in_part() {
    let long = "p".repeat(1_000);
    let log = format!(
        "[pod/{long}/main] Traceback (most recent call last):\n[pod/{long}/main]   File \"/{long}/a.py\", line 1, in {long}\n[pod/{long}/main] {long}.SomeError: {long}\n"
    );
    let findings = of(&log).findings;
    assert!(findings.iter().any(|one| one.frame.is_some()), "{findings:?}");
    for one in findings {
        if let Some(frame) = one.frame {
            assert!(frame.path.ends_with("/a.py"));
            assert!(frame.path.len() + frame.function.len() <= 600);
        }
        assert!(one.captures.iter().all(|(_, value)| value.len() <= 300));
        assert!(!matches!(one.node, Some(Node::Name(name)) if name.len() > 300));
    }
}
