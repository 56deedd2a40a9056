//! Explanations of pieces of output and of statements of witnesses.

use super::*;
use verdict::Confidence;

const CLOSED: &str = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:51514\n";

/// Explanation for pieces of (rank, stream, text), each a tenth of a second after the previous one.
fn told(pieces: &[(u32, Stream, &str)], end: Option<KnownEnd>) -> Told {
    told_beside(pieces, &[], end, None)
}

/// The same beside statements of (tenths of a second, rank, line). `stopped`: the tenths after which the stop began.
fn told_beside(
    pieces: &[(u32, Stream, &str)],
    statements: &[(u32, Option<u32>, &str)],
    end: Option<KnownEnd>,
    stopped: Option<u32>,
) -> Told {
    let began = Instant::now();
    let mut search = Search {
        extended: None,
        node: 0,
        began,
        pending: VecDeque::new(),
        scans: BTreeMap::new(),
        logs: Vec::new(),
        survived: Vec::new(),
        progress: Progress::default(),
        rules: None,
        job_progress: None,
    };
    let statements: Vec<Statement> = statements
        .iter()
        .map(|(tenths, rank, line)| Statement {
            place: "NVML event",
            rank: rank.map(GlobalRank),
            arrived: began + Duration::from_millis(100) * *tenths,
            line: (*line).to_owned(),
        })
        .collect();
    for ((rank, stream, text), tenths) in pieces.iter().zip(1..) {
        search.pending.push_back(Piece {
            owner: Owner::Rank(GlobalRank(*rank)),
            stream: *stream,
            skipped: logs::Skipped::default(),
            arrived: began + Duration::from_millis(100) * tenths,
            bytes: text.as_bytes().to_vec(),
        });
    }
    let stated = statements.iter().map(|said| said.arrived).min();
    while search.step(stated) {}
    let stopped = stopped.map(|tenths| began + Duration::from_millis(100) * tenths);
    search.told(end, end.is_some(), &statements, stopped)
}

fn raised(what: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"train.py\", line 41, in <module>\n    main()\n{what}\n"
    )
}

fn root(told: Told) -> Why {
    match told {
        Told::Root(why) => *why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn first_reported_error_is_the_cause() {
    let (memory, file) = (
        raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        raised("ModuleNotFoundError: No module named 'flash_attn'"),
    );
    let why = root(told(&[(3, Stream::Err, &memory), (1, Stream::Err, &file)], None));
    assert_eq!((&*why.id, why.rank, &*why.log), ("cuda_oom", Some(3), "rank-00003.err"));
    let why = root(told(&[(1, Stream::Err, &file), (3, Stream::Err, &memory)], None));
    assert_eq!((&*why.id, why.rank, why.line), ("module_missing", Some(1), 4));
    assert_eq!(why.frame.as_deref(), Some("train.py:41 <module>"));
}

#[test]
fn victim_is_never_named_as_the_cause() {
    let closed = raised(CLOSED.trim());
    assert_eq!(told(&[(0, Stream::Err, &closed)], None), Told::Consequence);
    let culprit = raised("ValueError: the batch is empty");
    let why = root(told(&[(0, Stream::Err, &closed), (2, Stream::Err, &culprit)], None));
    assert_eq!((&*why.id, why.rank), ("user_exception", Some(2)));
    assert_eq!(why.victims.first().map(|victims| &*victims.ranks), Some(&[0][..]));
}

#[test]
fn exception_followed_by_progress_is_no_cause() {
    let caught = raised("ValueError: a bad sample, skipped");
    let progress: String = (0..2000).map(|step| format!("step {step} loss 0.5\n")).collect();
    let pieces = [(0, Stream::Err, &*caught), (0, Stream::Out, &*progress)];
    assert_eq!(told(&pieces, None), Told::Nothing);
    assert_eq!(root(told(&pieces[..1], None)).id, "user_exception");
}

const LOST: &str = "NVRM: Xid (PCI:0000:3b:00): 79, GPU 1";

#[test]
fn xid_is_the_cause_of_later_failures() {
    let raised = raised("RuntimeError: the device does not answer");
    let closed = self::raised(CLOSED.trim());
    let pieces = [(1, Stream::Err, &*raised), (0, Stream::Err, &*closed)];
    // (tenths of a second, certain): an exception that a rank raised before may be the cause as well.
    for (tenths, certain) in
        [(0, Confidence::Certain), (1, Confidence::Likely), (5, Confidence::Likely)]
    {
        let why = root(told_beside(&pieces, &[(tenths, Some(1), LOST)], None, None));
        assert_eq!((&*why.id, why.rank, why.confidence), ("xid_79", Some(1), certain));
        assert_eq!((&*why.log, &*why.evidence), ("NVML event", LOST));
        let victims: Vec<u32> = why.victims.into_iter().flat_map(|of| of.ranks).collect();
        assert_eq!(victims, [0]);
    }
    // A GPU whose rank is not known, beside nothing but consequences.
    let two = [(0, None, "NVRM: Xid (PCI:?): 48"), (0, Some(0), "NVRM: Xid (PCI:0000:18:00): 45")];
    let why = root(told_beside(&pieces[1..], &two, None, None));
    assert_eq!((&*why.id, why.rank, why.confidence), ("xid_48", None, Confidence::Certain));
    let oom = KnownEnd { rank: GlobalRank(1), end: End::Signal(9), oom: true, gone: None };
    assert_eq!(root(told_beside(&[], &[(0, Some(1), LOST)], Some(oom), None)).id, "host_oom");
}

#[test]
fn xid_followed_by_progress_is_no_cause() {
    let raised = raised("ValueError: the batch is empty");
    let step = |number: u32| format!("step {number} loss 0.5\n");
    let steps: Vec<String> = (0..700).map(step).collect();
    let mut pieces: Vec<(u32, Stream, &str)> =
        steps.iter().map(|step| (0, Stream::Out, &**step)).collect();
    pieces.push((1, Stream::Err, &raised));
    // 70 s of progress, a step each tenth.
    for (tenths, id) in [(5, "user_exception"), (200, "xid_79"), (700, "xid_79")] {
        assert_eq!(root(told_beside(&pieces, &[(tenths, Some(1), LOST)], None, None)).id, id);
    }
    let silent = [(1, Stream::Err, &*raised)];
    assert_eq!(root(told_beside(&silent, &[(5, Some(1), LOST)], None, None)).id, "xid_79");
}

#[test]
fn rank_signal_is_the_cause_without_log_evidence() {
    let end = |signal, oom| {
        Some(KnownEnd { rank: GlobalRank(1), end: End::Signal(signal), oom, gone: None })
    };
    let quiet = [(1, Stream::Out, "step 1\n")];
    for (signal, oom, id) in [
        (11, false, "worker_sigsegv"),
        (7, false, "worker_sigbus"),
        (9, false, "worker_sigkill"),
        (9, true, "host_oom"),
    ] {
        let why = root(told(&quiet, end(signal, oom)));
        assert_eq!((&*why.id, why.rank, &*why.log), (id, Some(1), ""), "{signal}");
        assert!(why.confidence >= Confidence::Likely);
    }
    let exit = KnownEnd { rank: GlobalRank(1), end: End::Code(1), oom: false, gone: None };
    assert_eq!(told(&quiet, Some(exit)), Told::Nothing);
}

/// Control: the same words before the stop are a cause.
#[test]
fn messages_of_our_own_stop_are_no_cause() {
    let failed = KnownEnd { rank: GlobalRank(1), end: End::Code(3), oom: false, gone: None };
    for (said, id) in [
        ("Terminated\n", "term_external"),
        ("run.sh: line 4: 4711 Terminated              python train.py\n", "term_external"),
        ("received SIGTERM, saving\n", "term_external"),
        ("run.sh: line 4: 4711 Killed                  python train.py\n", "worker_sigkill"),
        ("Killed\n", "worker_sigkill"),
    ] {
        let pieces = [(0, Stream::Err, "step 1\n"), (0, Stream::Err, said)];
        let heard = |stopped| told_beside(&pieces, &[], Some(failed), stopped);
        assert_eq!(heard(Some(1)), Told::Nothing, "{said}");
        assert_eq!(root(heard(Some(3))).id, id, "{said}");
    }
    // The kernel shows the end of the rank itself, whenever that was read.
    let killed = KnownEnd { end: End::Signal(9), ..failed };
    let quiet = [(1, Stream::Out, "step 1\n")];
    assert_eq!(root(told_beside(&quiet, &[], Some(killed), Some(0))).id, "worker_sigkill");
}
