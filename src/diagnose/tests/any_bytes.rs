//! Logs with any bytes and any cuts.

use proptest::prelude::*;

use super::super::lines::{LONGEST, Lines};
use super::super::{LogScan, Origin, catalogue, diagnose, fuzz};

/// Parts of real logs, so that random logs reach the rules behind the first fragment.
const PARTS: &[&str] = &[
    "Traceback (most recent call last):\n",
    "  File \"/work/train.py\", line 3, in <module>\n",
    "    main()\n",
    "During handling of the above exception, another exception occurred:\n",
    "Original Traceback (most recent call last):\n",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
    "ValueError: bad value\n",
    "[rank1]: KeyError: 'x'\n",
    "[rank1]:[E922 03:32:06.116071812 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)\n",
    "[rank3]:[E922 03:32:06.116071812 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)\n",
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n",
    "Root Cause (first observed failure):\n",
    "  rank      : 1 (local_rank: 1)\n",
    "  exitcode  : -9 (pid: 77)\n",
    "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***\n",
    "Training completed\n",
    "step 10 loss 0.5\r",
    "\r\n",
    "\x1b[31m",
    "(Worker pid=12, ip=10.0.0.1) ",
    "[pod/job-worker-1/main] ",
    "Fatal Python error: Segmentation fault\nCurrent thread 0x1 (most recent call first):\n",
    "\u{2502} /work/a.py:7 in f \u{2502}\n",
    r#"{"error": "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\nValueError: x\n"}"#,
    r"Traceback (most recent call last):\\n\\n\",
    "[rank2]: a line [rank1]: OSError: [Errno 28] No space left on device",
    "> ",
    "   ",
    "NCCL WARN Cuda failure 'x'\n",
    "NVRM: Xid (PCI:0000:10:1c): 63, pid=1850, Row Remapper\n",
];

fn log() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        6 => prop::sample::select(PARTS).prop_map(|part| part.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => Just(b"\n".to_vec()),
    ];
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_cuts_between_reads_change_nothing(log in log(), size in any::<u8>()) {
        fuzz::log(&[&[size], log.as_slice()].concat());
    }

    #[test]
    fn lines_have_their_number_and_their_place(log in log(), size in 1usize..50) {
        let mut lines = Lines::new();
        let mut check = |line: super::super::lines::Line<'_>| {
            let at = usize::try_from(line.offset).expect("small");
            assert_eq!(log.get(at..at + line.bytes.len()), Some(line.bytes));
            let before = log[..at].iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(line.number, before as u64 + 1);
        };
        log.chunks(size).for_each(|piece| lines.feed(piece, &mut check));
        lines.finish(&mut check);
    }
}

/// A fuzzer found that the order of the evidence differed each time.
#[test]
fn line_of_several_ranks_is_judged_deterministically() {
    let line =
        (0..8).map(|rank| format!("[rank{rank}]: OSError: [Errno 28] No space left on device "));
    let log: String = line.chain(["\n".to_owned()]).collect();
    for _ in 0..16 {
        let mut scan = LogScan::new(catalogue(), 0, Origin::default());
        scan.feed(log.as_bytes());
        let findings = diagnose(catalogue(), &[scan.finish()], false).findings;
        let ranks: Vec<u32> =
            findings.iter().filter_map(|one| one.rank).map(|rank| rank.0).collect();
        assert_eq!(ranks, [0, 1, 2, 3, 4, 5, 6, 7], "{findings:#?}");
    }
}

#[test]
fn endless_line_is_read_in_equal_pieces() {
    let log = vec![b'x'; LONGEST * 2 + 10];
    for size in [1000, LONGEST - 1, LONGEST, LONGEST + 1, log.len()] {
        let (mut lines, mut sizes) = (Lines::new(), Vec::new());
        let mut note = |line: super::super::lines::Line<'_>| sizes.push(line.bytes.len());
        log.chunks(size).for_each(|piece| lines.feed(piece, &mut note));
        lines.finish(&mut note);
        assert_eq!(sizes, [LONGEST, LONGEST, 10], "cut at {size}");
    }
}

#[test]
fn ranks_and_writers_without_number_keep_bounded_evidence() {
    let mut scan = LogScan::new(catalogue(), 0, Origin::default());
    for rank in 0..6_000 {
        scan.feed(
            format!("[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried\n").as_bytes(),
        );
        scan.feed(format!("(W{rank} pid=1) ValueError: number {rank}\n").as_bytes());
    }
    scan.feed(b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n");
    let diagnosis = diagnose(catalogue(), &[scan.finish()], false);
    // 2048 pieces of evidence, and the line of the launcher.
    assert_eq!(diagnosis.findings.len(), 2049);
    assert_eq!(diagnosis.cause.map(|cause| cause.why.id).as_deref(), Some("cuda_oom"));
}
