//! The choice of the cause among several lines.

use super::super::{Diagnosis, Node, Origin, catalogue, diagnose};
use super::{id, of, scanned};
use text::rank::GlobalRank;
use verdict::{Confidence, Victims};

const OOM: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free.\n";
const RAISED: &str = "Traceback (most recent call last):\n  File \"/work/train.py\", line 9, in <module>\n    main()\n  File \"/work/data.py\", line 4, in load\n    raise ValueError(name)\nValueError: no label for cat.png\n";
const CHILD_FAILED: &str = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n";
const WATCHDOG: &str = "[rank1]:[E922 03:32:06.116 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=875, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n";
const STARTED: &str = "W0922 20:40:30.961000 1403 torch/distributed/run.py:779] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n";

fn victims(diagnosis: &Diagnosis) -> &[Victims] {
    diagnosis.cause.as_ref().map_or(&[], |cause| &cause.why.victims)
}

fn steps(number: u32) -> String {
    (0..number).map(|step| format!("epoch 1 step {step} loss 0.{step}\n")).collect()
}

fn log(parts: &[&str]) -> String {
    parts.concat()
}

#[test]
fn root_is_preferred_to_surrounding_exceptions() {
    let of_log = of(&log(&[RAISED, OOM, CHILD_FAILED]));
    assert_eq!(id(&of_log), "cuda_oom");
    let alone = of(&log(&[RAISED, CHILD_FAILED]));
    let cause = alone.cause.expect("a cause");
    assert_eq!(
        (cause.why.id.as_str(), cause.why.confidence),
        ("user_exception", Confidence::Likely)
    );
    assert_eq!(cause.frame.map(|frame| frame.to_string()).as_deref(), Some("data.py:4"));
    assert!(cause.why.text.en.contains("no label for cat.png"), "{}", cause.why.text.en);
}

/// An earlier failure that the program swallowed is the cause, if any line shows it.
#[test]
fn missing_process_group_is_only_a_last_resort() {
    const MISSING: &str = "Traceback (most recent call last):\n  File \"/work/train.py\", line 71, in <module>\n    main()\n  File \"/work/train.py\", line 60, in main\n    dist.barrier()\n  File \"/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py\", line 1234, in _get_default_group\n    raise ValueError(\nValueError: Default process group has not been initialized, please make sure to call init_process_group.\n";
    const WARNED: &str = "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n";
    let alone = of(&log(&[MISSING, CHILD_FAILED]));
    let cause = alone.cause.expect("a cause");
    assert_eq!(cause.why.id, "process_group_missing");
    assert_eq!(cause.frame.map(|frame| frame.to_string()).as_deref(), Some("train.py:60"));
    let of_rank = |(number, text): (usize, &str)| {
        let rank = u32::try_from(number).ok().map(GlobalRank);
        scanned(number, Origin { rank, ..Origin::default() }, text.as_bytes())
    };
    let both = [(0, MISSING), (1, MISSING)].map(of_rank);
    let both = diagnose(catalogue(), &both, true);
    assert_eq!((id(&both), victims(&both).len()), ("process_group_missing", 0));
    let other = [(0, MISSING), (1, OOM)].map(of_rank);
    let other = diagnose(catalogue(), &other, true);
    assert_eq!((id(&other), victims(&other).len()), ("cuda_oom", 1));
    for (other, before, after) in [
        (RAISED, "user_exception", "user_exception"),
        (OOM, "cuda_oom", "cuda_oom"),
        (WARNED, "port_in_use", "process_group_missing"),
    ] {
        assert_eq!(id(&of(&log(&[other, MISSING, CHILD_FAILED]))), before);
        assert_eq!(id(&of(&log(&[MISSING, other, CHILD_FAILED]))), after);
    }
    assert_eq!(id(&of(&log(&[MISSING, &steps(400)]))), "none");
}

#[test]
fn consequences_alone_are_no_cause() {
    let diagnosis = of(CHILD_FAILED);
    assert_eq!((id(&diagnosis), diagnosis.failed), ("none", true));
    let nothing = of(&steps(30));
    assert_eq!((id(&nothing), nothing.failed), ("none", false));
}

#[test]
fn timeout_is_a_cause_only_if_first() {
    assert_eq!(id(&of(&log(&[WATCHDOG, CHILD_FAILED]))), "watchdog_timeout");
    assert_eq!(id(&of(&log(&[RAISED, WATCHDOG, CHILD_FAILED]))), "user_exception");
    assert_eq!(id(&of(&log(&[WATCHDOG, OOM, CHILD_FAILED]))), "watchdog_timeout");
}

#[test]
fn survived_problem_is_no_cause() {
    let caught = RAISED.replace("in <module>", "in try_it");
    assert_eq!(id(&of(&log(&[&caught, &steps(50)]))), "none");
    assert_eq!(id(&of(&log(&[OOM, &steps(50)]))), "none");
    assert_eq!(id(&of(&log(&[&caught, "Training completed\n"]))), "none");
    // A program cannot survive an exception that nobody catches; standard output may come late.
    assert_eq!(id(&of(&log(&[RAISED, &steps(50)]))), "user_exception");
    // The same problem again, and this time the program ends.
    let again = of(&log(&[OOM, &steps(300), &steps(1), OOM, CHILD_FAILED]));
    assert_eq!(again.cause.map(|cause| cause.evidence.first.line), Some(303));
}

#[test]
fn warning_is_a_cause_only_without_better_one() {
    let warning = "/opt/torch/cuda/__init__.py:7: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).\n";
    assert_eq!(id(&of(&log(&[warning, &steps(9)]))), "none");
    assert_eq!(id(&of(&log(&[warning, RAISED, CHILD_FAILED]))), "user_exception");
    assert_eq!(id(&of(&log(&[warning, CHILD_FAILED]))), "cuda_driver_too_old");
}

#[test]
fn missing_command_yields_to_later_failures() {
    let shell = "/var/spool/slurmd/job31/slurm_script: line 40: python: command not found\n";
    let limit = "slurmstepd: error: *** STEP 31.0 ON n4 CANCELLED AT 2025-03-04T05:06:07 DUE TO TIME LIMIT ***\n";
    assert_eq!(id(&of(&log(&[shell, "0: loading\n", limit]))), "time_limit");
    assert_eq!(id(&of(&log(&[shell, RAISED, CHILD_FAILED]))), "user_exception");
    assert_eq!(id(&of(&log(&[shell, CHILD_FAILED]))), "exe_missing");
    assert_eq!(id(&of(shell)), "exe_missing");
}

#[test]
fn command_before_the_tasks_is_no_cause() {
    let script = "Traceback (most recent call last):\n  File \"/work/sizes.py\", line 2, in <module>\n    import tabulate\nModuleNotFoundError: No module named 'tabulate'\n";
    let task: String = RAISED.lines().map(|line| format!(" 3: {line}\n")).collect();
    assert_eq!(id(&of(&log(&[script, &task, CHILD_FAILED]))), "user_exception");
    // If the tasks report no problem of their own, the problem of the script counts.
    assert_eq!(id(&of(&log(&[script, " 3: ", CHILD_FAILED]))), "module_missing");
    // Without numbers, the first root with a row counts.
    assert_eq!(id(&of(&log(&[script, RAISED, CHILD_FAILED]))), "module_missing");
}

#[test]
fn output_after_launch_end_is_no_cause() {
    let unmounted = "OSError: [Errno 107] Transport endpoint is not connected\n";
    let late = of(&log(&[RAISED, CHILD_FAILED, unmounted]));
    assert_eq!(id(&late), "user_exception");
    // Records of the kernel and of Slurm may come late.
    let killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=31.0. Some of the step tasks have been OOM Killed.\n";
    assert_eq!(id(&of(&log(&[RAISED, CHILD_FAILED, killed]))), "host_oom");
    let lost = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n";
    assert_eq!(id(&of(&log(&[RAISED, CHILD_FAILED, lost]))), "xid_79");
    // Another node's launcher may end first.
    assert_eq!(id(&of(&log(&[CHILD_FAILED, unmounted]))), "stale_nfs");
}

#[test]
fn printed_environment_is_no_evidence() {
    for line in [
        "_COMPAT_STATUS=System has unsupported display driver / cuda driver combination\n",
        "+ export LAST_ERROR=CUDA_ERROR_SYSTEM_DRIVER_MISMATCH\n",
    ] {
        assert_eq!(id(&of(&log(&[line, CHILD_FAILED]))), "none", "{line}");
    }
}

#[test]
fn earlier_uncaught_exception_makes_cause_uncertain() {
    let of_rank = |rank: u32, words: &str| -> String {
        words.lines().map(|line| format!("[rank{rank}]: {line}\n")).collect()
    };
    let confidence = |of: Diagnosis| of.cause.map(|cause| cause.why.confidence);
    let after = of(&log(&[&of_rank(0, RAISED), &of_rank(1, OOM), CHILD_FAILED]));
    assert_eq!(confidence(after), Some(Confidence::Likely));
    let alone = of(&log(&[&of_rank(1, OOM), CHILD_FAILED]));
    assert_eq!(confidence(alone), Some(Confidence::Certain));
}

#[test]
fn the_last_run_of_a_file_counts() {
    let two = of(&log(&[STARTED, RAISED, CHILD_FAILED, STARTED, OOM, CHILD_FAILED]));
    assert_eq!(id(&two), "cuda_oom");
    // The second run has only begun.
    assert_eq!(id(&of(&log(&[STARTED, RAISED, CHILD_FAILED, STARTED]))), "user_exception");
    // The second run works.
    assert_eq!(id(&of(&log(&[STARTED, RAISED, CHILD_FAILED, STARTED, &steps(20)]))), "none");
}

#[test]
fn ranks_without_own_cause_are_victims() {
    let text = log(&[
        "[rank2]: ",
        OOM,
        "[rank0]: RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer\n",
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error, NCCL version 2.21.5\n",
        CHILD_FAILED,
    ]);
    let diagnosis = of(&text);
    let cause = diagnosis.cause.as_ref().expect("a cause");
    assert_eq!((cause.why.id.as_str(), cause.why.rank), ("cuda_oom", Some(2)));
    assert_eq!(cause.why.confidence, Confidence::Certain);
    let ranks: Vec<u32> =
        victims(&diagnosis).iter().flat_map(|victims| &victims.ranks).copied().collect();
    assert!(ranks.contains(&1) && !ranks.contains(&2), "{ranks:?}");
}

#[test]
fn two_independent_causes_are_both_named() {
    let full = "[rank5]: OSError: [Errno 28] No space left on device: '/data/ckpt/model.pt'\n";
    let diagnosis = of(&log(&["[rank2]: ", OOM, full, CHILD_FAILED]));
    assert_eq!(id(&diagnosis), "cuda_oom");
    let also: Vec<&str> = diagnosis.also.iter().map(|cause| cause.why.id.as_str()).collect();
    assert_eq!(also, ["disk_full"]);
}

#[test]
fn rank_missing_from_collective_is_culprit() {
    let late = |rank: u32, sequence: u32| {
        WATCHDOG
            .replace("rank1", &format!("rank{rank}"))
            .replace("Rank 1", &format!("Rank {rank}"))
            .replace("875", &sequence.to_string())
    };
    let silent = of(&log(&[&late(1, 875), &late(2, 875), &late(3, 875), CHILD_FAILED]));
    let cause = silent.cause.expect("a cause");
    assert_eq!((cause.why.rank, &cause.why.missing[..]), (Some(0), &[0][..]));
    let behind = of(&log(&[&late(0, 875), &late(1, 870), &late(2, 875), CHILD_FAILED]));
    assert_eq!(behind.cause.expect("a cause").why.missing, [1]);
    let together = of(&log(&[&late(0, 875), &late(1, 875), CHILD_FAILED]));
    assert!(together.cause.expect("a cause").why.missing.is_empty());

    // Since version 2.3 the group is named. Each group counts by itself, and in a group of even ranks no odd rank is
    // missing.
    let missing = |waited: &[(u32, u32, &str)]| {
        let line = |(rank, sequence, group): &(u32, u32, &str)| {
            let named = format!("[PG ID 1 PG GUID {group} Rank {rank}]");
            late(*rank, *sequence).replace(&format!("[Rank {rank}]"), &named)
        };
        let lines: String = waited.iter().map(line).collect();
        of(&log(&[&lines, CHILD_FAILED])).cause.expect("a cause").why.missing
    };
    let (all, even, odd) = ("0(default_pg)", "3(dp)", "4(dp)");
    assert_eq!(missing(&[(1, 875, all), (2, 875, all), (3, 875, all)]), [0]);
    assert_eq!(missing(&[(0, 875, even), (2, 875, even), (4, 875, even)]), [0_u32; 0]);
    assert_eq!(missing(&[(0, 875, even), (1, 12, odd), (2, 875, even)]), [0_u32; 0]);
    assert_eq!(missing(&[(0, 875, even), (1, 870, even), (2, 875, even)]), [1]);
}

#[test]
fn logs_of_several_ranks_are_one_job() {
    let origin = |rank: u32, node: u32| Origin {
        name: format!("node-{node}/rank-{rank:05}.err"),
        rank: Some(GlobalRank(rank)),
        node: Some(Node::Rank(node)),
    };
    let logs = [
        scanned(0, origin(0, 0), WATCHDOG.as_bytes()),
        scanned(1, origin(3, 1), RAISED.as_bytes()),
        scanned(2, Origin::default(), CHILD_FAILED.as_bytes()),
    ];
    let diagnosis = diagnose(catalogue(), &logs, false);
    let cause = diagnosis.cause.expect("a cause");
    // The time-out has a time, the exception has none: a root that is a cause by itself is preferred.
    assert_eq!(cause.why.id, "user_exception");
    assert_eq!((cause.why.rank, cause.node), (Some(3), Some(Node::Rank(1))));
    assert_eq!(cause.evidence.first.log, 1);
}

#[test]
fn earliest_of_several_timed_logs_counts() {
    let at = |second: u32, text: &str| format!("[E922 03:32:{second:02}.116 x.cpp:607] {text}");
    let full = "OSError: [Errno 28] No space left on device: '/data/ckpt/model.pt'\n";
    for (oom, disk, expected) in [(5, 9, "cuda_oom"), (9, 5, "disk_full")] {
        let logs = [
            scanned(0, Origin::default(), at(oom, OOM).as_bytes()),
            scanned(1, Origin::default(), at(disk, full).as_bytes()),
        ];
        assert_eq!(id(&diagnose(catalogue(), &logs, false)), expected);
    }
}

const UNKNOWN_NAME: &str = "[W1122 17:25:54.547 socket.cpp:764] [c10d] The IPv6 network addresses of (train-master-0, 29500) cannot be retrieved (gai error: -2 - Name or service not known).\n";
const STORE_TIMEOUT: &str = "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (train-master-0, 29500).\n";

#[test]
fn warning_that_led_to_timeout_is_cause() {
    let both = of(&log(&[UNKNOWN_NAME, STORE_TIMEOUT, CHILD_FAILED]));
    let confidence = both.cause.as_ref().map(|cause| cause.why.confidence);
    assert_eq!((id(&both), confidence), ("gai_error", Some(Confidence::Likely)));
    // A warning below the timeout, of another rank, or survived explains nothing; nor does any other warning.
    let of_rank = format!("[rank1]: {UNKNOWN_NAME}");
    let other = "[W1122 17:25:54.547 disk.cpp:7] No space left on device\n";
    for (before, after) in [
        (String::new(), UNKNOWN_NAME.to_owned()),
        (of_rank, String::new()),
        (UNKNOWN_NAME.to_owned() + &steps(300), String::new()),
        (other.to_owned(), String::new()),
    ] {
        let said = of(&log(&[&before, STORE_TIMEOUT, &after, CHILD_FAILED]));
        assert_eq!(id(&said), "store_client_timeout", "{before}");
    }
    // Between two logs without an order, the log with more information wins.
    let of_logs = [log(&[STORE_TIMEOUT, CHILD_FAILED]), log(&[UNKNOWN_NAME, STORE_TIMEOUT])];
    let scan = |(number, log): (usize, &String)| scanned(number, Origin::default(), log.as_bytes());
    let logs: Vec<_> = of_logs.iter().enumerate().map(scan).collect();
    assert_eq!(id(&diagnose(catalogue(), &logs, false)), "gai_error");
}

/// The kernel writes its line late, often after the program has failed.
#[test]
fn hardware_fault_explains_cuda_error_of_its_rank() {
    const FAILED: &str = "Traceback (most recent call last):\n  File \"/work/train.py\", line 9, in <module>\n    loss.backward()\nRuntimeError: CUDA error: unspecified launch failure\n";
    let said = |xid: &str, rank: u32| {
        let of = |rank| Origin { rank: Some(GlobalRank(rank)), ..Origin::default() };
        let kernel = format!("NVRM: Xid (PCI:0000:3b:00): {xid}\n");
        let logs = [scanned(0, of(3), FAILED.as_bytes()), scanned(1, of(rank), kernel.as_bytes())];
        diagnose(catalogue(), &logs, true).cause.expect("a cause")
    };
    let lost = said("79, pid=812, GPU has fallen off the bus.", 3);
    assert_eq!((&*lost.why.id, lost.why.confidence), ("xid_79", Confidence::Certain));
    assert_eq!(lost.frame.map(|frame| frame.line), Some(9));
    // A GPU of another rank, and an error that the program caused on its GPU, explain nothing.
    assert_eq!(said("79, pid=812, GPU has fallen off the bus.", 2).why.id, "cuda_launch_failure");
    assert_eq!(said("13, pid=812, Graphics Exception", 3).why.id, "cuda_launch_failure");
}
